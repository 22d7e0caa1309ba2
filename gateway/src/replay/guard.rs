//! Which sessions were replayed a moment ago (REPLAY-6, REPLAY-10).
//!
//! A verdict may be older than the replay that answers it; the guard keeps such a one from causing
//! another. A full replay may take longer than that; the guard also knows whom the server has
//! taken in anew since it began. Pure. Must never keep a stamp for longer than the window and the
//! full replay, nor more than [`MAX_STAMPS`] of them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// Several times what one node can hold; the oldest is forgotten for one more.
const MAX_STAMPS: usize = 1 << 18;

#[derive(Debug)]
struct Stamp {
    at: Instant,
    /// The server took the session in anew.
    adopted: bool,
}

/// The times at which sessions were replayed.
#[derive(Debug)]
pub(crate) struct Guard {
    window: Duration,
    stamps: HashMap<Arc<str>, Stamp>,
    /// Every stamp in the order in which it was made, replaced ones included.
    made: VecDeque<(Instant, Arc<str>)>,
}

impl Guard {
    /// Guards each session for `window` after its stamp.
    pub(crate) fn new(window: Duration) -> Self {
        Self {
            window,
            stamps: HashMap::new(),
            made: VecDeque::new(),
        }
    }

    /// Guards each session for `window` after its stamp, those made before included.
    pub(crate) fn last_for(&mut self, window: Duration) {
        self.window = window;
    }

    /// A replay of the session is being sent.
    pub(crate) fn stamp(&mut self, session_id: &Arc<str>, now: Instant) {
        if self.made.len() >= MAX_STAMPS {
            self.forget_oldest();
        }
        let stamp = Stamp {
            at: now,
            adopted: false,
        };
        self.stamps.insert(Arc::clone(session_id), stamp);
        self.made.push_back((now, Arc::clone(session_id)));
    }

    /// The server took the session in anew.
    pub(crate) fn adopted(&mut self, session_id: &str) {
        if let Some(stamp) = self.stamps.get_mut(session_id) {
            stamp.adopted = true;
        }
    }

    /// Whether the session was replayed within the window.
    pub(crate) fn covers(&self, session_id: &str, now: Instant) -> bool {
        let stamp = self.stamps.get(session_id);
        stamp.is_some_and(|stamp| now < stamp.at + self.window)
    }

    /// Whether the session was replayed at or after `since`, and the server took it in.
    pub(crate) fn adopted_since(&self, session_id: &str, since: Instant) -> bool {
        let stamp = self.stamps.get(session_id);
        stamp.is_some_and(|stamp| stamp.adopted && stamp.at >= since)
    }

    /// Forgets what is over, and gives the memory of a burst back. Stamps made at or after `since`
    /// stay.
    pub(crate) fn expire(&mut self, now: Instant, since: Option<Instant>) {
        while let Some((at, _)) = self.made.front()
            && *at + self.window <= now
            && since.is_none_or(|since| *at < since)
        {
            self.forget_oldest();
        }
        if self.made.is_empty() && self.made.capacity() > 0 {
            *self = Self::new(self.window);
        }
    }

    /// When the window of the last stamp is over: the one time at which to call [`Guard::expire`]
    /// if nothing else happens.
    pub(crate) fn next_time(&self) -> Option<Instant> {
        self.made.back().map(|(at, _)| *at + self.window)
    }

    fn forget_oldest(&mut self) {
        let Some((at, session_id)) = self.made.pop_front() else {
            return;
        };
        if self.stamps.get(&session_id).is_some_and(|s| s.at == at) {
            self.stamps.remove(&session_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn session(number: usize) -> Arc<str> {
        number.to_string().into()
    }

    #[test]
    fn replay_6_a_stamp_guards_for_its_window_and_is_gone_then() {
        let start = Instant::now();
        let mut guard = Guard::new(WINDOW);
        guard.stamp(&session(1), start);
        guard.stamp(&session(2), start + Duration::from_secs(4));
        let last = start + WINDOW - Duration::from_millis(1);
        assert!(guard.covers("1", last) && guard.covers("2", last));
        assert!(!guard.covers("1", start + WINDOW));
        assert!(!guard.covers("3", start));
        let all_over = start + Duration::from_secs(14);
        assert_eq!(guard.next_time(), Some(all_over));
        guard.expire(all_over, None);
        assert_eq!((guard.stamps.len(), guard.stamps.capacity()), (0, 0));
        assert_eq!(guard.next_time(), None);
    }

    #[test]
    fn replay_6_a_second_stamp_guards_from_its_own_time() {
        let start = Instant::now();
        let mut guard = Guard::new(WINDOW);
        let second = start + Duration::from_secs(9);
        guard.stamp(&session(1), start);
        guard.stamp(&session(1), second);
        guard.expire(start + WINDOW, None);
        assert!(guard.covers("1", start + WINDOW));
        assert!(!guard.covers("1", second + WINDOW));
    }

    #[test]
    fn reload_3_another_window_holds_for_the_stamps_that_were_made() {
        let start = Instant::now();
        let mut guard = Guard::new(WINDOW);
        guard.stamp(&session(1), start);
        let later = start + Duration::from_secs(3);
        guard.last_for(Duration::from_secs(2));
        assert!(!guard.covers("1", later));
        guard.last_for(Duration::from_secs(20));
        assert!(guard.covers("1", later));
        assert_eq!(guard.next_time(), Some(start + Duration::from_secs(20)));
    }

    #[test]
    fn replay_6_without_a_window_nothing_is_kept() {
        let now = Instant::now();
        let mut guard = Guard::new(Duration::ZERO);
        guard.stamp(&session(1), now);
        assert!(!guard.covers("1", now));
        guard.expire(now, None);
        assert_eq!(guard.next_time(), None);
    }

    #[test]
    fn replay_10_what_was_adopted_since_a_time_is_known_beyond_the_window() {
        let start = Instant::now();
        let mut guard = Guard::new(WINDOW);
        let since = start + Duration::from_secs(1);
        for (number, at) in [(1, start), (2, since), (3, since)] {
            guard.stamp(&session(number), at);
        }
        guard.adopted("1");
        guard.adopted("2");
        let late = since + WINDOW * 10;
        guard.expire(late, Some(since));
        assert!(!guard.adopted_since("1", since), "before that time");
        assert!(guard.adopted_since("2", since));
        assert!(!guard.adopted_since("3", since), "it failed");
        assert_eq!(guard.stamps.len(), 2);
        guard.expire(late, None);
        assert_eq!(guard.stamps.len(), 0);
    }

    #[test]
    fn stamps_are_bounded_by_number_as_well() {
        let now = Instant::now();
        let mut guard = Guard::new(WINDOW);
        for number in 0..=MAX_STAMPS {
            guard.stamp(&session(number), now);
        }
        assert_eq!(
            (guard.made.len(), guard.stamps.len()),
            (MAX_STAMPS, MAX_STAMPS)
        );
        assert!(!guard.covers("0", now));
        assert!(guard.covers("1", now));
    }
}
