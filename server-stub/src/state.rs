//! Everything a stub knows, behind one lock.
//!
//! Responsible for the view that tests and the control endpoint read, and for waking whoever
//! waits for a change. The lock is held for one reading or one step, never across an await.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::alarms::Alarms;
use crate::config::{Enrolment, StubConfig};
use crate::connection::{Connection, ConnectionView};
use crate::directory::{Directory, Route};
use crate::faults::{FaultSet, FaultView};
use crate::records::{Counts, Received, Ring};
use crate::rpc::{PerRpc, Rpc};

/// What a stub knows at one moment.
pub struct State {
    pub(crate) directory: Directory,
    pub(crate) faults: FaultSet,
    pub(crate) records: PerRpc<Ring>,
    pub(crate) counts: PerRpc<Counts>,
    pub(crate) connections: HashMap<u64, Arc<Connection>>,
    pub(crate) connections_accepted: u64,
    pub(crate) connections_refused: u64,
    pub(crate) in_flight: u64,
    pub(crate) max_in_flight: u64,
    pub(crate) last_seq: u64,
    pub(crate) stream_limit: u32,
    pub(crate) unknown_methods: u64,
    /// Hung calls of an RPC end when its number moves on.
    pub(crate) releases: PerRpc<watch::Sender<u64>>,
}

impl State {
    fn new(config: &StubConfig) -> Self {
        let ring = |_| Ring::new(config.record_entries, config.record_bytes);
        let (enrolment, issued) = (config.enrolment.clone(), config.issued.clone());
        State {
            directory: Directory::new(enrolment, issued, config.max_agents),
            faults: FaultSet::default(),
            records: PerRpc::build(ring),
            counts: PerRpc::default(),
            connections: HashMap::new(),
            connections_accepted: 0,
            connections_refused: 0,
            in_flight: 0,
            max_in_flight: 0,
            last_seq: 0,
            stream_limit: config.stream_limit,
            unknown_methods: 0,
            releases: PerRpc::build(|_| watch::Sender::new(0)),
        }
    }

    /// Counters of an RPC since the start.
    #[must_use]
    pub fn counts(&self, rpc: Rpc) -> &Counts {
        self.counts.get(rpc)
    }

    /// Requests of an RPC that are still kept, oldest first.
    pub fn received(
        &self,
        rpc: Rpc,
    ) -> impl DoubleEndedIterator<Item = &Received> + ExactSizeIterator {
        self.records.get(rpc).iter()
    }

    /// Calls of all RPCs that are not answered yet.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Most calls of all RPCs at once.
    #[must_use]
    pub fn max_in_flight(&self) -> u64 {
        self.max_in_flight
    }

    /// All agents that ever were accepted, in no order.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.directory.routes()
    }

    /// Where this agent is.
    #[must_use]
    pub fn route(&self, agent_id: &str) -> Option<&Route> {
        self.directory.route(agent_id)
    }

    /// The session is in the server's memory.
    #[must_use]
    pub fn knows_session(&self, session_id: &str) -> bool {
        self.directory.knows(session_id)
    }

    /// Sessions in the server's memory, superseded ones included.
    #[must_use]
    pub fn known_sessions(&self) -> usize {
        self.directory.known_sessions()
    }

    /// Who may enrol.
    #[must_use]
    pub fn enrolment(&self) -> &Enrolment {
        &self.directory.enrolment
    }

    /// Open connections, oldest first.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionView> {
        let mut views: Vec<_> = self.connections.values().map(|c| c.view()).collect();
        views.sort_unstable_by_key(|view| view.id);
        views
    }

    /// Connections accepted since the start.
    #[must_use]
    pub fn connections_accepted(&self) -> u64 {
        self.connections_accepted
    }

    /// Connections closed at once because too many were open.
    #[must_use]
    pub fn connections_refused(&self) -> u64 {
        self.connections_refused
    }

    /// Stream limit that a new connection is told.
    #[must_use]
    pub fn stream_limit(&self) -> u32 {
        self.stream_limit
    }

    /// Calls of methods that the service does not have; they end with 12.
    #[must_use]
    pub fn unknown_methods(&self) -> u64 {
        self.unknown_methods
    }

    /// The rules as they stand.
    pub fn faults(&self) -> impl Iterator<Item = &FaultView> {
        self.faults.all()
    }

    /// One line about the calls, for messages of tests.
    #[must_use]
    pub fn summary(&self) -> String {
        let calls = Rpc::ALL.map(|rpc| {
            let c = self.counts(rpc);
            let (ok, refused) = (c.ok, c.refused);
            let lost = c.failed + c.cancelled + c.broken;
            format!("{rpc} {}/{ok}/{refused}/{lost}/{}", c.received, c.in_flight)
        });
        let open = self.connections.len();
        format!(
            "{open} connections; received/ok/refused/lost/in flight: {}",
            calls.join(", ")
        )
    }

    pub(crate) fn received_now(&mut self, mut received: Received) {
        self.last_seq += 1;
        received.seq = self.last_seq;
        received.at = Instant::now();
        let rpc = received.rpc;
        let len = received.raw.len() as u64;
        let dropped = self.records.get_mut(rpc).push(received);
        let counts = self.counts.get_mut(rpc);
        counts.received += 1;
        counts.bytes += len;
        counts.forgotten += dropped;
        counts.in_flight += 1;
        counts.max_in_flight = counts.max_in_flight.max(counts.in_flight);
        self.in_flight += 1;
        self.max_in_flight = self.max_in_flight.max(self.in_flight);
    }
}

/// The state, shared by all tasks of a stub.
pub(crate) struct Shared {
    pub(crate) config: StubConfig,
    pub(crate) started: Instant,
    state: Mutex<State>,
    pub(crate) changed: watch::Sender<u64>,
    /// Started by the first late answer.
    alarms: OnceLock<Option<Alarms>>,
}

impl Shared {
    pub(crate) fn new(config: StubConfig) -> Arc<Self> {
        let state = Mutex::new(State::new(&config));
        let changed = watch::Sender::new(0);
        Arc::new(Shared {
            config,
            started: Instant::now(),
            state,
            changed,
            alarms: OnceLock::new(),
        })
    }

    /// Waits for as long as `time`, to well under a millisecond.
    pub(crate) async fn wait(&self, time: Duration) {
        match self.alarms.get_or_init(|| Alarms::start().ok()) {
            Some(alarms) => alarms.wait(time).await,
            None => tokio::time::sleep(time).await,
        }
    }

    /// Reads. A panic of another reader does not matter: no step leaves the state half done.
    pub(crate) fn read(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something and wakes the waiters.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let value = change(&mut self.read());
        self.changed.send_modify(|n| *n += 1);
        value
    }
}
