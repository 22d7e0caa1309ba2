//! Sorts the errors of the HTTP/2 stack into outcome classes.

use h2::Reason;

use super::error::{CallError, ConnectError};

/// Why a connection ended.
pub(crate) fn closed(error: &h2::Error) -> ConnectError {
    match error.get_io() {
        Some(io) => ConnectError::io(io),
        None => ConnectError::new("closed", error.to_string()),
    }
}

/// How a call failed that had no answer yet.
pub(crate) fn unanswered(error: &h2::Error) -> CallError {
    // h2 tells this to streams above the last one that the server's GOAWAY names, and to no other.
    match error.is_go_away() && error.is_remote() {
        true => CallError::Unprocessed(closed(error)),
        false => broken(error),
    }
}

/// How a call on a connection failed.
pub(crate) fn broken(error: &h2::Error) -> CallError {
    match error.is_reset() {
        // The server did not look at it: as good as not sent.
        true if error.reason() == Some(Reason::REFUSED_STREAM) => CallError::TooManyStreams,
        true => CallError::Stream(error.to_string().into()),
        false => CallError::Closed(closed(error)),
    }
}
