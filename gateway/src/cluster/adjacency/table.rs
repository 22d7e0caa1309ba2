//! The adjacency table: agent id to (node, session id, epoch), for every agent of every peer.
//!
//! Responsible for which node an agent is on (ADJ-1, ADJ-3), for whose telling counts (MESH-5), and
//! for locks that are held for one step of the work: a look-up takes that of one shard. Must never
//! learn of a row but through a [`Telling`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use arc_swap::ArcSwap;

use super::digest::{Digest, Row, SHARDS, ShardSet, shard_of};
use super::page::Page;
use super::rows::{Full, NodeNumber};
use super::shard::{Seen, Shard, Span};
use crate::session::Epoch;

/// Nodes whose rows are held at once, those that are on their way out included.
const MAX_NODES: usize = 1_024;

/// Where an agent is.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Whereabouts {
    /// The node's name.
    pub(crate) node: Arc<str>,
    /// Its session there; secret.
    pub(crate) session_id: Box<str>,
    /// Of that session.
    pub(crate) epoch: Epoch,
}

impl std::fmt::Debug for Whereabouts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Whereabouts({}, {:?})", self.node, self.epoch)
    }
}

/// Why a node's telling is not listened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotHeard {
    /// A later life of the node is known (MESH-5).
    #[error("a later incarnation of the node is known")]
    OlderIncarnation,
    /// Rows of as many nodes as may be are held.
    #[error("too many nodes")]
    TooManyNodes,
}

/// The node has another telling now, or is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Superseded;

/// A row found no room, or its agent is not one of the shard that it came with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotStored {
    /// The telling is over.
    Superseded,
    /// The shard is full; what had room was stored.
    Full,
    /// The portion is of another shard; nothing was stored.
    Misplaced,
}

impl From<Superseded> for NotStored {
    fn from(_: Superseded) -> Self {
        Self::Superseded
    }
}

impl From<Full> for NotStored {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

/// One life of a node.
#[derive(Debug)]
struct Peer {
    number: NodeNumber,
    name: Arc<str>,
    incarnation: u64,
    gone: AtomicBool,
    /// The newest telling. Held while a frame is applied, and when the node goes.
    telling: Mutex<u64>,
}

impl Peer {
    fn telling(&self) -> MutexGuard<'_, u64> {
        self.telling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on no look-up finds a row of it and no telling adds one.
    fn go(&self) {
        let _applying = self.telling();
        self.gone.store(true, Ordering::Release);
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

type Peers = Vec<Option<Arc<Peer>>>;

/// The table.
#[derive(Debug)]
pub(crate) struct Adjacency {
    shards: Box<[RwLock<Shard>]>,
    /// By node number; one that is gone keeps its number until its last row is.
    peers: ArcSwap<Peers>,
    /// Held while `peers` is replaced.
    joining: Mutex<()>,
}

impl Adjacency {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            peers: ArcSwap::default(),
            joining: Mutex::default(),
        })
    }

    fn read(&self, shard: usize) -> RwLockReadGuard<'_, Shard> {
        let shard = self.shards[shard].read();
        shard.unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, shard: usize) -> RwLockWriteGuard<'_, Shard> {
        let shard = self.shards[shard].write();
        shard.unwrap_or_else(PoisonError::into_inner)
    }

    fn joining(&self) -> MutexGuard<'_, ()> {
        self.joining.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the agent is: at the node with its newest session (ADJ-3); of two equally new ones
    /// every node takes the same.
    pub(crate) fn find(&self, agent_id: &str) -> Option<Whereabouts> {
        let peers = self.peers.load();
        newest(&peers, &self.read(shard_of(agent_id)), agent_id)
    }

    /// Every agent of one shard with what [`Self::find`] says of it, each once. The shard is locked
    /// meanwhile.
    pub(crate) fn each_of(&self, shard: usize, each: &mut dyn FnMut(&str, Whereabouts)) {
        let peers = self.peers.load();
        let shard = self.read(shard);
        for (number, row) in shard.rows() {
            let found = newest(&peers, &shard, row.agent_id);
            let peer = peers.get(usize::from(number)).and_then(Option::as_ref);
            // Of several claims the one that counts.
            if let Some(found) = found
                && peer.is_some_and(|peer| *peer.name == *found.node && !peer.is_gone())
            {
                each(row.agent_id, found);
            }
        }
    }

    /// Adds the agents of one shard to a page of them. The shard is locked meanwhile.
    pub(crate) fn list(&self, shard: usize, page: &mut Page) {
        let peers = self.peers.load();
        let shard = self.read(shard);
        for (_, row) in shard.rows() {
            if page.wants(row.agent_id)
                && let Some(found) = newest(&peers, &shard, row.agent_id)
            {
                page.add(row.agent_id, found.epoch);
            }
        }
    }

    /// Listens to a node from now on; an earlier telling of the same life is not listened to any
    /// more, its rows stay. An earlier life of the node is gone and is returned.
    ///
    /// # Errors
    /// When a later life of the node is known, or there are too many nodes.
    pub(crate) fn listen(
        self: &Arc<Self>,
        name: &str,
        incarnation: u64,
    ) -> Result<(Telling, Option<Departed>), NotHeard> {
        let _joining = self.joining();
        let peers = self.peers.load_full();
        let known = here(&peers).find(|peer| *peer.name == *name);
        let (peer, departed) = match known {
            Some(known) if known.incarnation > incarnation => {
                return Err(NotHeard::OlderIncarnation);
            }
            Some(known) if known.incarnation == incarnation => (Arc::clone(known), None),
            Some(known) => {
                let next = self.admit(&peers, name, incarnation)?;
                (next, Some(self.depart(known)))
            }
            None => (self.admit(&peers, name, incarnation)?, None),
        };
        let mut telling = peer.telling();
        *telling += 1;
        let telling = Telling {
            table: Arc::clone(self),
            number: *telling,
            peer: Arc::clone(&peer),
        };
        Ok((telling, departed))
    }

    fn admit(&self, peers: &Peers, name: &str, incarnation: u64) -> Result<Arc<Peer>, NotHeard> {
        let free = peers.iter().position(Option::is_none);
        let place = free.unwrap_or(peers.len());
        if place >= MAX_NODES {
            return Err(NotHeard::TooManyNodes);
        }
        let peer = Arc::new(Peer {
            number: place as NodeNumber,
            name: name.into(),
            incarnation,
            gone: AtomicBool::new(false),
            telling: Mutex::new(0),
        });
        let mut peers = peers.clone();
        peers.resize(peers.len().max(place + 1), None);
        peers[place] = Some(Arc::clone(&peer));
        self.peers.store(Arc::new(peers));
        Ok(peer)
    }

    fn depart(self: &Arc<Self>, peer: &Arc<Peer>) -> Departed {
        peer.go();
        Departed {
            table: Arc::clone(self),
            peer: Arc::clone(peer),
            cleared: 0,
        }
    }

    /// Every node that `lives` does not name by its name and incarnation is gone (MESH-5).
    pub(crate) fn keep_only(self: &Arc<Self>, lives: impl Fn(&str, u64) -> bool) -> Vec<Departed> {
        let _joining = self.joining();
        let peers = self.peers.load_full();
        let gone = here(&peers).filter(|peer| !lives(&peer.name, peer.incarnation));
        gone.map(|peer| self.depart(peer)).collect()
    }

    /// The nodes with the number of rows that each has told of.
    pub(crate) fn census(&self) -> Vec<(Arc<str>, usize)> {
        let peers = self.peers.load_full();
        let rows = |peer: &Arc<Peer>| {
            let shards = 0..SHARDS;
            shards
                .map(|shard| self.read(shard).tally(peer.number).rows)
                .sum()
        };
        here(&peers)
            .map(|peer| (Arc::clone(&peer.name), rows(peer)))
            .collect()
    }
}

/// The claim of the newest session; of two equally new ones the same on every node.
fn newest(peers: &Peers, shard: &Shard, agent_id: &str) -> Option<Whereabouts> {
    let claims = shard.claims(agent_id).filter_map(|(number, row)| {
        let peer = peers.get(usize::from(number))?.as_ref()?;
        (!peer.is_gone()).then_some((peer, row))
    });
    let (peer, row) = claims.max_by_key(|&(peer, row)| (row.epoch, &*peer.name))?;
    Some(Whereabouts {
        node: Arc::clone(&peer.name),
        session_id: row.session_id.into(),
        epoch: row.epoch,
    })
}

/// Those that are not gone.
fn here(peers: &Peers) -> impl Iterator<Item = &Arc<Peer>> {
    peers.iter().flatten().filter(|peer| !peer.is_gone())
}

/// One change that a node tells of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step<'a> {
    /// It holds this session now.
    Came(Row<'a>),
    /// The session of this epoch ended.
    Went(&'a str, Epoch),
}

impl Step<'_> {
    /// Of the session that came or went.
    pub(super) fn epoch(&self) -> Epoch {
        match self {
            Self::Came(row) => row.epoch,
            Self::Went(_, epoch) => *epoch,
        }
    }
}

/// The right to say what a node holds, while its life and this telling of it last.
#[derive(Debug)]
pub(crate) struct Telling {
    table: Arc<Adjacency>,
    peer: Arc<Peer>,
    number: u64,
}

impl Telling {
    /// Whether it is the first one of this life of the node.
    pub(super) fn is_first(&self) -> bool {
        self.number == 1
    }

    /// The name of the node.
    pub(super) fn node(&self) -> Arc<str> {
        Arc::clone(&self.peer.name)
    }

    /// Whether what it says still counts.
    ///
    /// # Errors
    /// When it does not.
    pub(super) fn check(&self) -> Result<(), Superseded> {
        self.while_heard(|_, _| ())
    }

    /// Runs `work` unless the telling is over; no other telling begins and the node does not go
    /// meanwhile.
    fn while_heard<T>(
        &self,
        work: impl FnOnce(&Adjacency, NodeNumber) -> T,
    ) -> Result<T, Superseded> {
        let newest = self.peer.telling();
        if *newest != self.number || self.peer.is_gone() {
            return Err(Superseded);
        }
        Ok(work(&self.table, self.peer.number))
    }

    /// Applies changes in their order.
    ///
    /// # Errors
    /// See [`NotStored`]; the changes after one that found no room are applied as well.
    pub(crate) fn apply<'a>(
        &self,
        steps: impl Iterator<Item = Step<'a>>,
        seen: &mut impl FnMut(Seen<'_>),
    ) -> Result<(), NotStored> {
        self.while_heard(|table, node| {
            let mut stored = Ok(());
            for step in steps {
                match step {
                    Step::Came(row) => {
                        let mut shard = table.write(shard_of(row.agent_id));
                        stored = stored.and(shard.came(node, row, seen));
                    }
                    Step::Went(agent_id, epoch) => {
                        let mut shard = table.write(shard_of(agent_id));
                        shard.went(node, agent_id, epoch, seen);
                    }
                }
            }
            stored
        })?
        .map_err(NotStored::from)
    }

    /// The node holds exactly `rows` of the agents in `span` of `shard`.
    ///
    /// # Errors
    /// See [`NotStored`].
    pub(crate) fn replace(
        &self,
        shard: usize,
        span: Span<'_>,
        rows: &[Row<'_>],
        seen: &mut impl FnMut(Seen<'_>),
    ) -> Result<(), NotStored> {
        let fits = |row: &Row<'_>| shard_of(row.agent_id) == shard && span.has(row.agent_id);
        if shard >= SHARDS || !rows.iter().all(fits) {
            return Err(NotStored::Misplaced);
        }
        self.while_heard(|table, node| table.write(shard).replace(node, span, rows, seen))?
            .map_err(NotStored::from)
    }

    /// The shards in which the node holds something else than it told (ADJ-2); `digests` has one
    /// for each.
    ///
    /// # Errors
    /// When the telling is over.
    pub(crate) fn differing(&self, digests: &[Digest; SHARDS]) -> Result<ShardSet, Superseded> {
        self.while_heard(|table, node| {
            let mut differing = ShardSet::NONE;
            for (shard, digest) in digests.iter().enumerate() {
                if table.read(shard).tally(node).digest != *digest {
                    differing.insert(shard);
                }
            }
            differing
        })
    }
}

/// A node that is gone, while its rows are taken out shard by shard. Dropped early, it takes out
/// what is left at once.
#[derive(Debug)]
pub(crate) struct Departed {
    table: Arc<Adjacency>,
    peer: Arc<Peer>,
    /// Shards without a row of it.
    cleared: usize,
}

impl Departed {
    /// Takes its rows out of one more shard. False: there was none left.
    pub(crate) fn clear_next(&mut self, seen: &mut impl FnMut(Seen<'_>)) -> bool {
        let more = self.cleared < SHARDS;
        if more {
            self.table.write(self.cleared).clear(self.peer.number, seen);
            self.cleared += 1;
        }
        more
    }
}

impl Drop for Departed {
    fn drop(&mut self) {
        while self.clear_next(&mut |_| ()) {}
        let _joining = self.table.joining();
        let mut peers = Peers::clone(&self.table.peers.load());
        peers[usize::from(self.peer.number)] = None;
        self.table.peers.store(Arc::new(peers));
    }
}

#[cfg(test)]
mod tests;
