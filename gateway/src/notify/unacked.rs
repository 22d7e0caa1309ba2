//! Notices that the server answered without recording them, and when each is sent again (UNACK-*).
//!
//! Responsible for the delays, for how long a notice is worth sending again, and for the bound of
//! the set. Time and chance come in as arguments. Must never send, wait or count.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::time::Duration;

use tokio::time::Instant;

use super::notice::{Event, Notice, NoticeKey};
use crate::config;

/// Least part of the slow delay (UNACK-7).
const SLOW_LEAST: f64 = 0.8;

/// What a refusal means to its notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is sent again.
    Again(Wait),
    /// It is lost: its time is over (UNACK-8).
    Expired,
    /// It is lost: the set is full (UNACK-2).
    Full,
}

/// A wait for the next resend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wait {
    /// Refusals so far.
    pub(crate) refusals: u32,
    /// Time since the first of them.
    pub(crate) over: Duration,
    /// Time until the resend.
    pub(crate) delay: Duration,
}

/// When refused notices are sent again.
#[derive(Debug, Clone)]
struct Rules {
    base: Duration,
    max: Duration,
    slow_after: Duration,
    slow_max: Duration,
    window: Duration,
}

struct Entry {
    notice: Notice,
    number: u64,
    first: Instant,
    /// When it was refused last.
    refused: Instant,
    refusals: u32,
    /// The delay before the last resend that was not slow; the base at first.
    previous: Duration,
    slow: bool,
    due: Instant,
    /// A resend is in flight.
    out: bool,
}

/// The set: at most one entry per key.
pub(crate) struct Unacked {
    cap: usize,
    rules: Rules,
    entries: HashMap<NoticeKey, Entry>,
    /// Those that wait, by the time of their resend. The number tells equal times apart.
    due: BTreeMap<(Instant, u64), NoticeKey>,
    /// The DISCONNECTED among them, by the end of their window.
    windows: BTreeMap<(Instant, u64), NoticeKey>,
    last_number: u64,
    out: usize,
    slow: usize,
    /// The last answer to one of the set was that it is recorded.
    recording: bool,
}

impl Unacked {
    /// An empty set of at most `config.pending_max` notices.
    pub(crate) fn new(config: &config::Notify) -> Self {
        Self {
            cap: config.pending_max,
            rules: Rules::of(config),
            entries: HashMap::new(),
            due: BTreeMap::new(),
            windows: BTreeMap::new(),
            last_number: 0,
            out: 0,
            slow: 0,
            recording: false,
        }
    }

    /// Puts other rules in force: for each notice at its next refusal, and for the windows of all
    /// at once. Nothing leaves because of the cap.
    pub(crate) fn limit(&mut self, config: &config::Notify) {
        let before = self.rules.window;
        self.cap = config.pending_max;
        self.rules = Rules::of(config);
        let window = self.rules.window;
        // All windows move by as much, so their order stays.
        let windows = std::mem::take(&mut self.windows).into_iter();
        self.windows = windows
            .map(|((end, number), key)| ((end - before + window, number), key))
            .collect();
    }

    /// Notices in the set, those whose resend is in flight included.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Those in the slow phase.
    pub(crate) fn slow(&self) -> usize {
        self.slow
    }

    /// Resends in flight.
    pub(crate) fn out(&self) -> usize {
        self.out
    }

    /// Whether a resend of `key` is in flight.
    pub(crate) fn is_out(&self, key: &NoticeKey) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.out)
    }

    /// Whether a resend may be due at `now`.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let next = self.due.first_key_value();
        next.is_some_and(|((due, _), _)| *due <= now)
    }

    /// When a resend falls due or a window ends next, after `now`.
    pub(crate) fn next_time(&self, now: Instant) -> Option<Instant> {
        let later = (Bound::Excluded((now, u64::MAX)), Bound::Unbounded);
        let due = self.due.range(later).next().map(|((due, _), _)| *due);
        let window = self.windows.first_key_value().map(|((end, _), _)| *end);
        due.into_iter().chain(window).min()
    }

    /// The server did not record `notice`. `chance` is a random number in `0.0..=1.0`.
    pub(crate) fn refuse(&mut self, notice: Notice, now: Instant, chance: f64) -> Refused {
        self.recording = false;
        let key = notice.key();
        let mut entry = match self.remove(&key) {
            Some(entry) => entry,
            None if self.entries.len() >= self.cap => return Refused::Full,
            None => self.entry(notice, now),
        };
        entry.refusals = entry.refusals.saturating_add(1);
        let Some(delay) = self.rules.delay(&mut entry, now, chance) else {
            return Refused::Expired;
        };
        entry.refused = now;
        entry.due = now + delay;
        entry.out = false;
        let wait = Wait {
            refusals: entry.refusals,
            over: now - entry.first,
            delay,
        };
        self.insert(key, entry);
        Refused::Again(wait)
    }

    /// The next notice to send again, which is out from now on. A CONNECTED whose session is not
    /// held is taken out of the set instead (UNACK-6); their number comes with it.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        is_held: impl Fn(&NoticeKey) -> bool,
    ) -> (Option<Notice>, usize) {
        let mut ended = 0;
        while self.is_due(now) {
            let Some((_, key)) = self.due.pop_first() else {
                break;
            };
            let Some(mut entry) = self.remove(&key) else {
                break;
            };
            if entry.notice.event == Event::Connected && !is_held(&key) {
                ended += 1;
                continue;
            }
            entry.out = true;
            let notice = entry.notice.clone();
            self.insert(key, entry);
            return (Some(notice), ended);
        }
        (None, ended)
    }

    /// A resend was recorded, so the server may have changed its mind: the next one that waits is
    /// due at once, or as soon as the shortest delay since its refusal is over. One for each, so
    /// that a server which records some and refuses others hears little more of those; two when
    /// nothing was refused since the one before, so that all slots are used soon. With one alone
    /// they would leave one after the other, as long as that is quicker than their own times.
    pub(crate) fn hasten(&mut self, now: Instant) {
        let again = std::mem::replace(&mut self.recording, true);
        for _ in 0..=usize::from(again) {
            self.hasten_next(now);
        }
    }

    fn hasten_next(&mut self, now: Instant) {
        let later = (Bound::Excluded((now, u64::MAX)), Bound::Unbounded);
        let next = self.due.range(later).next();
        let Some((key, entry)) = next.and_then(|(_, key)| self.entries.get_key_value(key)) else {
            return;
        };
        let soonest = now.max(entry.refused + self.rules.base);
        // The slow phase ends otherwise (UNACK-7).
        if entry.slow || soonest >= entry.due {
            return;
        }
        let key = key.clone();
        if let Some(mut entry) = self.remove(&key) {
            entry.due = soonest;
            entry.previous = soonest - entry.refused;
            self.insert(key, entry);
        }
    }

    /// The resend of `key` failed: it is due again at once, before those that fell due later.
    pub(crate) fn put_back(&mut self, key: &NoticeKey) {
        if let Some(mut entry) = self.remove(key) {
            entry.out = false;
            self.insert(key.clone(), entry);
        }
    }

    /// Forgets the notice of `key`; false: there is none.
    pub(crate) fn end(&mut self, key: &NoticeKey) -> bool {
        self.remove(key).is_some()
    }

    /// Forgets the notice of `key` if it waits; false: it does not.
    pub(crate) fn end_waiting(&mut self, key: &NoticeKey) -> bool {
        !self.is_out(key) && self.end(key)
    }

    /// Forgets the waiting DISCONNECTED whose window is over: how many (UNACK-8).
    pub(crate) fn expire(&mut self, now: Instant) -> usize {
        let mut ended = 0;
        while let Some(((end, _), key)) = self.windows.first_key_value() {
            if *end > now {
                break;
            }
            let key = key.clone();
            if !self.end(&key) {
                break;
            }
            ended += 1;
        }
        ended
    }

    /// Forgets all that wait; they come in the order of their resends.
    pub(crate) fn end_all_waiting(&mut self) -> Vec<Notice> {
        let due = std::mem::take(&mut self.due);
        let removed = due.into_values().filter_map(|key| self.remove(&key));
        removed.map(|entry| entry.notice).collect()
    }

    /// Forgets all, those whose resend is in flight included: how many.
    pub(crate) fn end_all(&mut self) -> usize {
        let ended = self.entries.len();
        self.entries.clear();
        self.due.clear();
        self.windows.clear();
        (self.out, self.slow) = (0, 0);
        ended
    }

    fn entry(&mut self, notice: Notice, now: Instant) -> Entry {
        self.last_number += 1;
        Entry {
            notice,
            number: self.last_number,
            first: now,
            refused: now,
            refusals: 0,
            previous: self.rules.base,
            slow: false,
            due: now,
            out: false,
        }
    }

    fn insert(&mut self, key: NoticeKey, entry: Entry) {
        self.slow += usize::from(entry.slow);
        self.out += usize::from(entry.out);
        if !entry.out {
            self.due.insert((entry.due, entry.number), key.clone());
            if entry.notice.event == Event::Disconnected {
                let end = (entry.first + self.rules.window, entry.number);
                self.windows.insert(end, key.clone());
            }
        }
        self.entries.insert(key, entry);
    }

    fn remove(&mut self, key: &NoticeKey) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.slow -= usize::from(entry.slow);
        self.out -= usize::from(entry.out);
        self.due.remove(&(entry.due, entry.number));
        let end = (entry.first + self.rules.window, entry.number);
        self.windows.remove(&end);
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to_fit();
        }
        Some(entry)
    }
}

impl Rules {
    fn of(config: &config::Notify) -> Self {
        let config::Notify {
            pending_max: _,
            probe_timeout: _,
            unacked_retry_base: base,
            unacked_retry_max: max,
            unacked_slow_after: slow_after,
            unacked_slow_max: slow_max,
            unacked_disconnected_window: window,
        } = *config;
        Self {
            base,
            max,
            slow_after,
            slow_max,
            window,
        }
    }

    /// The delay before the next resend of a notice refused just now; `None`: it is not worth
    /// another.
    fn delay(&self, entry: &mut Entry, now: Instant, chance: f64) -> Option<Duration> {
        let (age, chance) = (now - entry.first, chance.clamp(0.0, 1.0));
        let connected = entry.notice.event == Event::Connected;
        if connected && age >= self.slow_after {
            entry.slow = true;
            let part = SLOW_LEAST + (1.0 - SLOW_LEAST) * chance;
            return Some(self.slow_max.mul_f64(part));
        }
        // A base that was raised meanwhile may be more than that.
        let widest = self.base.max(entry.previous * 3);
        let delay = self.base + (widest - self.base).mul_f64(chance);
        entry.previous = delay.min(self.max);
        if connected {
            return Some(entry.previous);
        }
        // The last resend comes as the window ends, unless that is sooner than any delay.
        let left = self.window.saturating_sub(age);
        (left >= self.base).then(|| entry.previous.min(left))
    }
}

#[cfg(test)]
mod tests;
