//! Why this side closes a connection.
//!
//! Responsible for the closed set of reasons, one for each rule, and for counting them. Must never
//! decide that a connection has to go.

use super::flood::Costly;
use crate::observe::metrics::Metrics;

/// The rule that ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// No HTTP/2 within the preface timeout (LSN-3).
    NoPreface,
    /// No byte within the idle timeout (LSN-4).
    Idle,
    /// It has open streams and did not answer a PING (LSN-12).
    PingNotAnswered,
    /// No session within the unregistered timeout.
    Unregistered,
    /// An answer waited too long behind a closed window.
    AnswerNotTaken,
    /// It is not authorized, and places are short (LSN-17).
    Unauthorized,
    /// Its unfinished requests hold too many bytes (LSN-6).
    OverBudget,
    /// Too many PINGs.
    Pings,
    /// Too many SETTINGS.
    Settings,
    /// Too many streams opened and cancelled (LSN-5).
    Resets,
    /// Too many frames that no client has to send.
    IdleFrames,
    /// HTTP/2 itself saw a flood: CONTINUATION, empty or tiny DATA, streams reset before they were
    /// accepted, header lists far over the limit.
    Http2Flood,
}

impl From<Costly> for CloseReason {
    fn from(frame: Costly) -> Self {
        match frame {
            Costly::Ping => Self::Pings,
            Costly::Settings => Self::Settings,
            Costly::Reset => Self::Resets,
            Costly::Idle => Self::IdleFrames,
        }
    }
}

impl CloseReason {
    const fn label(self) -> &'static str {
        match self {
            Self::NoPreface => "no_preface",
            Self::Idle => "idle",
            Self::PingNotAnswered => "ping_not_answered",
            Self::Unregistered => "unregistered",
            Self::AnswerNotTaken => "answer_not_taken",
            Self::Unauthorized => "unauthorized",
            Self::OverBudget => "over_budget",
            Self::Pings => "pings",
            Self::Settings => "settings",
            Self::Resets => "resets",
            Self::IdleFrames => "idle_frames",
            Self::Http2Flood => "http2_flood",
        }
    }

    /// Whether it is closed for what it costs, and not for what it lacks.
    const fn is_for_cost(self) -> bool {
        !matches!(
            self,
            Self::NoPreface
                | Self::Idle
                | Self::PingNotAnswered
                | Self::Unregistered
                | Self::Unauthorized
        )
    }

    /// Whether the peer sent too much of what costs it nothing.
    pub(super) const fn is_flood(self) -> bool {
        matches!(
            self,
            Self::Pings | Self::Settings | Self::Resets | Self::IdleFrames | Self::Http2Flood
        )
    }

    /// Counts one connection.
    pub(super) fn count(self, metrics: &Metrics) {
        let family = &metrics.listener_closed_total;
        family.with_label_values(&[self.label()]).inc();
        if self.is_for_cost() {
            metrics.grpc_connection_killed_total.inc();
        }
    }
}
