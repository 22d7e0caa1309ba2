//! Which agents are to be replayed, in which order, and when (REPLAY-6, REPLAY-9 to REPLAY-12,
//! REPLAY-18, REPLAY-19).
//!
//! Responsible for the queue of named sessions, for the walk of a full replay behind it, and for
//! never having one agent twice on its way. Pure: time, chance and what the registry holds come
//! in as arguments. Must never send, wait, log or count.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::guard::Guard;
use crate::config;

/// Agents that a full replay takes from the registry at a time (REPLAY-10).
pub(crate) const CHUNK: usize = 500;
/// A drip begins one replay after the other, so far apart: those that begin together end together,
/// and each then waits for all the others to be handled, time and again.
const SPREAD: Duration = Duration::from_micros(500);
/// No full replay begins within this time of the end of another (REPLAY-9).
const FULL_GAP: Duration = Duration::from_secs(60);

/// An agent under one session.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) agent_id: Arc<str>,
    pub(crate) session_id: Arc<str>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Target")
    }
}

/// An agent that is held, as a walk meets it.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) target: Target,
    /// Since when.
    pub(crate) since: Instant,
}

/// Held agents in the order of their ids, and whether there are more behind them.
pub(crate) type Page = (Vec<Held>, bool);

/// One replay: taken from the queue, to be landed again.
#[derive(Debug)]
#[must_use = "an entry that does not land keeps its place for ever"]
pub(crate) struct Entry {
    pub(crate) target: Target,
    /// Its place in the order; no two entries share it.
    ticket: u64,
    /// Which full replay it belongs to; zero is none.
    full: u64,
}

/// How a replay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Landing {
    /// The server took the session in.
    Adopted,
    /// There is nothing left to do.
    Done,
    /// It was not sent and still has to be: it goes back to its place.
    Unsent,
}

/// What became of the ids of a verdict (REPLAY-7).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) queued: usize,
    pub(crate) not_local: usize,
    pub(crate) already_queued: usize,
    pub(crate) within_guard: usize,
    pub(crate) queue_full: usize,
}

/// What an abort dropped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Aborted {
    /// Replays that were not sent yet.
    pub(crate) waiting: usize,
    /// The agents behind this one had not even been queued.
    pub(crate) walked_to: Option<Arc<str>>,
}

/// An agent's place in the drip. An entry whose agent has a later place is void.
#[derive(Debug)]
struct Place {
    session_id: Arc<str>,
    ticket: u64,
    sent: bool,
}

/// A full replay on its way through the registry.
#[derive(Debug)]
struct Walk {
    /// The last agent that was looked at; empty at the start.
    after: Arc<str>,
    began: Instant,
}

/// The full replay, the present or the last one.
#[derive(Debug, Default)]
struct Full {
    /// Counts them.
    number: u64,
    running: bool,
    /// The part of the registry that is left.
    walk: Option<Walk>,
    /// Its entries that have not landed.
    left: usize,
    ended: Option<Instant>,
}

/// The pure core.
#[derive(Debug)]
pub(crate) struct Queue {
    max: usize,
    guard: Guard,
    /// In the order of their tickets.
    waiting: VecDeque<Entry>,
    /// Every agent that waits or is on its way.
    places: HashMap<Arc<str>, Place>,
    last_ticket: u64,
    in_flight: usize,
    /// The drip that began pauses until then (REPLAY-11).
    starts_at: Option<Instant>,
    full: Full,
    stopped: bool,
}

impl Queue {
    /// Nothing to replay.
    pub(crate) fn new(config: &config::Replay) -> Self {
        Self {
            max: config.queue_max,
            guard: Guard::new(config.session_guard),
            waiting: VecDeque::new(),
            places: HashMap::new(),
            last_ticket: 0,
            in_flight: 0,
            starts_at: None,
            full: Full::default(),
            stopped: false,
        }
    }

    /// Puts another configuration in force. What waits beyond a lowered bound stays.
    pub(crate) fn limit(&mut self, config: &config::Replay) {
        let config::Replay {
            session_guard,
            queue_max,
            start_jitter: _,
        } = *config;
        self.max = queue_max;
        self.guard.last_for(session_guard);
    }

    /// Replays that wait for their turn.
    pub(crate) fn depth(&self) -> usize {
        self.waiting.len()
    }

    /// Entries that were taken and have not landed.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether a planned stop has begun.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Queues the sessions that a verdict names; `None` is one that is not held here (REPLAY-6).
    /// A drip that begins with them pauses for `pause` first.
    pub(crate) fn name(
        &mut self,
        named: impl IntoIterator<Item = Option<Target>>,
        now: Instant,
        pause: Duration,
    ) -> Tally {
        let mut tally = Tally::default();
        if self.stopped {
            return tally;
        }
        let idle = self.is_idle();
        for target in named {
            let Some(target) = target else {
                tally.not_local += 1;
                continue;
            };
            let place = self.places.get(&target.agent_id);
            if place.is_some_and(|place| !place.sent) {
                tally.already_queued += 1;
            } else if self.guard.covers(&target.session_id, now) {
                tally.within_guard += 1;
            } else if place.is_some() {
                tally.already_queued += 1;
            } else if self.waiting.len() >= self.max {
                tally.queue_full += 1;
            } else {
                self.append(target, 0);
                tally.queued += 1;
            }
        }
        if idle && tally.queued > 0 {
            self.starts_at = Some(now + pause);
        }
        tally
    }

    /// Whether a full replay may begin now (REPLAY-9).
    pub(crate) fn may_begin_full(&self, now: Instant) -> bool {
        let gap_over = self.full.ended.is_none_or(|at| at + FULL_GAP <= now);
        !self.stopped && !self.full.running && gap_over
    }

    /// Begins a full replay, behind what is queued; false when none may begin now. Agents that
    /// connect later are not its business: the server has heard of them since.
    pub(crate) fn begin_full(&mut self, now: Instant, pause: Duration) -> bool {
        if !self.may_begin_full(now) {
            return false;
        }
        if self.is_idle() {
            self.starts_at = Some(now + pause);
        }
        self.full = Full {
            number: self.full.number + 1,
            running: true,
            walk: Some(Walk {
                after: Arc::from(""),
                began: now,
            }),
            left: 0,
            ended: None,
        };
        true
    }

    /// How many replays the drip that runs may have on their way: one more each [`SPREAD`].
    pub(crate) fn spread(&self, now: Instant) -> usize {
        self.starts_at.map_or(usize::MAX, |at| {
            let steps = now.saturating_duration_since(at).as_micros() / SPREAD.as_micros();
            1 + usize::try_from(steps).unwrap_or(usize::MAX - 1)
        })
    }

    /// The next replay, if fewer than `width` are on their way. `page` gives held agents behind
    /// an id, up to a number.
    pub(crate) fn take(
        &mut self,
        width: usize,
        now: Instant,
        page: impl Fn(&str, usize) -> Page,
    ) -> Option<Entry> {
        let pauses = self.starts_at.is_some_and(|at| now < at);
        if self.stopped || pauses || self.in_flight >= width {
            return None;
        }
        while self.waiting.is_empty() && self.full.walk.is_some() {
            self.walk_on(now, &page);
        }
        let entry = self.waiting.pop_front();
        self.in_flight += usize::from(entry.is_some());
        self.settle(now);
        entry
    }

    /// Right before an entry is sent: false calls it off, because it was aborted or is void. Its
    /// session is guarded from now on.
    pub(crate) fn begin(&mut self, entry: &Entry, now: Instant) -> bool {
        let place = self.places.get_mut(&entry.target.agent_id);
        match place.filter(|place| place.ticket == entry.ticket) {
            Some(place) => place.sent = true,
            None => return false,
        }
        self.guard.stamp(&entry.target.session_id, now);
        true
    }

    /// An entry comes back.
    pub(crate) fn land(&mut self, entry: Entry, landing: Landing, now: Instant) {
        self.in_flight -= 1;
        if landing == Landing::Adopted {
            self.guard.adopted(&entry.target.session_id);
        }
        let place = self.places.get_mut(&entry.target.agent_id);
        if let Some(place) = place.filter(|place| place.ticket == entry.ticket) {
            if landing == Landing::Unsent && !self.stopped {
                place.sent = false;
                let at = self.waiting.partition_point(|e| e.ticket < entry.ticket);
                self.waiting.insert(at, entry);
                return;
            }
            self.places.remove(&entry.target.agent_id);
        }
        if entry.full == self.full.number && self.full.running {
            self.full.left = self.full.left.saturating_sub(1);
        }
        self.settle(now);
    }

    /// Drops all that was not sent yet (REPLAY-18). `None`: there was nothing.
    pub(crate) fn abort(&mut self, now: Instant) -> Option<Aborted> {
        let waiting = self.places.values().filter(|place| !place.sent).count();
        let walk = self.full.walk.take();
        self.waiting.clear();
        if waiting == 0 && walk.is_none() {
            return None;
        }
        self.places.retain(|_, place| place.sent);
        if std::mem::take(&mut self.full.running) {
            self.full.ended = Some(now);
        }
        self.starts_at = None;
        Some(Aborted {
            waiting,
            walked_to: walk.map(|walk| walk.after),
        })
    }

    /// A planned stop: nothing is taken or begun from now on (REPLAY-19).
    pub(crate) fn stop(&mut self, now: Instant) {
        self.stopped = true;
        self.abort(now);
    }

    /// Lets time pass.
    pub(crate) fn tick(&mut self, now: Instant) {
        let walking = self.full.walk.as_ref().map(|walk| walk.began);
        self.guard.expire(now, walking);
    }

    /// When to call [`Queue::tick`] and [`Queue::take`] again with nothing else happening, if both
    /// had their turn at `now`.
    pub(crate) fn next_time(&self, now: Instant) -> Option<Instant> {
        let gap = self.full.ended.map(|at| at + FULL_GAP);
        let out = u32::try_from(self.in_flight).unwrap_or(u32::MAX);
        let next = self.starts_at.map(|at| at + SPREAD * out);
        [next, self.guard.next_time(), gap]
            .into_iter()
            .flatten()
            .filter(|at| *at > now)
            .min()
    }

    fn is_idle(&self) -> bool {
        self.places.is_empty() && self.full.walk.is_none()
    }

    fn append(&mut self, target: Target, full: u64) {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        let place = Place {
            session_id: Arc::clone(&target.session_id),
            ticket,
            sent: false,
        };
        self.places.insert(Arc::clone(&target.agent_id), place);
        self.waiting.push_back(Entry {
            target,
            ticket,
            full,
        });
    }

    /// Queues the next chunk of the walk.
    fn walk_on(&mut self, now: Instant, page: impl Fn(&str, usize) -> Page) {
        let Some(walk) = self.full.walk.take() else {
            return;
        };
        let (held, more) = page(&walk.after, CHUNK);
        let last = held.last().map(|held| Arc::clone(&held.target.agent_id));
        for Held { target, since } in held {
            let place = self.places.get(&target.agent_id);
            let on_its_way = place.is_some_and(|place| place.session_id == target.session_id);
            let replayed = self.guard.covers(&target.session_id, now)
                || self.guard.adopted_since(&target.session_id, walk.began);
            if since <= walk.began && !on_its_way && !replayed {
                self.append(target, self.full.number);
                self.full.left += 1;
            }
        }
        if let (true, Some(after)) = (more, last) {
            let began = walk.began;
            self.full.walk = Some(Walk { after, began });
        }
    }

    /// Notices the end of a full replay, and of the drip.
    fn settle(&mut self, now: Instant) {
        if self.full.running && self.full.walk.is_none() && self.full.left == 0 {
            self.full.running = false;
            self.full.ended = Some(now);
        }
        if self.is_idle() {
            self.starts_at = None;
            self.waiting.shrink_to_fit();
            self.places.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
