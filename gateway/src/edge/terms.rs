//! What a listener takes connections under, replaced as a whole by a reload.
//!
//! Responsible for the ceilings and for what each connection is told when it begins. A connection
//! keeps the terms that it began under; only whom a listener believes about the origin of a call is
//! asked anew for each call. Must never touch a connection.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::server::conn::http2;

use super::charge::NodeMemory;
use super::connection::{Connection, ConnectionLimits};
use super::cooldown::Cooldowns;
use super::flood::FloodLimits;
use super::origin::OriginRule;
use super::places::Places;
use super::sources::Sources;
use super::tasks::{StreamExecutor, Tasks};
use crate::config;
use crate::observe::metrics::Metrics;
use crate::supervise::NodeSupervisor;
use crate::tuning::Ceiling;

const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

const PROXY_HEADER_FAILURES: [&str; 3] = ["timeout", "malformed", "closed"];

/// What the listeners of a node share.
#[derive(Debug)]
pub(crate) struct NodeParts {
    /// Room for unfinished requests (LSN-16).
    pub(crate) memory: Arc<NodeMemory>,
    pub(crate) metrics: Arc<Metrics>,
    /// Where the restarts of the accept loops count (GEN-3).
    pub(crate) supervisor: NodeSupervisor,
}

/// What a connection is accepted under.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) limits: Arc<ConnectionLimits>,
    pub(super) origin: OriginRule,
    pub(super) proxy_header_timeout: Duration,
    pub(super) handshake_timeout: Duration,
    pub(super) http2: Http2Terms,
    pub(super) places: Places,
}

/// Who may come in, and on which terms.
#[derive(Debug)]
pub(super) struct Intake {
    /// Open connections (LSN-2).
    pub(super) slots: Arc<Ceiling>,
    pub(super) sources: Arc<Sources>,
    cooldowns: Mutex<Cooldowns>,
    terms: ArcSwap<Terms>,
    memory: Arc<NodeMemory>,
    metrics: Arc<Metrics>,
}

impl Intake {
    pub(super) fn new(config: &config::Listener, node: &NodeParts) -> Self {
        let (memory, metrics) = (&node.memory, &node.metrics);
        let intake = Self {
            slots: Ceiling::new(config.limits.max_connections),
            sources: Sources::new(config.limits.max_connections_per_source),
            cooldowns: Mutex::default(),
            terms: ArcSwap::from_pointee(Terms::of(config, memory, metrics)),
            memory: Arc::clone(memory),
            metrics: Arc::clone(metrics),
        };
        intake.show(config);
        intake
    }

    /// Puts other limits and another origin in force, for connections that come from now on.
    pub(super) fn retune(&self, config: &config::Listener) {
        self.slots.resize(config.limits.max_connections);
        self.sources.limit(config.limits.max_connections_per_source);
        let terms = Terms::of(config, &self.memory, &self.metrics);
        self.terms.store(Arc::new(terms));
        self.show(config);
    }

    /// Who has just flooded.
    pub(super) fn cooldowns(&self) -> MutexGuard<'_, Cooldowns> {
        self.cooldowns
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The terms of a connection that comes now.
    pub(super) fn terms(&self) -> Arc<Terms> {
        self.terms.load_full()
    }

    /// Decides where a call of a connection that began under `terms` comes from, see
    /// [`OriginRule::successor`].
    pub(super) fn with_origin(&self, terms: &Terms, decide: impl FnOnce(&OriginRule)) {
        if terms.origin.is_claimed() {
            decide(terms.origin.successor(&self.terms.load().origin));
        }
    }

    fn show(&self, config: &config::Listener) {
        let (metrics, name) = (&self.metrics, &*config.name);
        metrics
            .listener_connections_max
            .with_label_values(&[name])
            .set(i64::try_from(config.limits.max_connections).unwrap_or(i64::MAX));
        metrics.listener_accepted_total.with_label_values(&[name]);
        let refused = &metrics.listener_source_refused_total;
        refused.with_label_values(&[name]);
        let delayed = &metrics.listener_source_delayed_total;
        delayed.with_label_values(&[name]);
        if self.terms.load().origin.expects_proxy_header() {
            let family = &metrics.listener_proxy_header_failures_total;
            for kind in PROXY_HEADER_FAILURES {
                family.with_label_values(&[name, kind]);
            }
        }
    }
}

impl Terms {
    /// The tasks of a connection, when its own task is to run them.
    pub(super) fn tasks(&self, connection: &Arc<Connection>) -> Option<Tasks> {
        self.http2.one_task.then(|| Tasks::of(connection))
    }

    fn of(config: &config::Listener, memory: &Arc<NodeMemory>, metrics: &Arc<Metrics>) -> Self {
        let config::Limits {
            max_connections,
            max_connections_per_source: _,
            reserved_connections,
            unregistered_timeout,
            proxy_header_timeout,
            handshake_timeout,
            request_timeout,
            max_message_bytes,
            max_connection_memory_bytes,
            max_header_list_bytes: _,
        } = config.limits;
        let idle_timeout = config.http2.idle_timeout;
        // To a listener of agents everybody is a stranger.
        let reserved = match config.serves(config::Service::Agent) {
            true => 0,
            false => reserved_connections,
        };
        Self {
            limits: Arc::new(ConnectionLimits {
                preface_timeout: PREFACE_TIMEOUT.min(idle_timeout),
                idle_timeout,
                unregistered_timeout,
                answer_patience: request_timeout,
                request_timeout,
                max_message_bytes,
                max_memory_bytes: max_connection_memory_bytes,
                serves_agents: config.serves(config::Service::Agent),
                node_memory: Arc::clone(memory),
            }),
            origin: OriginRule::new(config.origin.clone(), Arc::clone(metrics)),
            proxy_header_timeout,
            handshake_timeout,
            http2: Http2Terms::of(config),
            places: Places::new(max_connections, reserved),
        }
    }
}

/// How HTTP/2 is spoken with a peer.
#[derive(Debug)]
pub(super) struct Http2Terms {
    /// Servers and other gateways relay for many.
    relays: bool,
    /// A peer that speaks for itself alone has one task; each call of another, as of a router that
    /// may pool the connections of many agents, is a task of its own, which any core may run.
    one_task: bool,
    max_concurrent_streams: u32,
    max_header_list_bytes: u32,
}

impl Http2Terms {
    fn of(config: &config::Listener) -> Self {
        let relays =
            config.serves(config::Service::Management) || config.serves(config::Service::Node);
        Self {
            relays,
            one_task: !relays && config.origin.mode != config::OriginMode::ForwardedFor,
            max_concurrent_streams: config.http2.max_concurrent_streams,
            max_header_list_bytes: config.limits.max_header_list_bytes,
        }
    }

    /// What makes a connection of it, with its streams run by `executor`.
    pub(super) fn builder(&self, executor: StreamExecutor) -> http2::Builder<StreamExecutor> {
        // A paused stream holds at most its window. h2 ends a connection whose unread small DATA
        // frames lack more bytes to 256 each than half of the connection's window: at 128 to 1 a
        // paused agent may fill its window with frames of 16 bytes, which no answer is shorter than.
        let (stream, connection) = if self.relays {
            (1 << 20, 4 << 20)
        } else {
            (64 << 10, 8 << 20)
        };
        let mut builder = http2::Builder::new(executor);
        builder
            .max_concurrent_streams(self.max_concurrent_streams)
            .max_header_list_size(self.max_header_list_bytes)
            .initial_stream_window_size(stream)
            .initial_connection_window_size(connection)
            // A caller may cancel many calls at once; the rate of cancelled streams has its own
            // limit.
            .max_pending_accept_reset_streams(FloodLimits::DEFAULT.resets as usize)
            .auto_date_header(false);
        builder
    }
}
