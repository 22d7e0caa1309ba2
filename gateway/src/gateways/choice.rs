//! Rendezvous hashing (VIS-4): each node scores every public gateway for an agent, and the highest
//! score wins. When one comes or goes, only the agents that it wins or had change.
//!
//! Responsible for the choice. Pure. Must never change: nodes of different versions compare what
//! they choose.

use std::sync::Arc;

use super::hash::Fnv1a;

/// The public gateways that may be named, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PublicNodes(Arc<[Arc<str>]>);

impl PublicNodes {
    /// The gateways of these names, in any order.
    pub(crate) fn new(names: impl IntoIterator<Item = Arc<str>>) -> Self {
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_unstable();
        names.dedup();
        Self(names.into())
    }

    /// Nobody may be named.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The gateway of an agent; of two with one score the one whose name comes first. `None`: there
    /// is none at all.
    pub(crate) fn of(&self, agent_id: &str) -> Option<&Arc<str>> {
        let agent = Fnv1a::new().with(agent_id.as_bytes()).with(&[0]);
        let score = |name: &str| agent.with(name.as_bytes()).finish();
        let mut best: Option<(u64, &Arc<str>)> = None;
        for name in self.0.iter() {
            let score = score(name);
            if best.is_none_or(|(highest, _)| score > highest) {
                best = Some((score, name));
            }
        }
        best.map(|(_, name)| name)
    }
}

#[cfg(test)]
mod tests;
