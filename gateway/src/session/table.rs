//! The session table: reservations, pending rows, live rows, and the cap per connection.
//!
//! Responsible for the rules CAP-*, REG-8 to REG-10, SUB-2 to SUB-5, SUB-8 and ADMIT-1, ADMIT-4 as
//! decisions over plain maps. Pure: time comes in as an argument, nothing waits, nothing is sent.
//! Must never look into what it stores for a live row (`L`).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::admission::Refusal;
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
    pub(crate) request: Bytes,
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
    expires: Instant,
}

#[derive(Debug)]
struct Live<L> {
    session_id: Arc<str>,
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

#[derive(Debug)]
enum Expiring {
    Reserved(Reservation),
    Pending(Arc<str>),
}

/// The table. `L` is what a live row carries.
#[derive(Debug)]
pub(crate) struct Table<L> {
    limits: TableLimits,
    next_stamp: u64,
    reserved: HashMap<Reservation, Reserved>,
    pending: HashMap<Arc<str>, Pending>,
    /// Session ids of the pending rows of each agent.
    pending_of: HashMap<Arc<str>, Vec<Arc<str>>>,
    live: BTreeMap<Arc<str>, Live<L>>,
    connections: HashMap<ConnectionKey, ConnectionRows>,
    /// All lifetimes are equal, so the oldest is always first.
    lifetimes: VecDeque<(Instant, Expiring)>,
    /// All graces are equal, so the oldest is always first.
    graces: VecDeque<(Instant, ConnectionKey)>,
}

impl<L: Clone> Table<L> {
    pub(crate) fn new(limits: TableLimits) -> Self {
        Self {
            limits,
            next_stamp: 1,
            reserved: HashMap::new(),
            pending: HashMap::new(),
            pending_of: HashMap::new(),
            live: BTreeMap::new(),
            connections: HashMap::new(),
            lifetimes: VecDeque::new(),
            graces: VecDeque::new(),
        }
    }

    /// Reserves a slot on `connection` for a registration of `agent_id` (CAP-1 to CAP-4).
    pub(crate) fn reserve(
        &mut self,
        connection: ConnectionKey,
        agent_id: &Arc<str>,
        now: Instant,
    ) -> Result<Reservation, CapReached> {
        let own = self.slots(connection, agent_id, now, true);
        if own >= self.limits.max_per_connection {
            return Err(CapReached);
        }
        let stamp = Reservation(self.next_stamp);
        self.next_stamp += 1;
        let expires = now + LIFETIME;
        let row = Reserved {
            agent_id: Arc::clone(agent_id),
            connection,
            expires,
        };
        self.reserved.insert(stamp, row);
        self.connections
            .entry(connection)
            .or_default()
            .reserved
            .push(stamp);
        self.lifetimes
            .push_back((expires, Expiring::Reserved(stamp)));
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
        let in_flight = |agent: &Arc<str>| {
            rows.reserved.iter().any(|stamp| {
                self.reserved
                    .get(stamp)
                    .is_some_and(|row| row.agent_id == *agent && row.expires > now)
            })
        };
        let reserved = rows
            .reserved
            .iter()
            .filter_map(|stamp| self.reserved.get(stamp));
        let reserved = reserved
            .filter(|row| row.expires > now && (own_reservations || row.agent_id != *agent_id));
        let live = rows.live.iter().filter(|agent| *agent != agent_id);
        let pending = rows
            .pending
            .iter()
            .filter_map(|session| self.pending.get(session));
        let pending = pending.filter(|row| {
            let agent = &row.registration.agent_id;
            row.expires > now && agent != agent_id && !in_flight(agent)
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
        if expired {
            return Err(Superseded);
        }
        let agent_id = Arc::clone(&registration.agent_id);
        let of_agent = self.pending_of.get(&agent_id).cloned().unwrap_or_default();
        let newer = |session: &Arc<str>| {
            let row = self.pending.get(session);
            row.is_some_and(|row| row.stamp > reservation && row.expires > now)
        };
        if of_agent.iter().any(newer) {
            return Err(Superseded);
        }
        for session in of_agent {
            let here = self
                .pending
                .get(&session)
                .is_some_and(|row| row.connection == connection);
            if here || session == *session_id {
                self.remove_pending(&session);
            }
        }
        // A server that hands one session id to two agents: the later registration holds it.
        self.remove_pending(session_id);
        let expires = now + LIFETIME;
        let row = Pending {
            registration,
            connection,
            stamp: reservation,
            expires,
        };
        self.pending.insert(Arc::clone(session_id), row);
        self.pending_of
            .entry(agent_id)
            .or_default()
            .push(Arc::clone(session_id));
        self.connections
            .entry(connection)
            .or_default()
            .pending
            .push(Arc::clone(session_id));
        self.lifetimes
            .push_back((expires, Expiring::Pending(Arc::clone(session_id))));
        Ok(())
    }

    /// Takes the pending row for a Subscribe on `connection` (SUB-2 to SUB-5); exactly one of
    /// several callers gets it. The lifetime is not looked at (SUB-4).
    pub(crate) fn take(
        &mut self,
        session_id: &str,
        connection: ConnectionKey,
        now: Instant,
    ) -> Result<Registration, TakeRefused> {
        let Some(row) = self.pending.get(session_id) else {
            return Err(TakeRefused::NotPending);
        };
        let agent_id = Arc::clone(&row.registration.agent_id);
        if self.slots(connection, &agent_id, now, false) >= self.limits.max_per_connection {
            return Err(TakeRefused::CapReached);
        }
        self.remove_pending(session_id)
            .ok_or(TakeRefused::NotPending)
    }

    /// Enters a live row; the agent's older one loses its place and is returned (SUB-8).
    pub(crate) fn publish(
        &mut self,
        agent_id: &Arc<str>,
        session_id: &Arc<str>,
        connection: ConnectionKey,
        value: L,
    ) -> Option<L> {
        let row = Live {
            session_id: Arc::clone(session_id),
            connection,
            value,
        };
        let old = self.live.insert(Arc::clone(agent_id), row);
        if let Some(old) = &old {
            self.edit_connection(old.connection, |rows| rows.live.retain(|a| a != agent_id));
        }
        self.connections
            .entry(connection)
            .or_default()
            .live
            .push(Arc::clone(agent_id));
        old.map(|old| old.value)
    }

    /// Removes the live row of `agent_id` if it is that of `session_id`. False: a newer session
    /// took its place, or it was removed before (SUB-8, SUB-9).
    pub(crate) fn end(&mut self, agent_id: &Arc<str>, session_id: &str) -> bool {
        let current = self
            .live
            .get(agent_id)
            .is_some_and(|row| *row.session_id == *session_id);
        if current && let Some(row) = self.live.remove(agent_id) {
            self.edit_connection(row.connection, |rows| rows.live.retain(|a| a != agent_id));
        }
        current
    }

    /// The connection is gone: its reserved and pending rows stay takeable for the grace (CAP-7).
    pub(crate) fn connection_closed(&mut self, connection: ConnectionKey, now: Instant) {
        if !self.connections.contains_key(&connection) {
            return;
        }
        if self.limits.grace.is_zero() {
            self.drop_connection(connection);
        } else {
            self.graces.push_back((now + self.limits.grace, connection));
        }
    }

    /// Removes what has expired (REG-8, REG-16, CAP-7).
    pub(crate) fn sweep(&mut self, now: Instant) {
        while self.graces.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, connection)) = self.graces.pop_front() {
                self.drop_connection(connection);
            }
        }
        while self.lifetimes.front().is_some_and(|(at, _)| *at <= now) {
            match self.lifetimes.pop_front() {
                Some((_, Expiring::Reserved(stamp))) => self.release(stamp),
                Some((at, Expiring::Pending(session))) => {
                    // The id may have been committed again since.
                    if self
                        .pending
                        .get(&session)
                        .is_some_and(|row| row.expires <= at)
                    {
                        self.remove_pending(&session);
                    }
                }
                None => {}
            }
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
        let agent_id = &row.registration.agent_id;
        if let Some(sessions) = self.pending_of.get_mut(agent_id) {
            sessions.retain(|session| **session != *session_id);
            if sessions.is_empty() {
                self.pending_of.remove(agent_id);
            }
        }
        self.edit_connection(row.connection, |rows| {
            rows.pending.retain(|session| **session != *session_id);
        });
        Some(row.registration)
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
