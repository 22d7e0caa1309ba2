//! The bytes of answers that wait for all callers of the node together.
//!
//! Responsible for the count and its limit (CMD-22). Must never know whose the answers are, nor
//! hold one.

use std::sync::atomic::{AtomicUsize, Ordering};

/// See the module.
#[derive(Debug)]
pub(super) struct Pool {
    limit: AtomicUsize,
    held: AtomicUsize,
}

impl Pool {
    /// An empty one that holds `limit` bytes.
    pub(super) const fn new(limit: usize) -> Self {
        Self {
            limit: AtomicUsize::new(limit),
            held: AtomicUsize::new(0),
        }
    }

    /// Takes `len` bytes if there is room.
    pub(super) fn try_take(&self, len: usize) -> bool {
        let before = self.held.fetch_add(len, Ordering::Relaxed);
        let fits = before.saturating_add(len) <= self.limit();
        if !fits {
            self.give_back(len);
        }
        fits
    }

    /// Takes `len` bytes whether there is room or not.
    pub(super) fn take(&self, len: usize) {
        self.held.fetch_add(len, Ordering::Relaxed);
    }

    /// Gives `len` bytes back that were taken.
    pub(super) fn give_back(&self, len: usize) {
        self.held.fetch_sub(len, Ordering::Relaxed);
    }

    /// Bytes taken.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Bytes that may be taken.
    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Holds `limit` bytes from now on; what is over it stays until it is given back.
    pub(super) fn resize(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }
}
