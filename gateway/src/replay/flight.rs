//! Replays one after the other, each from its turn to what its answer means (REPLAY-12 to
//! REPLAY-17).
//!
//! Responsible for the agent still being here when its registration is sent, and for telling the
//! very session that was replayed what follows. However one ends, a panic included, its entry goes
//! back to the queue. Must never touch a session that took the place of the replayed one.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::time::Instant;
use yuzu_proto::agent::v1::RegisterResponse;

use super::Shared;
use super::queue::{Entry, Landing};
use crate::observe::log::safe_text;
use crate::session::{Control, Session};
use crate::upstream::CallError;

/// Longest wait for a permit before the replay takes its place in the queue again.
const PERMIT_WAIT: Duration = Duration::from_secs(30);
/// The presented session was superseded.
const FAILED_PRECONDITION: u32 = 9;

/// A replay on its way, and those that follow it. Dropped before it has landed, it counts as
/// crashed.
pub(super) struct Flight {
    shared: Arc<Shared>,
    entry: Option<Entry>,
    /// Whom the server has taken in, to be announced again (REPLAY-14).
    adopted: Option<Arc<Session>>,
}

impl Flight {
    pub(super) fn new(shared: &Arc<Shared>, entry: Entry) -> Self {
        Self {
            shared: Arc::clone(shared),
            entry: Some(entry),
            adopted: None,
        }
    }

    /// Registers the agent once more, then whoever's turn it is, until it is nobody's: a place
    /// that is free is taken here and now, without a turn of the driver in between.
    pub(super) async fn fly(mut self) {
        while let Some(entry) = &self.entry {
            // Those that are skipped wait for nothing.
            tokio::task::coop::consume_budget().await;
            let session = self.shared.live(entry);
            let landing = match &session {
                Some(session) => {
                    let mut replay = pin!(self.shared.replay(entry, session));
                    // It is sent before the last one is announced: the server is waited for.
                    let sent = poll_fn(|cx| Poll::Ready(replay.as_mut().poll(cx))).await;
                    announce(&mut self.adopted);
                    match sent {
                        Poll::Ready(landing) => landing,
                        Poll::Pending => replay.await,
                    }
                }
                None => {
                    announce(&mut self.adopted);
                    skipped(&entry.target.agent_id);
                    Landing::Done
                }
            };
            self.adopted = session.filter(|_| landing == Landing::Adopted);
            self.land(landing);
            self.entry = self.shared.take(Instant::now());
        }
    }

    fn land(&mut self, landing: Landing) {
        let Some(entry) = self.entry.take() else {
            return;
        };
        let shared = &self.shared;
        shared.work(|queue| queue.land(entry, landing, Instant::now()));
        shared.landed.notify_waiters();
    }
}

/// Asks the owner of the session to announce it again.
fn announce(adopted: &mut Option<Arc<Session>>) {
    if let Some(session) = adopted.take() {
        session.ask_to_announce();
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        announce(&mut self.adopted);
        if let Some(entry) = &self.entry {
            failed(&entry.target.agent_id, &CallError::Crashed);
            self.land(Landing::Done);
        }
        self.shared.wake.notify_one();
    }
}

impl Shared {
    /// The agent's session, if it is the one to be replayed and has something to be replayed.
    fn live(&self, entry: &Entry) -> Option<Arc<Session>> {
        let session = self.registry.route(&entry.target.agent_id)?;
        let same = session.session_id == entry.target.session_id;
        (same && !session.registration.request.is_empty()).then_some(session)
    }

    async fn replay(&self, entry: &Entry, session: &Session) -> Landing {
        let request = session.registration.request.bytes();
        let deadline = Instant::now() + PERMIT_WAIT;
        let mut sent = false;
        let wanted = || {
            let first = !std::mem::replace(&mut sent, true);
            self.begin(entry, session, first)
        };
        let answer = self
            .upstream
            .replay_register(request, &session.session_id, deadline, wanted)
            .await;
        match answer {
            Ok(answer) => self.answered(session, answer),
            Err(error) => self.not_answered(session, &error),
        }
    }

    /// Right before it is sent: whether the agent is still here, under this very session
    /// (REPLAY-12), and nothing has ended the drip.
    fn begin(&self, entry: &Entry, session: &Session, first: bool) -> bool {
        let still = self.registry.is_current(session);
        let begun = still && self.work(|queue| queue.begin(entry, Instant::now()));
        if begun && first {
            self.metrics.registration_replay_total.inc();
        }
        begun
    }

    fn answered(&self, session: &Session, answer: Bytes) -> Landing {
        let agent = safe_text(&**session.agent_id());
        match RegisterResponse::decode(answer) {
            Ok(answer) if answer.accepted => {
                tracing::debug!(
                    "Registration replay: re-proxied {agent} (adopted session {})",
                    safe_text(&answer.session_id)
                );
                return Landing::Adopted;
            }
            Ok(answer) => {
                tracing::warn!(
                    "Registration replay: {agent} was not accepted by the server ({}); \
                     disconnecting so the agent follows its own registration path",
                    safe_text(&answer.reject_reason)
                );
                session.ask(Control::End);
            }
            // The upstream lets no such answer through.
            Err(_) => failed(session.agent_id(), &CallError::Answer("not a message")),
        }
        Landing::Done
    }

    fn not_answered(&self, session: &Session, error: &CallError) -> Landing {
        let agent = session.agent_id();
        match error {
            CallError::CalledOff => skipped(agent),
            // The drip or the node ends; whoever ends it says so.
            CallError::Stopping => {}
            // It was not its turn yet.
            CallError::CircuitOpen | CallError::Deadline => return Landing::Unsent,
            CallError::Status(FAILED_PRECONDITION, _) => {
                tracing::warn!(
                    "Registration replay: {}'s presented session was superseded",
                    safe_text(&**agent)
                );
                session.ask(Control::End);
            }
            error => failed(agent, error),
        }
        Landing::Done
    }
}

fn failed(agent: &Arc<str>, error: &CallError) {
    let agent = safe_text(&**agent);
    tracing::warn!("Registration replay: {agent} failed: {error}");
}

fn skipped(agent: &Arc<str>) {
    let agent = safe_text(&**agent);
    tracing::debug!("Registration replay: {agent} skipped: it is not here under that session");
}

#[cfg(test)]
mod tests;
