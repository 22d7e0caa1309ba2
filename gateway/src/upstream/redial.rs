//! When to dial again.
//!
//! Responsible for the delay before the next attempt: 100 ms, doubling to 5 s, plus up to a
//! fifth of jitter, back to 100 ms once a connection was up for 5 s. Must never sleep or draw
//! random numbers itself.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LAST: Duration = Duration::from_secs(5);
/// A connection that was up this long was no failure.
pub(crate) const STABLE: Duration = Duration::from_secs(5);

/// The delays of one channel.
#[derive(Debug)]
pub(crate) struct Redial {
    next: Duration,
}

impl Redial {
    /// The next delay is the shortest.
    pub(crate) fn new() -> Self {
        Self { next: FIRST }
    }

    /// The delay after an attempt that failed. `jitter` is a random number in `0.0..=1.0`.
    pub(crate) fn failed(&mut self, jitter: f64) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(LAST);
        delay.mul_f64(1.0 + jitter.clamp(0.0, 1.0) / 5.0)
    }

    /// The delay after a connection that was up for `up` was lost.
    pub(crate) fn lost(&mut self, up: Duration, jitter: f64) -> Duration {
        if up >= STABLE {
            self.next = FIRST;
        }
        self.failed(jitter)
    }

    /// The delay after the server asked to leave (GOAWAY without an error). One that let us stay
    /// 5 s is dialled at once: nothing failed, and calls can wait for the new connection.
    pub(crate) fn told_to_leave(&mut self, up: Duration, jitter: f64) -> Duration {
        if up >= STABLE {
            self.next = FIRST;
            return Duration::ZERO;
        }
        self.failed(jitter)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(value: u64) -> Duration {
        Duration::from_millis(value)
    }

    #[test]
    fn doubles_from_100_ms_to_5_s() {
        let mut redial = Redial::new();
        let delays: Vec<_> = (0..8).map(|_| redial.failed(0.0)).collect();
        let expected = [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000].map(ms);
        assert_eq!(delays, expected);
    }

    #[test]
    fn jitter_adds_at_most_a_fifth() {
        assert_eq!(Redial::new().failed(1.0), ms(120));
        assert_eq!(Redial::new().failed(0.5), ms(110));
    }

    #[test]
    fn a_connection_up_for_5_s_brings_the_first_delay_back() {
        let mut redial = Redial::new();
        for _ in 0..5 {
            redial.failed(0.0);
        }
        assert_eq!(redial.lost(ms(5_000), 0.0), ms(100));
        assert_eq!(redial.failed(0.0), ms(200));
    }

    #[test]
    fn a_connection_that_flaps_keeps_the_growing_delay() {
        let mut redial = Redial::new();
        redial.failed(0.0);
        assert_eq!(redial.lost(ms(4_999), 0.0), ms(200));
        assert_eq!(redial.lost(ms(0), 0.0), ms(400));
    }

    #[test]
    fn a_stable_server_that_asks_to_leave_is_dialled_at_once() {
        let mut redial = Redial::new();
        assert_eq!(redial.told_to_leave(ms(5_000), 0.0), ms(0));
        assert_eq!(redial.told_to_leave(ms(10), 0.0), ms(100));
        assert_eq!(redial.told_to_leave(ms(10), 0.0), ms(200));
    }

    proptest! {
        #[test]
        fn stays_between_100_ms_and_6_s(
            steps in prop::collection::vec((any::<bool>(), 0u64..10_000, 0.0f64..=1.0), 1..50),
        ) {
            let mut redial = Redial::new();
            for (failed, up, jitter) in steps {
                let delay =
                    if failed { redial.failed(jitter) } else { redial.lost(ms(up), jitter) };
                prop_assert!((ms(100)..=ms(6_000)).contains(&delay), "{:?}", delay);
            }
        }
    }
}
