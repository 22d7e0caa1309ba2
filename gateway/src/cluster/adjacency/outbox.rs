//! What one peer is told next of the sessions of this node (ADJ-1, ADJ-2).
//!
//! Responsible for the order of the frames to one peer: changes as they come, the rows of shards in
//! between, digests when nothing else is left. Pure. Must never hold a row: a peer that takes nothing
//! costs what is here.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use yuzu_proto::node::v1::agents_frame::Kind;
use yuzu_proto::node::v1::{
    AgentChange, AgentChanges, AgentDigests, AgentRow, AgentRows, AgentsApplied, AgentsStart,
};

use super::digest::{Digest, SHARDS, ShardSet};
use super::journal::{Change, Held, Journal};

/// How often a peer that has everything is told the digests (ADJ-2).
pub(super) const DIGEST_INTERVAL: Duration = Duration::from_secs(10);
/// Changes that come within this time go together.
pub(super) const CHANGE_INTERVAL: Duration = Duration::from_millis(20);
/// Changes or rows of one frame.
const MAX_ITEMS: usize = 1_024;
/// Bytes of one frame's texts, but for the last of them.
const MAX_BYTES: usize = 256 << 10;

/// The peer claims to have applied what it was not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NeverTold;

/// What one peer has been told.
#[derive(Debug)]
pub(super) struct Outbox {
    started: bool,
    /// The last change that it was told.
    told: u64,
    /// The last change that it confirmed.
    confirmed: u64,
    /// Shards whose rows it is still to be told.
    wanted: ShardSet,
    /// Within the first of them, the last agent that it was told.
    after: Arc<str>,
    /// Whether changes come next, if there are any: neither they nor rows keep the others waiting.
    changes_first: bool,
    changes_due: Instant,
    digests_due: Instant,
}

impl Outbox {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            started: false,
            told: 0,
            confirmed: 0,
            wanted: ShardSet::NONE,
            after: Arc::from(""),
            changes_first: true,
            changes_due: now,
            digests_due: now + DIGEST_INTERVAL,
        }
    }

    /// The next frame; `None`: none before [`Outbox::due`], unless the journal changes or the peer
    /// wants something.
    pub(super) fn next(&mut self, journal: &Journal, now: Instant) -> Option<Kind> {
        if !self.started || journal.changes_after(self.told).is_err() {
            return Some(self.start(journal));
        }
        if (self.wanted.is_empty() || self.changes_first) && now >= self.changes_due {
            self.changes_first = false;
            if let Some(changes) = self.changes(journal, now) {
                return Some(changes);
            }
        }
        self.changes_first = true;
        if let Some(shard) = self.wanted.first() {
            return Some(self.rows(journal, shard));
        }
        if now < self.digests_due || self.told < journal.last() {
            return None;
        }
        self.digests_due = now + DIGEST_INTERVAL;
        Some(Kind::Digests(AgentDigests {
            sequence: self.told,
            digests: journal.digests().map(Digest::number).collect(),
        }))
    }

    /// When the next frame is due, if nothing happens until then.
    pub(super) fn due(&self, journal: &Journal) -> Instant {
        match self.told < journal.last() {
            true => self.changes_due,
            false => self.digests_due,
        }
    }

    /// The last change that the peer was told.
    pub(super) fn told(&self) -> u64 {
        self.told
    }

    /// The last change that the peer has applied.
    pub(super) fn confirmed(&self) -> u64 {
        self.confirmed
    }

    fn start(&mut self, journal: &Journal) -> Kind {
        self.started = true;
        self.told = journal.last();
        self.confirmed = self.confirmed.max(self.told);
        self.want(ShardSet::ALL);
        Kind::Start(AgentsStart {
            sequence: self.told,
        })
    }

    fn changes(&mut self, journal: &Journal, now: Instant) -> Option<Kind> {
        let after = self.told;
        let mut bytes = 0;
        let untold = journal.changes_after(after).ok()?;
        let changes: Vec<_> = untold
            .take(MAX_ITEMS)
            .take_while(|change| {
                let fits = bytes < MAX_BYTES;
                bytes += len(&change.agent_id, change.session_id.as_ref());
                fits
            })
            .map(encode_change)
            .collect();
        self.told += changes.len() as u64;
        if self.told == journal.last() {
            self.changes_due = now + CHANGE_INTERVAL;
        }
        (!changes.is_empty()).then_some(Kind::Changes(AgentChanges { after, changes }))
    }

    fn rows(&mut self, journal: &Journal, shard: usize) -> Kind {
        let after = std::mem::replace(&mut self.after, Arc::from(""));
        let mut held = journal.rows_after(shard, &after).peekable();
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while rows.len() < MAX_ITEMS
            && bytes < MAX_BYTES
            && let Some((agent_id, held)) = held.next()
        {
            bytes += len(agent_id, Some(&held.session_id));
            rows.push(encode_row(agent_id, held));
        }
        let until = match (held.peek(), rows.last()) {
            (Some(_), Some(last)) => last.agent_id.clone(),
            _ => String::new(),
        };
        if until.is_empty() {
            self.wanted.remove(shard);
        } else {
            self.after = Arc::from(&*until);
        }
        Kind::Rows(AgentRows {
            sequence: self.told,
            shard: shard as u32,
            after: after.to_string(),
            until,
            rows,
        })
    }

    /// The peer says what it has applied and what it wants again.
    ///
    /// # Errors
    /// When it speaks of a change that it was not told.
    pub(super) fn applied(&mut self, applied: &AgentsApplied) -> Result<(), NeverTold> {
        if applied.sequence > self.told {
            return Err(NeverTold);
        }
        self.confirmed = self.confirmed.max(applied.sequence);
        let mut wanted = ShardSet::NONE;
        let shards = applied.wanted_shards.iter().map(|shard| *shard as usize);
        for shard in shards.take(SHARDS).filter(|shard| *shard < SHARDS) {
            wanted.insert(shard);
        }
        self.want(wanted);
        Ok(())
    }

    /// The rows of these shards are due from their first on.
    fn want(&mut self, shards: ShardSet) {
        self.wanted.union(shards);
        if !shards.is_empty() {
            self.after = Arc::from("");
        }
    }
}

fn len(agent_id: &str, session_id: Option<&Arc<str>>) -> usize {
    agent_id.len() + session_id.map_or(0, |session_id| session_id.len())
}

fn encode_row(agent_id: &str, held: &Held) -> AgentRow {
    AgentRow {
        agent_id: agent_id.to_owned(),
        session_id: held.session_id.to_string(),
        epoch: held.epoch.number(),
    }
}

fn encode_change(change: &Change) -> AgentChange {
    let session_id = change.session_id.as_deref().unwrap_or_default();
    let row = AgentRow {
        agent_id: change.agent_id.to_string(),
        session_id: session_id.to_owned(),
        epoch: change.epoch.number(),
    };
    AgentChange {
        row: Some(row),
        ended: change.session_id.is_none(),
    }
}

#[cfg(test)]
mod tests;
