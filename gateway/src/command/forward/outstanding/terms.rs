//! What the targets of a call are told by.
//!
//! Responsible for the words between a call and its decisions. Must never decide.

use std::sync::Arc;
use std::time::Duration;

use crate::session::Epoch;

/// A target, by its place here.
pub(in crate::command::forward) type Slot = usize;
/// A session of this call, by its place here.
pub(in crate::command::forward) type SessionId = usize;

/// A node that holds an agent, and the agent's session there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::command) struct Place {
    pub(in crate::command) node: Arc<str>,
    pub(in crate::command) epoch: Epoch,
}

/// Where an agent is when its owner says that it moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::command::forward) enum Found {
    Here,
    At(Place),
    Nowhere,
}

/// How a target ended. Each does once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::command::forward) enum Ended {
    /// Its owner has brought it to its end.
    Answered,
    /// Nothing was sent.
    NotConnected,
    /// Nothing was sent, since a bound was reached.
    Rejected,
    /// It moved, and was not found again.
    Moved,
    /// It was sent, and its owner lost before the first answer.
    OutcomeUnknown,
    /// Its owner was lost after an answer.
    AgentDisconnected,
}

impl Ended {
    /// Value of the metric label `outcome`.
    pub(in crate::command::forward) fn label(self) -> &'static str {
        match self {
            Self::Answered => "ok",
            Self::NotConnected => "not_connected",
            Self::Rejected => "rejected",
            Self::Moved => "moved",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::AgentDisconnected => "agent_disconnected",
        }
    }
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::command::forward) enum Action {
    /// Open a session to this node.
    Open(SessionId, Arc<str>),
    /// Send the command for these targets.
    Dispatch(SessionId, Vec<Slot>),
    /// Open another stream for a session whose stream broke.
    Resume(SessionId),
    /// A session that broke could not be resumed; it is over.
    NotResumed(SessionId),
    /// There was no stream in time.
    Unreachable(SessionId),
    /// The session is over, or not wanted any more.
    Close(SessionId),
    /// The agent is on this node now.
    Here(Slot),
    /// The target ended.
    Settle(Slot, Ended),
}

/// The owner says what it can't know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::command::forward) struct Foreign;

/// The times in force (FWD-5, FWD-8).
#[derive(Debug, Clone, Copy)]
pub(in crate::command::forward) struct Times {
    pub(in crate::command::forward) connect: Duration,
    pub(in crate::command::forward) forward: Duration,
    pub(in crate::command::forward) idle: Duration,
    pub(in crate::command::forward) grace: Duration,
}
