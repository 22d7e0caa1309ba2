//! Who is attached, and which calls wait for answers.
//!
//! Must never hold a lock while something is awaited.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// `H` reaches an agent, `K` names a command, `A` is an answer.
#[derive(Debug)]
pub(super) struct Board<H, K, A> {
    /// Agent ids by the session that the server gave them.
    sessions: Mutex<HashMap<String, Arc<str>>>,
    agents: Mutex<HashMap<Arc<str>, H>>,
    calls: Mutex<HashMap<K, Call<A>>>,
}

#[derive(Debug)]
struct Call<A> {
    answers: mpsc::Sender<A>,
    left: usize,
}

impl<H, K, A> Default for Board<H, K, A> {
    fn default() -> Self {
        Self {
            sessions: Mutex::default(),
            agents: Mutex::default(),
            calls: Mutex::default(),
        }
    }
}

impl<H, K: Hash + Eq + Clone, A> Board<H, K, A> {
    /// Notes the session of an agent that has not subscribed yet.
    pub(super) fn registered(&self, session_id: String, agent_id: &str) {
        locked(&self.sessions).insert(session_id, agent_id.into());
    }

    /// The agent of a session, once.
    pub(super) fn take_session(&self, session_id: &str) -> Option<Arc<str>> {
        locked(&self.sessions).remove(session_id)
    }

    pub(super) fn attach(&self, agent_id: Arc<str>, handle: H) {
        locked(&self.agents).insert(agent_id, handle);
    }

    pub(super) fn detach(&self, agent_id: &str) {
        locked(&self.agents).remove(agent_id);
    }

    /// Gives a command to these agents (none: to all) by `send`, which says whether it was taken.
    /// The channel has room for one answer of each and ends after the last.
    pub(super) fn dispatch<'a>(
        &self,
        key: &K,
        targets: impl ExactSizeIterator<Item = &'a str>,
        send: impl Fn(&H) -> bool,
    ) -> mpsc::Receiver<A> {
        let agents = locked(&self.agents);
        let all = targets.len() == 0;
        let expected = if all { agents.len() } else { targets.len() };
        let (answers, receiver) = mpsc::channel(expected.max(1));
        let left = expected;
        // Before the first command leaves: its answer may be there at once.
        locked(&self.calls).insert(key.clone(), Call { answers, left });
        let missed = if all {
            agents.values().filter(|&handle| !send(handle)).count()
        } else {
            targets
                .filter(|&id| !agents.get(id).is_some_and(&send))
                .count()
        };
        drop(agents);
        self.settle(key, missed);
        receiver
    }

    /// Hands over the answer of one agent.
    pub(super) fn answered(&self, key: &K, answer: A) {
        let call = {
            let mut calls = locked(&self.calls);
            let Some(call) = calls.get_mut(key) else {
                return;
            };
            call.left -= 1;
            match call.left {
                0 => calls.remove(key).map(|call| call.answers),
                _ => Some(call.answers.clone()),
            }
        };
        if let Some(answers) = call {
            // Has room, or the caller is gone.
            let _ = answers.try_send(answer);
        }
    }

    fn settle(&self, key: &K, missed: usize) {
        let mut calls = locked(&self.calls);
        if let Some(call) = calls.get_mut(key) {
            call.left -= missed;
            if call.left == 0 {
                calls.remove(key);
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
