//! The session table behind one short lock, with sharded indexes for the hot paths.
//!
//! Responsible for keeping the indexes equal to the table: every change is made and published
//! under the table's lock, and a row leaves an index only if it is that of the session that ends. Registering and ending sessions take that lock; routing a command and
//! admitting a heartbeat of a connected agent take the lock of one shard. Must never hold a lock
//! while something is sent.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use tokio::time::Instant;

use super::admission::Refusal;
use super::clock::unix_ms;
use super::epoch::Epoch;
use super::live::Session;
use super::table::{
    CapReached, Registration, Reservation, Subscribed, Superseded, Table, TableLimits, TakeRefused,
};
use crate::edge::ConnectionKey;

const SHARDS: usize = 64;

type Shard = RwLock<HashMap<Arc<str>, Arc<Session>>>;

/// A map that many tasks read, split so that they rarely meet.
#[derive(Debug)]
struct Sharded {
    hasher: RandomState,
    shards: Box<[Shard]>,
}

impl Sharded {
    fn new() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Self {
            hasher: RandomState::new(),
            shards,
        }
    }

    fn shard(&self, key: &str) -> &Shard {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    fn get(&self, key: &str) -> Option<Arc<Session>> {
        self.look(key, Arc::clone)
    }

    /// What is wanted of a row.
    fn look<T>(&self, key: &str, of: impl FnOnce(&Arc<Session>) -> T) -> Option<T> {
        let shard = self.shard(key).read();
        let shard = shard.unwrap_or_else(PoisonError::into_inner);
        shard.get(key).map(of)
    }

    fn insert(&self, key: &Arc<str>, session: &Arc<Session>) {
        let mut shard = self
            .shard(key)
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        shard.insert(Arc::clone(key), Arc::clone(session));
    }

    /// Removes the row if it is that of `session`.
    fn remove(&self, key: &str, session: &Session) {
        let mut shard = self
            .shard(key)
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if shard.get(key).is_some_and(|row| row.epoch == session.epoch) {
            shard.remove(key);
        }
        if shard.len() < shard.capacity() / 4 {
            shard.shrink_to_fit();
        }
    }

    fn collect_of(&self, shard: usize) -> Vec<Arc<Session>> {
        let shard = self.shards[shard].read();
        let shard = shard.unwrap_or_else(PoisonError::into_inner);
        shard.values().cloned().collect()
    }

    fn collect(&self, capacity: usize) -> Vec<Arc<Session>> {
        let mut all = Vec::with_capacity(capacity);
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            all.extend(shard.values().cloned());
        }
        all
    }
}

/// Follows the sessions that commands go to. Called under the table's lock, in the order of the
/// changes: an implementation must not wait.
pub(crate) trait Follower: fmt::Debug + Send + Sync {
    /// The session has its agent now, in the place of an older one if there was one.
    fn came(&self, session: &Session);

    /// The session ended, and none took its place.
    fn went(&self, session: &Session);
}

/// All sessions of this node.
#[derive(Debug)]
pub(crate) struct Registry {
    table: Mutex<Table<Arc<Session>>>,
    by_agent: Sharded,
    by_session: Sharded,
    /// Live rows, for who only wants the number.
    live: AtomicUsize,
    /// Absent on a node that tells nobody.
    follower: OnceLock<Arc<dyn Follower>>,
}

/// A reserved slot, given back when dropped without a commit.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    registry: &'a Registry,
    reservation: Option<Reservation>,
}

impl Slot<'_> {
    /// Turns the slot into a pending row (REG-8).
    ///
    /// # Errors
    /// A newer registration took its place (REG-10).
    pub(crate) fn commit(
        mut self,
        session_id: &Arc<str>,
        registration: Registration,
    ) -> Result<(), Superseded> {
        match self.reservation.take() {
            None => Err(Superseded),
            Some(reservation) => {
                let mut table = self.registry.table();
                table.commit(reservation, session_id, registration, Instant::now())
            }
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.registry.table().release(reservation);
        }
    }
}

impl Registry {
    pub(crate) fn new(limits: TableLimits) -> Self {
        Self {
            table: Mutex::new(Table::new(limits)),
            by_agent: Sharded::new(),
            by_session: Sharded::new(),
            live: AtomicUsize::new(0),
            follower: OnceLock::new(),
        }
    }

    /// Has one follow every session from now on. Before the first one comes, and once.
    pub(crate) fn followed_by(&self, follower: Arc<dyn Follower>) {
        let first = self.follower.set(follower);
        debug_assert!(first.is_ok());
    }

    /// Another node gave this epoch out (ADJ-3).
    pub(crate) fn heard_of(&self, epoch: Epoch) {
        self.table().heard_of(epoch);
    }

    /// Puts other limits in force, for registrations that come from now on.
    pub(crate) fn retune(&self, limits: TableLimits) {
        self.table().limit(limits);
    }

    fn table(&self) -> MutexGuard<'_, Table<Arc<Session>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a slot for a registration (CAP-4).
    pub(crate) fn reserve(
        &self,
        connection: ConnectionKey,
        agent_id: &Arc<str>,
    ) -> Result<Slot<'_>, CapReached> {
        let reservation = self.table().reserve(connection, agent_id, Instant::now())?;
        Ok(Slot {
            registry: self,
            reservation: Some(reservation),
        })
    }

    /// Turns the pending row of `session_id` into a session that commands go to (SUB-3); an older
    /// one of the agent loses its route and its admission at once (SUB-8).
    ///
    /// # Errors
    /// See [`Table::subscribe`].
    pub(crate) fn subscribe(
        &self,
        session_id: &str,
        connection: ConnectionKey,
        stream_home_id: Arc<str>,
    ) -> Result<Arc<Session>, TakeRefused> {
        let mut table = self.table();
        let build = |registration, epoch| {
            let id = Arc::from(session_id);
            let session = Session::new(registration, id, stream_home_id, connection, epoch);
            Arc::new(session)
        };
        let Subscribed { value, superseded } =
            table.subscribe(session_id, connection, Instant::now(), unix_ms(), build)?;
        if let Some(old) = superseded {
            self.by_session.remove(&old.session_id, &old);
        }
        self.by_agent.insert(value.agent_id(), &value);
        self.by_session.insert(&value.session_id, &value);
        self.live.store(table.len(), Ordering::Relaxed);
        if let Some(follower) = self.follower.get() {
            follower.came(&value);
        }
        Ok(value)
    }

    /// Whose registration waits under this session id.
    pub(crate) fn pending_agent(&self, session_id: &str) -> Option<Arc<str>> {
        self.table().pending_agent(session_id)
    }

    /// Removes the session, unless a newer one of the agent took its place (SUB-8, SUB-9).
    pub(crate) fn end(&self, session: &Session) {
        let mut table = self.table();
        if table.end(session.agent_id(), session.epoch) {
            self.by_agent.remove(session.agent_id(), session);
            self.by_session.remove(&session.session_id, session);
            self.live.store(table.len(), Ordering::Relaxed);
            if let Some(follower) = self.follower.get() {
                follower.went(session);
            }
        }
    }

    /// The session that commands of `agent_id` go to.
    pub(crate) fn route(&self, agent_id: &str) -> Option<Arc<Session>> {
        self.by_agent.get(agent_id)
    }

    /// The connected agent's session with this id.
    pub(crate) fn find(&self, session_id: &str) -> Option<Arc<Session>> {
        self.by_session.get(session_id)
    }

    /// Whether commands of its agent go to this very session.
    pub(crate) fn is_current(&self, session: &Session) -> bool {
        let current = self.route(session.agent_id());
        current.is_some_and(|current| current.epoch == session.epoch)
    }

    /// Whether commands of `agent_id` go to this very session and stream (UNACK-6).
    pub(crate) fn holds(&self, agent_id: &str, session_id: &str, stream_home_id: &str) -> bool {
        self.route(agent_id).is_some_and(|session| {
            *session.session_id == *session_id && *session.stream_home_id == *stream_home_id
        })
    }

    /// Parts of the sessions.
    pub(crate) const SHARDS: usize = SHARDS;

    /// Every session of one part that commands go to.
    pub(crate) fn all_of(&self, shard: usize) -> Vec<Arc<Session>> {
        self.by_agent.collect_of(shard)
    }

    /// Every session that commands go to.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.by_agent.collect(self.len())
    }

    /// The sessions of one connection that commands go to.
    pub(crate) fn on_connection(&self, connection: ConnectionKey) -> Vec<Arc<Session>> {
        self.table().on_connection(connection)
    }

    /// Whether a heartbeat or an inventory report of `session_id` is admitted on `connection`
    /// (ADMIT-1).
    pub(crate) fn admit(&self, session_id: &str, connection: ConnectionKey) -> Result<(), Refusal> {
        let held_on = self
            .by_session
            .look(session_id, |session| session.connection);
        if held_on == Some(connection) {
            return Ok(());
        }
        // A server may hand the id of a live session out again: the pending row counts as well.
        let pending = self
            .table()
            .admit_pending(session_id, connection, Instant::now());
        pending.map_err(|refusal| match held_on {
            Some(_) => Refusal::ConnectionMismatch,
            None => refusal,
        })
    }

    /// See [`Table::page`].
    pub(crate) fn page(&self, cursor: &str, limit: usize) -> (Vec<Arc<Session>>, bool) {
        self.table().page(cursor, limit)
    }

    /// The connection is gone (CAP-7).
    pub(crate) fn connection_closed(&self, connection: ConnectionKey) {
        self.table().connection_closed(connection, Instant::now());
    }

    /// Removes expired rows.
    pub(crate) fn sweep(&self) {
        self.table().sweep(Instant::now());
    }

    /// Connected agents.
    pub(crate) fn len(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
