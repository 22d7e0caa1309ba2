//! The receiving half of a channel.
//!
//! Responsible for waiting for the answer of a call that this side made, and for telling why nothing
//! more comes. Must never decode a message.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::Incoming;
use tonic::{Code, Status};

use super::super::link::messages::{Broken, Messages};

/// The largest answer of an agent that a listener may allow, and what is around it.
const MAX_FRAME: usize = (64 << 20) + (1 << 20);

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Incoming>, hyper::Error>> + Send>>;

/// The receiving half.
pub(crate) struct Source(State);

enum State {
    Awaiting(Answer),
    Here(Messages),
    #[cfg(test)]
    Near(super::testing::Near),
}

/// Why nothing more comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The stream broke.
    Broken,
    /// It never was: the link ended before.
    NotSent,
    /// The peer does not know such streams; what was sent went nowhere.
    NotServed,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

impl Source {
    pub(super) fn of(body: Incoming) -> Self {
        Self(State::Here(Messages::of(body, MAX_FRAME)))
    }

    pub(super) fn awaiting(answer: Answer) -> Self {
        Self(State::Awaiting(answer))
    }

    #[cfg(test)]
    pub(super) fn near(near: super::testing::Near) -> Self {
        Self(State::Near(near))
    }

    /// The next message; `None`: the peer has ended the stream. Not to be asked again then.
    ///
    /// # Errors
    /// See [`Lost`].
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Lost>> {
        loop {
            match &mut self.0 {
                State::Here(messages) => {
                    let next = ready!(messages.poll_next(cx));
                    return Poll::Ready(next.map_err(|Broken| Lost::Broken));
                }
                #[cfg(test)]
                State::Near(near) => return near.poll_next(cx),
                State::Awaiting(answer) => match ready!(answer.as_mut().poll(cx)) {
                    Ok(answer) => {
                        let (head, body) = answer.into_parts();
                        judge(&head.headers)?;
                        *self = Self::of(body);
                    }
                    Err(error) if error.is_canceled() => return Poll::Ready(Err(Lost::NotSent)),
                    Err(_) => return Poll::Ready(Err(Lost::Broken)),
                },
            }
        }
    }

    /// As [`Self::poll_next`]; may be dropped and called again.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Lost> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }
}

fn judge(headers: &http::HeaderMap) -> Result<(), Lost> {
    match Status::from_header_map(headers).map(|status| status.code()) {
        None | Some(Code::Ok) => Ok(()),
        // Nothing was applied: the call was refused before its first message.
        Some(_) => Err(Lost::NotServed),
    }
}
