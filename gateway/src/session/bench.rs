//! The session table, filled, for benchmarks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::kept::Kept;
use super::registry::Registry;
use super::table::{Registration, TableLimits};
use crate::edge::ConnectionKey;

/// What an owner makes of an agent's answer before a caller gets it.
#[must_use]
pub fn wrap(agent_id: &str, frame: &[u8]) -> Bytes {
    super::owner::as_answer(agent_id, frame)
}

/// Connected agents, each on its connection.
#[derive(Debug)]
pub struct Sessions {
    registry: Registry,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    agent_id: Arc<str>,
    session_id: Arc<str>,
    connection: ConnectionKey,
}

impl Row {
    fn new(number: usize) -> Self {
        Self {
            agent_id: format!("{number:08x}-0000-4000-8000-000000000000").into(),
            session_id: format!("gw-session-{number:032x}").into(),
            connection: ConnectionKey::next(),
        }
    }
}

impl Sessions {
    /// `count` of them.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let limits = TableLimits {
            max_per_connection: 8,
            grace: Duration::from_secs(15),
        };
        let sessions = Self {
            registry: Registry::new(limits),
            rows: (0..count).map(Row::new).collect(),
        };
        for row in &sessions.rows {
            sessions.connect(row);
        }
        sessions
    }

    /// Finds the session that a command to this agent goes to.
    #[must_use]
    pub fn route(&self, agent: usize) -> bool {
        self.registry.route(&self.rows[agent].agent_id).is_some()
    }

    /// Judges a heartbeat of this agent.
    #[must_use]
    pub fn admit(&self, agent: usize) -> bool {
        let row = &self.rows[agent];
        self.registry.admit(&row.session_id, row.connection).is_ok()
    }

    /// This agent registers and subscribes anew, in the place of its session.
    #[must_use]
    pub fn reconnect(&self, agent: usize) -> bool {
        self.connect(&self.rows[agent])
    }

    fn connect(&self, row: &Row) -> bool {
        let registration = Registration {
            agent_id: Arc::clone(&row.agent_id),
            hostname: Arc::from("host"),
            plugins: Arc::from([]),
            request: Kept::from(&[b'r'; 200][..]),
            peer: None,
        };
        let Ok(slot) = self.registry.reserve(row.connection, &row.agent_id) else {
            return false;
        };
        slot.commit(&row.session_id, registration).is_ok()
            && self
                .registry
                .subscribe(&row.session_id, row.connection, Arc::from("home"))
                .is_ok()
    }
}
