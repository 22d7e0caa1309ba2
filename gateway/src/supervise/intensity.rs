//! How often something may be restarted.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// At most `max` restarts within `period`. Pure; remembers no more than that many.
#[derive(Debug)]
pub(crate) struct Intensity {
    max: usize,
    period: Duration,
    recent: VecDeque<Instant>,
}

impl Intensity {
    pub(crate) const fn new(max: usize, period: Duration) -> Self {
        Self {
            max,
            period,
            recent: VecDeque::new(),
        }
    }

    /// From now on at most `max` within `period`; what was counted stays.
    pub(crate) fn limit(&mut self, max: usize, period: Duration) {
        (self.max, self.period) = (max, period);
    }

    /// Counts a restart at `now`. False: it is one too many, and the count begins anew.
    pub(crate) fn admit(&mut self, now: Instant) -> bool {
        let over = |at: &mut Instant| now.duration_since(*at) >= self.period;
        while self.recent.pop_front_if(over).is_some() {}
        if self.recent.len() >= self.max {
            self.recent = VecDeque::new();
            return false;
        }
        self.recent.push_back(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(intensity: &mut Intensity, start: Instant, seconds: &[u64]) -> Vec<bool> {
        let at = |second: &u64| start + Duration::from_secs(*second);
        seconds.iter().map(|s| intensity.admit(at(s))).collect()
    }

    #[test]
    fn owner_8_the_fourth_restart_within_60_s_is_one_too_many() {
        let start = Instant::now();
        let mut quick = Intensity::new(3, Duration::from_secs(60));
        let admitted = admits(&mut quick, start, &[0, 0, 0, 59]);
        assert_eq!(admitted, [true, true, true, false]);
        let mut slow = Intensity::new(3, Duration::from_secs(60));
        let admitted = admits(&mut slow, start, &[0, 30, 50, 60, 90, 110]);
        assert_eq!(admitted, [true; 6]);
    }

    #[test]
    fn owner_9_after_a_breach_the_count_begins_anew() {
        let start = Instant::now();
        let mut intensity = Intensity::new(2, Duration::from_secs(10));
        let admitted = admits(&mut intensity, start, &[0, 1, 2, 2, 3, 4]);
        assert_eq!(admitted, [true, true, false, true, true, false]);
    }

    #[test]
    fn no_more_is_remembered_than_can_matter() {
        let start = Instant::now();
        let mut intensity = Intensity::new(3, Duration::from_secs(60));
        for second in 0..10_000 {
            intensity.admit(start + Duration::from_secs(second));
            assert!(intensity.recent.len() <= 3);
        }
    }
}
