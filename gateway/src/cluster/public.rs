//! The public nodes that agents of private ones may be named by (VIS-4, VIS-6).
//!
//! Responsible for publishing who they are and for telling when there are none. Must never choose
//! one: that is [`crate::gateways`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::members::view::Member;
use crate::gateways::PublicNodes;
use crate::observe::log::{limit, limited};
use crate::observe::metrics::Metrics;

/// Where agents of this node may go: the nodes that live and stay, and that its agents reach, which
/// are public ones, and private ones if this one is private too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Elsewhere {
    /// How many there are.
    pub(crate) nodes: usize,
    /// Agents of all of them, as of a second ago.
    pub(crate) sessions: u64,
    /// Whether they and this node are public, so that each is to have its share.
    pub(crate) shares: bool,
}

impl Elsewhere {
    /// Of a node that is private, or not. A member has the agents that its link tells of, or, while
    /// it has not told of all yet, those that its label does.
    pub(super) fn of<'a>(
        is_private: bool,
        members: impl Iterator<Item = &'a Member>,
        census: &HashMap<Arc<str>, usize>,
    ) -> Self {
        let start = Self {
            shares: !is_private,
            ..Self::default()
        };
        let reached = |member: &&Member| is_private || !member.labels.is_private;
        let staying = members.filter(|member| !member.labels.draining);
        staying.filter(reached).fold(start, |all, member| {
            let told = census.get(&member.name).map_or(0, |rows| *rows as u64);
            let sessions = told.max(member.labels.sessions);
            Self {
                nodes: all.nodes + 1,
                sessions: all.sessions.saturating_add(sessions),
                ..all
            }
        })
    }
}

/// Who is alive, public, and not stopping.
pub(super) struct Public {
    nodes: watch::Sender<PublicNodes>,
    /// Nobody need have been heard of before then.
    young_until: Instant,
    /// This node's own agents need one.
    is_private: bool,
    metrics: Arc<Metrics>,
}

impl Public {
    /// Of a node that starts now, and may take `patience` to hear of others.
    pub(super) fn new(is_private: bool, patience: Duration, metrics: &Arc<Metrics>) -> Self {
        Self {
            nodes: watch::Sender::default(),
            young_until: Instant::now() + patience,
            is_private,
            metrics: Arc::clone(metrics),
        }
    }

    /// Who they are, as they come and go.
    pub(super) fn subscribe(&self) -> watch::Receiver<PublicNodes> {
        self.nodes.subscribe()
    }

    /// Takes who is there now. `own` is this node's name, if it may be named itself.
    pub(super) fn follow<'a>(
        &self,
        own: Option<&Arc<str>>,
        members: impl Iterator<Item = &'a Member>,
    ) {
        let mut members = members.peekable();
        // The last node of all concerns nobody when it stops, unless it is private.
        let concerns = self.is_private || members.peek().is_some();
        let public = members
            .filter(|member| !member.labels.is_private && !member.labels.draining)
            .map(|member| &member.name);
        let nodes = PublicNodes::new(own.into_iter().chain(public).map(Arc::clone));
        let none = nodes.is_empty();
        self.metrics.cluster_no_live_public_node.set(none.into());
        if none && concerns && Instant::now() >= self.young_until {
            limited!(
                warn,
                limit::NO_PUBLIC_NODE,
                "Cluster: no public node is alive: the server is told of the agents of private ones \
                 under their own names, where it may not reach them. Start a public node, or look \
                 why it has no link with the others"
            );
        }
        self.nodes.send_if_modified(|present| {
            let changed = *present != nodes;
            *present = nodes;
            changed
        });
    }
}

#[cfg(test)]
mod tests;
