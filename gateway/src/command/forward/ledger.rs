//! How many sessions are open to other nodes, and how many bytes are on their way (FWD-5, FWD-9).
//!
//! Responsible for the bounds, which are those in force at each attempt, and for failing fast after
//! an owner has refused. Must never wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::config::Routing;
use crate::observe::metrics::Metrics;

/// Commands for an owner that has refused fail for so long without an attempt.
const FAIL_FAST: Duration = Duration::from_secs(1);

/// The bound that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    Sessions,
    SessionsPerOwner,
    InflightBytes,
    /// That of the owner, which said so.
    Owner,
}

impl Limit {
    /// Value of the label `limit`.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Sessions => "max_sessions",
            Self::SessionsPerOwner => "max_sessions_per_owner",
            Self::InflightBytes => "max_inflight_bytes",
            Self::Owner => "owner",
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ledger {
    state: Mutex<State>,
    metrics: Arc<Metrics>,
    /// Whether each owner has a series (`observe.metrics_per_peer`).
    per_peer: bool,
}

#[derive(Debug, Default)]
struct State {
    sessions: usize,
    by_owner: HashMap<Arc<str>, usize>,
    bytes: usize,
    /// Until when commands for them fail.
    refused: HashMap<Arc<str>, Instant>,
}

/// The place of a session.
#[derive(Debug)]
pub(super) struct Seat {
    ledger: Arc<Ledger>,
    owner: Arc<str>,
}

/// Bytes on their way.
#[derive(Debug)]
pub(super) struct Load {
    ledger: Arc<Ledger>,
    bytes: usize,
}

impl Ledger {
    pub(super) fn new(metrics: Arc<Metrics>, per_peer: bool) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            metrics,
            per_peer,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, state: &State, owner: &str) {
        self.metrics.forward_sessions.set(state.sessions as i64);
        if self.per_peer {
            let sessions = state.by_owner.get(owner).copied().unwrap_or_default();
            let family = &self.metrics.forward_owner_sessions;
            match sessions {
                // A node that is gone keeps no series.
                0 => drop(family.remove_label_values(&[owner])),
                _ => family.with_label_values(&[owner]).set(sessions as i64),
            }
        }
    }

    /// A place for a session to `owner`.
    ///
    /// # Errors
    /// When a bound is reached; it is counted.
    pub(super) fn seat(
        self: &Arc<Self>,
        owner: &Arc<str>,
        bounds: &Routing,
    ) -> Result<Seat, Limit> {
        let mut state = self.state();
        let with_owner = state.by_owner.get(owner).copied().unwrap_or_default();
        let limit = if state.sessions >= bounds.max_sessions {
            Some(Limit::Sessions)
        } else if with_owner >= bounds.max_sessions_per_owner {
            Some(Limit::SessionsPerOwner)
        } else {
            None
        };
        if let Some(limit) = limit {
            drop(state);
            return Err(self.reached(limit));
        }
        state.sessions += 1;
        *state.by_owner.entry(Arc::clone(owner)).or_default() += 1;
        self.show(&state, owner);
        Ok(Seat {
            ledger: Arc::clone(self),
            owner: Arc::clone(owner),
        })
    }

    /// Room for a command of so many bytes. One larger than the bound passes alone.
    ///
    /// # Errors
    /// When the bound is reached; it is counted.
    pub(super) fn load(self: &Arc<Self>, bytes: usize, bounds: &Routing) -> Result<Load, Limit> {
        let mut state = self.state();
        if state.bytes > 0 && state.bytes.saturating_add(bytes) > bounds.max_inflight_bytes {
            drop(state);
            return Err(self.reached(Limit::InflightBytes));
        }
        Ok(self.take(&mut state, bytes))
    }

    /// Counts bytes that are here already.
    pub(super) fn hold(self: &Arc<Self>, bytes: usize) -> Load {
        self.take(&mut self.state(), bytes)
    }

    fn take(self: &Arc<Self>, state: &mut State, bytes: usize) -> Load {
        state.bytes += bytes;
        self.metrics.forward_inflight_bytes.set(state.bytes as i64);
        Load {
            ledger: Arc::clone(self),
            bytes,
        }
    }

    /// Counts a bound that was reached.
    pub(super) fn reached(&self, limit: Limit) -> Limit {
        let family = &self.metrics.forward_rejected_total;
        family.with_label_values(&[limit.label()]).inc();
        limit
    }

    /// The owner has refused, or could not be reached.
    pub(super) fn refused(&self, owner: &Arc<str>, now: Instant) {
        let mut state = self.state();
        state.refused.retain(|_, until| now < *until);
        state.refused.insert(Arc::clone(owner), now + FAIL_FAST);
    }

    /// Whether commands for this owner fail without an attempt (FWD-9).
    pub(super) fn fails_fast(&self, owner: &str, now: Instant) -> bool {
        let state = self.state();
        state.refused.get(owner).is_some_and(|until| now < *until)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.ledger.state();
        state.sessions -= 1;
        if let Some(sessions) = state.by_owner.get_mut(&self.owner) {
            *sessions -= 1;
            if *sessions == 0 {
                state.by_owner.remove(&self.owner);
            }
        }
        self.ledger.show(&state, &self.owner);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let mut state = self.ledger.state();
        state.bytes -= self.bytes;
        let metrics = &self.ledger.metrics;
        metrics.forward_inflight_bytes.set(state.bytes as i64);
    }
}

#[cfg(test)]
mod tests;
