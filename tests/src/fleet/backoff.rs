//! When an agent tries again: the two ladders of the real agent.
//!
//! Pure: no clock, no random numbers (the real agent has no jitter).

use std::time::Duration;

const LARGEST_EXPONENT: u32 = 8;
const FORCED_FIRST: Duration = Duration::from_secs(2);
const FORCED_LARGEST: Duration = Duration::from_secs(300);

/// Waits of the reconnect loop and of forced re-registrations.
#[derive(Debug, Clone)]
pub(super) struct Backoff {
    scale: f64,
    attempts: u32,
    forced_streak: u32,
}

impl Backoff {
    /// All waits are multiplied by `scale`: 1 is the real agent.
    pub(super) fn new(scale: f64) -> Self {
        Self {
            scale,
            attempts: 0,
            forced_streak: 0,
        }
    }

    /// A Register was accepted.
    pub(super) fn registered(&mut self) {
        self.attempts = 0;
    }

    /// A heartbeat was acknowledged.
    pub(super) fn heartbeat_acknowledged(&mut self) {
        self.forced_streak = 0;
    }

    /// A Register or Subscribe failed or the stream was lost: the wait before the next attempt,
    /// 2, 4, ... 256 s.
    pub(super) fn failed(&mut self) -> Duration {
        self.attempts = self.attempts.saturating_add(1);
        let seconds = 1_u64 << self.attempts.min(LARGEST_EXPONENT);
        Duration::from_secs(seconds).mul_f64(self.scale)
    }

    /// A heartbeat said that the session is gone: the wait before the new Register, 2 s doubling
    /// to 300 s.
    pub(super) fn forced(&mut self) -> Duration {
        let doubled = FORCED_FIRST.saturating_mul(1 << self.forced_streak.min(LARGEST_EXPONENT));
        self.forced_streak = self.forced_streak.saturating_add(1);
        doubled.min(FORCED_LARGEST).mul_f64(self.scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconnects_after_2_4_to_256_seconds() {
        let mut backoff = Backoff::new(1.0);
        let waits: Vec<u64> = (0..10).map(|_| backoff.failed().as_secs()).collect();
        assert_eq!(waits, [2, 4, 8, 16, 32, 64, 128, 256, 256, 256]);
        backoff.registered();
        assert_eq!(backoff.failed().as_secs(), 2);
    }

    #[test]
    fn forced_registers_double_to_300_seconds_until_a_heartbeat_is_acknowledged() {
        let mut backoff = Backoff::new(1.0);
        let waits: Vec<u64> = (0..10).map(|_| backoff.forced().as_secs()).collect();
        assert_eq!(waits, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        backoff.registered();
        assert_eq!(backoff.forced().as_secs(), 300);
        backoff.heartbeat_acknowledged();
        assert_eq!(backoff.forced().as_secs(), 2);
    }

    #[test]
    fn a_scale_shortens_every_wait() {
        let mut backoff = Backoff::new(0.01);
        assert_eq!(backoff.failed(), Duration::from_millis(20));
        assert_eq!(backoff.forced(), Duration::from_millis(20));
    }
}
