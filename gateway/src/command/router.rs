//! From the targets of a SendCommand to the sessions that carry it out, on this node or on others.
//!
//! Responsible for resolving agent ids (CMD-1 to CMD-3, CMD-13, FWD-1) and for refusing work during
//! a planned stop (CMD-16). Must never copy a command per target.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::callers::{CallerLimits, Callers};
use super::entries::NoAnswer;
use super::fanout::{Fanout, FanoutBody};
use super::forward::{Forwarded, Forwarder, Place};
use super::local::{Dispatched, Local};
use super::metrics::MetricsOfCommands;
use super::running::{Running, Stopping, Ticket};
use super::{TURN, drop_in_turns, take_long_turns, take_turns};
use crate::config;
use crate::edge::Prefetch;
use crate::observe::metrics::Metrics;
use crate::session::{Registry, Session};

/// One command, as it goes to every target.
pub(crate) struct Command {
    /// The framed `CommandRequest`, byte for byte as the caller sent it (CMD-5).
    pub(crate) frame: Bytes,
    /// Its id; may be empty (CMD-21).
    pub(crate) id: String,
    /// Its plugin.
    pub(crate) plugin: String,
    /// Seconds, as the caller sent them.
    pub(crate) timeout_seconds: i32,
    /// How the caller was admitted, for other nodes (FWD-3); empty when nobody asked.
    pub(crate) caller: String,
}

/// Routes commands to the sessions of this node, and to other nodes.
#[derive(Debug)]
pub(crate) struct Router {
    registry: Arc<Registry>,
    pub(super) local: Arc<Local>,
    callers: Arc<Callers>,
    /// Absent where nothing is forwarded.
    forwarder: Option<Arc<Forwarder>>,
    running: Arc<Running>,
}

/// The targets of a call.
#[derive(Default)]
struct Targets {
    routes: Vec<Route>,
    /// Those that other nodes hold, by their place here.
    remote: Vec<(u32, Arc<str>, Place)>,
}

/// Where one of them is.
enum Route {
    Here(Arc<Session>),
    Elsewhere,
    Nowhere(Arc<str>),
}

impl Targets {
    fn add_elsewhere(&mut self, name: Arc<str>, place: Place) {
        let index = self.routes.len() as u32;
        self.remote.push((index, name, place));
        self.routes.push(Route::Elsewhere);
    }
}

impl Router {
    pub(crate) fn new(
        registry: Arc<Registry>,
        metrics: Arc<Metrics>,
        config: config::Command,
    ) -> Self {
        let callers = Callers::new(caller_limits(&config));
        Self {
            registry,
            local: Arc::new(Local::new(MetricsOfCommands::new(metrics), config)),
            callers,
            forwarder: None,
            running: Arc::default(),
        }
    }

    /// The same, forwarding to agents that other nodes hold.
    pub(crate) fn forwarding(self, forwarder: Arc<Forwarder>) -> Self {
        Self {
            forwarder: Some(forwarder),
            ..self
        }
    }

    /// Puts another configuration in force, for commands that come from now on.
    pub(crate) fn retune(&self, config: &config::Command, routing: &config::Routing) {
        self.callers.retune(caller_limits(config));
        self.local.retune(config);
        if let Some(forwarder) = &self.forwarder {
            forwarder.retune(routing);
        }
    }

    /// Sends `command` to the listed agents, or to every agent of this node, or of all nodes, when
    /// none is listed (CMD-1, ADJ-5). Each target is sent it at most once.
    ///
    /// # Errors
    /// During a planned stop.
    pub(crate) async fn send(
        &self,
        agent_ids: &[&str],
        command: Command,
    ) -> Result<(FanoutBody, Ticket), Stopping> {
        let ticket = self.begin()?;
        let Targets { routes, remote } = self.resolve(agent_ids).await;
        let id = Bytes::copy_from_slice(command.id.as_bytes());
        let timeout = self.local.timeout(command.timeout_seconds);
        let fanout = self.fan_out(routes.len(), command.id, &command.plugin, timeout);
        // From here on a caller that leaves drops the fan-out, the targets not yet sent included.
        let body = FanoutBody::new(Arc::clone(&fanout));
        let forwarded = remote.len();
        if let Some(forwarder) = &self.forwarder
            && forwarded > 0
        {
            let command = Forwarded {
                frame: command.frame.clone(),
                command_id: id.clone(),
                caller: command.caller,
                deadline: Instant::now() + timeout,
            };
            forwarder.forward(&fanout, &self.local, remote, command);
        }
        let count = routes.len();
        let dispatched = self.dispatch(&fanout, routes, &id, &command.frame).await;
        fanout.dispatched();
        self.observe(count, dispatched, forwarded);
        Ok((body, ticket))
    }

    /// Counts one more call.
    ///
    /// # Errors
    /// During a planned stop.
    pub(super) fn begin(&self) -> Result<Ticket, Stopping> {
        self.running.begin()
    }

    /// A fan-out that ends `timeout` from now at the latest.
    pub(super) fn fan_out(
        &self,
        targets: usize,
        command_id: String,
        plugin: &str,
        timeout: Duration,
    ) -> Arc<Fanout> {
        let metrics = self.local.metrics.of(plugin);
        Fanout::new(targets, command_id, metrics, &self.callers, timeout)
    }

    /// The distinct targets, each with where it is (CMD-1, CMD-13).
    async fn resolve(&self, agent_ids: &[&str]) -> Targets {
        if agent_ids.is_empty() {
            return self.all().await;
        }
        let mut targets = Targets::default();
        let mut seen = HashSet::with_capacity(agent_ids.len());
        for (index, id) in agent_ids.iter().enumerate() {
            take_turns(index).await;
            if !seen.insert(*id) {
                continue;
            }
            let own = self.registry.route(id);
            let epoch = own.as_ref().map(|session| session.epoch);
            let elsewhere = self.forwarder.as_ref();
            let elsewhere = elsewhere.and_then(|forwarder| forwarder.elsewhere(id, epoch));
            match (elsewhere, own) {
                (Some(place), _) => targets.add_elsewhere(Arc::from(*id), place),
                (None, Some(session)) => targets.routes.push(Route::Here(session)),
                (None, None) => targets.routes.push(Route::Nowhere(Arc::from(*id))),
            }
        }
        targets
    }

    /// Whether a command without ids goes to the agents of all nodes (ADJ-5, VIS-7).
    pub(crate) fn broadcasts_to_mesh(&self) -> bool {
        self.forwarder.is_some() && self.local.broadcast() == config::Broadcast::Mesh
    }

    /// Every agent that a command without ids goes to.
    async fn all(&self) -> Targets {
        let forwarder = self.forwarder.as_ref();
        let forwarder = forwarder.filter(|_| self.broadcasts_to_mesh());
        let elsewhere = match forwarder {
            Some(forwarder) => forwarder.all_elsewhere().await,
            None => Vec::new(),
        };
        let (mut targets, mut remote) = (Targets::default(), HashSet::new());
        for (index, (id, place)) in elsewhere.into_iter().enumerate() {
            take_long_turns(index).await;
            remote.insert(Arc::clone(&id));
            targets.add_elsewhere(id, place);
        }
        for shard in 0..Registry::SHARDS {
            for (index, session) in self.registry.all_of(shard).into_iter().enumerate() {
                take_long_turns(index).await;
                if !remote.contains(session.agent_id()) {
                    targets.routes.push(Route::Here(session));
                }
            }
        }
        drop_in_turns(remote).await;
        targets
    }

    /// Sends to the sessions of this node; how many it was.
    async fn dispatch(
        &self,
        fanout: &Arc<Fanout>,
        routes: Vec<Route>,
        id: &Bytes,
        frame: &Bytes,
    ) -> usize {
        let (mut routes, mut sent) = ((0..).zip(routes), 0);
        loop {
            let turn: SmallVec<[_; TURN]> = routes.by_ref().take(TURN).collect();
            let is_last = turn.len() < TURN;
            sent += self.dispatch_turn(fanout, turn, id, frame);
            if is_last {
                break;
            }
            tokio::task::yield_now().await;
        }
        if sent > 0 {
            fanout.metrics().dispatched().inc_by(sent as u64);
        }
        sent
    }

    /// Sends to some of them.
    fn dispatch_turn(
        &self,
        fanout: &Arc<Fanout>,
        turn: SmallVec<[(u32, Route); TURN]>,
        id: &Bytes,
        frame: &Bytes,
    ) -> usize {
        let here = |(target, route): &(u32, Route)| match route {
            Route::Here(session) => {
                session.prefetch();
                Some(*target)
            }
            Route::Elsewhere | Route::Nowhere(_) => None,
        };
        fanout.expect(turn.iter().filter_map(here));
        let (mut sent, mut round) = (0, self.local.round(fanout, id, frame));
        for (target, route) in turn {
            match route {
                Route::Elsewhere => {}
                Route::Nowhere(id) => fanout.refuse(target, &id, NoAnswer::NotConnected),
                Route::Here(session) => match round.dispatch(target, &session) {
                    Dispatched::Yes => sent += 1,
                    Dispatched::Full => {}
                    Dispatched::Ended => {
                        fanout.refuse(target, session.agent_id(), NoAnswer::NotConnected);
                    }
                },
            }
        }
        sent
    }

    /// Notes of a call how many targets it had, how many were sent the command here, and how many
    /// other nodes hold.
    pub(super) fn observe(&self, targets: usize, dispatched: usize, forwarded: usize) {
        let metrics = self.local.metrics.all();
        let observe = |family: &prometheus::Histogram, count: usize| family.observe(count as f64);
        observe(&metrics.fanout_target_count, targets);
        observe(&metrics.fanout_dispatched_count, dispatched);
        let skipped = targets - dispatched - forwarded;
        observe(&metrics.fanout_skipped_count, skipped);
        observe(&metrics.fanout_remote_dispatched_count, forwarded);
    }

    /// From now on every command is refused (CMD-16, STOP-3).
    pub(crate) fn stop(&self) {
        self.running.stop();
    }

    /// Waits until no fan-out is in progress. False: some were at `deadline`.
    pub(crate) async fn finished(&self, deadline: Instant) -> bool {
        self.running.finished(deadline).await
    }
}

fn caller_limits(config: &config::Command) -> CallerLimits {
    CallerLimits {
        buffer_bytes: config.caller_buffer_bytes,
        slow_timeout: config.slow_caller_timeout,
    }
}

#[cfg(test)]
mod tests;
