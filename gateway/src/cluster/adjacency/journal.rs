//! What this node holds, and how that changed (ADJ-1).
//!
//! Responsible for the order of the changes, for the last of them, and for the rows and digests
//! after all of them. One journal serves all peers: what a slow one costs is a number. Pure. Must
//! never wait for a reader.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::digest::{Digest, Row, SHARDS, shard_of};
use crate::session::Epoch;

/// Changes that a peer may fall behind before it is told everything anew.
pub(super) const KEPT: usize = 32_768;

/// One change to the sessions of this node.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) agent_id: Arc<str>,
    pub(super) epoch: Epoch,
    /// Secret. `None`: the session ended.
    pub(super) session_id: Option<Arc<str>>,
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.session_id.is_some() {
            "came"
        } else {
            "went"
        };
        write!(f, "{what} {} {:?}", self.agent_id, self.epoch)
    }
}

/// A session that this node holds.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Held {
    /// Secret.
    pub(super) session_id: Arc<str>,
    pub(super) epoch: Epoch,
}

/// Changes after the one that was asked for are no longer here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FellBehind;

#[derive(Default)]
struct Shard {
    /// In order, so that a portion of them has two ends.
    held: BTreeMap<Arc<str>, Held>,
    digest: Digest,
}

/// The journal.
pub(super) struct Journal {
    shards: Box<[Shard]>,
    /// The last changes, each with its time.
    changes: VecDeque<(Instant, Change)>,
    /// The number of the last change; the first is 1.
    last: u64,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Journal({})", self.last)
    }
}

impl Journal {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            changes: VecDeque::new(),
            last: 0,
        }
    }

    /// This node holds a new session of the agent.
    pub(super) fn came(
        &mut self,
        agent_id: &Arc<str>,
        session_id: &Arc<str>,
        epoch: Epoch,
        now: Instant,
    ) {
        let held = Held {
            session_id: Arc::clone(session_id),
            epoch,
        };
        self.set(agent_id, Some(held));
        self.note(agent_id, epoch, Some(session_id), now);
    }

    /// The agent's session ended, and no other took its place.
    pub(super) fn went(&mut self, agent_id: &Arc<str>, epoch: Epoch, now: Instant) {
        self.set(agent_id, None);
        self.note(agent_id, epoch, None, now);
    }

    fn set(&mut self, agent_id: &Arc<str>, held: Option<Held>) {
        let shard = &mut self.shards[shard_of(agent_id)];
        if let Some(old) = shard.held.remove(agent_id) {
            shard.digest.take_off(&row(agent_id, &old));
        }
        if let Some(new) = held {
            shard.digest.add(&row(agent_id, &new));
            shard.held.insert(Arc::clone(agent_id), new);
        }
    }

    fn note(
        &mut self,
        agent_id: &Arc<str>,
        epoch: Epoch,
        session_id: Option<&Arc<str>>,
        now: Instant,
    ) {
        if self.changes.len() == KEPT {
            self.changes.pop_front();
        }
        let change = Change {
            agent_id: Arc::clone(agent_id),
            epoch,
            session_id: session_id.map(Arc::clone),
        };
        self.changes.push_back((now, change));
        self.last += 1;
    }

    /// The number of the last change.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// The number before the oldest change that is here.
    fn before_first(&self) -> u64 {
        self.last - self.changes.len() as u64
    }

    /// The changes behind number `after`, in their order.
    pub(super) fn changes_after(
        &self,
        after: u64,
    ) -> Result<impl Iterator<Item = &Change>, FellBehind> {
        let skip = after.checked_sub(self.before_first()).ok_or(FellBehind)?;
        let changes = self.changes.iter().skip(skip as usize);
        Ok(changes.map(|(_, change)| change))
    }

    /// How old the first change behind number `after` is, or the oldest that is here.
    pub(super) fn age_after(&self, after: u64, now: Instant) -> Duration {
        let skip = after.saturating_sub(self.before_first());
        let first = self.changes.get(skip as usize);
        first.map_or(Duration::ZERO, |(at, _)| now.duration_since(*at))
    }

    /// The rows of `shard` behind the agent `after`, in the order of their agents.
    pub(super) fn rows_after(
        &self,
        shard: usize,
        after: &str,
    ) -> impl Iterator<Item = (&Arc<str>, &Held)> {
        let from = match after {
            "" => Bound::Unbounded,
            after => Bound::Excluded(after),
        };
        self.shards[shard]
            .held
            .range::<str, _>((from, Bound::Unbounded))
    }

    /// The digests of all shards after the last change.
    pub(super) fn digests(&self) -> impl Iterator<Item = Digest> {
        self.shards.iter().map(|shard| shard.digest)
    }
}

fn row<'a>(agent_id: &'a str, held: &'a Held) -> Row<'a> {
    Row {
        agent_id,
        session_id: &held.session_id,
        epoch: held.epoch,
    }
}

#[cfg(test)]
mod tests;
