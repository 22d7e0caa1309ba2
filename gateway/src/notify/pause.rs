//! How long nothing is sent after the connection had no stream for a notice (PERMIT-11).
//!
//! Pure. Responsible for the times only. Must never decide what becomes of a notice.

use std::time::Duration;

use tokio::time::Instant;

use crate::upstream::{TOO_MANY_FIRST, TOO_MANY_LAST};

/// The pause of the lane, if there is one.
pub(crate) struct Pause {
    until: Option<Instant>,
    /// Length of the next one.
    next: Duration,
}

impl Pause {
    /// None.
    pub(crate) fn new() -> Self {
        Self {
            until: None,
            next: TOO_MANY_FIRST,
        }
    }

    /// Whether nothing may be sent at `now`.
    pub(crate) fn is_on(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// A send found no stream. Those that set out together cause one pause together.
    pub(crate) fn found_no_stream(&mut self, now: Instant) {
        if !self.is_on(now) {
            self.until = Some(now + self.next);
            self.next = (self.next * 2).min(TOO_MANY_LAST);
        }
    }

    /// A send got a stream, or failed with its connection: the next pause is short again. One
    /// that is on stays on, so that the other lanes get a turn.
    pub(crate) fn found_a_stream(&mut self) {
        self.next = TOO_MANY_FIRST;
    }

    /// When the pause ends, after `now`.
    pub(crate) fn next_time(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permit_11_the_pause_doubles_from_10_to_100_ms_and_starts_anew_after_a_stream() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pause = Pause::new();
        assert!(!pause.is_on(start));
        let mut now = 0;
        for length in [10, 20, 40, 80, 100, 100] {
            pause.found_no_stream(at(now));
            pause.found_no_stream(at(now + 9));
            assert_eq!(pause.next_time(at(now + 9)), Some(at(now + length)));
            now += length;
            assert!(pause.is_on(at(now - 1)) && !pause.is_on(at(now)));
            assert_eq!(pause.next_time(at(now)), None);
        }
        pause.found_no_stream(at(now));
        pause.found_a_stream();
        assert!(pause.is_on(at(now + 99)) && !pause.is_on(at(now + 100)));
        pause.found_no_stream(at(now + 100));
        assert!(pause.is_on(at(now + 109)) && !pause.is_on(at(now + 110)));
    }
}
