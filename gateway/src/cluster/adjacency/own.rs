//! The sessions of this node, for whoever tells peers of them.
//!
//! Responsible for the journal behind one short lock and for waking those who wait for it to change.
//! Must never wait: it is called under the lock of the session table.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

use super::journal::Journal;
use crate::session::{Follower, Session};

/// The journal of this node.
#[derive(Debug)]
pub(super) struct OwnAgents {
    journal: Mutex<Journal>,
    /// The number of the last change.
    last: watch::Sender<u64>,
}

impl OwnAgents {
    pub(super) fn new() -> Self {
        Self {
            journal: Mutex::new(Journal::new()),
            last: watch::Sender::new(0),
        }
    }

    pub(super) fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the last change, as it grows.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    pub(super) fn write(&self, change: impl FnOnce(&mut Journal)) {
        let mut journal = self.journal();
        change(&mut journal);
        self.last.send_replace(journal.last());
    }
}

impl Follower for OwnAgents {
    fn came(&self, session: &Session) {
        let (agent, id) = (session.agent_id(), &session.session_id);
        self.write(|journal| journal.came(agent, id, session.epoch, Instant::now()));
    }

    fn went(&self, session: &Session) {
        self.write(|journal| journal.went(session.agent_id(), session.epoch, Instant::now()));
    }
}
