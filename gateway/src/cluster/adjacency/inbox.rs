//! What one peer tells, applied to the table (ADJ-1, ADJ-2).
//!
//! Responsible for the sequence of the frames: what came twice is not applied again, and what is
//! missing is asked for. Pure. Must never trust a frame to be well made.

use yuzu_proto::node::v1::agents_frame::Kind;
use yuzu_proto::node::v1::{
    AgentChange, AgentChanges, AgentDigests, AgentRow, AgentRows, AgentsApplied,
};

use super::digest::{Digest, Row, SHARDS, ShardSet};
use super::shard::{Seen, Span};
use super::table::{NotStored, Step, Superseded, Telling};
use crate::session::Epoch;

/// Longest agent id in bytes.
const MAX_AGENT_ID: usize = 256;
/// Longest session id in bytes: it is a header of the agent's Subscribe.
const MAX_SESSION_ID: usize = 16 << 10;

/// Why nothing more is taken from this telling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Rejected {
    /// A frame breaks the contract.
    #[error("a frame breaks the contract")]
    Malformed,
    /// A newer telling of the node, or its end.
    #[error("the node has another stream, or is gone")]
    Superseded,
}

/// Why a frame was not applied as a whole.
enum Fault {
    Rejected(Rejected),
    /// Rows found no room; the others were stored.
    Full,
}

const MALFORMED: Fault = Fault::Rejected(Rejected::Malformed);

impl From<NotStored> for Fault {
    fn from(not_stored: NotStored) -> Self {
        match not_stored {
            NotStored::Superseded => Self::Rejected(Rejected::Superseded),
            NotStored::Misplaced => MALFORMED,
            NotStored::Full => Self::Full,
        }
    }
}

/// What to do about a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken {
    /// The last change that is applied.
    pub(super) applied: u64,
    /// What the peer has to tell again.
    pub(super) wanted: ShardSet,
    /// Rows found no room.
    pub(super) full: bool,
}

impl Taken {
    /// Makes one answer of this and a later one.
    pub(super) fn join(&mut self, later: &Self) {
        self.applied = later.applied;
        self.wanted.union(later.wanted);
    }

    /// As the peer is told.
    pub(super) fn told(&self) -> Kind {
        Kind::Applied(AgentsApplied {
            sequence: self.applied,
            wanted_shards: self.wanted.iter().map(|shard| shard as u32).collect(),
        })
    }
}

/// What one peer has told.
#[derive(Debug)]
pub(super) struct Inbox {
    telling: Telling,
    /// The last change that is applied; `None`: the telling has not begun.
    applied: Option<u64>,
    /// The largest epoch that it has told.
    newest: Option<Epoch>,
    /// Whether rows tell of what was before this node heard of the other one.
    history: bool,
}

impl Inbox {
    pub(super) fn new(telling: Telling) -> Self {
        Self {
            history: telling.is_first(),
            telling,
            applied: None,
            newest: None,
        }
    }

    /// Whether this telling is still listened to.
    ///
    /// # Errors
    /// When it is not.
    pub(super) fn check(&self) -> Result<(), Rejected> {
        let heard = self.telling.check();
        heard.map_err(|Superseded| Rejected::Superseded)
    }

    /// The largest epoch since it was last asked for.
    pub(super) fn take_newest(&mut self) -> Option<Epoch> {
        self.newest.take()
    }

    /// Applies a frame. `seen` is told what came and went by it, but for the sessions that were there
    /// before this node heard of the other one.
    ///
    /// # Errors
    /// When the stream has to end.
    pub(super) fn take(
        &mut self,
        frame: &Kind,
        seen: &mut impl FnMut(Seen<'_>),
    ) -> Result<Taken, Rejected> {
        let stored = match frame {
            Kind::Start(start) => {
                self.applied = self.applied.max(Some(start.sequence));
                Ok(ShardSet::NONE)
            }
            Kind::Changes(changes) => self.changes(changes, seen),
            Kind::Rows(rows) => self.rows(rows, seen),
            Kind::Digests(digests) => self.digests(digests),
            // These are no part of a telling.
            Kind::Applied(_) | Kind::Question(_) | Kind::Description(_) => Err(MALFORMED),
        };
        let (wanted, full) = match stored {
            Ok(wanted) => (wanted, false),
            Err(Fault::Full) => (ShardSet::NONE, true),
            Err(Fault::Rejected(rejected)) => return Err(rejected),
        };
        Ok(Taken {
            applied: self.applied.ok_or(Rejected::Malformed)?,
            wanted,
            full,
        })
    }

    /// The peer has told everything up to `sequence`. If that did not all arrive, every shard is
    /// wanted again: what is missing may have been about any agent.
    fn reach(&mut self, sequence: u64) -> Result<ShardSet, Fault> {
        let applied = self.applied.as_mut().ok_or(MALFORMED)?;
        let missing = sequence > *applied;
        *applied = sequence.max(*applied);
        Ok(if missing {
            ShardSet::ALL
        } else {
            ShardSet::NONE
        })
    }

    fn changes(
        &mut self,
        frame: &AgentChanges,
        seen: &mut impl FnMut(Seen<'_>),
    ) -> Result<ShardSet, Fault> {
        let missing = self.reach(frame.after)?;
        let applied = self.applied.ok_or(MALFORMED)?;
        let known = applied - frame.after;
        let untold = (frame.changes.len() as u64).saturating_sub(known);
        let steps = frame.changes.iter().skip(known as usize).map(step);
        let steps: Vec<_> = steps.collect::<Option<_>>().ok_or(MALFORMED)?;
        let epochs = steps.iter().map(Step::epoch);
        self.newest = self.newest.max(epochs.max());
        self.applied = Some(applied.checked_add(untold).ok_or(MALFORMED)?);
        self.telling.apply(steps.into_iter(), seen)?;
        Ok(missing)
    }

    fn rows(
        &mut self,
        frame: &AgentRows,
        seen: &mut impl FnMut(Seen<'_>),
    ) -> Result<ShardSet, Fault> {
        let shard = frame.shard as usize;
        let rows = frame.rows.iter().map(row);
        let rows: Vec<_> = rows.collect::<Option<_>>().ok_or(MALFORMED)?;
        if shard >= SHARDS {
            return Err(MALFORMED);
        }
        let mut wanted = self.reach(frame.sequence)?;
        if self.applied > Some(frame.sequence) {
            // They are those of an earlier moment than the rest of what is known.
            wanted.insert(shard);
            return Ok(wanted);
        }
        self.newest = self.newest.max(rows.iter().map(|row| row.epoch).max());
        let span = Span {
            after: &frame.after,
            until: &frame.until,
        };
        let history = self.history;
        // The shards of a first telling come in their order.
        self.history &= shard < SHARDS - 1 || !frame.until.is_empty();
        let mut news = |change: Seen<'_>| {
            if !history {
                seen(change);
            }
        };
        self.telling.replace(shard, span, &rows, &mut news)?;
        Ok(wanted)
    }

    fn digests(&mut self, frame: &AgentDigests) -> Result<ShardSet, Fault> {
        let numbers = frame.digests.iter().copied();
        let digests: Vec<_> = numbers.map(Digest::from_number).collect();
        let digests: &[Digest; SHARDS] = digests.as_slice().try_into().map_err(|_| MALFORMED)?;
        let mut wanted = self.reach(frame.sequence)?;
        if self.applied == Some(frame.sequence) {
            wanted.union(self.telling.differing(digests).map_err(NotStored::from)?);
        }
        Ok(wanted)
    }
}

fn row(row: &AgentRow) -> Option<Row<'_>> {
    let agent_id = agent_id(row)?;
    let session_ids = 1..=MAX_SESSION_ID;
    session_ids.contains(&row.session_id.len()).then_some(Row {
        agent_id,
        session_id: &row.session_id,
        epoch: Epoch::from_number(row.epoch)?,
    })
}

fn step(change: &AgentChange) -> Option<Step<'_>> {
    let of = change.row.as_ref()?;
    if change.ended {
        return Some(Step::Went(agent_id(of)?, Epoch::from_number(of.epoch)?));
    }
    row(of).map(Step::Came)
}

fn agent_id(row: &AgentRow) -> Option<&str> {
    (1..=MAX_AGENT_ID)
        .contains(&row.agent_id.len())
        .then_some(&*row.agent_id)
}

#[cfg(test)]
mod tests;
