//! When agents are refused for want of memory, and what is said when that does not work.
//!
//! Responsible for the hysteresis (SHED-1) and for the rate of the failure lines (SHED-9). Pure:
//! no clock, no socket.

use std::time::Duration;

use tokio::time::Instant;

use crate::config::Marks;

/// A failure that lasts is told again after this.
const AGAIN: Duration = Duration::from_secs(60);

/// Compares memory with the marks.
#[derive(Debug)]
pub(super) struct Shedder {
    /// `None`: nothing is compared.
    marks: Option<Marks>,
    shedding: bool,
}

/// What a sample changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Memory passed the high mark.
    Began,
    /// It has fallen to the low mark.
    Ended,
}

impl Shedder {
    /// `shedding`: a listener is suspended already, so it goes on (SHED-10).
    pub(super) fn new(marks: Option<Marks>, shedding: bool) -> Self {
        Self { marks, shedding }
    }

    /// Compares with these from the next sample on.
    pub(super) fn compare_with(&mut self, marks: Option<Marks>) {
        self.marks = marks;
    }

    /// Takes one sample, in bytes. Without marks agents are admitted.
    pub(super) fn sample(&mut self, used: u64) -> Option<Change> {
        let (high, low) = self.marks.map_or((u64::MAX, u64::MAX), |m| (m.high, m.low));
        if !self.shedding && used > high {
            self.shedding = true;
            return Some(Change::Began);
        }
        if self.shedding && used <= low {
            self.shedding = false;
            return Some(Change::Ended);
        }
        None
    }

    /// Whether agents are to be refused.
    pub(super) fn is_shedding(&self) -> bool {
        self.shedding
    }
}

/// A transition that may fail again and again.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    told: Option<Instant>,
}

/// What is to be said about an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Say {
    Nothing,
    Failed,
    WorksAgain,
}

impl Trouble {
    /// An attempt of this tick failed, or nothing failed.
    pub(super) fn attempt(&mut self, failed: bool, now: Instant) -> Say {
        match self.told {
            None if !failed => Say::Nothing,
            Some(_) if !failed => {
                self.told = None;
                Say::WorksAgain
            }
            Some(told) if now < told + AGAIN => Say::Nothing,
            _ => {
                self.told = Some(now);
                Say::Failed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: Marks = Marks { high: 75, low: 65 };

    #[test]
    fn shed_1_begins_above_the_high_mark_and_ends_at_the_low_one() {
        let mut shedder = Shedder::new(Some(MARKS), false);
        for (used, change, shedding) in [
            (75, None, false),
            (76, Some(Change::Began), true),
            (90, None, true),
            (66, None, true),
            (65, Some(Change::Ended), false),
            (75, None, false),
            (u64::MAX, Some(Change::Began), true),
            (0, Some(Change::Ended), false),
        ] {
            assert_eq!(shedder.sample(used), change, "{used}");
            assert_eq!(shedder.is_shedding(), shedding, "{used}");
        }
    }

    #[test]
    fn shed_10_a_suspended_listener_is_opened_at_the_low_mark() {
        let mut shedder = Shedder::new(Some(MARKS), true);
        assert_eq!(shedder.sample(70), None);
        assert!(shedder.is_shedding());
        assert_eq!(shedder.sample(65), Some(Change::Ended));
    }

    #[test]
    fn other_marks_hold_from_the_next_sample_on_and_none_admit() {
        let mut shedder = Shedder::new(Some(MARKS), false);
        assert_eq!(shedder.sample(70), None);
        shedder.compare_with(Some(Marks { high: 69, low: 60 }));
        assert_eq!(shedder.sample(70), Some(Change::Began));
        shedder.compare_with(None);
        assert_eq!(shedder.sample(70), Some(Change::Ended));
        assert_eq!(shedder.sample(u64::MAX), None);
    }

    #[test]
    fn shed_9_the_first_failure_is_told_then_one_a_minute_and_the_success() {
        let start = Instant::now();
        let mut trouble = Trouble::default();
        let mut at = |seconds: u64, failed: bool| {
            trouble.attempt(failed, start + Duration::from_secs(seconds))
        };
        assert_eq!(at(0, false), Say::Nothing);
        assert_eq!(at(1, true), Say::Failed);
        assert_eq!(at(2, true), Say::Nothing);
        assert_eq!(at(60, true), Say::Nothing);
        assert_eq!(at(61, true), Say::Failed);
        assert_eq!(at(120, true), Say::Nothing);
        assert_eq!(at(121, false), Say::WorksAgain);
        assert_eq!(at(122, false), Say::Nothing);
        assert_eq!(at(123, true), Say::Failed);
    }
}
