//! The session table: reservations, pending rows, live rows, and the cap per connection.
//!
//! Responsible for the rules CAP-*, REG-8 to REG-10, SUB-2 to SUB-5, SUB-8 and ADMIT-1, ADMIT-4 as
//! decisions over plain maps. Pure: time comes in as an argument, nothing waits, nothing is sent.
//! Must never look into what it stores for a live row (`L`).

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::admission::Refusal;
use super::epoch::{Epoch, EpochClock};
use super::kept::Kept;
use crate::edge::ConnectionKey;

/// A reservation or a pending row is valid for this long (REG-8, REG-16).
pub(crate) const LIFETIME: Duration = Duration::from_secs(120);

/// What an agent registered with.
#[derive(Clone)]
pub(crate) struct Registration {
    /// 1..=256 bytes.
    pub(crate) agent_id: Arc<str>,
    /// As the agent says.
    pub(crate) hostname: Arc<str>,
    /// Names only.
    pub(crate) plugins: Arc<[Box<str>]>,
    /// The request as it was sent upstream (REG-4), for replays.
    pub(crate) request: Kept,
    /// The attributed address.
    pub(crate) peer: Option<IpAddr>,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({} bytes)", self.request.len())
    }
}

/// Limits of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableLimits {
    /// Slots per connection (CAP-1).
    pub(crate) max_per_connection: usize,
    /// How long rows of a closed connection stay (CAP-7).
    pub(crate) grace: Duration,
}

/// The connection has no free slot (CAP-5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CapReached;

/// A commit came too late (REG-10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Superseded;

/// Why a pending row was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TakeRefused {
    /// There is none (SUB-2).
    NotPending,
    /// The Subscribe's connection has no free slot (CAP-5).
    CapReached,
}

/// A reserved slot; the number orders registrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Reservation(u64);

/// A Subscribe that was let in.
#[derive(Debug)]
pub(crate) struct Subscribed<L> {
    /// What the new row carries.
    pub(crate) value: L,
    /// What the agent's older row carried.
    pub(crate) superseded: Option<L>,
}

#[derive(Debug)]
struct Reserved {
    agent_id: Arc<str>,
    connection: ConnectionKey,
    expires: Instant,
}

#[derive(Debug)]
struct Pending {
    registration: Registration,
    connection: ConnectionKey,
    stamp: Reservation,
    commit: u64,
    expires: Instant,
}

#[derive(Debug)]
struct Live<L> {
    epoch: Epoch,
    connection: ConnectionKey,
    value: L,
}

#[derive(Debug, Default)]
struct ConnectionRows {
    reserved: Vec<Reservation>,
    pending: Vec<Arc<str>>,
    live: Vec<Arc<str>>,
}

impl ConnectionRows {
    fn is_empty(&self) -> bool {
        self.reserved.is_empty() && self.pending.is_empty() && self.live.is_empty()
    }
}

/// The table. `L` is what a live row carries.
#[derive(Debug)]
pub(crate) struct Table<L> {
    limits: TableLimits,
    /// Of stamps and commits alike.
    last_number: u64,
    epochs: EpochClock,
    /// All lifetimes are equal, so the order of the stamps is that of their ends.
    reserved: BTreeMap<Reservation, Reserved>,
    /// By session id.
    pending: HashMap<Arc<str>, Pending>,
    /// The pending rows of each agent in the order of their stamps.
    pending_of: BTreeMap<(Arc<str>, Reservation), Arc<str>>,
    /// The pending rows in the order of their commits, which is that of their ends.
    commits: BTreeMap<u64, Arc<str>>,
    live: BTreeMap<Arc<str>, Live<L>>,
    connections: HashMap<ConnectionKey, ConnectionRows>,
    /// Connections that closed, with the time; the grace is the same for all, so the oldest is
    /// always first.
    graces: VecDeque<(Instant, ConnectionKey)>,
}

impl<L: Clone> Table<L> {
    pub(crate) fn new(limits: TableLimits) -> Self {
        Self {
            limits,
            last_number: 0,
            epochs: EpochClock::default(),
            reserved: BTreeMap::new(),
            pending: HashMap::new(),
            pending_of: BTreeMap::new(),
            commits: BTreeMap::new(),
            live: BTreeMap::new(),
            connections: HashMap::new(),
            graces: VecDeque::new(),
        }
    }

    /// Puts other limits in force. No row is taken back.
    pub(crate) fn limit(&mut self, limits: TableLimits) {
        self.limits = limits;
    }

    /// Another node gave this epoch out: those of this node go on from it (ADJ-3).
    pub(crate) fn heard_of(&mut self, epoch: Epoch) {
        self.epochs.heard_of(epoch);
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Reserves a slot on `connection` for a registration of `agent_id` (CAP-1 to CAP-4).
    pub(crate) fn reserve(
        &mut self,
        connection: ConnectionKey,
        agent_id: &Arc<str>,
        now: Instant,
    ) -> Result<Reservation, CapReached> {
        if self.slots(connection, agent_id, now, true) >= self.limits.max_per_connection {
            return Err(CapReached);
        }
        let stamp = Reservation(self.number());
        let row = Reserved {
            agent_id: Arc::clone(agent_id),
            connection,
            expires: now + LIFETIME,
        };
        self.reserved.insert(stamp, row);
        self.rows_of(connection).reserved.push(stamp);
        Ok(stamp)
    }

    /// Slots counted on `connection` for `agent_id` (CAP-2, CAP-3); the cost is that of the rows
    /// of this connection. `own_reservations`: whether the agent's own count, as for a Register.
    fn slots(
        &self,
        connection: ConnectionKey,
        agent_id: &Arc<str>,
        now: Instant,
        own_reservations: bool,
    ) -> usize {
        let Some(rows) = self.connections.get(&connection) else {
            return 0;
        };
        let reserved: Vec<&str> = rows
            .reserved
            .iter()
            .filter_map(|stamp| self.reserved.get(stamp))
            .filter(|row| row.expires > now)
            .map(|row| &*row.agent_id)
            .collect();
        let in_flight: HashSet<&str> = reserved.iter().copied().collect();
        let other = |agent: &str| *agent != **agent_id;
        let reserved = reserved
            .into_iter()
            .filter(|agent| own_reservations || other(agent));
        let live = rows.live.iter().filter(|agent| other(agent));
        let pending = rows
            .pending
            .iter()
            .filter_map(|session| self.pending.get(session))
            .filter(|row| {
                let agent = &*row.registration.agent_id;
                row.expires > now && other(agent) && !in_flight.contains(agent)
            });
        reserved.count() + live.count() + pending.count()
    }

    /// Gives a reservation back.
    pub(crate) fn release(&mut self, reservation: Reservation) {
        if let Some(row) = self.reserved.remove(&reservation) {
            self.edit_connection(row.connection, |rows| {
                rows.reserved.retain(|stamp| *stamp != reservation);
            });
        }
    }

    /// Turns a reservation into a pending row (REG-8 to REG-10). The reservation is used up.
    pub(crate) fn commit(
        &mut self,
        reservation: Reservation,
        session_id: &Arc<str>,
        registration: Registration,
        now: Instant,
    ) -> Result<(), Superseded> {
        let Some(row) = self.reserved.get(&reservation) else {
            return Err(Superseded);
        };
        let (connection, expired) = (row.connection, row.expires <= now);
        self.release(reservation);
        let agent_id = Arc::clone(&registration.agent_id);
        if expired || self.has_newer(&agent_id, reservation) {
            return Err(Superseded);
        }
        // A server that hands one session id out twice: the later registration holds it.
        self.remove_pending(session_id);
        if let Some(older) = self.pending_on(connection, &agent_id) {
            self.remove_pending(&older);
        }
        let commit = self.number();
        let row = Pending {
            registration,
            connection,
            stamp: reservation,
            commit,
            expires: now + LIFETIME,
        };
        self.pending.insert(Arc::clone(session_id), row);
        self.pending_of
            .insert((agent_id, reservation), Arc::clone(session_id));
        self.commits.insert(commit, Arc::clone(session_id));
        self.rows_of(connection)
            .pending
            .push(Arc::clone(session_id));
        Ok(())
    }

    /// Whether a registration of the agent that began after `reservation` is pending. It can not
    /// have expired: it was committed after `reservation` was made.
    fn has_newer(&self, agent_id: &Arc<str>, reservation: Reservation) -> bool {
        let (first, last) = (Reservation(reservation.0 + 1), Reservation(u64::MAX));
        let newer = (Arc::clone(agent_id), first)..=(Arc::clone(agent_id), last);
        self.pending_of.range(newer).next().is_some()
    }

    /// The agent's pending row on `connection`: there is at most one (REG-9).
    fn pending_on(&self, connection: ConnectionKey, agent_id: &str) -> Option<Arc<str>> {
        let sessions = &self.connections.get(&connection)?.pending;
        let of_agent = sessions.iter().find(|session| {
            let row = self.pending.get(*session);
            row.is_some_and(|row| *row.registration.agent_id == *agent_id)
        });
        of_agent.cloned()
    }

    /// Whose registration waits under this session id.
    pub(crate) fn pending_agent(&self, session_id: &str) -> Option<Arc<str>> {
        let row = self.pending.get(session_id)?;
        Some(Arc::clone(&row.registration.agent_id))
    }

    /// Puts a live row in the place of the pending one, in one step: the slot is never free in
    /// between (SUB-2 to SUB-5). Exactly one of several callers gets it; the agent's older row
    /// loses its place (SUB-8). The lifetime of the pending row is not looked at (SUB-4). `unix_ms`
    /// is the wall clock, for the epoch.
    pub(crate) fn subscribe(
        &mut self,
        session_id: &str,
        connection: ConnectionKey,
        now: Instant,
        unix_ms: i64,
        build: impl FnOnce(Registration, Epoch) -> L,
    ) -> Result<Subscribed<L>, TakeRefused> {
        let Some(row) = self.pending.get(session_id) else {
            return Err(TakeRefused::NotPending);
        };
        let agent_id = Arc::clone(&row.registration.agent_id);
        if self.slots(connection, &agent_id, now, false) >= self.limits.max_per_connection {
            return Err(TakeRefused::CapReached);
        }
        let registration = self.remove_pending(session_id);
        let registration = registration.ok_or(TakeRefused::NotPending)?;
        let epoch = self.epochs.next(unix_ms);
        let value = build(registration, epoch);
        let row = Live {
            epoch,
            connection,
            value: value.clone(),
        };
        let old = self.live.insert(Arc::clone(&agent_id), row);
        if let Some(old) = &old {
            self.edit_connection(old.connection, |rows| rows.live.retain(|a| *a != agent_id));
        }
        self.rows_of(connection).live.push(agent_id);
        Ok(Subscribed {
            value,
            superseded: old.map(|old| old.value),
        })
    }

    /// Removes the live row of `agent_id` if it is that of `epoch`. False: a newer session took
    /// its place, or it was removed before (SUB-8, SUB-9).
    pub(crate) fn end(&mut self, agent_id: &Arc<str>, epoch: Epoch) -> bool {
        let row = self.live.get(agent_id);
        let Some(row) = row.filter(|row| row.epoch == epoch) else {
            return false;
        };
        let connection = row.connection;
        self.live.remove(agent_id);
        self.edit_connection(connection, |rows| rows.live.retain(|a| a != agent_id));
        true
    }

    /// The connection is gone: its reserved and pending rows stay takeable for the grace (CAP-7).
    pub(crate) fn connection_closed(&mut self, connection: ConnectionKey, now: Instant) {
        let Some(rows) = self.connections.get(&connection) else {
            return;
        };
        if self.limits.grace.is_zero() {
            self.drop_connection(connection);
        } else if !(rows.reserved.is_empty() && rows.pending.is_empty()) {
            self.graces.push_back((now, connection));
        }
    }

    /// Removes what has expired (REG-8, REG-16, CAP-7) and gives memory of bursts back.
    pub(crate) fn sweep(&mut self, now: Instant) {
        let grace = self.limits.grace;
        let over = |(closed, _): &mut (Instant, _)| *closed + grace <= now;
        while let Some((_, connection)) = self.graces.pop_front_if(over) {
            self.drop_connection(connection);
        }
        while let Some((stamp, row)) = self.reserved.first_key_value()
            && row.expires <= now
        {
            let stamp = *stamp;
            self.release(stamp);
        }
        while let Some((_, session)) = self.commits.first_key_value()
            && self
                .pending
                .get(session)
                .is_some_and(|row| row.expires <= now)
        {
            let session = Arc::clone(session);
            self.remove_pending(&session);
        }
        give_back(&mut self.pending);
        give_back(&mut self.connections);
        if self.graces.len() < self.graces.capacity() / 4 {
            self.graces.shrink_to_fit();
        }
    }

    fn drop_connection(&mut self, connection: ConnectionKey) {
        let Some(rows) = self.connections.get(&connection) else {
            return;
        };
        let (reserved, pending) = (rows.reserved.clone(), rows.pending.clone());
        for stamp in reserved {
            self.release(stamp);
        }
        for session in pending {
            self.remove_pending(&session);
        }
    }

    fn remove_pending(&mut self, session_id: &str) -> Option<Registration> {
        let row = self.pending.remove(session_id)?;
        let agent_id = Arc::clone(&row.registration.agent_id);
        self.pending_of.remove(&(agent_id, row.stamp));
        self.commits.remove(&row.commit);
        self.edit_connection(row.connection, |rows| {
            rows.pending.retain(|session| **session != *session_id);
        });
        Some(row.registration)
    }

    fn rows_of(&mut self, connection: ConnectionKey) -> &mut ConnectionRows {
        self.connections.entry(connection).or_default()
    }

    fn edit_connection(
        &mut self,
        connection: ConnectionKey,
        edit: impl FnOnce(&mut ConnectionRows),
    ) {
        if let Some(rows) = self.connections.get_mut(&connection) {
            edit(rows);
            if rows.is_empty() {
                self.connections.remove(&connection);
            }
        }
    }

    /// Whether a pending session may send heartbeats on `connection` (ADMIT-1, ADMIT-4).
    pub(crate) fn admit_pending(
        &self,
        session_id: &str,
        connection: ConnectionKey,
        now: Instant,
    ) -> Result<(), Refusal> {
        match self.pending.get(session_id) {
            Some(row) if row.expires > now && row.connection == connection => Ok(()),
            Some(row) if row.expires > now => Err(Refusal::ConnectionMismatch),
            _ => Err(Refusal::UnknownSession),
        }
    }

    /// What the live rows of a connection carry.
    pub(crate) fn on_connection(&self, connection: ConnectionKey) -> Vec<L> {
        let agents = self.connections.get(&connection);
        let agents = agents.map(|rows| &rows.live[..]).unwrap_or_default();
        let rows = agents.iter().filter_map(|agent| self.live.get(agent));
        rows.map(|row| row.value.clone()).collect()
    }

    /// Live rows after `cursor`, ascending by agent id, at most `limit`; and whether more exist
    /// (MGMT-1). Rows that come and go change no other row's place.
    pub(crate) fn page(&self, cursor: &str, limit: usize) -> (Vec<L>, bool) {
        let after = if cursor.is_empty() {
            Bound::Unbounded
        } else {
            Bound::Excluded(cursor)
        };
        let mut rows = self.live.range::<str, _>((after, Bound::Unbounded));
        let page = rows
            .by_ref()
            .take(limit)
            .map(|(_, row)| row.value.clone())
            .collect();
        (page, rows.next().is_some())
    }

    /// Live rows.
    pub(crate) fn len(&self) -> usize {
        self.live.len()
    }
}

fn give_back<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    if map.len() < map.capacity() / 4 {
        map.shrink_to_fit();
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
