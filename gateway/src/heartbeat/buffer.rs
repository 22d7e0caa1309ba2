//! The heartbeats that wait for the next flush: one entry per session, oldest first.
//!
//! Responsible for the caps on sessions and bytes and for what gives way at them, each step at a
//! price that does not depend on how many sessions are held. What leaves the buffer is handed out,
//! to be freed without its lock. Must never send or count.

use std::collections::HashMap;
use std::mem::replace;
use std::sync::Arc;

use slab::Slab;

use super::chunk::{Chunk, Ticket};
use super::list::List;
use super::message::{Heartbeat, Snapshot};

/// What an entry costs beside its session id and its heartbeat, at most: its slot, its links, its
/// place in the map, and what allocators round up.
pub(super) const OVERHEAD: usize = 256;

/// Slots that an empty buffer may keep.
const SLOTS_KEPT: usize = 1_024;

/// The caps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Sessions held (HB-9).
    pub(super) sessions: usize,
    /// Bytes held, [`OVERHEAD`] included (HB-10).
    pub(super) bytes: usize,
    /// Largest encoded heartbeat.
    pub(super) heartbeat: usize,
}

/// How much [`Buffer::pack`] copies at most: it ends behind the entry that passes either.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) entries: usize,
    pub(super) bytes: usize,
}

/// What became of an offered heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Held.
    Held,
    /// Held in place of an older one of its session, at the end of the order (HB-2).
    Coalesced,
    /// Not held: the cap on sessions is reached (HB-9), or it is larger than the buffer.
    Refused,
}

/// What happened when a heartbeat was offered.
pub(super) struct Offered {
    pub(super) outcome: Outcome,
    /// The snapshot of the older heartbeat, which does not fit the newer one (HB-6).
    pub(super) oversize: Option<Snapshot>,
    /// What gave way at the cap on bytes.
    pub(super) evicted: Freed,
    /// The older heartbeat, or the refused one.
    _displaced: Option<Heartbeat>,
}

/// What left the buffer.
#[derive(Default)]
pub(super) struct Freed {
    /// Whole entries.
    pub(super) heartbeats: Vec<Heartbeat>,
    /// Of entries that stay.
    pub(super) snapshots: Vec<Snapshot>,
}

struct Entry {
    session: Arc<str>,
    heartbeat: Heartbeat,
    /// When the heartbeat came. No two are the same in the life of the buffer.
    version: u64,
    /// When the snapshot came; an older heartbeat may have brought it.
    snapshot_version: u64,
}

impl Entry {
    fn cost(&self) -> usize {
        OVERHEAD + self.session.len() + self.heartbeat.len()
    }
}

/// The pure core.
pub(super) struct Buffer {
    limits: Limits,
    bytes: usize,
    next_version: u64,
    entries: Slab<Entry>,
    slots: HashMap<Arc<str>, u32>,
    /// Of entries, by version.
    order: List,
    /// Of entries with a snapshot, by its version.
    snapshots: List,
    /// The next entry to be packed.
    cursor: Option<u32>,
    /// Most sessions since it was empty.
    most: usize,
}

impl Buffer {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            bytes: 0,
            next_version: 0,
            entries: Slab::new(),
            slots: HashMap::new(),
            order: List::new(),
            snapshots: List::new(),
            cursor: None,
            most: 0,
        }
    }

    /// Puts other caps in force; what is over them leaves, the oldest first.
    pub(super) fn limit(&mut self, limits: Limits) -> Freed {
        let mut freed = Freed::default();
        self.limits = limits;
        while self.len() > limits.sessions
            && let Some(slot) = self.order.first()
        {
            freed.heartbeats.push(self.remove(slot));
        }
        self.make_room(&mut freed);
        freed
    }

    /// Sessions held.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes held, by the account of [`Limits::bytes`].
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes a heartbeat in. Over the cap on bytes the oldest snapshots give way, then the oldest
    /// entries (HB-10); what is over it alone gives way itself, whoever is older.
    pub(super) fn offer(&mut self, session_id: &str, heartbeat: Heartbeat) -> Offered {
        let mut offered = Offered {
            outcome: Outcome::Held,
            oversize: None,
            evicted: Freed::default(),
            _displaced: None,
        };
        let slot = self.slots.get(session_id).copied();
        let least = OVERHEAD + session_id.len() + heartbeat.rest_len();
        let full = slot.is_none() && self.len() >= self.limits.sessions;
        if full || least > self.limits.bytes {
            offered.outcome = Outcome::Refused;
            offered._displaced = Some(heartbeat);
            return offered;
        }
        let version = self.next_version;
        self.next_version += 1;
        let slot = match slot {
            Some(slot) => {
                let older = self.replace(slot, heartbeat, version, &mut offered.oversize);
                offered.outcome = Outcome::Coalesced;
                offered._displaced = Some(older);
                slot
            }
            None => self.insert(session_id, heartbeat, version),
        };
        if self.entries[slot as usize].cost() > self.limits.bytes {
            self.drop_snapshot(slot, &mut offered.evicted);
        }
        self.make_room(&mut offered.evicted);
        offered
    }

    fn insert(&mut self, session_id: &str, heartbeat: Heartbeat, version: u64) -> u32 {
        let session: Arc<str> = session_id.into();
        let entry = Entry {
            session: Arc::clone(&session),
            heartbeat,
            version,
            snapshot_version: version,
        };
        let has_snapshot = entry.heartbeat.has_snapshot();
        self.bytes += entry.cost();
        let slot = self.entries.insert(entry) as u32;
        self.slots.insert(session, slot);
        self.order.push_back(slot);
        if has_snapshot {
            self.snapshots.push_back(slot);
        }
        self.most = self.most.max(self.entries.len());
        slot
    }

    /// Puts a newer heartbeat in the place of the older one, which is handed out. A snapshot that
    /// the newer one lacks stays, at its place among the snapshots (HB-2).
    fn replace(
        &mut self,
        slot: u32,
        heartbeat: Heartbeat,
        version: u64,
        oversize: &mut Option<Snapshot>,
    ) -> Heartbeat {
        let entry = &mut self.entries[slot as usize];
        self.bytes -= entry.cost();
        let mut older = replace(&mut entry.heartbeat, heartbeat);
        entry.version = version;
        if entry.heartbeat.has_snapshot() {
            entry.snapshot_version = version;
            if older.has_snapshot() {
                self.snapshots.remove(slot);
            }
            self.snapshots.push_back(slot);
        } else if let Some(snapshot) = older.take_snapshot() {
            if entry.heartbeat.len() + snapshot.len() <= self.limits.heartbeat {
                entry.heartbeat.carry(snapshot);
            } else {
                *oversize = Some(snapshot);
                self.snapshots.remove(slot);
            }
        }
        self.bytes += entry.cost();
        self.leave_order(slot);
        self.order.push_back(slot);
        older
    }

    fn make_room(&mut self, evicted: &mut Freed) {
        while self.bytes > self.limits.bytes {
            if let Some(slot) = self.snapshots.first() {
                self.drop_snapshot(slot, evicted);
            } else if let Some(slot) = self.order.first() {
                evicted.heartbeats.push(self.remove(slot));
            } else {
                return;
            }
        }
    }

    fn drop_snapshot(&mut self, slot: u32, freed: &mut Freed) {
        if let Some(snapshot) = self.entries[slot as usize].heartbeat.take_snapshot() {
            self.bytes -= snapshot.len();
            self.snapshots.remove(slot);
            freed.snapshots.push(snapshot);
        }
    }

    fn remove(&mut self, slot: u32) -> Heartbeat {
        self.leave_order(slot);
        let entry = self.entries.remove(slot as usize);
        self.bytes -= entry.cost();
        self.slots.remove(&entry.session);
        if entry.heartbeat.has_snapshot() {
            self.snapshots.remove(slot);
        }
        entry.heartbeat
    }

    fn leave_order(&mut self, slot: u32) {
        if self.cursor == Some(slot) {
            self.cursor = self.order.after(slot);
        }
        self.order.remove(slot);
    }

    /// The version of the next heartbeat: what is held now is older.
    pub(super) fn end(&self) -> u64 {
        self.next_version
    }

    /// The next [`Buffer::pack`] begins with the oldest entry.
    pub(super) fn rewind(&mut self) {
        self.cursor = self.order.first();
    }

    /// Copies the next few entries older than `end` into `chunk`, oldest first, as far as they fit
    /// (HB-3); whether there may be more. They stay held until they are settled.
    pub(super) fn pack(&mut self, chunk: &mut Chunk<'_>, end: u64, step: Step) -> bool {
        let enough = chunk.len() + step.bytes;
        for _ in 0..step.entries {
            let Some(slot) = self.cursor else {
                return false;
            };
            let entry = &self.entries[slot as usize];
            if entry.version >= end || !chunk.add(slot, entry.version, &entry.heartbeat) {
                return false;
            }
            self.cursor = self.order.after(slot);
            if chunk.len() >= enough {
                break;
            }
        }
        true
    }

    /// Forgets what was sent, or given up. An entry that a newer heartbeat took over meanwhile
    /// stays, without the snapshot if that was sent with the older one.
    pub(super) fn settle(&mut self, tickets: &[Ticket]) -> Freed {
        let mut freed = Freed::default();
        for ticket in tickets {
            // The slot may belong to another session by now; that one's versions are higher.
            let Some(entry) = self.entries.get(ticket.slot as usize) else {
                continue;
            };
            if entry.version == ticket.version {
                freed.heartbeats.push(self.remove(ticket.slot));
            } else if entry.snapshot_version <= ticket.version {
                self.drop_snapshot(ticket.slot, &mut freed);
            }
        }
        if self.entries.is_empty() {
            self.give_back();
        }
        freed
    }

    /// After a storm an empty buffer does not keep the slots of it.
    fn give_back(&mut self) {
        let slots = self.entries.capacity();
        if slots > SLOTS_KEPT && slots > 4 * self.most {
            *self = Self {
                next_version: self.next_version,
                ..Self::new(self.limits)
            };
        }
        self.most = 0;
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
