//! Questions about single agents, to the peer that holds them (ADJ-5, MGMT-3).
//!
//! Responsible for what is asked and answered over one stream, both ways. Must never have more than
//! 64 questions open in either direction, nor wait for an answer.

use std::collections::{HashMap, VecDeque};

use tokio::sync::oneshot;
use yuzu_proto::node::v1::agents_frame::Kind;
use yuzu_proto::node::v1::{AgentDescription, AgentQuestion};

use crate::session::{Registry, Session};

/// Questions that are open in one direction.
pub(super) const MAX_OPEN: usize = 64;
/// Bytes of host name and plugins in one answer.
const MAX_BYTES: usize = 256 << 10;

/// Somebody waits for a description.
pub(super) struct Question {
    pub(super) agent_id: String,
    /// Dropped: there is no answer.
    pub(super) answer: oneshot::Sender<AgentDescription>,
}

/// The peer asks more at a time than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

/// The questions of one stream.
#[derive(Default)]
pub(super) struct Questions {
    /// To the peer, by number.
    open: HashMap<u64, oneshot::Sender<AgentDescription>>,
    last: u64,
    /// Not on their way yet.
    unsent: VecDeque<AgentQuestion>,
    /// The peer's, not answered yet.
    asked: VecDeque<AgentQuestion>,
}

impl Questions {
    /// Whether one more may be asked.
    pub(super) fn has_room(&mut self) -> bool {
        if self.open.len() >= MAX_OPEN {
            // Those who do not wait any more make room.
            self.open.retain(|_, answer| !answer.is_closed());
        }
        self.open.len() < MAX_OPEN && self.unsent.len() < MAX_OPEN
    }

    /// Asks the peer.
    pub(super) fn ask(&mut self, question: Question) {
        self.last += 1;
        self.open.insert(self.last, question.answer);
        self.unsent.push_back(AgentQuestion {
            id: self.last,
            agent_id: question.agent_id,
        });
    }

    /// The peer asks.
    ///
    /// # Errors
    /// When too many of its questions wait.
    pub(super) fn asked(&mut self, question: &AgentQuestion) -> Result<(), TooMany> {
        if self.asked.len() >= MAX_OPEN {
            return Err(TooMany);
        }
        self.asked.push_back(question.clone());
        Ok(())
    }

    /// The peer answers. An answer that nobody waits for is dropped.
    pub(super) fn answered(&mut self, description: &AgentDescription) {
        if let Some(answer) = self.open.remove(&description.id) {
            // An error says that nobody waits any more.
            let _ = answer.send(description.clone());
        }
    }

    /// The next frame: a question, or an answer about a session in `registry`.
    pub(super) fn next(&mut self, registry: &Registry) -> Option<Kind> {
        if let Some(question) = self.unsent.pop_front() {
            return Some(Kind::Question(question));
        }
        let AgentQuestion { id, agent_id } = self.asked.pop_front()?;
        let session = registry.route(&agent_id);
        let description = session
            .map(|session| describe(&session))
            .unwrap_or_default();
        Some(Kind::Description(AgentDescription { id, ..description }))
    }
}

fn describe(session: &Session) -> AgentDescription {
    let registration = &session.registration;
    let (hostname, plugins) = (&registration.hostname, &registration.plugins);
    let bytes = hostname.len() + plugins.iter().map(|name| name.len()).sum::<usize>();
    let mut description = AgentDescription {
        connected: true,
        connected_at_ms: session.connected_at_ms,
        ..AgentDescription::default()
    };
    if bytes <= MAX_BYTES {
        description.hostname = hostname.to_string();
        description.plugins = plugins.iter().map(ToString::to_string).collect();
    }
    description
}

#[cfg(test)]
mod tests;
