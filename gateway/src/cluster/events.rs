//! Telling that a node came or went (CLUSTER-8).
//!
//! Responsible for the line, for the count, and for ending the link with a node that is gone. Must
//! never decide who is there.

use std::sync::{Arc, PoisonError};

use tracing::info;

use super::Parts;
use super::members::view::Change;
use crate::observe::log::safe_text;

/// Nodes that have a series of their own in `cluster_events_total`.
const MAX_NODE_LABELS: usize = 256;

impl Parts {
    pub(super) fn tell(&self, changes: Vec<Change>) {
        for change in changes {
            let (event, name) = match &change {
                Change::Up(name) => ("node_up", name),
                Change::Down(name, incarnation) => {
                    self.mesh.close(name, *incarnation);
                    ("node_down", name)
                }
            };
            info!(node = %safe_text(&**name), "Cluster: {event}");
            let label = self.node_label(name);
            let family = &self.metrics.cluster_events_total;
            family.with_label_values(&[event, &label]).inc();
        }
    }

    /// Peers choose their names: a bound on how many have a series.
    fn node_label(&self, name: &Arc<str>) -> Arc<str> {
        let mut labelled = self.labelled.lock().unwrap_or_else(PoisonError::into_inner);
        if labelled.len() < MAX_NODE_LABELS {
            labelled.insert(Arc::clone(name));
        }
        match labelled.contains(name) {
            true => Arc::clone(name),
            false => "other".into(),
        }
    }
}
