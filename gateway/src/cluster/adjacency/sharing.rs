//! Telling all peers which agents are here, and knowing which are there.
//!
//! Responsible for one stream over each link, opened again when it ends, for rows of nodes that are
//! gone, and for the figures of it all. Must never be asked before a peer has proven the secret.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::Request;
use hyper::body::Incoming;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tracing::debug;
use yuzu_proto::node::v1::AgentDescription;
use yuzu_proto::path;

use super::digest::SHARDS;
use super::exchange::exchange;
use super::inbox::{Rejected, Taken};
use super::own::OwnAgents;
use super::page::Page;
use super::questions::Question;
use super::seats::Seats;
use super::shard::Seen;
use super::table::{Adjacency, Departed, NotHeard, Telling, Whereabouts};
use super::wire::{Frames, pipe};
use crate::cluster::link::handshake::Identity;
use crate::cluster::link::{Calls, Carrier, Failure, LinkUser, keep_open};
use crate::edge::connection::Connection;
use crate::edge::{Response, grpc};
use crate::observe::log::{limit, limited, safe_text};
use crate::observe::metrics::Metrics;
use crate::session::{Change, Epoch, Event, Events, Follower, Registry, unix_ms};

/// How often the figures are brought up to date.
const GAUGE_INTERVAL: Duration = Duration::from_secs(1);
/// A peer that is asked about an agent has this long.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// The value of the label `node` for all nodes together.
const ALL_NODES: &str = "all";

/// What all streams of a node share.
#[derive(Debug)]
pub(crate) struct Sharing {
    pub(super) own: Arc<OwnAgents>,
    pub(super) registry: Arc<Registry>,
    table: Arc<Adjacency>,
    events: Arc<Events>,
    metrics: Arc<Metrics>,
    /// Agents of each peer, as of a second ago.
    census: ArcSwap<HashMap<Arc<str>, usize>>,
    /// Whether each peer has a series (`observe.metrics_per_peer`).
    per_peer: bool,
    pub(super) seats: Seats,
}

impl Sharing {
    /// Follows `registry` from now on; before its first session.
    pub(crate) fn new(
        registry: &Arc<Registry>,
        events: &Arc<Events>,
        metrics: &Arc<Metrics>,
        per_peer: bool,
    ) -> Arc<Self> {
        let own = Arc::new(OwnAgents::new());
        registry.followed_by(Arc::clone(&own) as Arc<dyn Follower>);
        Arc::new(Self {
            own,
            registry: Arc::clone(registry),
            table: Adjacency::new(),
            events: Arc::clone(events),
            metrics: Arc::clone(metrics),
            census: ArcSwap::default(),
            per_peer,
            seats: Seats::default(),
        })
    }

    /// How many agents each peer has told of, as of a second ago.
    pub(crate) fn census(&self) -> Arc<HashMap<Arc<str>, usize>> {
        self.census.load_full()
    }

    /// Every node that `lives` does not name by its name and incarnation is gone, and its agents
    /// with it (MESH-5).
    pub(crate) fn keep_only(self: &Arc<Self>, lives: impl Fn(&str, u64) -> bool) {
        self.take_out(self.table.keep_only(lives));
    }

    /// Takes the rows of nodes that are gone out, in turns with other work.
    fn take_out(self: &Arc<Self>, departed: Vec<Departed>) {
        for mut departed in departed {
            let sharing = Arc::clone(self);
            tokio::spawn(async move {
                while departed.clear_next(&mut |change| sharing.publish(change)) {
                    tokio::task::yield_now().await;
                }
            });
        }
    }

    /// Tells watchers what happened to an agent of a peer (ADJ-5, MGMT-4).
    pub(super) fn publish(&self, change: Seen<'_>) {
        let (agent_id, change) = match change {
            Seen::Came(row) => (row.agent_id, Change::Connected(row.session_id.into())),
            Seen::Went(agent_id) => (agent_id, Change::Disconnected),
        };
        self.events.publish(Event {
            agent_id: agent_id.into(),
            at_ms: unix_ms(),
            change,
        });
    }

    pub(super) fn count(&self, taken: &Taken) {
        let again = taken.wanted.len() as u64;
        self.metrics.adjacency_resync_total.inc_by(again);
        if taken.full {
            self.metrics.adjacency_full_total.inc();
            limited!(
                warn,
                limit::ADJACENCY_FULL,
                "Cluster: peers hold more agents than this node keeps in mind; commands do not \
                 reach some of them from here"
            );
        }
    }

    /// Shards of agents.
    pub(crate) const SHARDS: usize = SHARDS;

    /// The node that holds the agent's newest session, if that is newer than `own` (ADJ-3).
    pub(crate) fn elsewhere(&self, agent_id: &str, own: Option<Epoch>) -> Option<Whereabouts> {
        let found = self.table.find(agent_id)?;
        own.is_none_or(|own| own < found.epoch).then_some(found)
    }

    /// Every agent of one shard with the node that holds its newest session among the others.
    pub(crate) fn each_of(&self, shard: usize, each: &mut dyn FnMut(&str, Whereabouts)) {
        self.table.each_of(shard, each);
    }

    /// The first `most` agents behind `after` that other nodes hold, in the order of their ids, each
    /// with its newest session there (MGMT-1). Looks at every row, in turns with other work.
    pub(crate) async fn list(&self, after: &str, most: usize) -> Page {
        let mut page = Page::new(after, most);
        for shard in 0..SHARDS {
            self.table.list(shard, &mut page);
            tokio::task::yield_now().await;
        }
        page
    }

    /// What the agent is like, as the peer says that holds it now; `None`: none does, or it does not
    /// say so in time (CLUSTER-5).
    pub(crate) async fn describe(&self, agent_id: &str) -> Option<AgentDescription> {
        let found = self.table.find(agent_id)?;
        let deadline = Instant::now() + ANSWER_TIME;
        for questions in self.seats.of(&found.node) {
            let (answer, answered) = oneshot::channel();
            let question = Question {
                agent_id: agent_id.to_owned(),
                answer,
            };
            // One that is full or ends has no answer.
            if questions.try_send(question).is_ok()
                && let Ok(Ok(description)) = timeout_at(deadline, answered).await
            {
                return description.connected.then_some(description);
            }
        }
        None
    }

    /// Keeps the figures up to date.
    pub(crate) async fn measure(self: Arc<Self>) {
        let mut shown: HashSet<Arc<str>> = HashSet::new();
        let mut ticks = tokio::time::interval(GAUGE_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let census = self.table.census();
            let agents = &self.metrics.adjacency_agents;
            let all: usize = census.iter().map(|(_, rows)| rows).sum();
            agents.with_label_values(&[ALL_NODES]).set(all as i64);
            let present = census.iter().cloned().collect();
            self.census.store(Arc::new(present));
            if self.per_peer {
                for gone in shown.extract_if(|name| !census.iter().any(|(here, _)| here == name)) {
                    // An error would say that there is none.
                    let _ = agents.remove_label_values(&[&gone]);
                }
                for (name, rows) in census {
                    agents.with_label_values(&[&name]).set(rows as i64);
                    shown.insert(name);
                }
            }
            self.metrics
                .adjacency_lag_ms
                .set(self.lag().as_millis() as i64);
        }
    }

    /// The age of the oldest change that a peer has not confirmed.
    fn lag(&self) -> Duration {
        let slowest = self.seats.confirmed_by_all();
        let age = |last| self.own.journal().age_after(last, Instant::now());
        slowest.map(age).unwrap_or_default()
    }

    fn listen(self: &Arc<Self>, peer: &Identity) -> Result<Telling, NotHeard> {
        let (telling, departed) = self.table.listen(&peer.name, peer.incarnation)?;
        self.take_out(departed.into_iter().collect());
        Ok(telling)
    }

    /// Runs a stream to its end.
    async fn run(&self, telling: Telling, frames: Frames, sending: mpsc::Sender<Bytes>) {
        let node = telling.node();
        match exchange(self, telling, frames, sending).await {
            Ok(()) | Err(Rejected::Superseded) => debug!(
                node = %safe_text(&*node),
                "a stream of agents ended"
            ),
            Err(Rejected::Malformed) => limited!(
                warn,
                limit::ADJACENCY_MALFORMED,
                "Cluster: {} tells of its agents what this node does not understand; it is asked \
                 again",
                safe_text(&*node)
            ),
        }
    }

    /// Opens a stream to a peer and runs it to its end.
    async fn open(self: &Arc<Self>, peer: &Identity, mut calls: Calls) -> Result<(), Failure> {
        let telling = self.listen(peer).map_err(|refused| {
            debug!(%refused, "a peer's agents are not listened to");
            Failure::Refused
        })?;
        let (sending, body) = pipe(calls.carrier().ok_or(Failure::Refused)?);
        let body = tonic::body::Body::new(body);
        let body = calls.stream(path::NODE_SHARE_AGENTS, body).await?;
        self.run(telling, Frames::of(body), sending).await;
        Ok(())
    }
}

impl LinkUser for Sharing {
    fn dialled(
        self: Arc<Self>,
        peer: Identity,
        calls: Calls,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            keep_open(&peer, "agents", || self.open(&peer, calls.clone())).await;
        })
    }

    fn called(
        self: Arc<Self>,
        peer: &Identity,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
    ) -> Option<Response> {
        if request.uri().path() != path::NODE_SHARE_AGENTS {
            return None;
        }
        let telling = match self.listen(peer) {
            Ok(telling) => telling,
            Err(refused) => {
                let status = Status::failed_precondition(refused.to_string());
                return Some(grpc::refuse(status));
            }
        };
        let (sending, body) = pipe(Carrier::Answer(Arc::clone(connection)));
        let frames = Frames::of(request.into_body());
        tokio::spawn(async move { self.run(telling, frames, sending).await });
        Some(grpc::stream(body))
    }
}
