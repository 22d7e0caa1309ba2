//! When agents are asked to move, why, and how many at once (SHIFT-1 to SHIFT-3).
//!
//! A round has one reason and a number of agents, fixed when it begins: what others tell of their
//! sessions is seconds old, so a mean that is worked out anew would run away from those who move. Pure.
//! Must never choose who moves.

use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::Elsewhere;
use crate::config;

/// Between the end of a round and the next (SHIFT-3).
const COOLDOWN: Duration = Duration::from_secs(300);
/// More than its share is too much after this long: what others tell is a second old, and agents that
/// come in numbers come unevenly.
const STEADY: Duration = Duration::from_secs(5);
/// Agents are asked in so many steps a second, where a step has more than one.
const STEPS: u32 = 10;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Why agents are asked to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// The node is about to stop.
    Draining,
    /// Its memory is short.
    Memory,
    /// Its processors have been busy for too long.
    Cpu,
    /// It has more than its share.
    Imbalance,
}

impl Reason {
    /// In the order of the metric labels.
    #[cfg(test)]
    pub(super) const ALL: [Self; 4] = [Self::Draining, Self::Memory, Self::Cpu, Self::Imbalance];

    /// Value of the metric label `reason`.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Draining => "draining",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Imbalance => "imbalance",
        }
    }
}

/// What a node sees of itself and of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Seen {
    /// Its agents, those that have been asked included.
    pub(super) held: usize,
    /// Of them, at most, that have been asked and may not have left yet.
    pub(super) leaving: usize,
    pub(super) draining: bool,
    /// Memory is short.
    pub(super) memory: bool,
    /// The processors have been busy for a minute.
    pub(super) cpu: bool,
    pub(super) elsewhere: Elsewhere,
}

/// Agents to be asked now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ask {
    /// At most, sessions that share the last one's connection aside.
    pub(super) most: usize,
    pub(super) reason: Reason,
}

/// A round under way.
#[derive(Debug, Clone, Copy)]
struct Round {
    reason: Reason,
    /// It ends when no more agents are held.
    target: usize,
    /// It ends when so many have been asked.
    left: usize,
}

/// The pure core.
#[derive(Debug)]
pub(super) struct Shift {
    config: config::Shift,
    round: Option<Round>,
    /// No round begins before.
    calm_until: Option<Instant>,
    /// It has had more than its share since.
    over_since: Option<Instant>,
    /// Nobody is asked before (SHIFT-1).
    next_at: Option<Instant>,
}

impl Shift {
    pub(super) fn new(config: config::Shift) -> Self {
        Self {
            config,
            round: None,
            calm_until: None,
            over_since: None,
            next_at: None,
        }
    }

    /// Puts another configuration in force. A round goes on under it.
    pub(super) fn limit(&mut self, config: config::Shift) {
        self.config = config;
    }

    /// From the question to an agent to the end of its stream.
    pub(super) fn grace(&self) -> Duration {
        self.config.grace
    }

    /// Why agents are being asked.
    pub(super) fn under_way(&self) -> Option<Reason> {
        self.round.map(|round| round.reason)
    }

    /// How many agents to ask now, if any.
    pub(super) fn decide(&mut self, now: Instant, seen: &Seen) -> Option<Ask> {
        self.end_round(now, seen);
        if self.round.is_none() {
            self.round = self.due(now, seen);
        }
        let round = self.round?;
        if self.next_at.is_some_and(|at| now < at) {
            return None;
        }
        let staying = seen.held.saturating_sub(seen.leaving);
        let spare = staying.saturating_sub(self.floor(round.reason));
        let most = round.left.min(spare).min(self.step());
        (most > 0).then_some(Ask {
            most,
            reason: round.reason,
        })
    }

    /// So many were asked.
    pub(super) fn asked(&mut self, now: Instant, count: usize) {
        let step = self.step();
        if let Some(round) = &mut self.round {
            round.left = round.left.saturating_sub(count);
        }
        let pauses = u32::try_from(count.div_ceil(step)).unwrap_or(u32::MAX);
        self.next_at = Some(now + self.pause().saturating_mul(pauses));
    }

    /// There is nobody left to ask: the round is at its end.
    pub(super) fn nobody_left(&mut self, now: Instant) {
        if self.round.take().is_some() {
            self.calm_until = Some(now + COOLDOWN);
        }
    }

    /// When more may be asked of a round under way. `None`: whatever is waited for is no time of
    /// this core's.
    pub(super) fn next_time(&self, now: Instant) -> Option<Instant> {
        self.round.and(self.next_at).filter(|at| *at > now)
    }

    fn end_round(&mut self, now: Instant, seen: &Seen) {
        let Some(round) = self.round else { return };
        let goes_on = match round.reason {
            Reason::Draining => seen.draining,
            // Draining has no time for another round.
            _ if seen.draining => false,
            Reason::Memory => seen.memory,
            Reason::Cpu => seen.cpu,
            Reason::Imbalance => true,
        };
        let is_done = round.left == 0 || seen.held <= round.target;
        if !goes_on || is_done || seen.elsewhere.nodes == 0 {
            self.nobody_left(now);
        }
    }

    /// The round that is to begin.
    fn due(&mut self, now: Instant, seen: &Seen) -> Option<Round> {
        let Elsewhere {
            nodes,
            sessions,
            shares,
        } = seen.elsewhere;
        if nodes == 0 {
            return None;
        }
        if seen.draining {
            return Some(Round {
                reason: Reason::Draining,
                target: 0,
                left: seen.held,
            });
        }
        let all = sessions.saturating_add(seen.held as u64);
        let mean = all.div_ceil(nodes as u64 + 1);
        let is_over = shares && seen.held as f64 > self.config.imbalance * mean as f64;
        self.over_since = is_over.then(|| self.over_since.unwrap_or(now));
        if self.calm_until.is_some_and(|until| now < until) {
            return None;
        }
        let is_too_many = self.over_since.is_some_and(|since| now >= since + STEADY);
        let reason = match (seen.memory, seen.cpu, is_too_many) {
            (true, _, _) => Reason::Memory,
            (_, true, _) => Reason::Cpu,
            (_, _, true) => Reason::Imbalance,
            _ => return None,
        };
        let mean = usize::try_from(mean).unwrap_or(usize::MAX);
        let target = mean.max(self.floor(reason));
        let left = seen.held.saturating_sub(target);
        (left > 0).then_some(Round {
            reason,
            target,
            left,
        })
    }

    /// So many stay in any case: of a node that stops nobody.
    fn floor(&self, reason: Reason) -> usize {
        match reason {
            Reason::Draining => 0,
            _ => self.config.min_sessions,
        }
    }

    /// Agents of one step.
    fn step(&self) -> usize {
        (self.config.max_per_second / STEPS).max(1) as usize
    }

    /// Between two steps. Within any second there are no more agents than may be.
    fn pause(&self) -> Duration {
        let steps = u64::from(self.config.max_per_second) / self.step() as u64;
        // Rounded up: a nanosecond less would let one step more into a second.
        Duration::from_nanos(NANOS_PER_SECOND.div_ceil(steps.max(1)))
    }
}

#[cfg(test)]
mod tests;
