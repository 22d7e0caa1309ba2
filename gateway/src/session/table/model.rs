//! The table against a naive model: flat lists, every question answered by a scan.

use proptest::prelude::*;

use super::*;

const AGENTS: usize = 4;
const CONNECTIONS: usize = 3;
const LIMITS: TableLimits = TableLimits {
    max_per_connection: 3,
    grace: Duration::from_secs(15),
};

#[derive(Debug, Clone)]
enum Step {
    Reserve {
        agent: usize,
        connection: usize,
    },
    Release(usize),
    /// With a session id of its own, or with one that was handed out before.
    Commit {
        reservation: usize,
        reuse: Option<usize>,
    },
    Subscribe {
        session: usize,
        connection: usize,
    },
    End(usize),
    /// The task behind a row dies: the handler of a reservation, or an owner whose successor does
    /// or does not recover the session. What it leaves is found by expiry, or by the successor.
    Crash {
        owner: usize,
        recovers: bool,
    },
    Close(usize),
    Wait(u64),
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..AGENTS, 0..CONNECTIONS)
            .prop_map(|(agent, connection)| Step::Reserve { agent, connection }),
        1 => any::<prop::sample::Index>().prop_map(|i| Step::Release(i.index(64))),
        4 => (0..64_usize, prop::option::weighted(0.1, 0..64_usize))
            .prop_map(|(reservation, reuse)| Step::Commit { reservation, reuse }),
        4 => (0..64_usize, 0..CONNECTIONS)
            .prop_map(|(session, connection)| Step::Subscribe { session, connection }),
        2 => (0..64_usize).prop_map(Step::End),
        1 => (0..64_usize, any::<bool>())
            .prop_map(|(owner, recovers)| Step::Crash { owner, recovers }),
        1 => (0..CONNECTIONS).prop_map(Step::Close),
        2 => (1..70_u64).prop_map(Step::Wait),
        2 => Just(Step::Sweep),
    ]
}

#[derive(Debug, Clone, PartialEq)]
struct Row {
    agent: usize,
    connection: ConnectionKey,
    stamp: u64,
    session: usize,
    expires: Instant,
}

/// The naive model. A closed connection gets a new key: none is ever used again.
struct Model {
    keys: Vec<ConnectionKey>,
    reserved: Vec<(Reservation, Row)>,
    pending: Vec<Row>,
    /// Agent, connection, epoch.
    live: Vec<(usize, ConnectionKey, Epoch)>,
    closing: Vec<(Instant, ConnectionKey)>,
}

impl Model {
    fn slots(&self, agent: usize, key: ConnectionKey, now: Instant, register: bool) -> usize {
        let reserved: Vec<_> = self
            .reserved
            .iter()
            .filter(|(_, row)| row.connection == key && row.expires > now)
            .collect();
        let counted = reserved
            .iter()
            .filter(|(_, row)| register || row.agent != agent);
        let live = self
            .live
            .iter()
            .filter(|(other, connection, _)| *other != agent && *connection == key);
        let pending = self.pending.iter().filter(|row| {
            row.connection == key
                && row.expires > now
                && row.agent != agent
                && !reserved.iter().any(|(_, other)| other.agent == row.agent)
        });
        counted.count() + live.count() + pending.count()
    }

    fn sweep(&mut self, now: Instant) {
        let over: Vec<_> = self.closing.iter().filter(|(at, _)| *at <= now).collect();
        let stays = |row: &Row| {
            row.expires > now && !over.iter().any(|(_, closed)| *closed == row.connection)
        };
        self.reserved.retain(|(_, row)| stays(row));
        self.pending.retain(stays);
        self.closing.retain(|(at, _)| *at > now);
    }
}

struct Pair {
    table: Table<Epoch>,
    model: Model,
    now: Instant,
    sessions: usize,
    stamps: u64,
    ends: Vec<(usize, Epoch)>,
    made: Vec<(Reservation, usize)>,
}

fn agent_id(agent: usize) -> Arc<str> {
    Arc::from(format!("agent-{agent}"))
}

fn session_id(session: usize) -> Arc<str> {
    Arc::from(format!("s-{session}"))
}

impl Pair {
    fn new() -> Self {
        Self {
            table: Table::new(LIMITS),
            model: Model {
                keys: (0..CONNECTIONS).map(|_| ConnectionKey::next()).collect(),
                reserved: Vec::new(),
                pending: Vec::new(),
                live: Vec::new(),
                closing: Vec::new(),
            },
            now: Instant::now(),
            sessions: 0,
            stamps: 0,
            ends: Vec::new(),
            made: Vec::new(),
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Reserve { agent, connection } => self.reserve(agent, connection),
            Step::Release(index) => {
                if let Some((stamp, _)) = pick(&self.made, index) {
                    self.table.release(stamp);
                    self.model.reserved.retain(|(other, _)| *other != stamp);
                }
            }
            Step::Commit { reservation, reuse } => self.commit(reservation, reuse),
            Step::Subscribe {
                session,
                connection,
            } => self.subscribe(session, connection),
            Step::End(index)
            | Step::Crash {
                owner: index,
                recovers: false,
            } => {
                if let Some((agent, epoch)) = pick(&self.ends, index) {
                    let before = self.model.live.len();
                    self.model.live.retain(|row| row.2 != epoch);
                    let ended = self.table.end(&agent_id(agent), epoch);
                    assert_eq!(ended, self.model.live.len() < before);
                }
            }
            // Its row outlives it, unless a newer session has the place.
            Step::Crash {
                owner,
                recovers: true,
            } => {
                if let Some((agent, epoch)) = pick(&self.ends, owner) {
                    let row = self.table.live.get(&agent_id(agent));
                    let holds = self.model.live.iter().any(|row| row.2 == epoch);
                    assert_eq!(row.is_some_and(|row| row.epoch == epoch), holds);
                }
            }
            Step::Close(connection) => {
                let fresh = ConnectionKey::next();
                let key = std::mem::replace(&mut self.model.keys[connection], fresh);
                self.table.connection_closed(key, self.now);
                self.model.closing.push((self.now + LIMITS.grace, key));
            }
            Step::Wait(seconds) => self.now += Duration::from_secs(seconds),
            Step::Sweep => {
                self.table.sweep(self.now);
                self.model.sweep(self.now);
            }
        }
    }

    fn reserve(&mut self, agent: usize, connection: usize) {
        let key = self.model.keys[connection];
        let counted = self.model.slots(agent, key, self.now, true);
        let reserved = self.table.reserve(key, &agent_id(agent), self.now);
        assert_eq!(reserved.is_ok(), counted < LIMITS.max_per_connection);
        if let Ok(stamp) = reserved {
            self.stamps += 1;
            let row = Row {
                agent,
                connection: key,
                stamp: self.stamps,
                session: 0,
                expires: self.now + LIFETIME,
            };
            self.model.reserved.push((stamp, row));
            self.made.push((stamp, agent));
        }
    }

    fn commit(&mut self, index: usize, reuse: Option<usize>) {
        let Some((stamp, agent)) = pick(&self.made, index) else {
            return;
        };
        let session = match reuse {
            Some(old) if self.sessions > 0 => old % self.sessions,
            _ => {
                self.sessions += 1;
                self.sessions - 1
            }
        };
        let registration = Registration {
            agent_id: agent_id(agent),
            hostname: Arc::from(""),
            plugins: Arc::from([]),
            request: Kept::from(&[][..]),
            peer: None,
        };
        let committed = self
            .table
            .commit(stamp, &session_id(session), registration, self.now);
        let place = self.model.reserved.iter().position(|(s, _)| *s == stamp);
        let row = place.map(|place| self.model.reserved.remove(place).1);
        let row = row.filter(|row| {
            let pending = &mut self.model.pending.iter();
            let newer = pending.any(|other| other.agent == agent && other.stamp > row.stamp);
            row.expires > self.now && !newer
        });
        assert_eq!(committed.is_ok(), row.is_some());
        if let Some(row) = row {
            self.model.pending.retain(|other| {
                let again = other.agent == agent && other.connection == row.connection;
                other.session != session && !again
            });
            self.model.pending.push(Row {
                session,
                expires: self.now + LIFETIME,
                ..row
            });
        }
    }

    fn subscribe(&mut self, session: usize, connection: usize) {
        let session = self.sessions.saturating_sub(1 + session % 8);
        let key = self.model.keys[connection];
        let subscribed =
            self.table
                .subscribe(&session_id(session), key, self.now, 0, |_, epoch| epoch);
        let rows = &self.model.pending;
        let Some(place) = rows.iter().position(|row| row.session == session) else {
            assert_eq!(subscribed.unwrap_err(), TakeRefused::NotPending);
            return;
        };
        let agent = rows[place].agent;
        if self.model.slots(agent, key, self.now, false) >= LIMITS.max_per_connection {
            assert_eq!(subscribed.unwrap_err(), TakeRefused::CapReached);
            return;
        }
        self.model.pending.remove(place);
        let old = self.model.live.iter().find(|row| row.0 == agent).copied();
        self.model.live.retain(|row| row.0 != agent);
        let Subscribed { value, superseded } = subscribed.unwrap();
        assert_eq!(superseded, old.map(|row| row.2));
        self.model.live.push((agent, key, value));
        self.ends.push((agent, value));
    }

    /// No connection serves more agents than its cap, whatever they hold there, and no more
    /// registrations of it are under way (CAP-1 to CAP-4).
    fn check_cap(&self) {
        let (model, now) = (&self.model, self.now);
        let mut agents: HashMap<ConnectionKey, HashSet<usize>> = HashMap::new();
        let mut under_way: HashMap<ConnectionKey, usize> = HashMap::new();
        for (_, row) in model.reserved.iter().filter(|(_, row)| row.expires > now) {
            agents.entry(row.connection).or_default().insert(row.agent);
            *under_way.entry(row.connection).or_default() += 1;
        }
        for row in model.pending.iter().filter(|row| row.expires > now) {
            agents.entry(row.connection).or_default().insert(row.agent);
        }
        for (agent, connection, _) in &model.live {
            agents.entry(*connection).or_default().insert(*agent);
        }
        let cap = LIMITS.max_per_connection;
        assert!(agents.values().all(|agents| agents.len() <= cap));
        assert!(under_way.values().all(|calls| *calls <= cap));
    }

    /// Every index holds exactly what a scan finds.
    fn check(&self) {
        let table = &self.table;
        assert_eq!(table.reserved.len(), self.model.reserved.len());
        assert_eq!(table.pending.len(), self.model.pending.len());
        assert_eq!(table.pending_of.len(), table.pending.len());
        assert_eq!(table.commits.len(), table.pending.len());
        for (session, row) in &table.pending {
            let of_agent = (Arc::clone(&row.registration.agent_id), row.stamp);
            assert_eq!(table.pending_of[&of_agent], *session);
            assert_eq!(table.commits[&row.commit], *session);
        }
        let mut live: Vec<_> = self.model.live.clone();
        live.sort_by_key(|row| row.0);
        let epochs: Vec<_> = live.iter().map(|row| row.2).collect();
        assert_eq!(table.page("", usize::MAX >> 1), (epochs, false));

        let mut rows = 0;
        for (key, row) in &table.connections {
            assert!(!row.is_empty(), "an empty row stays behind");
            rows += row.reserved.len() + row.pending.len() + row.live.len();
            for stamp in &row.reserved {
                assert_eq!(table.reserved[stamp].connection, *key);
            }
            for session in &row.pending {
                assert_eq!(table.pending[session].connection, *key);
            }
            for agent in &row.live {
                assert_eq!(table.live[agent].connection, *key);
            }
        }
        let all = table.reserved.len() + table.pending.len() + table.live.len();
        assert_eq!(rows, all, "each row is in one place of the index");
        for row in &self.model.pending {
            let elsewhere = self.model.keys.iter().find(|key| **key != row.connection);
            let mut admitted = Ok(());
            if row.expires <= self.now {
                admitted = Err(Refusal::UnknownSession);
            }
            let session = session_id(row.session);
            assert_eq!(
                table.admit_pending(&session, row.connection, self.now),
                admitted
            );
            let refused = admitted.err().unwrap_or(Refusal::ConnectionMismatch);
            assert_eq!(
                table.admit_pending(&session, *elsewhere.unwrap(), self.now),
                Err(refused)
            );
        }
    }

    /// After every session ended and every lifetime passed nothing is left.
    fn wind_up(mut self) {
        for (agent, epoch) in std::mem::take(&mut self.ends) {
            self.table.end(&agent_id(agent), epoch);
        }
        self.table.sweep(self.now + LIFETIME);
        let table = self.table;
        assert!(table.reserved.is_empty());
        assert!(table.pending.is_empty());
        assert!(table.pending_of.is_empty());
        assert!(table.commits.is_empty());
        assert!(table.live.is_empty());
        assert!(table.connections.is_empty());
        assert!(table.graces.is_empty());
    }
}

fn pick<T: Copy>(of: &[T], index: usize) -> Option<T> {
    // The newest are the ones that matter.
    let back = index % of.len().clamp(1, 8);
    of.iter().rev().nth(back).copied()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_table_agrees_with_a_naive_model(steps in prop::collection::vec(step(), 1..150)) {
        let mut pair = Pair::new();
        for step in steps {
            pair.run(step);
            pair.check_cap();
            pair.check();
        }
        pair.wind_up();
    }
}
