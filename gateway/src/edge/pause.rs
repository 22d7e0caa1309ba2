//! Connections that are not read for a moment.
//!
//! Responsible for leaving what a peer sends in its socket, whatever its windows allow, while a
//! stream waits for room (CMD-22). Must never be held for long: all streams of the connection wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

use super::connection::Connection;

/// Who wants a connection not to be read, and the task that reads it.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    count: AtomicUsize,
    reader: AtomicWaker,
}

impl Pauses {
    /// Whether somebody wants a pause.
    pub(super) fn is_paused(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Ready when nobody wants a pause; else the reader is woken then.
    pub(super) fn poll_none(&self, cx: &Context<'_>) -> Poll<()> {
        if !self.is_paused() {
            return Poll::Ready(());
        }
        self.reader.register(cx.waker());
        match self.count.load(Ordering::SeqCst) {
            0 => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }
}

/// Its connection is not read while this lives.
#[derive(Debug)]
pub(crate) struct Paused(Arc<Connection>);

impl Paused {
    pub(crate) fn new(connection: &Arc<Connection>) -> Self {
        connection.pauses().count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(connection))
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        let pauses = self.0.pauses();
        if pauses.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            pauses.reader.wake();
        }
    }
}
