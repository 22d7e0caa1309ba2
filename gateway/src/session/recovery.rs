//! Taking a session over from an owner that died (OWNER-5, OWNER-7).
//!
//! Responsible for the order of the steps up to the point where the server knows the session again,
//! and for how many sessions go through them at once. The successor reads the agent's stream
//! meanwhile. Must never end a session or announce one: [`super::pump`] does.

use std::fmt;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use yuzu_proto::peek::RegisterAnswerPeek;

use super::live::Session;
use super::owner::OwnerContext;
use super::pump::key_of;
use crate::config;
use crate::tuning::Ceiling;
use crate::upstream::CallError;

/// Sessions that are recovered at once. Each looks at the store of notices whenever one has left,
/// so all that wait would be too many; fewer than are sent at once would be too few.
const AT_ONCE: usize = 64;

/// What bounds the recoveries of the node.
#[derive(Debug)]
pub(crate) struct Recovery {
    turns: Semaphore,
    /// As many as may be in flight: beside the replays no more fit into their lane.
    presenting: Arc<Ceiling>,
}

/// Why a session was not recovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotRecovered {
    /// The stream went, or somebody ended the session.
    Ended,
    /// The successor died too.
    Died,
    /// A newer session of the agent is here.
    Superseded,
    /// The server did not take it, or gave it another session.
    NotAccepted,
    /// The server could not be asked.
    Unasked(CallError),
}

impl fmt::Display for NotRecovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => f.write_str("the stream or the session ended meanwhile"),
            Self::Died => f.write_str("its successor died too"),
            Self::Superseded => f.write_str("the agent has a newer session"),
            Self::NotAccepted => f.write_str("the server did not accept it"),
            Self::Unasked(error) => write!(f, "the server could not be asked: {error}"),
        }
    }
}

impl Recovery {
    pub(crate) fn new(config: &config::Upstream) -> Self {
        Self {
            turns: Semaphore::new(AT_ONCE),
            presenting: Ceiling::new(config.replay_concurrency),
        }
    }

    /// Puts another configuration in force.
    pub(crate) fn retune(&self, config: &config::Upstream) {
        self.presenting.resize(config.replay_concurrency);
    }
}

/// Waits for the predecessor's DISCONNECTED and presents the session to the server. Afterwards its
/// CONNECTED is due. The route stays all the time, so that commands and heartbeats go on (OWNER-6).
pub(super) async fn recover(session: &Session, context: &OwnerContext) -> Result<(), NotRecovered> {
    // It is never closed, so there is always a permit.
    let _turn = context.recovery.turns.acquire().await;
    // Sooner, the CONNECTED would take the place of that one (NOTIFY-3).
    context.notifier.settled(&key_of(session)).await;
    present(session, context).await?;
    if !context.registry.is_current(session) {
        return Err(NotRecovered::Superseded);
    }
    Ok(())
}

async fn present(session: &Session, context: &OwnerContext) -> Result<(), NotRecovered> {
    let _place = context.recovery.presenting.take().await;
    let request = session.registration.request.bytes();
    let deadline = Instant::now() + context.upstream.call_timeout();
    // A newer session must not lose the agent to this one.
    let wanted = || context.registry.is_current(session);
    let answer = context
        .upstream
        .replay_register(request, &session.session_id, deadline, wanted)
        .await
        .map_err(|error| match error {
            CallError::CalledOff => NotRecovered::Superseded,
            error => NotRecovered::Unasked(error),
        })?;
    let taken = RegisterAnswerPeek::peek(&answer)
        .is_ok_and(|answer| answer.accepted && answer.session_id == session.session_id.as_bytes());
    taken.then_some(()).ok_or(NotRecovered::NotAccepted)
}
