//! Notices that wait for the server, and those on their way (NOTIFY-*).
//!
//! Responsible for order, replacement, the cap, and for what a send's result means to its notice.
//! A notice that enters leaves as delivered or under a named reason, never otherwise. Must never
//! send, wait or count.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::notice::{Event, Notice, NoticeKey};

/// What became of a notice that was offered.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Offered {
    /// Held.
    Held,
    /// Held in the place of an older one of its key (NOTIFY-3).
    Coalesced,
    /// Held; the oldest held CONNECTED gave way and is lost (NOTIFY-13).
    Evicted(Notice),
    /// Not held, and lost: the store is full (NOTIFY-13).
    Refused,
}

/// A place in the order of arrival. Each is given once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(u64);

/// A notice that is being sent.
#[derive(Debug, Clone, Copy)]
struct Flight {
    event: Event,
    /// Where it was held. `None`: it is of the set of unacknowledged ones, which has a bound of
    /// its own.
    place: Option<Place>,
}

/// The end of a flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Landed {
    /// A newer notice of the same key is held.
    pub(crate) newer: bool,
    /// Where it was held before.
    pub(crate) place: Option<Place>,
}

/// The pure core.
#[derive(Default)]
pub(crate) struct Store {
    cap: usize,
    /// What a planned stop added to it.
    raised: usize,
    held: BTreeMap<Place, Notice>,
    places: HashMap<NoticeKey, Place>,
    /// Places of held CONNECTED, oldest first, for eviction.
    connected: BTreeSet<Place>,
    in_flight: HashMap<NoticeKey, Flight>,
    resends: usize,
    last_place: u64,
}

impl Store {
    /// An empty store of at most `cap` notices, those in flight included, resends not.
    pub(crate) fn new(cap: usize) -> Self {
        Self {
            cap,
            ..Self::default()
        }
    }

    /// Notices held.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Notices in flight, resends included.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Notices that count against the cap (NOTIFY-12).
    pub(crate) fn load(&self) -> usize {
        self.held() + self.in_flight() - self.resends
    }

    /// The most that [`Store::load`] may be, newer notices of keys in flight left aside.
    pub(crate) fn cap(&self) -> usize {
        self.cap.saturating_add(self.raised)
    }

    /// Puts another cap in force. What is over it stays until it is sent.
    pub(crate) fn limit(&mut self, cap: usize) {
        self.cap = cap;
    }

    /// Makes room for `more` notices (STOP-2).
    pub(crate) fn raise_cap(&mut self, more: usize) {
        self.raised = self.raised.saturating_add(more);
    }

    /// Whether a notice of `key` is held or in flight.
    pub(crate) fn contains(&self, key: &NoticeKey) -> bool {
        self.places.contains_key(key) || self.in_flight.contains_key(key)
    }

    /// Takes a notice in, or refuses it.
    pub(crate) fn offer(&mut self, notice: Notice) -> Offered {
        let key = notice.key();
        if let Some(place) = self.places.get(&key).copied() {
            self.put(place, notice);
            return Offered::Coalesced;
        }
        // A newer notice of a key in flight is never refused (NOTIFY-12).
        if self.in_flight.contains_key(&key) || self.load() < self.cap() {
            self.push_back(notice);
            return Offered::Held;
        }
        match self.evictable() {
            Some(oldest) if notice.event == Event::Disconnected => {
                let evicted = self.remove(oldest);
                self.push_back(notice);
                evicted.map_or(Offered::Held, Offered::Evicted)
            }
            _ => Offered::Refused,
        }
    }

    /// The first held notice whose key has no send out (NOTIFY-4); it is in flight from now on,
    /// until [`Store::land`].
    pub(crate) fn take(&mut self) -> Option<Notice> {
        // Skips at most as many as are in flight.
        let free = |(_, notice): &(&Place, &Notice)| !self.in_flight.contains_key(&notice.key());
        let place = *self.held.iter().find(free)?.0;
        let notice = self.remove(place)?;
        self.fly(&notice, Some(place));
        Some(notice)
    }

    /// A notice that is not held is sent again: its key is in flight until [`Store::land`].
    pub(crate) fn resend(&mut self, notice: &Notice) {
        self.resends += 1;
        self.fly(notice, None);
    }

    /// Ends the flight of `key`.
    pub(crate) fn land(&mut self, key: &NoticeKey) -> Landed {
        let flight = self.in_flight.remove(key);
        if flight.is_some_and(|flight| flight.place.is_none()) {
            self.resends -= 1;
        }
        Landed {
            newer: self.places.contains_key(key),
            place: flight.and_then(|flight| flight.place),
        }
    }

    /// Holds a notice whose send failed again, where it was: at the head, except that several
    /// which failed keep their order (NOTIFY-10). One that was not held before goes to the tail. No
    /// other of its key may be held.
    pub(crate) fn requeue(&mut self, notice: Notice, place: Option<Place>) {
        match place {
            Some(place) => self.put(place, notice),
            None => self.push_back(notice),
        }
    }

    /// Holds a notice of a planned stop at the tail, whatever the cap says (UNACK-9). No other of
    /// its key may be held.
    pub(crate) fn join(&mut self, notice: Notice) {
        self.push_back(notice);
    }

    /// Gives up everything: the events of what was held, oldest first, then of what was in
    /// flight. A notice that lands later finds nothing of its own.
    pub(crate) fn drain(&mut self) -> Vec<Event> {
        self.places.clear();
        self.connected.clear();
        let held = std::mem::take(&mut self.held)
            .into_values()
            .map(|notice| notice.event);
        let out = std::mem::take(&mut self.in_flight);
        self.resends = 0;
        held.chain(out.into_values().map(|flight| flight.event))
            .collect()
    }

    /// The oldest held CONNECTED. Not one whose key is in flight: it came in beyond the cap, and
    /// giving its place to another key would leave the store over the cap when the send fails.
    fn evictable(&self) -> Option<Place> {
        let free = |place: &&Place| {
            let notice = self.held.get(place);
            notice.is_some_and(|notice| !self.in_flight.contains_key(&notice.key()))
        };
        self.connected.iter().find(free).copied()
    }

    fn fly(&mut self, notice: &Notice, place: Option<Place>) {
        let event = notice.event;
        self.in_flight.insert(notice.key(), Flight { event, place });
    }

    fn push_back(&mut self, notice: Notice) {
        self.last_place += 1;
        self.put(Place(self.last_place), notice);
    }

    fn put(&mut self, place: Place, notice: Notice) {
        match notice.event {
            Event::Connected => self.connected.insert(place),
            Event::Disconnected => self.connected.remove(&place),
        };
        self.places.insert(notice.key(), place);
        self.held.insert(place, notice);
    }

    fn remove(&mut self, place: Place) -> Option<Notice> {
        let notice = self.held.remove(&place)?;
        self.places.remove(&notice.key());
        self.connected.remove(&place);
        if self.places.len() < self.places.capacity() / 4 {
            self.places.shrink_to_fit();
        }
        Some(notice)
    }
}

#[cfg(test)]
mod tests;
