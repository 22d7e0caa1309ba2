//! Every session whose owner lives, superseded ones included.
//!
//! Responsible for reaching and counting them in a planned stop; the table knows only those that
//! commands go to. Must never be asked on a hot path.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::live::{Control, Session};

/// The sessions by their stream home, which no two share.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    sessions: HashMap<Arc<str>, Arc<Session>>,
    ending: bool,
}

impl Roster {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, session: &Arc<Session>) {
        let mut state = self.state();
        let key = Arc::clone(&session.stream_home_id);
        state.sessions.insert(key, Arc::clone(session));
        if state.ending {
            session.ask(Control::End);
        }
    }

    pub(super) fn remove(&self, session: &Session) {
        let mut state = self.state();
        let sessions = &mut state.sessions;
        sessions.remove(&session.stream_home_id);
        if sessions.len() < sessions.capacity() / 4 {
            sessions.shrink_to_fit();
        }
        drop(state);
        self.ended.notify_waiters();
    }

    /// Every session, for the caller to ask it to end; each one that comes from now on is asked at
    /// once (STOP-4).
    pub(crate) fn begin_to_end(&self) -> Vec<Arc<Session>> {
        let mut state = self.state();
        state.ending = true;
        state.sessions.values().map(Arc::clone).collect()
    }

    /// Asks every owner to give way to another (OWNER-9).
    pub(super) fn replace_owners(&self) {
        for session in self.state().sessions.values() {
            session.ask(Control::Replace);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.state().sessions.len()
    }

    /// Waits until no owner lives. False: some did at `deadline`.
    pub(crate) async fn emptied(&self, deadline: Instant) -> bool {
        loop {
            let ended = self.ended.notified();
            let mut ended = std::pin::pin!(ended);
            ended.as_mut().enable();
            if self.len() == 0 {
                return true;
            }
            if tokio::time::timeout_at(deadline, ended).await.is_err() {
                return self.len() == 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::super::testing::{connect, registry};
    use super::*;
    use crate::edge::ConnectionKey;

    #[test]
    fn stop_4_a_session_that_comes_late_is_asked_to_end_as_well() {
        let (registry, roster) = (registry(), Roster::default());
        let early = connect(&registry, "early", "s-1", ConnectionKey::next());
        let late = connect(&registry, "late", "s-2", ConnectionKey::next());
        roster.add(&early);
        let held = roster.begin_to_end();
        assert!(held.iter().map(Arc::as_ptr).eq([Arc::as_ptr(&early)]));
        roster.add(&late);
        assert_eq!(late.asked().now_or_never(), Some(Control::End));
    }

    #[tokio::test(start_paused = true)]
    async fn stop_4_waits_for_the_last_session_and_no_longer_than_its_time() {
        let (registry, roster) = (registry(), Roster::default());
        let session = connect(&registry, "agent", "s", ConnectionKey::next());
        roster.add(&session);
        let start = Instant::now();
        assert!(!roster.emptied(start + Duration::from_secs(5)).await);
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        let (emptied, ()) = tokio::join!(roster.emptied(start + Duration::from_secs(60)), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            roster.remove(&session);
        });
        assert!(emptied);
        assert_eq!(start.elapsed(), Duration::from_secs(6));
    }
}
