//! Following who is there.
//!
//! Responsible for handing what the engine believes, which nodes are linked and whether this node has
//! stood still to the view, and what comes of it to whoever has to know. Must never decide who is a
//! member.

use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::Parts;
use super::members::engine;
use crate::observe::log::{limit, limited};
use crate::system::since_epoch;

type LiveNodes = std::collections::BTreeMap<chitchat::ChitchatId, chitchat::NodeState>;

impl Parts {
    /// This node runs, or does so again. Comes before whatever is learned of others.
    pub(super) fn beat(&self) {
        let gap = self.view().beat(Instant::now().into_std(), since_epoch());
        if let Some(gap) = gap {
            limited!(
                warn,
                limit::STOOD_STILL,
                "Cluster: this node stood still for {} ms: the others have {} ms to be heard of again",
                gap.as_millis(),
                self.config.dead_after.as_millis()
            );
        }
    }

    /// Follows what the engine believes. Whether somebody came.
    pub(super) fn look(&self, live: &LiveNodes) -> bool {
        self.beat();
        let own = self.mesh.own();
        let others = live
            .iter()
            .filter_map(|(id, state)| engine::member(id, state))
            .filter(|member| member.name != own.name || member.incarnation != own.incarnation);
        let now = Instant::now().into_std();
        let is_new = self.view().hear(now, others, &self.mesh.linked());
        self.settle();
        is_new
    }

    /// Follows which nodes are linked.
    pub(super) fn settle(&self) {
        self.beat();
        let linked = self.mesh.linked();
        let changes = {
            let mut view = self.view();
            // Rows of a node outlive its link as long as it is heard of.
            self.sharing.keep_only(|name, incarnation| {
                linked.get(name) == Some(&incarnation) || view.hears(name, incarnation)
            });
            view.settle(&linked)
        };
        self.expect();
        self.tell(changes);
        self.name_public();
    }

    /// Shows how many others there ought to be. Seeds may be as few as one, or more than live; an
    /// address of theirs may be a balancer's, so that it is never a member's.
    pub(super) fn expect(&self) {
        let heard = self.view().heard() as i64;
        let metrics = &self.metrics;
        let expected = heard.max(metrics.cluster_peers_resolved.get());
        metrics.cluster_peers_expected.set(expected);
    }

    /// Follows which public nodes there are to be named (VIS-4).
    pub(super) fn name_public(&self) {
        let may_be_named = !self.names.is_private() && !self.draining.load(Ordering::Relaxed);
        let own = may_be_named.then_some(&self.mesh.own().name);
        self.public.follow(own, self.view().members());
    }
}
