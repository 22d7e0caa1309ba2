//! Commands for agents that other nodes hold (FWD-1 to FWD-10).
//!
//! Responsible for both sides: at the entry node, [`call`] carries out what [`outstanding`] decides
//! for the targets of one SendCommand; at the owner, [`served`] runs the sessions of other nodes
//! over this node's own fan-out. Must never forward a command that was forwarded, nor change a byte
//! of a command or an answer.

mod answers;
mod call;
mod frames;
mod lane;
mod ledger;
mod log;
mod outstanding;
mod served;
mod serving;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::time::Instant;

use super::fanout::{Fanout, Feed};
use super::local::Local;
use crate::cluster::{Channels, Sharing, Whereabouts};
use crate::config::Routing;
use crate::observe::metrics::Metrics;
use crate::session::{Epoch, Registry};
use call::Call;
use ledger::Ledger;
use outstanding::Found;
pub(super) use outstanding::Place;
pub(crate) use served::Served;

/// What the entry node's calls share.
#[derive(Debug)]
pub(crate) struct Forwarder {
    registry: Arc<Registry>,
    sharing: Arc<Sharing>,
    channels: Arc<Channels>,
    ledger: Arc<Ledger>,
    routing: ArcSwap<Routing>,
    metrics: Arc<Metrics>,
    calls: AtomicU64,
    sessions: AtomicU64,
}

/// One SendCommand, as other nodes are to have it.
#[derive(Clone)]
pub(super) struct Forwarded {
    /// The caller's `CommandRequest`, framed.
    pub(super) frame: Bytes,
    pub(super) command_id: Bytes,
    /// How the caller was admitted (FWD-3).
    pub(super) caller: String,
    /// When its time is over.
    pub(super) deadline: Instant,
}

impl Forwarded {
    /// Milliseconds that are left of the caller's time; `None`: not one.
    fn left_ms(&self, now: Instant) -> Option<u32> {
        let left = self.deadline.saturating_duration_since(now).as_millis();
        (left > 0).then(|| u32::try_from(left).unwrap_or(u32::MAX))
    }
}

impl Forwarder {
    /// Forwards to the agents that `sharing` knows of; with a series for each owner if `per_peer`.
    pub(crate) fn new(
        registry: &Arc<Registry>,
        sharing: Arc<Sharing>,
        channels: Arc<Channels>,
        metrics: &Arc<Metrics>,
        routing: &Routing,
        per_peer: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            registry: Arc::clone(registry),
            sharing,
            channels,
            ledger: Ledger::new(Arc::clone(metrics), per_peer),
            routing: ArcSwap::from_pointee(routing.clone()),
            metrics: Arc::clone(metrics),
            calls: AtomicU64::new(1),
            sessions: AtomicU64::new(1),
        })
    }

    /// Puts other bounds in force, for what comes from now on.
    pub(super) fn retune(&self, routing: &Routing) {
        self.routing.store(Arc::new(routing.clone()));
    }

    /// The other node that holds the agent, unless this node's own session is the newer one
    /// (ADJ-3).
    pub(super) fn elsewhere(&self, agent_id: &str, own: Option<Epoch>) -> Option<Place> {
        let found = self.sharing.elsewhere(agent_id, own)?;
        let Whereabouts { node, epoch, .. } = found;
        Some(Place { node, epoch })
    }

    /// Every agent that another node holds, with its place (ADJ-5).
    pub(super) async fn all_elsewhere(&self) -> Vec<(Arc<str>, Place)> {
        let mut all = Vec::new();
        for shard in 0..Sharing::SHARDS {
            let mut add = |agent_id: &str, Whereabouts { node, epoch, .. }| {
                let own = self.registry.route(agent_id);
                if own.is_none_or(|own| own.epoch < epoch) {
                    all.push((Arc::from(agent_id), Place { node, epoch }));
                }
            };
            self.sharing.each_of(shard, &mut add);
            tokio::task::yield_now().await;
        }
        all
    }

    fn look(&self, agent_id: &str) -> Found {
        let own = self.registry.route(agent_id).map(|session| session.epoch);
        match self.elsewhere(agent_id, own) {
            Some(place) => Found::At(place),
            None if own.is_some() => Found::Here,
            None => Found::Nowhere,
        }
    }

    /// Has the nodes that hold these targets of a fan-out carry the command out.
    pub(super) fn forward(
        self: &Arc<Self>,
        fanout: &Arc<Fanout>,
        local: &Arc<Local>,
        targets: Vec<(u32, Arc<str>, Place)>,
        command: Forwarded,
    ) {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let feed = Feed::new(fanout);
        Call::new(self, local, feed, number, targets, command).start();
    }
}

#[cfg(test)]
mod tests;
