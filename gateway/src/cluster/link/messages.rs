//! Whole messages out of the body of a stream to a peer.
//!
//! Responsible for the limit on a message and for telling a stream that the peer has ended from one
//! that broke. Must never decode a message.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::Reason;
use http_body::Body;
use hyper::body::Incoming;

use crate::edge::deframe::Deframer;

/// Why nothing more comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The stream broke.
    Stream,
    /// What came is no message, or a larger one than is taken.
    Message,
}

/// What a peer sends.
pub(in crate::cluster) struct Messages {
    body: Incoming,
    deframer: Deframer,
}

impl Messages {
    /// Messages of at most `limit` bytes.
    pub(in crate::cluster) fn of(body: Incoming, limit: usize) -> Self {
        Self {
            body,
            deframer: Deframer::new(limit),
        }
    }

    /// From now on messages have at most `limit` bytes.
    pub(in crate::cluster) fn limit(&mut self, limit: usize) {
        self.deframer.limit(limit);
    }

    /// Bytes of a message that is not whole yet.
    pub(in crate::cluster) fn unfinished(&self) -> usize {
        self.deframer.held()
    }

    /// The next message; `None`: the peer has ended the stream.
    ///
    /// # Errors
    /// See [`Broken`].
    pub(in crate::cluster) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Broken>> {
        loop {
            if let Some(message) = self.deframer.next().map_err(|_| Broken::Message)? {
                return Poll::Ready(Ok(Some(message)));
            }
            let piece = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => return Poll::Ready(Ok(None)),
                Some(Err(error)) if is_farewell(&error) => return Poll::Ready(Ok(None)),
                Some(Err(_)) => return Poll::Ready(Err(Broken::Stream)),
                Some(Ok(frame)) => frame,
            };
            match piece.into_data() {
                Ok(data) => self.deframer.push(data),
                // Trailers end the stream.
                Err(_) => return Poll::Ready(Ok(None)),
            }
        }
    }

    /// As [`Self::poll_next`]; may be dropped and called again.
    pub(in crate::cluster) async fn next(&mut self) -> Result<Option<Bytes>, Broken> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }
}

/// Whether the peer reset the stream because it wants nothing more of it.
fn is_farewell(error: &hyper::Error) -> bool {
    let cause = error
        .source()
        .and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| {
        cause.is_reset()
            && cause.is_remote()
            && matches!(cause.reason(), Some(Reason::CANCEL | Reason::NO_ERROR))
    })
}
