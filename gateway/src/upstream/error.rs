//! The one outcome class of a call that failed.
//!
//! Responsible for what a class means to the breaker, to the metric label `code` and to the
//! agent. Must never hold text of a request or an answer, beyond the server's status message,
//! made safe for a log line.

use std::fmt;
use std::sync::Arc;

use super::breaker::Verdict;
use crate::observe::log::safe_text;
use crate::pki;

/// Why a connection could not be made, or why it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectError {
    /// Value of the metric label `code`.
    pub(crate) code: &'static str,
    /// What happened, for people.
    pub(crate) text: Arc<str>,
    /// When TLS failed: value of the metric label `kind` (UPCH-6).
    pub(crate) tls: Option<&'static str>,
}

impl ConnectError {
    pub(crate) fn new(code: &'static str, text: impl Into<Arc<str>>) -> Self {
        Self {
            code,
            text: text.into(),
            tls: None,
        }
    }

    /// A failure of TLS, of the `kind` that is counted.
    pub(crate) fn tls(code: &'static str, kind: &'static str, text: impl Into<Arc<str>>) -> Self {
        Self {
            tls: Some(kind),
            ..Self::new(code, text)
        }
    }

    pub(crate) fn io(error: &std::io::Error) -> Self {
        use std::io::ErrorKind;
        let cause = error.get_ref();
        if let Some(cause) = cause.and_then(|cause| cause.downcast_ref::<rustls::Error>()) {
            // It may quote names of the server's certificate.
            let text = format!("TLS: {}", safe_text(&cause.to_string()));
            return Self::tls("tls_alert", pki::alert_name(cause), text);
        }
        let code = match error.kind() {
            ErrorKind::ConnectionRefused => "econnrefused",
            ErrorKind::TimedOut => "timeout",
            ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof => "closed",
            _ => "other",
        };
        Self::new(code, error.to_string())
    }
}

/// How a call to the server failed. `Display` is a reason for log lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// No endpoint is configured, or the client is closed.
    NoUpstream,
    /// The breaker is open, or half open with its probe out (BREAKER-7, BREAKER-8).
    CircuitOpen,
    /// The permit queue is full (PERMIT-3).
    QueueFull,
    /// The caller's time ran out before anything was sent (PERMIT-3, REG-15).
    Deadline,
    /// A planned stop began (PERMIT-13).
    Stopping,
    /// Whoever asked did not want it any more when its turn came: nothing was sent (REPLAY-12).
    CalledOff,
    /// The connection has no free stream: nothing was sent (PERMIT-11).
    TooManyStreams,
    /// The server left, and its GOAWAY says that it did not look at the request (UPCH-9).
    Unprocessed(ConnectError),
    /// The request is over 4,194,304 bytes: nothing was sent (REG-11).
    Encode,
    /// No connection (UPCH-2).
    NotConnected(ConnectError),
    /// No answer within the call's time.
    Timeout,
    /// The connection ended under the call.
    Closed(ConnectError),
    /// The stream ended under the call: a reset, or no status at its end.
    Stream(Arc<str>),
    /// An answer that is not gRPC.
    Http(u16),
    /// A status other than OK, 1 to 16 (any other value is 2), and its message made safe.
    Status(u32, Arc<str>),
    /// An OK answer that cannot be taken: no message, two, compressed, too large, undecodable.
    Answer(&'static str),
    /// The task that made the call ended without a result.
    Crashed,
}

impl CallError {
    /// A status from the server; `message` is cut and cleaned.
    pub(crate) fn status(code: u32, message: impl AsRef<[u8]>) -> Self {
        let code = if (1..=16).contains(&code) { code } else { 2 };
        Self::Status(code, safe_text(&message).to_string().into())
    }

    /// Whether the gateway itself refused (REG-12): the agent sees 14, otherwise 13.
    pub fn gateway_made(&self) -> bool {
        matches!(
            self,
            Self::NoUpstream
                | Self::CircuitOpen
                | Self::QueueFull
                | Self::Deadline
                | Self::Stopping
                | Self::CalledOff
                | Self::TooManyStreams
        )
    }

    /// The server's status, if it answered with one.
    pub fn status_code(&self) -> Option<u32> {
        match self {
            Self::Status(code, _) => Some(*code),
            _ => None,
        }
    }

    /// Whether the server found fault with this very request: asking again is of no use
    /// (NOTIFY-11).
    pub fn request_fault(&self) -> bool {
        match self {
            Self::Status(code, _) => request_fault_status(*code),
            Self::Encode => true,
            _ => false,
        }
    }

    /// Value of the label `code` of `upstream_rpc_errors_total`; `None` for a call that the
    /// gateway refused before it was one.
    pub(crate) fn code(&self) -> Option<&'static str> {
        Some(match self {
            Self::NoUpstream
            | Self::CircuitOpen
            | Self::QueueFull
            | Self::Deadline
            | Self::Stopping
            | Self::CalledOff => return None,
            Self::TooManyStreams => "too_many_streams",
            Self::Encode => "encode",
            Self::NotConnected(error) | Self::Closed(error) | Self::Unprocessed(error) => {
                error.code
            }
            Self::Timeout => "timeout",
            Self::Stream(_) => "stream_error",
            Self::Http(_) => "http_error",
            Self::Status(code, _) => DIGITS[*code as usize],
            Self::Answer(_) | Self::Crashed => "exception",
        })
    }

    /// How TLS failed, when it did (UPCH-6).
    pub(crate) fn tls_failure(&self) -> Option<&'static str> {
        match self {
            Self::NotConnected(error) | Self::Closed(error) => error.tls,
            _ => None,
        }
    }

    /// What it means to the breaker (BREAKER-4, BREAKER-5).
    pub(crate) fn verdict(&self) -> Verdict {
        match self {
            Self::NoUpstream
            | Self::CircuitOpen
            | Self::QueueFull
            | Self::Deadline
            | Self::Stopping
            | Self::CalledOff
            | Self::TooManyStreams
            | Self::Unprocessed(_)
            | Self::Encode => Verdict::Neutral,
            Self::Status(code, _) if request_fault_status(*code) => Verdict::Neutral,
            Self::Status(..)
            | Self::NotConnected(_)
            | Self::Timeout
            | Self::Closed(_)
            | Self::Stream(_)
            | Self::Http(_)
            | Self::Answer(_)
            | Self::Crashed => Verdict::Failure,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoUpstream => f.write_str("no upstream"),
            Self::CircuitOpen => f.write_str("circuit open"),
            Self::QueueFull => f.write_str("permit queue full"),
            Self::Deadline => f.write_str("deadline passed before the call was sent"),
            Self::Stopping => f.write_str("gateway is stopping"),
            Self::CalledOff => f.write_str("called off"),
            Self::TooManyStreams => f.write_str("too many streams"),
            Self::Unprocessed(error) => write!(f, "not processed: {}", error.text),
            Self::Encode => f.write_str("request cannot be encoded"),
            Self::NotConnected(error) => write!(f, "no connection: {}", error.text),
            Self::Timeout => f.write_str("no answer in time"),
            Self::Closed(error) => write!(f, "connection lost: {}", error.text),
            Self::Stream(reason) => write!(f, "stream ended: {reason}"),
            Self::Http(status) => write!(f, "answer is not grpc (http status {status})"),
            Self::Status(code, message) if message.is_empty() => f.write_str(NAMES[*code as usize]),
            Self::Status(code, message) => write!(f, "{} {message}", NAMES[*code as usize]),
            Self::Answer(reason) => write!(f, "unusable answer: {reason}"),
            Self::Crashed => f.write_str("call task ended without a result"),
        }
    }
}

impl std::error::Error for CallError {}

fn request_fault_status(code: u32) -> bool {
    matches!(code, 3 | 5 | 6 | 9 | 11)
}

const DIGITS: [&str; 17] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16",
];

const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> ConnectError {
        ConnectError::io(&std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
    }

    #[test]
    fn reg_12_refusals_by_the_gateway_itself_are_told_apart() {
        let own = [
            CallError::NoUpstream,
            CallError::CircuitOpen,
            CallError::QueueFull,
            CallError::Deadline,
            CallError::Stopping,
            CallError::CalledOff,
            CallError::TooManyStreams,
        ];
        assert!(own.iter().all(CallError::gateway_made));
        let others = [
            CallError::Encode,
            CallError::NotConnected(refused()),
            CallError::Timeout,
            CallError::Closed(refused()),
            CallError::Stream("x".into()),
            CallError::Http(502),
            CallError::status(14, ""),
            CallError::Answer("x"),
            CallError::Crashed,
        ];
        assert!(!others.iter().any(CallError::gateway_made));
    }

    #[test]
    fn breaker_4_and_5_sort_the_statuses() {
        for code in [1, 2, 4, 7, 8, 10, 12, 13, 14, 15, 16, 17, 99] {
            assert_eq!(
                CallError::status(code, "").verdict(),
                Verdict::Failure,
                "{code}"
            );
        }
        for code in [3, 5, 6, 9, 11] {
            assert_eq!(
                CallError::status(code, "").verdict(),
                Verdict::Neutral,
                "{code}"
            );
        }
        for neutral in [CallError::Encode, CallError::TooManyStreams] {
            assert_eq!(neutral.verdict(), Verdict::Neutral);
        }
        assert_eq!(
            CallError::NotConnected(refused()).verdict(),
            Verdict::Failure
        );
        assert_eq!(CallError::Timeout.verdict(), Verdict::Failure);
    }

    #[test]
    fn codes_are_the_labels_of_the_contract() {
        assert_eq!(CallError::status(14, "x").code(), Some("14"));
        assert_eq!(CallError::status(4_000_000, "x").code(), Some("2"));
        assert_eq!(
            CallError::NotConnected(refused()).code(),
            Some("econnrefused")
        );
        assert_eq!(CallError::Timeout.code(), Some("timeout"));
        assert_eq!(CallError::Encode.code(), Some("encode"));
        assert_eq!(CallError::TooManyStreams.code(), Some("too_many_streams"));
        assert_eq!(CallError::Stream("x".into()).code(), Some("stream_error"));
        assert_eq!(CallError::Http(502).code(), Some("http_error"));
        assert_eq!(CallError::Answer("x").code(), Some("exception"));
        assert_eq!(CallError::CircuitOpen.code(), None);
    }

    #[test]
    fn log_4_foreign_text_is_cut_at_a_character_and_cleaned() {
        let error = CallError::status(14, format!("a\r\nb\u{7f}{}", "é".repeat(100)));
        let text = error.to_string();
        assert!(text.starts_with("UNAVAILABLE a??b?éé"), "{text}");
        assert!(text.len() <= "UNAVAILABLE ".len() + 128);
        assert!(text.ends_with('é'));
    }
}
