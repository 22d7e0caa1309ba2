//! Whether others may be taken for dead, or this node was the one that stood still (MESH-5).
//!
//! Responsible for noticing a gap in this node's own time (a stopped process, a machine that was
//! paused), and for the term that everybody has after it to be heard again. Pure: both clocks are
//! arguments. Must never judge a single node.

use std::time::{Duration, Instant};

/// The node's own beats, by two clocks: the monotonic one stands still with some machines, the wall
/// clock does not.
#[derive(Debug)]
pub(crate) struct Patience {
    /// A node that is silent for so long is dead.
    dead_after: Duration,
    last: Option<(Instant, Duration)>,
    /// Everybody has until then.
    until: Option<Instant>,
}

impl Patience {
    pub(crate) fn new(dead_after: Duration) -> Self {
        Self {
            dead_after,
            last: None,
            until: None,
        }
    }

    /// Time between two beats of a node that runs, and between two rounds of gossip.
    pub(crate) fn pace(dead_after: Duration) -> Duration {
        dead_after / 10
    }

    /// The node runs, at `now`; `wall` is the time since 1970. Returns how long it stood still before,
    /// if that was so long that silence proves nothing: from then on everybody has a new term. A wall
    /// clock that is set forward looks the same.
    pub(crate) fn beat(&mut self, now: Instant, wall: Duration) -> Option<Duration> {
        let last = self.last.replace((now, wall));
        let gap = last.map_or(Duration::ZERO, |(instant, before)| {
            let monotonic = now.saturating_duration_since(instant);
            monotonic.max(wall.saturating_sub(before))
        });
        // The engine takes nobody for dead after less than 0.62 of it, and what it heard last is three
        // rounds old at most.
        let stood_still = gap >= self.dead_after / 4;
        stood_still.then(|| {
            self.until = Some(now + self.dead_after);
            gap
        })
    }

    /// Ends a term that is over at `now`.
    pub(crate) fn expire(&mut self, now: Instant) {
        if self.until.is_some_and(|until| now >= until) {
            self.until = None;
        }
    }

    /// How long a node that is heard of no more is kept at most, however often terms begin.
    pub(crate) fn longest(&self) -> Duration {
        3 * self.dead_after
    }

    /// Whether nobody is to be taken for dead.
    pub(crate) fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// The beats stop for a while.
    pub(crate) fn rest(&mut self) {
        self.last = None;
        self.until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD_AFTER: Duration = Duration::from_secs(5);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn mesh_5_a_gap_in_the_own_time_gives_everybody_a_full_term() {
        let (mut patience, start) = (Patience::new(DEAD_AFTER), Instant::now());
        let mut beat = |at| {
            let gap = patience.beat(start + ms(at), ms(at));
            patience.expire(start + ms(at));
            (gap, patience.is_on())
        };
        assert_eq!(beat(0), (None, false));
        assert_eq!(beat(500), (None, false));
        // A quarter of 5 s.
        assert_eq!(beat(1_749), (None, false));
        assert_eq!(beat(2_999), (Some(ms(1_250)), true));
        assert_eq!(beat(3_500), (None, true));
        assert_eq!(beat(4_500), (None, true));
        assert_eq!(beat(5_500), (None, true));
        assert_eq!(beat(6_500), (None, true));
        assert_eq!(beat(7_500), (None, true));
        assert_eq!(beat(7_999), (None, false));
    }

    #[test]
    fn mesh_5_a_clock_that_stands_still_with_its_machine_hides_no_gap() {
        let (mut patience, start) = (Patience::new(DEAD_AFTER), Instant::now());
        assert_eq!(patience.beat(start, ms(0)), None);
        assert_eq!(patience.beat(start, ms(60_000)), Some(ms(60_000)));
        // Set back: nothing is known by it.
        assert_eq!(patience.beat(start, ms(10)), None);
    }

    #[test]
    fn mesh_5_a_rest_is_no_gap() {
        let (mut patience, start) = (Patience::new(DEAD_AFTER), Instant::now());
        patience.beat(start, ms(0));
        patience.rest();
        assert_eq!(patience.beat(start + ms(9_000), ms(9_000)), None);
    }
}
