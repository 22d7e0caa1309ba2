//! A node without listeners for tests: a real registry against a scripted server.

use futures_util::FutureExt;
use prost::Message;
use tokio::time::timeout;
use yuzu_proto::SESSION_HEADER;
use yuzu_proto::agent::v1::RegisterResponse;
use yuzu_proto::gateway::v1::BatchHeartbeatResponse;

use super::*;
use crate::edge::ConnectionKey;
use crate::session::testing::{connect, registry};
use crate::session::{Control, Session};
use crate::upstream::tests::server::{Received, Reply, Server};
use crate::upstream::tests::{LONG, accepted, metric, metrics, until, upstream};

pub(super) const REGISTER: &str = "/yuzu.gateway.v1.GatewayUpstream/ProxyRegister";

/// A node without listeners.
pub(super) struct Node {
    pub(super) replayer: Replayer,
    pub(super) upstream: Upstream,
    pub(super) registry: Arc<Registry>,
    pub(super) metrics: Arc<Metrics>,
}

impl Node {
    /// With a breaker that opens at the first failure, for a moment, and no pause of a drip.
    pub(super) fn new(server: &Server, change: impl FnOnce(&mut config::Config)) -> Self {
        let mut config = config::Config::default();
        config.replay.start_jitter = Duration::ZERO;
        config.upstream.breaker.failure_threshold = 1;
        config.upstream.breaker.reset_timeout = Duration::from_millis(100);
        change(&mut config);
        let metrics = metrics();
        let upstream = upstream(server.address, &metrics, |c| {
            let endpoints = std::mem::take(&mut c.endpoints);
            *c = config.upstream.clone();
            c.endpoints = endpoints;
        });
        let registry = Arc::new(registry());
        let notifier = Notifier::start(
            upstream.clone(),
            &config.node,
            &config.notify,
            Arc::clone(&metrics),
            |_| true,
        );
        let replayer = Replayer::start(
            &config,
            Arc::clone(&registry),
            upstream.clone(),
            notifier,
            Arc::clone(&metrics),
        );
        Self {
            replayer,
            upstream,
            registry,
            metrics,
        }
    }

    /// An agent with the session `s-<agent>`.
    pub(super) fn agent(&self, agent: &str) -> Arc<Session> {
        self.agent_with(agent, &format!("s-{agent}"))
    }

    pub(super) fn agent_with(&self, agent: &str, session: &str) -> Arc<Session> {
        connect(&self.registry, agent, session, ConnectionKey::next())
    }

    /// A verdict over one of so many heartbeats that it is no evidence of a lost state.
    pub(super) fn name(&self, sessions: &[&str]) {
        self.replayer.verdict(&answer(sessions, false), 1_000);
    }

    pub(super) async fn becomes(&self, series: &str, value: f64) {
        until(series, || metric(&self.metrics, series) == Some(value)).await;
    }

    pub(super) fn value(&self, series: &str) -> f64 {
        metric(&self.metrics, series).unwrap()
    }

    pub(super) fn triggered(&self, trigger: &str) -> f64 {
        self.value(&format!(
            "registration_replay_triggered_total{{trigger=\"{trigger}\"}}"
        ))
    }

    /// The driver has done all there is to do now.
    pub(super) async fn quiet(&self) {
        let shared = &self.replayer.shared;
        until("an empty queue", || {
            let queue = shared.lock();
            queue.depth() == 0 && queue.in_flight() == 0 && self.replayer.backlog() == 0
        })
        .await;
    }
}

impl Replayer {
    pub(super) fn backlog(&self) -> usize {
        self.verdicts.max_capacity() - self.verdicts.capacity()
    }
}

pub(super) const ATTEMPTS: &str = "registration_replay_total";
pub(super) const DEPTH: &str = "registration_replay_queue_depth{node=\"gw1\"}";

pub(super) fn dropped(reason: &str) -> String {
    format!("heartbeat_verdict_dropped_total{{reason=\"{reason}\"}}")
}

pub(super) fn answer(sessions: &[&str], truncated: bool) -> Bytes {
    let answer = BatchHeartbeatResponse {
        unknown_session_ids: sessions.iter().map(|id| (*id).to_owned()).collect(),
        unknown_session_ids_truncated: truncated,
        ..Default::default()
    };
    answer.encode_to_vec().into()
}

pub(super) fn refused() -> Reply {
    let answer = RegisterResponse {
        reject_reason: "not\nyet".into(),
        ..Default::default()
    };
    Reply::Message(answer.encode_to_vec().into())
}

pub(super) fn accept() -> Reply {
    Reply::Message(accepted())
}

pub(super) async fn next(server: &mut Server) -> Received {
    let call = timeout(LONG, server.calls.recv()).await;
    call.expect("a call").expect("a server")
}

/// The session that the next replay presents.
pub(super) async fn replayed(server: &mut Server) -> String {
    let call = next(server).await;
    assert_eq!(call.path, REGISTER);
    call.headers[SESSION_HEADER].to_str().unwrap().to_owned()
}

pub(super) fn asked(session: &Session) -> Option<Control> {
    session.asked().now_or_never()
}

pub(super) fn announces(session: &Session) -> bool {
    session.asked_to_announce().now_or_never().is_some()
}
