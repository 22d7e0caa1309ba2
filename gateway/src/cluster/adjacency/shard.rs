//! One shard of the adjacency table: the rows of all nodes and a tally for each node.
//!
//! Responsible for what a change, a portion of rows and the end of a node do to the rows, and for
//! tallies that are always those of the rows. Pure. Must never know a node's name, nor whether it
//! lives.

use std::collections::HashSet;

use super::digest::{Digest, Row};
use super::rows::{Full, NodeNumber, Rows};
use crate::session::Epoch;

/// What became of an agent on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen<'a> {
    /// The node holds this session now.
    Came(Row<'a>),
    /// The node holds no session of this agent any more.
    Went(&'a str),
}

/// The rows of one node in this shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) digest: Digest,
    pub(super) rows: usize,
}

/// Some agent ids of a shard, in their order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span<'a> {
    /// Exclusive; empty: from the first one on.
    pub(super) after: &'a str,
    /// Inclusive; empty: to the last one.
    pub(super) until: &'a str,
}

impl Span<'_> {
    pub(super) fn has(&self, agent_id: &str) -> bool {
        agent_id > self.after && (self.until.is_empty() || agent_id <= self.until)
    }
}

/// One shard.
#[derive(Debug, Default)]
pub(super) struct Shard {
    rows: Rows,
    /// By node number.
    tallies: Vec<Tally>,
}

impl Shard {
    /// Every node's row of this agent.
    pub(super) fn claims(&self, agent_id: &str) -> impl Iterator<Item = (NodeNumber, Row<'_>)> {
        self.rows.of_agent(agent_id)
    }

    /// Every row.
    pub(super) fn rows(&self) -> impl Iterator<Item = (NodeNumber, Row<'_>)> {
        self.rows.all()
    }

    pub(super) fn tally(&self, node: NodeNumber) -> Tally {
        let tally = self.tallies.get(usize::from(node));
        tally.copied().unwrap_or_default()
    }

    fn tally_mut(&mut self, node: NodeNumber) -> &mut Tally {
        let node = usize::from(node);
        if self.tallies.len() <= node {
            self.tallies.resize(node + 1, Tally::default());
        }
        &mut self.tallies[node]
    }

    /// The node holds a new session of an agent. Without effect if a newer one is known.
    pub(super) fn came(
        &mut self,
        node: NodeNumber,
        row: Row<'_>,
        seen: &mut impl FnMut(Seen<'_>),
    ) -> Result<(), Full> {
        let known = self.rows.get(node, row.agent_id);
        if known.is_some_and(|known| known.epoch > row.epoch) {
            return Ok(());
        }
        self.put(node, row, seen)
    }

    fn put(
        &mut self,
        node: NodeNumber,
        row: Row<'_>,
        seen: &mut impl FnMut(Seen<'_>),
    ) -> Result<(), Full> {
        let known = self.rows.get(node, row.agent_id);
        if known == Some(row) {
            return Ok(());
        }
        let mut tally = self.tally(node);
        if let Some(known) = &known {
            tally.digest.take_off(known);
            tally.rows -= 1;
        }
        let replaced = known.is_some();
        let stored = self.rows.put(node, &row);
        if stored.is_ok() {
            tally.digest.add(&row);
            tally.rows += 1;
            seen(Seen::Came(row));
        } else if replaced {
            seen(Seen::Went(row.agent_id));
        }
        *self.tally_mut(node) = tally;
        stored
    }

    /// A session of the node ended. Without effect on a newer one.
    pub(super) fn went(
        &mut self,
        node: NodeNumber,
        agent_id: &str,
        epoch: Epoch,
        seen: &mut impl FnMut(Seen<'_>),
    ) {
        let mut tally = self.tally(node);
        let Some(known) = self.rows.get(node, agent_id) else {
            return;
        };
        if known.epoch > epoch {
            return;
        }
        tally.digest.take_off(&known);
        tally.rows -= 1;
        self.rows.remove(node, agent_id);
        *self.tally_mut(node) = tally;
        seen(Seen::Went(agent_id));
    }

    /// The node holds exactly `rows` of the agents in `span`.
    pub(super) fn replace(
        &mut self,
        node: NodeNumber,
        span: Span<'_>,
        rows: &[Row<'_>],
        seen: &mut impl FnMut(Seen<'_>),
    ) -> Result<(), Full> {
        let listed: HashSet<&str> = rows.iter().map(|row| row.agent_id).collect();
        let gone = |agent: &str| span.has(agent) && !listed.contains(agent);
        self.remove_where(node, gone, seen);
        // One that finds no room does not keep the others out.
        let mut stored = Ok(());
        for row in rows {
            stored = stored.and(self.put(node, *row, seen));
        }
        stored
    }

    /// Removes all rows of the node.
    pub(super) fn clear(&mut self, node: NodeNumber, seen: &mut impl FnMut(Seen<'_>)) {
        if self.tally(node).rows > 0 {
            self.remove_where(node, |_| true, seen);
        }
    }

    fn remove_where(
        &mut self,
        node: NodeNumber,
        gone: impl Fn(&str) -> bool,
        seen: &mut impl FnMut(Seen<'_>),
    ) {
        let mut tally = self.tally(node);
        self.rows.retain(|of, row| {
            let keep = of != node || !gone(row.agent_id);
            if !keep {
                tally.digest.take_off(row);
                tally.rows -= 1;
                seen(Seen::Went(row.agent_id));
            }
            keep
        });
        *self.tally_mut(node) = tally;
    }
}
