//! The most there was of something over the last one to two minutes (NOTIFY-15).
//!
//! Must never read a clock.

use std::time::Duration;

use tokio::time::Instant;

const PERIOD: Duration = Duration::from_secs(60);

/// A level, and its largest value in this period and in the one before.
#[derive(Debug)]
pub(crate) struct HighWater {
    level: usize,
    current: usize,
    previous: usize,
    period_ends: Instant,
}

impl HighWater {
    /// A level of 0.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            level: 0,
            current: 0,
            previous: 0,
            period_ends: now + PERIOD,
        }
    }

    /// The level is `level` from now on.
    pub(crate) fn set(&mut self, level: usize, now: Instant) {
        self.tick(now);
        self.level = level;
        self.current = self.current.max(level);
    }

    /// Lets periods end. Times may lie a little back, as those of several tasks do.
    pub(crate) fn tick(&mut self, now: Instant) {
        if now < self.period_ends {
            return;
        }
        let over = now - self.period_ends;
        // The level did not change in a period that nobody was told of.
        self.previous = if over < PERIOD {
            self.current
        } else {
            self.level
        };
        self.current = self.level;
        let ended = over.as_secs() / PERIOD.as_secs() + 1;
        self.period_ends += Duration::from_secs(ended * PERIOD.as_secs());
    }

    /// The largest level over the last one to two minutes.
    pub(crate) fn most(&self) -> usize {
        self.current.max(self.previous)
    }

    /// When [`HighWater::most`] may sink with nothing else happening.
    pub(crate) fn next_time(&self) -> Option<Instant> {
        (self.most() > self.level).then_some(self.period_ends)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(start: Instant, second: u64) -> Instant {
        start + Duration::from_secs(second)
    }

    #[test]
    fn notify_15_a_peak_is_seen_for_one_to_two_minutes() {
        for (peak_at, gone_at) in [(0, 120), (59, 120), (61, 180)] {
            let start = Instant::now();
            let mut water = HighWater::new(start);
            water.set(7, at(start, peak_at));
            water.set(2, at(start, peak_at));
            water.tick(at(start, 60));
            water.tick(at(start, gone_at - 1));
            assert_eq!(water.most(), 7, "peak at {peak_at}");
            water.tick(at(start, gone_at));
            assert_eq!(water.most(), 2, "peak at {peak_at}");
            assert_eq!(water.next_time(), None, "2 is the level");
        }
    }

    #[test]
    fn notify_15_a_level_that_stays_is_the_mark() {
        let start = Instant::now();
        let mut water = HighWater::new(start);
        water.set(9, start);
        water.tick(at(start, 10_000));
        assert_eq!((water.most(), water.next_time()), (9, None));
        water.set(1, at(start, 10_001));
        assert_eq!(water.next_time(), Some(at(start, 10_020)));
        water.tick(at(start, 10_020));
        assert_eq!(water.most(), 9);
        water.tick(at(start, 10_080));
        assert_eq!((water.most(), water.next_time()), (1, None));
    }

    proptest! {
        /// Ticked when it asks to be, it never forgets within a minute nor remembers beyond two.
        #[test]
        fn notify_15_covers_the_last_minute_and_at_most_two(
            steps in proptest::collection::vec((0u64..50, 0usize..10), 1..60)
        ) {
            let start = Instant::now();
            let mut water = HighWater::new(start);
            let (mut now, mut levels) = (start, vec![(start, 0)]);
            for (seconds, level) in steps {
                let next = now + Duration::from_secs(seconds);
                while let Some(time) = water.next_time().filter(|time| *time <= next) {
                    water.tick(time);
                }
                now = next;
                water.set(level, now);
                levels.push((now, level));
                let most_since = |age: u64| {
                    let from = now.checked_sub(Duration::from_secs(age));
                    let inside = |at: Instant| from.is_none_or(|from| at >= from);
                    let ends = levels.iter().skip(1).map(|(at, _)| *at).chain([now]);
                    let seen = levels.iter().zip(ends).filter(|(_, end)| inside(*end));
                    seen.map(|((_, level), _)| *level).max().unwrap_or(0)
                };
                prop_assert!(water.most() >= most_since(60));
                prop_assert!(water.most() <= most_since(120));
            }
        }
    }
}
