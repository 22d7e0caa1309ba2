//! What unfinished requests hold, of one connection and of all together.
//!
//! Responsible for charging their bytes until they are dropped: to their connection, which is
//! closed over its limit (LSN-6), and to the node, which refuses the request that finds no room
//! (LSN-16). Must never hold a byte itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::close::CloseReason;
use super::connection::Connection;

/// A request up to this size finds room as long as there is any. Larger ones leave a quarter of
/// the node's room to these, so that whoever uploads much can't keep agents from registering.
const SMALL: usize = 64 << 10;

/// The bytes that unfinished requests of all connections hold.
#[derive(Debug)]
pub(crate) struct NodeMemory {
    limit: AtomicUsize,
    held: AtomicUsize,
}

impl NodeMemory {
    /// Room for `limit` bytes.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit: AtomicUsize::new(limit),
            held: AtomicUsize::new(0),
        })
    }

    /// From now on there is room for `limit` bytes. Nothing is taken from what is held.
    pub(crate) fn retune(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Whether one request may hold `to` bytes where it held `from`.
    fn resize(&self, from: usize, to: usize) -> bool {
        let Some(more) = to.checked_sub(from) else {
            self.give_back(from - to);
            return true;
        };
        let all = self.limit.load(Ordering::Relaxed);
        let limit = match to <= SMALL {
            true => all,
            false => all - all / 4,
        };
        let fits = self.held.fetch_add(more, Ordering::Relaxed) + more <= limit;
        if !fits {
            self.give_back(more);
        }
        fits
    }

    fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Bytes of an unfinished request or of an unfinished message of a stream, charged until dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    connection: Arc<Connection>,
    /// What a session's stream holds counts for its connection alone: a node without room must not
    /// end sessions for what others hold.
    node: Option<Arc<NodeMemory>>,
    bytes: usize,
}

/// There is no room for what was to be charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OverBudget {
    /// The connection held more than its limit and is being closed.
    #[error("the connection holds too many bytes of unfinished requests")]
    Connection,
    /// All connections together hold as much as the node allows.
    #[error("the gateway holds too many bytes of unfinished requests")]
    Node,
}

impl From<OverBudget> for tonic::Status {
    fn from(over: OverBudget) -> Self {
        Self::resource_exhausted(over.to_string())
    }
}

impl Charge {
    /// For a request.
    pub(crate) fn of_request(connection: &Arc<Connection>) -> Self {
        Self {
            connection: Arc::clone(connection),
            node: Some(Arc::clone(&connection.limits().node_memory)),
            bytes: 0,
        }
    }

    /// For the stream of a session.
    pub(crate) fn of_stream(connection: &Arc<Connection>) -> Self {
        Self {
            connection: Arc::clone(connection),
            node: None,
            bytes: 0,
        }
    }

    /// Whom it is charged to.
    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Charges `bytes` in place of what was charged before.
    ///
    /// # Errors
    /// A connection over its limit is closed and counted. What finds no room at the node is counted
    /// and not charged; the caller refuses the request.
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), OverBudget> {
        // As it is nearly always: nothing of the connection is touched.
        if bytes == self.bytes {
            return Ok(());
        }
        if let Some(node) = &self.node
            && !node.resize(self.bytes, bytes)
        {
            self.connection.metrics().grpc_memory_refused_total.inc();
            return Err(OverBudget::Node);
        }
        let before = std::mem::replace(&mut self.bytes, bytes);
        if self.connection.hold(before, bytes) {
            return Ok(());
        }
        // Its other requests may still come here before it ends.
        self.connection.kill(CloseReason::OverBudget);
        Err(OverBudget::Connection)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.connection.hold(self.bytes, 0);
        if let Some(node) = &self.node {
            node.give_back(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests;
