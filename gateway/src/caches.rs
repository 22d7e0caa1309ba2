//! The allocator's caches of threads that have nothing to do (SHED-12).
//!
//! A free object in such a cache holds the pages around it: after thousands of agents have left, the
//! caches held more than all that was alive. Responsible for emptying a thread's cache before it
//! waits, now and then. Must never run while a thread has work.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tikv_jemalloc_ctl::{Access, AsName};

/// A thread empties its cache this often at most. It fills again within microseconds.
const PERIOD: Duration = Duration::from_secs(1);

const ENABLED: &[u8] = b"thread.tcache.enabled\0";

thread_local! {
    static EMPTIED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// To be called by a thread that is about to wait for work.
pub(crate) fn thread_waits() {
    let now = Instant::now();
    let emptied = EMPTIED.get();
    if emptied.is_some_and(|at| now.duration_since(at) < PERIOD) {
        return;
    }
    EMPTIED.set(Some(now));
    // Switching it off empties it. An error would say that there is none.
    let _ = ENABLED.name().write(false);
    let _ = ENABLED.name().write(true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shed_12_a_thread_that_waits_empties_its_cache_once_a_period_and_has_one_afterwards() {
        thread_waits();
        let emptied = EMPTIED.get();
        assert!(emptied.is_some());
        thread_waits();
        assert_eq!(EMPTIED.get(), emptied);
        let has_cache: bool = ENABLED.name().read().unwrap();
        assert!(has_cache);
    }
}
