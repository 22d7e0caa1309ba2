//! Connections for tests of the rooms above.

use std::sync::Arc;
use std::time::Duration;

use super::charge::NodeMemory;
use super::connection::{Connection, ConnectionLimits};
use crate::observe::metrics::Metrics;

pub(crate) fn connection() -> Arc<Connection> {
    connection_with(|_| ())
}

/// A connection with other limits.
pub(crate) fn connection_with(change: impl FnOnce(&mut ConnectionLimits)) -> Arc<Connection> {
    let metrics = Arc::new(Metrics::new("test").unwrap());
    let mut limits = ConnectionLimits {
        preface_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(180),
        answer_patience: Duration::from_secs(30),
        request_timeout: Duration::from_secs(30),
        unregistered_timeout: Duration::from_secs(120),
        max_message_bytes: 8 << 20,
        max_memory_bytes: 64 << 20,
        serves_agents: true,
        node_memory: NodeMemory::new(256 << 20),
    };
    change(&mut limits);
    let peer = "192.0.2.1:5000".parse().unwrap();
    Connection::new(peer, Arc::new(limits), metrics)
}
