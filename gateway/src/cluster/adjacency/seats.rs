//! The streams that are open now, as the rest of the node reaches them.
//!
//! Responsible for what each peer has confirmed and for the way to ask it something. Must never
//! outlive a stream: its seat goes with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slab::Slab;
use tokio::sync::mpsc;

use super::questions::{MAX_OPEN, Question};

/// All open streams; two of one peer while the older one ends.
#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<Slab<Place>>);

#[derive(Debug)]
struct Place {
    peer: Arc<str>,
    confirmed: u64,
    questions: mpsc::Sender<Question>,
}

/// The place of one stream.
pub(super) struct Seat<'a> {
    seats: &'a Seats,
    key: usize,
}

impl Seats {
    fn places(&self) -> MutexGuard<'_, Slab<Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place, with what the peer has confirmed so far, and the questions that it gets.
    pub(super) fn take(
        &self,
        peer: Arc<str>,
        confirmed: u64,
    ) -> (Seat<'_>, mpsc::Receiver<Question>) {
        let (questions, asked) = mpsc::channel(MAX_OPEN);
        let place = Place {
            peer,
            confirmed,
            questions,
        };
        let key = self.places().insert(place);
        (Seat { seats: self, key }, asked)
    }

    /// The last change that every peer has confirmed; `None`: there is no stream.
    pub(super) fn confirmed_by_all(&self) -> Option<u64> {
        self.places().iter().map(|(_, place)| place.confirmed).min()
    }

    /// The ways to ask this peer.
    pub(super) fn of(&self, peer: &str) -> Vec<mpsc::Sender<Question>> {
        let places = self.places();
        let of_peer = places.iter().filter(|(_, place)| *place.peer == *peer);
        of_peer.map(|(_, place)| place.questions.clone()).collect()
    }
}

impl Seat<'_> {
    /// The peer has applied everything up to this change.
    pub(super) fn confirm(&self, change: u64) {
        if let Some(place) = self.seats.places().get_mut(self.key) {
            place.confirmed = change;
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.seats.places().try_remove(self.key);
    }
}
