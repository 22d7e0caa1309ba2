//! Round trips between this node and a peer, from frames that pass anyway (SHIFT-5).
//!
//! HTTP/2 sends SETTINGS first of all, and a silent peer is sent a PING; the peer acknowledges both at
//! once. Responsible for seeing the question in what is written, and for the time to its answer. Must
//! never change a byte, nor follow what is written frame by frame: a question that is not seen is one
//! sample less.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::flood::{HEADER, TYPE_PING, TYPE_SETTINGS};

/// Length of a PING.
const PING: usize = HEADER + 8;

/// Whether a piece to be written asks for an acknowledgement: it begins with SETTINGS or a PING, or
/// ends with a PING.
pub(super) fn asks(piece: &[u8]) -> bool {
    let last = piece.len().checked_sub(PING);
    match piece {
        [0, 0, 8, TYPE_PING, 0, 0, 0, 0, 0, ..] => true,
        [0, 0, _, TYPE_SETTINGS, 0, 0, 0, 0, 0, ..] => true,
        _ => last.is_some_and(|at| piece[at..].starts_with(&[0, 0, 8, TYPE_PING, 0, 0, 0, 0, 0])),
    }
}

/// The question of a connection that has no answer yet.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    /// The connection's age in microseconds, modulo 2^32, when it asked; 0 is no question. 71 minutes
    /// are more than an answer may take.
    asked: AtomicU32,
}

impl RoundTrip {
    /// It asks, at this age.
    pub(super) fn asked(&self, age: Duration) {
        self.asked.store(micros(age).max(1), Ordering::Relaxed);
    }

    /// An answer came. How long it took, if anything was asked.
    pub(super) fn answered(&self, age: Duration) -> Option<Duration> {
        let asked = self.asked.swap(0, Ordering::Relaxed);
        let took = micros(age).wrapping_sub(asked);
        (asked != 0).then(|| Duration::from_micros(took.into()))
    }
}

fn micros(age: Duration) -> u32 {
    age.as_micros() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shift_5_questions_are_seen_where_a_piece_begins_or_ends() {
        let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let pong = [0, 0, 8, 6, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100];
        let acknowledged = [0, 0, 0, 4, 1, 0, 0, 0, 0];
        let data = [0, 0, 2, 0, 0, 0, 0, 0, 1, 7, 7];
        assert!(asks(&ping));
        assert!(asks(&settings));
        assert!(asks(&[&settings[..], &data].concat()));
        assert!(asks(&[&data[..], &ping].concat()));
        assert!(asks(&[&ping[..], &data].concat()));
        for piece in [&pong[..], &acknowledged, &data, &[], &ping[1..], &[0; 17]] {
            assert!(!asks(piece), "{piece:?}");
        }
    }

    #[test]
    fn shift_5_a_round_trip_is_from_the_last_question_to_the_first_answer() {
        let (round_trip, ms) = (RoundTrip::default(), Duration::from_millis);
        assert_eq!(round_trip.answered(ms(5)), None);
        round_trip.asked(ms(10));
        round_trip.asked(ms(20));
        assert_eq!(round_trip.answered(ms(23)), Some(ms(3)));
        assert_eq!(round_trip.answered(ms(24)), None);
        // Across the end of the counter, which is at 4,294,967 ms.
        round_trip.asked(ms(4_294_960));
        assert_eq!(round_trip.answered(ms(4_294_980)), Some(ms(20)));
        round_trip.asked(Duration::ZERO);
        assert!(round_trip.answered(ms(1)).is_some());
    }
}
