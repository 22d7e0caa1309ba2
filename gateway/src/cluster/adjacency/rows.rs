//! The rows of one shard, of all nodes, packed end to end (ADJ-4).
//!
//! Responsible for the bytes that a row costs: one index entry and its own texts, no allocation.
//! Must never know which row of an agent counts.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::digest::Row;
use crate::session::Epoch;

/// Bytes of a row beside its texts: node, epoch, and the length of either text.
const HEAD: usize = 2 + 8 + 2 + 2;
/// Bytes of rows that one shard holds: 512 MiB in all 256, some five million rows.
const MAX_BYTES: usize = 2 << 20;
/// Bytes of dead rows and free room that are left alone.
const SMALL: usize = 1 << 10;

/// The shard holds all that it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

/// The number that a node's rows carry.
pub(super) type NodeNumber = u16;

/// A row where it lies.
#[derive(Clone, Copy)]
struct Packed<'a> {
    node: NodeNumber,
    epoch: u64,
    agent_id: &'a [u8],
    session_id: &'a [u8],
}

impl<'a> Packed<'a> {
    /// Reads the row that begins at `at`.
    fn at(bytes: &'a [u8], at: u32) -> Option<Self> {
        let rest = bytes.get(at as usize..)?;
        let (node, rest) = rest.split_first_chunk()?;
        let (epoch, rest) = rest.split_first_chunk()?;
        let (agent_len, rest) = rest.split_first_chunk()?;
        let (session_len, rest) = rest.split_first_chunk()?;
        let (agent_id, rest) = rest.split_at_checked(u16::from_le_bytes(*agent_len).into())?;
        let session_id = rest.get(..u16::from_le_bytes(*session_len).into())?;
        Some(Self {
            node: NodeNumber::from_le_bytes(*node),
            epoch: u64::from_le_bytes(*epoch),
            agent_id,
            session_id,
        })
    }

    /// Of `row`; `None`: a text is longer than any that a node tells of.
    fn of(node: NodeNumber, row: &Row<'a>) -> Option<Self> {
        let fits = |text: &str| u16::try_from(text.len()).is_ok();
        (fits(row.agent_id) && fits(row.session_id)).then_some(Self {
            node,
            epoch: row.epoch.number(),
            agent_id: row.agent_id.as_bytes(),
            session_id: row.session_id.as_bytes(),
        })
    }

    fn len(&self) -> usize {
        HEAD + self.agent_id.len() + self.session_id.len()
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.node.to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&(self.agent_id.len() as u16).to_le_bytes());
        out.extend_from_slice(&(self.session_id.len() as u16).to_le_bytes());
        out.extend_from_slice(self.agent_id);
        out.extend_from_slice(self.session_id);
    }

    /// What was packed was text.
    fn row(&self) -> Option<(NodeNumber, Row<'a>)> {
        let row = Row {
            agent_id: str::from_utf8(self.agent_id).ok()?,
            session_id: str::from_utf8(self.session_id).ok()?,
            epoch: Epoch::from_number(self.epoch)?,
        };
        Some((self.node, row))
    }
}

/// At most one row for each agent and node.
#[derive(Debug, Default)]
pub(super) struct Rows {
    bytes: Vec<u8>,
    /// Where each row begins, found by its agent's hash.
    index: HashTable<u32>,
    /// Bytes of the rows that are in the index; the others are dead.
    live: usize,
    /// Seeded: agents choose their ids.
    hasher: RandomState,
}

impl Rows {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Bytes that the rows take, dead ones and room for more included.
    #[cfg(test)]
    pub(super) fn allocated(&self) -> usize {
        self.bytes.capacity() + self.index.allocation_size()
    }

    /// Every node's row of this agent.
    pub(super) fn of_agent(&self, agent_id: &str) -> impl Iterator<Item = (NodeNumber, Row<'_>)> {
        let hash = self.hasher.hash_one(agent_id.as_bytes());
        let rows = self.index.iter_hash(hash);
        rows.filter_map(|at| Packed::at(&self.bytes, *at))
            .filter(move |row| row.agent_id == agent_id.as_bytes())
            .filter_map(|row| row.row())
    }

    /// Every row.
    pub(super) fn all(&self) -> impl Iterator<Item = (NodeNumber, Row<'_>)> {
        let rows = self.index.iter();
        rows.filter_map(|at| Packed::at(&self.bytes, *at)?.row())
    }

    /// The row of this agent on `node`.
    pub(super) fn get(&self, node: NodeNumber, agent_id: &str) -> Option<Row<'_>> {
        let mut rows = self.of_agent(agent_id);
        rows.find(|(of, _)| *of == node).map(|(_, row)| row)
    }

    /// Puts `row` in the place of the agent's row on `node`.
    ///
    /// # Errors
    /// When there is no room; the older row is gone then, too.
    pub(super) fn put(&mut self, node: NodeNumber, row: &Row<'_>) -> Result<(), Full> {
        self.remove(node, row.agent_id);
        let packed = Packed::of(node, row).ok_or(Full)?;
        let len = packed.len();
        if self.live + len > MAX_BYTES {
            return Err(Full);
        }
        if self.bytes.len() + len > self.bytes.capacity() {
            self.repack(len);
        }
        let at = self.bytes.len() as u32;
        packed.put(&mut self.bytes);
        self.live += len;
        let Self { bytes, hasher, .. } = self;
        let hash = hasher.hash_one(packed.agent_id);
        self.index
            .insert_unique(hash, at, |at| rehash(hasher, bytes, *at));
        Ok(())
    }

    /// Removes the row of this agent on `node`. False: there is none.
    pub(super) fn remove(&mut self, node: NodeNumber, agent_id: &str) -> bool {
        let hash = self.hasher.hash_one(agent_id.as_bytes());
        let Self { bytes, index, .. } = self;
        let is = |at: &u32| {
            Packed::at(bytes, *at)
                .is_some_and(|row| row.node == node && row.agent_id == agent_id.as_bytes())
        };
        let Ok(entry) = index.find_entry(hash, is) else {
            return false;
        };
        let (at, _) = entry.remove();
        self.live -= Packed::at(&self.bytes, at).map_or(0, |row| row.len());
        self.give_back();
        true
    }

    /// Removes every row that `keep` does not want.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(NodeNumber, &Row<'_>) -> bool) {
        let Self {
            bytes, index, live, ..
        } = self;
        index.retain(|at| {
            let Some(packed) = Packed::at(bytes, *at) else {
                return false;
            };
            let kept = packed.row().is_some_and(|(node, row)| keep(node, &row));
            if !kept {
                *live -= packed.len();
            }
            kept
        });
        self.give_back();
    }

    /// Gives memory back when more than a fifth of it is not used (ADJ-4).
    fn give_back(&mut self) {
        if self.bytes.capacity() > self.live + self.live / 4 + SMALL {
            self.repack(0);
        }
        if self.index.len() < self.index.capacity() / 4 {
            let Self {
                bytes,
                index,
                hasher,
                ..
            } = self;
            index.shrink_to_fit(|at| rehash(hasher, bytes, *at));
        }
    }

    /// Moves the live rows together, with room for `more` bytes and an eighth.
    fn repack(&mut self, more: usize) {
        let room = (self.live / 8).max(more);
        let mut packed = Vec::with_capacity(self.live + room);
        for at in &mut self.index {
            if let Some(row) = Packed::at(&self.bytes, *at) {
                *at = packed.len() as u32;
                row.put(&mut packed);
            }
        }
        self.bytes = packed;
    }
}

fn rehash(hasher: &RandomState, bytes: &[u8], at: u32) -> u64 {
    hasher.hash_one(Packed::at(bytes, at).map_or(&[][..], |row| row.agent_id))
}

#[cfg(test)]
mod tests;
