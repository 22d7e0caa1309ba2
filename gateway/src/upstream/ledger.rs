//! Counts the open streams of one upstream connection against the limit in force.
//!
//! Responsible for refusing a call before the HTTP/2 stack would queue it behind a full
//! connection (it queues what is over the server's limit and everything after it). A slot is
//! given back by [`Drop`], so a call that ends for any reason frees it. Must never take back a
//! slot when the limit shrinks (PERMIT-10): the server lets streams over a lowered limit finish.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The streams of one connection.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// The configured number and the server's, of which the smaller is in force.
    bounds: Mutex<Bounds>,
    limit: AtomicUsize,
    open: AtomicUsize,
}

#[derive(Debug)]
struct Bounds {
    configured: usize,
    announced: usize,
}

/// The ledger is full: nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooManyStreams;

/// One open stream, given back on drop.
#[derive(Debug)]
pub(crate) struct Slot(Arc<Ledger>);

impl Ledger {
    /// A ledger that admits `configured` streams until the server announces fewer.
    pub(crate) fn new(configured: usize) -> Arc<Self> {
        Arc::new(Self {
            bounds: Mutex::new(Bounds {
                configured,
                announced: usize::MAX,
            }),
            limit: AtomicUsize::new(configured),
            open: AtomicUsize::new(0),
        })
    }

    /// Follows what the server announced; `None` is unknown or unlimited.
    pub(crate) fn announce(&self, server: Option<u32>) {
        let announced = server.map_or(usize::MAX, |max| max as usize);
        self.bound(|bounds| bounds.announced = announced);
    }

    /// Admits `configured` streams from now on, or as many as the server announced.
    pub(crate) fn configure(&self, configured: usize) {
        self.bound(|bounds| bounds.configured = configured);
    }

    fn bound(&self, change: impl FnOnce(&mut Bounds)) {
        let mut bounds = self.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut bounds);
        let limit = bounds.configured.min(bounds.announced);
        self.limit.store(limit, Ordering::Release);
    }

    /// Takes a slot, or refuses at once.
    pub(crate) fn open(self: &Arc<Self>) -> Result<Slot, TooManyStreams> {
        let limit = self.limit.load(Ordering::Acquire);
        self.open
            .try_update(Ordering::AcqRel, Ordering::Acquire, |open| {
                (open < limit).then_some(open + 1)
            })
            .map(|_| Slot(Arc::clone(self)))
            .map_err(|_| TooManyStreams)
    }

    /// Streams open now; over the limit for a while after it shrank.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn admits_up_to_the_configured_number_while_the_limit_is_unknown() {
        let ledger = Ledger::new(3);
        let slots: Vec<_> = (0..3).map(|_| ledger.open().unwrap()).collect();
        assert_eq!(ledger.open().unwrap_err(), TooManyStreams);
        drop(slots);
        assert_eq!(ledger.in_use(), 0);
    }

    #[test]
    fn another_number_holds_at_once_within_what_the_server_announced() {
        let ledger = Ledger::new(1);
        let _first = ledger.open().unwrap();
        ledger.configure(3);
        let _second = ledger.open().unwrap();
        ledger.announce(Some(2));
        assert!(ledger.open().is_err());
        ledger.announce(None);
        let _third = ledger.open().unwrap();
        ledger.configure(1);
        assert_eq!((ledger.in_use(), ledger.open().is_err()), (3, true));
    }

    #[test]
    fn a_server_that_allows_more_does_not_raise_the_configured_number() {
        let ledger = Ledger::new(2);
        ledger.announce(Some(128));
        let _slots = [ledger.open().unwrap(), ledger.open().unwrap()];
        assert!(ledger.open().is_err());
    }

    #[test]
    fn permit_10_a_lower_limit_takes_nothing_back_and_admits_again_below_it() {
        let ledger = Ledger::new(117);
        let mut slots: Vec<_> = (0..10).map(|_| ledger.open().unwrap()).collect();
        ledger.announce(Some(4));
        assert_eq!(ledger.in_use(), 10);
        while slots.len() > 4 {
            assert!(ledger.open().is_err(), "refused with {} open", slots.len());
            slots.pop();
        }
        assert!(ledger.open().is_err());
        slots.pop();
        assert!(ledger.open().is_ok());
    }

    #[test]
    fn permit_12_an_unknown_limit_brings_the_configured_number_back() {
        let ledger = Ledger::new(5);
        ledger.announce(Some(0));
        assert!(ledger.open().is_err());
        ledger.announce(None);
        assert!(ledger.open().is_ok());
    }

    #[test]
    fn concurrent_openers_never_pass_the_limit() {
        let ledger = Ledger::new(7);
        let admitted: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    let ledger = &ledger;
                    scope.spawn(move || {
                        let slots: Vec<_> = (0..5).filter_map(|_| ledger.open().ok()).collect();
                        let kept = slots.len();
                        slots.into_iter().for_each(std::mem::forget);
                        kept
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert_eq!(admitted, 7);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Open,
        Close(prop::sample::Index),
        Announce(Option<u32>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Open),
            3 => any::<prop::sample::Index>().prop_map(Step::Close),
            1 => prop::option::of(0u32..20).prop_map(Step::Announce),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_count_and_a_minimum(steps in prop::collection::vec(step(), 1..200)) {
            let ledger = Ledger::new(10);
            let mut slots = Vec::new();
            let mut limit = 10;
            for step in steps {
                match step {
                    Step::Open => {
                        let expected = slots.len() < limit;
                        let slot = ledger.open();
                        prop_assert_eq!(slot.is_ok(), expected);
                        slots.extend(slot);
                    }
                    Step::Close(index) if !slots.is_empty() => {
                        slots.swap_remove(index.index(slots.len()));
                    }
                    Step::Close(_) => {}
                    Step::Announce(server) => {
                        limit = server.map_or(10, |max| (max as usize).min(10));
                        ledger.announce(server);
                    }
                }
                prop_assert_eq!(ledger.in_use(), slots.len());
            }
        }
    }
}
