//! How many connections each source address has open on one listener.
//!
//! Responsible for the bound of `limits.max_connections_per_source`, so that one host can't take
//! all places. Must never put an address into a label or a log.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who counts as one source: an IPv4 address, or the /64 of an IPv6 address, which is what one
/// customer of a network gets at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Source {
    V4(u32),
    V6(u64),
}

impl Source {
    pub(super) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.to_bits()),
            IpAddr::V6(address) => Self::V6((address.to_bits() >> 64) as u64),
        }
    }
}

/// The open connections of a listener by source; at most one entry for each of them.
#[derive(Debug)]
pub(crate) struct Sources {
    /// 0: no bound.
    most: AtomicUsize,
    open: Mutex<HashMap<Source, usize>>,
}

impl Sources {
    /// At most `most` connections of one source; 0 is no bound.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most: AtomicUsize::new(most),
            open: Mutex::default(),
        })
    }

    /// From now on at most `most` connections of one source. Nobody is sent away; connections that
    /// were opened while there was no bound do not count.
    pub(crate) fn limit(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Source, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more connection of `address`; `None` when it has all of its.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let most = self.most.load(Ordering::Relaxed);
        if most == 0 {
            return Some(Place(None));
        }
        let source = Source::of(address);
        let mut open = self.open();
        let count = open.get(&source).copied().unwrap_or_default();
        if count >= most {
            return None;
        }
        open.insert(source, count + 1);
        Some(Place(Some((Arc::clone(self), source))))
    }

    fn give_back(&self, source: Source) {
        let mut open = self.open();
        if let Entry::Occupied(mut entry) = open.entry(source) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
        if open.len() < open.capacity() / 4 {
            open.shrink_to_fit();
        }
    }
}

/// One connection's place; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place(Option<(Arc<Sources>, Source)>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((sources, source)) = self.0.take() {
            sources.give_back(source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(sources: &Arc<Sources>, address: &str) -> Option<Place> {
        sources.take(address.parse().unwrap())
    }

    #[test]
    fn an_ipv4_address_has_its_places_and_no_more() {
        let sources = Sources::new(2);
        let first = take(&sources, "192.0.2.7").unwrap();
        let _second = take(&sources, "::ffff:192.0.2.7").unwrap();
        assert!(take(&sources, "192.0.2.7").is_none());
        let _other = take(&sources, "192.0.2.8").unwrap();
        drop(first);
        let _again = take(&sources, "192.0.2.7").unwrap();
        assert!(take(&sources, "192.0.2.7").is_none());
    }

    #[test]
    fn an_ipv6_network_of_64_bits_is_one_source() {
        let sources = Sources::new(1);
        let _place = take(&sources, "2001:db8:0:1::1").unwrap();
        assert!(take(&sources, "2001:db8:0:1:ffff::2").is_none());
        assert!(take(&sources, "2001:db8:0:2::1").is_some());
    }

    #[test]
    fn zero_is_no_bound_and_costs_nothing() {
        let sources = Sources::new(0);
        let places: Vec<_> = (0..100)
            .map(|_| take(&sources, "192.0.2.7").unwrap())
            .collect();
        assert!(sources.open().is_empty());
        drop(places);
    }

    #[test]
    fn another_bound_holds_for_those_who_come_and_sends_nobody_away() {
        let sources = Sources::new(0);
        let before = take(&sources, "192.0.2.7");
        sources.limit(2);
        let held: Vec<_> = (0..2)
            .map(|_| take(&sources, "192.0.2.7").unwrap())
            .collect();
        assert!(take(&sources, "192.0.2.7").is_none());
        drop(before);
        sources.limit(1);
        assert!(take(&sources, "192.0.2.7").is_none());
        drop(held);
        let _one = take(&sources, "192.0.2.7").unwrap();
        assert!(take(&sources, "192.0.2.7").is_none());
        sources.limit(0);
        assert!(take(&sources, "192.0.2.7").is_some());
        assert_eq!(sources.open().len(), 1);
    }

    #[test]
    fn what_has_left_is_forgotten() {
        let sources = Sources::new(5);
        let places: Vec<_> = (0..1_000_u32)
            .map(|n| sources.take(IpAddr::V4(n.into())).unwrap())
            .collect();
        assert_eq!(sources.open().len(), 1_000);
        drop(places);
        assert!(sources.open().is_empty());
        assert!(sources.open().capacity() < 64);
    }
}
