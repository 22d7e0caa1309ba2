//! Sorts the errors of the HTTP/2 stack into outcome classes.

use std::error::Error;

use h2::Reason;

use super::error::{CallError, ConnectError};

/// Why a connection ended.
pub(crate) fn closed(error: &hyper::Error) -> ConnectError {
    if error.is_timeout() {
        return ConnectError::new("timeout", "keep-alive ping not answered");
    }
    match http2(error) {
        Some(cause) => match cause.get_io() {
            Some(io) => ConnectError::io(io),
            None => ConnectError::new("closed", cause.to_string()),
        },
        None => ConnectError::new("closed", error.to_string()),
    }
}

/// How a call on a connection failed.
pub(crate) fn broken(error: &hyper::Error) -> CallError {
    match http2(error) {
        // The server did not look at it: as good as not sent.
        Some(cause) if cause.is_reset() && cause.reason() == Some(Reason::REFUSED_STREAM) => {
            CallError::TooManyStreams
        }
        Some(cause) if cause.is_reset() => CallError::Stream(cause.to_string().into()),
        _ => CallError::Closed(closed(error)),
    }
}

fn http2(error: &hyper::Error) -> Option<&h2::Error> {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}
