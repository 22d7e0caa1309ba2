//! Every session whose owner lives, superseded ones included.
//!
//! Responsible for reaching and counting them in a planned stop; the table knows only those that
//! commands go to. Must never be asked on a hot path.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::live::Session;

/// The sessions by their stream home, which no two share.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    sessions: Mutex<HashMap<Arc<str>, Arc<Session>>>,
    ended: Notify,
}

impl Roster {
    fn sessions(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, session: &Arc<Session>) {
        self.sessions()
            .insert(Arc::clone(&session.stream_home_id), Arc::clone(session));
    }

    pub(super) fn remove(&self, session: &Session) {
        let mut sessions = self.sessions();
        sessions.remove(&session.stream_home_id);
        if sessions.len() < sessions.capacity() / 4 {
            sessions.shrink_to_fit();
        }
        drop(sessions);
        self.ended.notify_waiters();
    }

    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.sessions().values().cloned().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.sessions().len()
    }

    /// Waits until no owner lives. False: some did at `deadline`.
    pub(crate) async fn emptied(&self, deadline: Instant) -> bool {
        loop {
            let ended = self.ended.notified();
            let mut ended = std::pin::pin!(ended);
            ended.as_mut().enable();
            if self.sessions().is_empty() {
                return true;
            }
            if tokio::time::timeout_at(deadline, ended).await.is_err() {
                return self.sessions().is_empty();
            }
        }
    }
}
