//! The name that stands for this node wherever the server or an operator is told of an agent.
//!
//! Responsible for giving a public node's own name at once, and a private node's by the set that is
//! in force. Must never wait, but where a private node has just started.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::timeout;

use super::choice::PublicNodes;

/// Bytes of a name at most.
pub(crate) const MAX_NAME: usize = 255;

/// Whose name agents are told under; clones share one.
#[derive(Debug, Clone)]
pub struct Names {
    own: Arc<str>,
    /// Of a private node.
    chosen: Option<Arc<Chosen>>,
}

#[derive(Debug)]
struct Chosen {
    in_force: ArcSwap<PublicNodes>,
    /// Whether the first set has been put in force, or is waited for no longer.
    known: watch::Sender<bool>,
    /// How long the first set is waited for.
    patience: Duration,
}

impl From<&str> for Names {
    fn from(own: &str) -> Self {
        Self::public(own)
    }
}

impl Names {
    /// Of a public node: its own name, whoever the agent is.
    pub fn public(own: &str) -> Self {
        Self {
            own: own.into(),
            chosen: None,
        }
    }

    /// Of a private node, which has heard of nobody yet and waits no longer than `patience` to.
    pub fn private(own: &str, patience: Duration) -> Self {
        let chosen = Chosen {
            in_force: ArcSwap::default(),
            known: watch::Sender::new(false),
            patience,
        };
        Self {
            own: own.into(),
            chosen: Some(Arc::new(chosen)),
        }
    }

    /// Whether this node is named by others' names.
    pub(crate) fn is_private(&self) -> bool {
        self.chosen.is_some()
    }

    /// The `gateway_node` of an agent; the own name where there is no other (VIS-6).
    pub(crate) fn of(&self, agent_id: &str) -> Arc<str> {
        let Some(chosen) = &self.chosen else {
            return Arc::clone(&self.own);
        };
        let nodes = chosen.in_force.load();
        Arc::clone(nodes.of(agent_id).unwrap_or(&self.own))
    }

    /// The `gateway_node` of what tells of many agents at once: of a private node the gateway of an
    /// agent that has the node's own name for its id.
    pub(crate) fn of_node(&self) -> Arc<str> {
        self.of(&self.own)
    }

    /// Puts a set in force. Whom it concerns has to be told of again: see [`super::Renaming`].
    pub(crate) fn put_in_force(&self, nodes: PublicNodes) {
        if let Some(chosen) = &self.chosen {
            let first = !nodes.is_empty();
            chosen.in_force.store(Arc::new(nodes));
            if first {
                chosen.known.send_replace(true);
            }
        }
    }

    /// Waits until names can be given: at once, unless this is a private node that has just started
    /// and may hear of a public one any moment.
    pub(crate) async fn known(&self) {
        if let Some(chosen) = &self.chosen {
            let mut known = chosen.known.subscribe();
            // An error is the end of the wait.
            let _ = timeout(chosen.patience, known.wait_for(|known| *known)).await;
            chosen.known.send_replace(true);
        }
    }

    /// Ends the wait of [`Self::known`]: the node stops.
    pub(crate) fn wait_no_longer(&self) {
        if let Some(chosen) = &self.chosen {
            chosen.known.send_replace(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn nodes(names: &[&str]) -> PublicNodes {
        PublicNodes::new(names.iter().map(|name| Arc::from(*name)))
    }

    #[tokio::test]
    async fn vis_3_a_public_node_has_its_own_name_at_once() {
        let names = Names::public("gw-a");
        assert!(names.known().now_or_never().is_some());
        // What would be a set is of no account.
        names.put_in_force(nodes(&["gw-b"]));
        assert_eq!((&*names.of("agent-1"), &*names.of_node()), ("gw-a", "gw-a"));
    }

    #[tokio::test]
    async fn vis_3_a_private_node_has_the_name_of_the_gateway_that_is_chosen() {
        let names = Names::private("gw-p", PATIENCE);
        names.put_in_force(nodes(&["gw-a", "gw-b", "gw-c"]));
        assert!(names.known().now_or_never().is_some());
        assert_eq!(&*names.of("agent-1"), "gw-a");
        assert_eq!(&*names.of("agent-7"), "gw-b");
        assert_eq!(&*names.of("agent-8"), "gw-c");
        assert_ne!(&*names.of_node(), "gw-p");
        names.put_in_force(nodes(&[]));
        assert_eq!(&*names.of("agent-1"), "gw-p", "VIS-6");
    }

    #[tokio::test(start_paused = true)]
    async fn vis_3_a_private_node_waits_a_while_for_a_name_to_give() {
        let names = Names::private("gw-p", PATIENCE);
        let start = Instant::now();
        names.put_in_force(nodes(&[]));
        names.known().await;
        assert_eq!(start.elapsed(), PATIENCE);
        assert!(names.known().now_or_never().is_some(), "once");
        let names = Names::private("gw-p", PATIENCE);
        names.wait_no_longer();
        assert!(names.known().now_or_never().is_some(), "not while it stops");
    }
}
