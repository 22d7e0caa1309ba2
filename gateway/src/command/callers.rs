//! The callers of the node, and what waits for all of them together.
//!
//! Responsible for giving up callers that read nothing when the node has no room left for answers
//! (CMD-22). Must never touch one that reads, nor be on the path of an answer that finds room.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::{Instant, sleep};

use super::fanout::Fanout;
use super::pool::Pool;

/// A caller that takes nothing for so long has stopped reading, when much waits for it or the node
/// has no room: several round trips of any sane network.
pub(super) const STALL: Duration = Duration::from_millis(250);
/// The node looks for such callers so often while it has no room.
const LOOK: Duration = Duration::from_millis(50);
/// Answers that may wait for all callers together, in bytes, unless four times the bound of one
/// caller is more.
const POOL: usize = 32 << 20;
/// Answers that pass a caller by before its time becomes short, in bytes, unless twice its bound is
/// more.
const MUCH: usize = 16 << 20;

/// Bounds of a caller, and of all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallerLimits {
    /// Answers waiting, in bytes, without cost to anyone.
    pub(super) buffer_bytes: usize,
    /// A caller may leave that full without reading for this long.
    pub(super) slow_timeout: Duration,
}

impl CallerLimits {
    /// Bytes for all callers together.
    pub(super) fn pool_bytes(&self) -> usize {
        POOL.max(self.buffer_bytes.saturating_mul(4))
    }

    /// How long a caller may take nothing, its backlog full, after `came` bytes of answers.
    pub(super) fn patience(&self, came: usize) -> Duration {
        let much = MUCH.max(self.buffer_bytes.saturating_mul(2));
        if came > much.saturating_mul(4) {
            Duration::ZERO
        } else if came > much {
            self.slow_timeout.min(STALL)
        } else {
            self.slow_timeout
        }
    }
}

/// See the module.
pub(super) struct Callers {
    limits: ArcSwap<CallerLimits>,
    pub(super) pool: Arc<Pool>,
    /// By address.
    open: Mutex<HashMap<usize, Weak<Fanout>>>,
    /// Somebody makes room.
    relieving: AtomicBool,
    me: Weak<Self>,
}

impl fmt::Debug for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callers")
            .field("limits", &self.limits)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

impl Callers {
    pub(super) fn new(limits: CallerLimits) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            limits: ArcSwap::from_pointee(limits),
            pool: Arc::new(Pool::new(limits.pool_bytes())),
            open: Mutex::default(),
            relieving: AtomicBool::new(false),
            me: Weak::clone(me),
        })
    }

    /// Puts other bounds in force, for calls that come from now on.
    pub(super) fn retune(&self, limits: CallerLimits) {
        self.limits.store(Arc::new(limits));
        self.pool.resize(limits.pool_bytes());
    }

    /// The bounds of a call that comes now.
    pub(super) fn limits(&self) -> CallerLimits {
        **self.limits.load()
    }

    fn open(&self) -> MutexGuard<'_, HashMap<usize, Weak<Fanout>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, fanout: &Arc<Fanout>) {
        let address = Arc::as_ptr(fanout) as usize;
        self.open().insert(address, Arc::downgrade(fanout));
    }

    pub(super) fn remove(&self, fanout: &Arc<Fanout>) {
        self.open().remove(&(Arc::as_ptr(fanout) as usize));
    }

    /// An answer found no room in the pool. There is one task that makes some, for as long as it
    /// takes.
    pub(super) fn press(&self) {
        if !self.relieving.swap(true, Ordering::SeqCst) {
            tokio::spawn(relieve(Weak::clone(&self.me)));
        }
    }

    fn has_room(&self) -> bool {
        self.pool.held() <= self.pool.limit() / 8 * 7
    }

    /// Gives up callers that read nothing, those with the most bytes first, until half of the pool
    /// is free; then lets the agents on that wait for it. True: there is room.
    fn make_room(&self, now: Instant) -> bool {
        let open: Vec<_> = self.open().values().filter_map(Weak::upgrade).collect();
        let stalled = open
            .iter()
            .filter_map(|fanout| Some((Reverse(fanout.stalled(now)?), fanout)));
        let mut stalled: Vec<_> = stalled.collect();
        stalled.sort_by_key(|(bytes, _)| *bytes);
        for (_, fanout) in stalled {
            if self.pool.held() <= self.pool.limit() / 2 {
                break;
            }
            fanout.give_up();
        }
        let room = self.has_room();
        if room {
            open.iter().for_each(|fanout| fanout.room());
        }
        room
    }
}

/// Looks until there is room, at once and then every [`LOOK`].
async fn relieve(callers: Weak<Callers>) {
    while let Some(callers) = callers.upgrade() {
        if callers.make_room(Instant::now()) {
            callers.relieving.store(false, Ordering::SeqCst);
            // Who was refused between the look and here has not started another task.
            if callers.has_room() || callers.relieving.swap(true, Ordering::SeqCst) {
                return;
            }
        }
        drop(callers);
        sleep(LOOK).await;
    }
}

#[cfg(test)]
impl Callers {
    pub(super) fn callers(&self) -> usize {
        self.open().len()
    }
}

#[cfg(test)]
mod tests;
