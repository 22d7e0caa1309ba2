//! Shards of agent ids and their digests (ADJ-2).
//!
//! Responsible for what two nodes compare to find out whether they hold the same rows: every node
//! computes it alike. Must never depend on the order in which rows came.

use std::fmt;

use crate::gateways::hash::Fnv1a;
use crate::session::Epoch;

/// Shards of the agent ids, on every node alike.
pub(crate) const SHARDS: usize = 256;

/// Stands between fields: no UTF-8 text has it.
const BETWEEN: &[u8] = &[0xff];

/// One session of an agent, without the node that holds it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row<'a> {
    /// 1..=256 bytes.
    pub(crate) agent_id: &'a str,
    /// Secret.
    pub(crate) session_id: &'a str,
    /// The larger one is the agent's newer session, on whichever node.
    pub(crate) epoch: Epoch,
}

impl fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Row({}, {:?})", self.agent_id, self.epoch)
    }
}

/// The shard of an agent's rows.
pub(crate) fn shard_of(agent_id: &str) -> usize {
    let hash = Fnv1a::new().with(agent_id.as_bytes()).finish();
    (hash >> 56) as usize
}

/// The sum of the hashes of rows: it knows no order, and what was added can be taken off again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }

    pub(super) fn add(&mut self, row: &Row<'_>) {
        self.0 = self.0.wrapping_add(hash(row));
    }

    pub(super) fn take_off(&mut self, row: &Row<'_>) {
        self.0 = self.0.wrapping_sub(hash(row));
    }
}

fn hash(row: &Row<'_>) -> u64 {
    Fnv1a::new()
        .with(row.agent_id.as_bytes())
        .with(BETWEEN)
        .with(row.session_id.as_bytes())
        .with(BETWEEN)
        .with(&row.epoch.number().to_le_bytes())
        .finish()
}

/// Some of the 256 shards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ShardSet([u64; SHARDS / 64]);

impl ShardSet {
    pub(crate) const NONE: Self = Self([0; SHARDS / 64]);
    pub(crate) const ALL: Self = Self([u64::MAX; SHARDS / 64]);

    pub(crate) fn insert(&mut self, shard: usize) {
        self.0[shard / 64] |= 1 << (shard % 64);
    }

    pub(super) fn remove(&mut self, shard: usize) {
        self.0[shard / 64] &= !(1 << (shard % 64));
    }

    pub(super) fn union(&mut self, other: Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine |= theirs;
        }
    }

    /// The lowest of them.
    pub(super) fn first(&self) -> Option<usize> {
        self.iter().next()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        (0..SHARDS).filter(|shard| self.0[shard / 64] >> (shard % 64) & 1 == 1)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::NONE
    }
}

#[cfg(test)]
mod tests;
