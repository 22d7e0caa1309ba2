//! The circuit breaker in front of the server (BREAKER-*).
//!
//! Responsible for the states closed, open and half open, for the one probe of each kind that a
//! half-open period admits, and for the time spent open. A result is judged in the period in
//! which its call was admitted; in any other period it changes nothing (BREAKER-9). Must never
//! read a clock, log or count: [`super::circuit`] does.

use std::time::Duration;

use tokio::time::Instant;

use super::rpc::Rpc;
use crate::config;

/// Published state of the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Calls flow.
    Closed,
    /// Calls are refused until `until`.
    Open {
        /// When the first probe is allowed.
        until: Instant,
    },
    /// One call and one notice at a time may find out whether the server is back.
    HalfOpen,
}

/// What a call asks to be admitted as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A register or inventory call.
    Call,
    /// A stream-status notice.
    Notice,
}

/// How an admitted call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The server answered.
    Success,
    /// Counts against the server (BREAKER-4).
    Failure,
    /// Says nothing about the server (BREAKER-5).
    Neutral,
}

/// A change of state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transition {
    /// Too many failures in a row.
    Tripped {
        /// Time until the first probe.
        probe_in: Duration,
    },
    /// The open time is over.
    HalfOpened,
    /// A probe succeeded.
    Closed,
    /// A probe failed.
    Reopened {
        /// Time until the next probe.
        probe_in: Duration,
    },
}

/// Admission of one call; settled once.
#[derive(Debug)]
#[must_use = "an admission that is not settled keeps the probe's place"]
pub(crate) struct Ticket {
    rpc: Rpc,
    kind: Kind,
    period: u64,
    probe: bool,
}

impl Ticket {
    /// Whether this call is the probe of a half-open period.
    pub(crate) fn is_probe(&self) -> bool {
        self.probe
    }
}

/// The breaker is open, or half open with its probe out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CircuitOpen;

/// A set of lanes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Lanes(u8);

impl Lanes {
    fn add(&mut self, rpc: Rpc) {
        self.0 |= 1 << rpc as u8;
    }

    fn add_all(&mut self, others: Lanes) {
        self.0 |= others.0;
    }

    fn remove(&mut self, rpc: Rpc) {
        self.0 &= !(1 << rpc as u8);
    }
}

/// The pure core.
#[derive(Debug)]
pub(crate) struct Breaker {
    threshold: u32,
    base: Duration,
    max: Duration,
    state: BreakerState,
    /// Grows with every transition.
    period: u64,
    failures: u32,
    /// How long the next open state lasts.
    open_for: Duration,
    /// Whose failures are in the present run of failures.
    failing: Lanes,
    /// Whose failures opened it and who has not succeeded since; `open_for` goes back to the base
    /// when nobody is left (BREAKER-2).
    blamed: Lanes,
    call_out: bool,
    notice_out: bool,
}

impl Breaker {
    /// A closed breaker.
    pub(crate) fn new(config: &config::Breaker) -> Self {
        let base = config.reset_timeout;
        Self {
            threshold: config.failure_threshold.max(1),
            base,
            max: config.max_reset_timeout.max(base),
            state: BreakerState::Closed,
            period: 0,
            failures: 0,
            open_for: base,
            failing: Lanes::default(),
            blamed: Lanes::default(),
            call_out: false,
            notice_out: false,
        }
    }

    /// Other times and another threshold, for what comes: an open state ends when it said it would.
    pub(crate) fn retune(&mut self, config: &config::Breaker) {
        let base = config.reset_timeout;
        self.threshold = config.failure_threshold.max(1);
        self.max = config.max_reset_timeout.max(base);
        // Nobody is blamed: the next open state is a first one.
        let first = self.open_for == self.base;
        self.base = base;
        self.open_for = if first {
            base
        } else {
            self.open_for.clamp(base, self.max)
        };
    }

    /// The state now in force.
    pub(crate) fn state(&self) -> BreakerState {
        self.state
    }

    /// Moves an open breaker to half open when its time is over.
    pub(crate) fn tick(&mut self, now: Instant) -> Option<Transition> {
        match self.state {
            BreakerState::Open { until } if now >= until => {
                self.enter(BreakerState::HalfOpen);
                Some(Transition::HalfOpened)
            }
            _ => None,
        }
    }

    /// Whether a call of this kind would be admitted now.
    pub(crate) fn admits(&self, kind: Kind) -> bool {
        match self.state {
            BreakerState::Closed => true,
            BreakerState::Open { .. } => false,
            BreakerState::HalfOpen => !self.out(kind),
        }
    }

    /// Admits a call of `rpc`; half open admits one of each kind at a time (BREAKER-8).
    pub(crate) fn admit(&mut self, rpc: Rpc, kind: Kind) -> Result<Ticket, CircuitOpen> {
        if !self.admits(kind) {
            return Err(CircuitOpen);
        }
        let probe = self.state == BreakerState::HalfOpen;
        if probe {
            self.set_out(kind, true);
        }
        Ok(Ticket {
            rpc,
            kind,
            period: self.period,
            probe,
        })
    }

    /// Judges how an admitted call ended.
    pub(crate) fn settle(
        &mut self,
        ticket: Ticket,
        verdict: Verdict,
        now: Instant,
    ) -> Option<Transition> {
        if ticket.period != self.period {
            return None;
        }
        if ticket.probe {
            self.set_out(ticket.kind, false);
        }
        match (self.state, verdict) {
            (_, Verdict::Neutral) | (BreakerState::Open { .. }, _) => None,
            (BreakerState::Closed, Verdict::Success) => {
                self.succeeded(ticket.rpc);
                None
            }
            (BreakerState::HalfOpen, Verdict::Success) => {
                self.enter(BreakerState::Closed);
                self.succeeded(ticket.rpc);
                Some(Transition::Closed)
            }
            (BreakerState::Closed, Verdict::Failure) => {
                self.failures += 1;
                self.failing.add(ticket.rpc);
                if self.failures < self.threshold {
                    return None;
                }
                self.blamed.add_all(self.failing);
                Some(Transition::Tripped {
                    probe_in: self.open(now),
                })
            }
            (BreakerState::HalfOpen, Verdict::Failure) => Some(Transition::Reopened {
                probe_in: self.open(now),
            }),
        }
    }

    fn succeeded(&mut self, rpc: Rpc) {
        self.failures = 0;
        self.failing = Lanes::default();
        self.blamed.remove(rpc);
        if self.blamed == Lanes::default() {
            self.open_for = self.base;
        }
    }

    fn open(&mut self, now: Instant) -> Duration {
        let open_for = self.open_for;
        self.open_for = (open_for * 2).min(self.max);
        self.enter(BreakerState::Open {
            until: now + open_for,
        });
        open_for
    }

    fn enter(&mut self, state: BreakerState) {
        self.state = state;
        self.period += 1;
        self.failures = 0;
        self.failing = Lanes::default();
        self.call_out = false;
        self.notice_out = false;
    }

    fn out(&self, kind: Kind) -> bool {
        match kind {
            Kind::Call => self.call_out,
            Kind::Notice => self.notice_out,
        }
    }

    fn set_out(&mut self, kind: Kind, out: bool) {
        match kind {
            Kind::Call => self.call_out = out,
            Kind::Notice => self.notice_out = out,
        }
    }
}

#[cfg(test)]
mod tests;
