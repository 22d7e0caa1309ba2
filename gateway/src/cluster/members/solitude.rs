//! Whether this node looks for others and has found none (CLUSTER-2).
//!
//! Responsible for when that is to be said, and when that it is over. Pure: the time is an argument.
//! Must never make more of it: a node that is alone serves.

use std::time::{Duration, Instant};

/// Between two lines that say the same.
const EVERY: Duration = Duration::from_secs(60);

/// What is to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Nobody was found.
    Alone,
    /// Somebody was, after that was said.
    Found,
}

/// What was said of it.
#[derive(Debug)]
pub(crate) struct Solitude {
    /// How long others may take to be found.
    patience: Duration,
    since: Option<Instant>,
    said: Option<Instant>,
}

impl Solitude {
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            patience,
            since: None,
            said: None,
        }
    }

    /// At `now` there are so many other members; `seeks`: there are seeds beside this node.
    pub(crate) fn look(&mut self, now: Instant, members: usize, seeks: bool) -> Option<Notice> {
        if members > 0 {
            self.since = None;
            return self.said.take().map(|_| Notice::Found);
        }
        if !seeks {
            self.since = None;
            return None;
        }
        let since = *self.since.get_or_insert(now);
        let due = self.said.map_or(since + self.patience, |said| said + EVERY);
        (now >= due).then(|| {
            self.said = Some(now);
            Notice::Alone
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_2_a_node_that_finds_nobody_says_so_once_a_minute_until_it_does() {
        let (mut solitude, start) = (Solitude::new(Duration::from_secs(10)), Instant::now());
        let mut look = |at, members| {
            let now = start + Duration::from_secs(at);
            solitude.look(now, members, true)
        };
        assert_eq!(look(3, 0), None);
        assert_eq!(look(12, 0), None);
        assert_eq!(look(13, 0), Some(Notice::Alone));
        assert_eq!(look(14, 0), None);
        assert_eq!(look(72, 0), None);
        assert_eq!(look(73, 0), Some(Notice::Alone));
        assert_eq!(look(80, 2), Some(Notice::Found));
        assert_eq!(look(81, 2), None);
        // Again, from the beginning.
        assert_eq!(look(200, 0), None);
        assert_eq!(look(205, 1), None);
        assert_eq!(look(206, 0), None);
        assert_eq!(look(216, 0), Some(Notice::Alone));
    }

    #[test]
    fn cluster_2_a_node_that_looks_for_nobody_has_nothing_to_say() {
        let (mut solitude, start) = (Solitude::new(Duration::ZERO), Instant::now());
        assert_eq!(solitude.look(start, 0, false), None);
        assert_eq!(solitude.look(start, 0, true), Some(Notice::Alone));
    }
}
