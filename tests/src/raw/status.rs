//! How a call ended: the status the peer sent, or why there is none.
//!
//! Must never invent a status: a call without `grpc-status` is a [`CallError`].

use http::HeaderMap;

/// gRPC status numbers, as the contract writes them.
pub mod code {
    /// OK.
    pub const OK: u16 = 0;
    /// CANCELLED.
    pub const CANCELLED: u16 = 1;
    /// INVALID_ARGUMENT.
    pub const INVALID_ARGUMENT: u16 = 3;
    /// DEADLINE_EXCEEDED.
    pub const DEADLINE_EXCEEDED: u16 = 4;
    /// NOT_FOUND.
    pub const NOT_FOUND: u16 = 5;
    /// PERMISSION_DENIED.
    pub const PERMISSION_DENIED: u16 = 7;
    /// RESOURCE_EXHAUSTED.
    pub const RESOURCE_EXHAUSTED: u16 = 8;
    /// UNIMPLEMENTED.
    pub const UNIMPLEMENTED: u16 = 12;
    /// INTERNAL.
    pub const INTERNAL: u16 = 13;
    /// UNAVAILABLE.
    pub const UNAVAILABLE: u16 = 14;
    /// UNAUTHENTICATED.
    pub const UNAUTHENTICATED: u16 = 16;
}

/// The status of a call, from its trailers or from a trailers-only answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// `grpc-status`, see [`code`].
    pub code: u16,
    /// `grpc-message`, percent-decoded; empty when absent.
    pub message: String,
}

impl Status {
    /// Whether the call succeeded.
    pub fn is_ok(&self) -> bool {
        self.code == code::OK
    }

    /// Reads `grpc-status` and `grpc-message`, if the first is there and a number.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let code = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
        let message = headers
            .get("grpc-message")
            .map(|v| percent_decode(v.as_bytes()))
            .unwrap_or_default();
        Some(Self { code, message })
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "status {}: {}", self.code, self.message)
    }
}

/// Why a call has no status from the peer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No TCP connection.
    #[error("connect failed: {0}")]
    Connect(#[source] std::io::Error),
    /// The caller's own deadline passed.
    #[error("the deadline of the call passed")]
    Deadline,
    /// The connection ended before the call did.
    #[error("the connection ended: {0}")]
    Disconnected(String),
    /// The peer reset the stream without a status.
    #[error("the stream was reset: {0}")]
    Reset(h2::Reason),
    /// The answer was no gRPC answer.
    #[error("not a gRPC answer: HTTP status {0}")]
    Http(http::StatusCode),
    /// The answer broke the gRPC framing.
    #[error("broken gRPC framing: {0}")]
    Framing(&'static str),
}

impl From<hyper::Error> for CallError {
    fn from(error: hyper::Error) -> Self {
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(current) = source {
            if let Some(h2) = current.downcast_ref::<h2::Error>()
                && h2.is_reset()
                && let Some(reason) = h2.reason()
            {
                return Self::Reset(reason);
            }
            source = current.source();
        }
        Self::Disconnected(describe(&error))
    }
}

fn describe(error: &hyper::Error) -> String {
    use std::error::Error;
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Decodes `%XX`; whatever is not well formed stays as it is.
fn percent_decode(text: &[u8]) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        if byte == b'%'
            && let [high, low, after @ ..] = tail
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            out.push(high << 4 | low);
            rest = after;
        } else {
            out.push(byte);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|d| d as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_status_with_an_encoded_message() {
        let mut headers = HeaderMap::new();
        assert_eq!(Status::from_headers(&headers), None);
        headers.insert("grpc-status", "5".parse().unwrap());
        headers.insert("grpc-message", "unknown%20session%2".parse().unwrap());
        let status = Status::from_headers(&headers).unwrap();
        assert_eq!(
            status,
            Status {
                code: 5,
                message: "unknown session%2".into()
            }
        );
    }

    #[test]
    fn a_status_that_is_no_number_is_none() {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-status", "OK".parse().unwrap());
        assert_eq!(Status::from_headers(&headers), None);
    }
}
