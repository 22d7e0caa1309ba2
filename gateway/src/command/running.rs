//! The calls in progress.
//!
//! Responsible for counting them and for waiting for their end at a planned stop (CMD-16). Must
//! never know what a call does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::warn;

/// The node takes no command any more (CMD-16).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the gateway is stopping")]
pub(crate) struct Stopping;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Running {
    stopping: AtomicBool,
    count: AtomicUsize,
    ended: Notify,
}

/// Counts a call while it lives.
#[derive(Debug)]
pub(crate) struct Ticket(Arc<Running>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.ended.notify_waiters();
    }
}

impl Running {
    /// One more.
    ///
    /// # Errors
    /// During a planned stop.
    pub(super) fn begin(self: &Arc<Self>) -> Result<Ticket, Stopping> {
        self.count.fetch_add(1, Ordering::AcqRel);
        let ticket = Ticket(Arc::clone(self));
        match self.stopping.load(Ordering::Acquire) {
            true => Err(Stopping),
            false => Ok(ticket),
        }
    }

    /// From now on every call is refused.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Waits until none is in progress. False: some were at `deadline`.
    pub(super) async fn finished(&self, deadline: Instant) -> bool {
        loop {
            let ended = self.ended.notified();
            let mut ended = std::pin::pin!(ended);
            ended.as_mut().enable();
            let running = self.count.load(Ordering::Acquire);
            if running == 0 {
                return true;
            }
            if tokio::time::timeout_at(deadline, ended).await.is_err() {
                warn!(running, "commands still run at the end of their time");
                return false;
            }
        }
    }
}
