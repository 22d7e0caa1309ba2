//! Why a heartbeat or an inventory report is not admitted (ADMIT-*).
//!
//! Responsible for the reasons, their metric labels and the one answer all of them get. Must
//! never tell an agent the reason.

use tonic::Status;

/// Why a message is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// This node does not hold the session.
    UnknownSession,
    /// The session is held, on another connection.
    ConnectionMismatch,
}

impl Refusal {
    /// The value of the metric label `reason`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::UnknownSession => "unknown_session",
            Self::ConnectionMismatch => "connection_mismatch",
        }
    }

    /// The answer, the same for every reason (ADMIT-2).
    pub(crate) fn status() -> Status {
        Status::not_found("unknown session")
    }
}
