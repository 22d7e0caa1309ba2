//! Spreads connects over time.
//!
//! Pure but for its lock: takes `now`, returns when to go. The lock is never held across a wait.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Hands out start times at a fixed rate.
#[derive(Debug)]
pub(super) struct Pacer {
    gap: Duration,
    next: Mutex<Option<Instant>>,
}

impl Pacer {
    /// `per_second` starts a second; `None` means all at once.
    pub(super) fn new(per_second: Option<f64>) -> Self {
        let gap = per_second.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(1.0 / rate));
        Self {
            gap,
            next: Mutex::new(None),
        }
    }

    /// The next free start time, at the earliest `now`.
    pub(super) fn reserve(&self, now: Instant) -> Instant {
        if self.gap.is_zero() {
            return now;
        }
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let start = next.map_or(now, |next| next.max(now));
        *next = Some(start + self.gap);
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_a_gap_apart_and_a_pause_earns_no_burst() {
        let pacer = Pacer::new(Some(10.0));
        let t0 = Instant::now();
        let gap = Duration::from_millis(100);
        assert_eq!(pacer.reserve(t0), t0);
        assert_eq!(pacer.reserve(t0), t0 + gap);
        assert_eq!(pacer.reserve(t0), t0 + gap * 2);
        let later = t0 + Duration::from_secs(5);
        assert_eq!(pacer.reserve(later), later);
        assert_eq!(pacer.reserve(later), later + gap);
    }

    #[test]
    fn without_a_rate_all_start_at_once() {
        let pacer = Pacer::new(None);
        let now = Instant::now();
        assert_eq!(pacer.reserve(now), now);
        assert_eq!(pacer.reserve(now), now);
    }
}
