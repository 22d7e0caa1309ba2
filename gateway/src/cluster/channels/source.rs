//! The receiving half of a channel.
//!
//! Responsible for waiting for the answer of a call that this side made, and for telling why nothing
//! more comes. Must never decode a message.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::Incoming;
use tokio::task::coop::consume_budget;
use tonic::{Code, Status};

use super::super::link::messages::{Broken, Messages};
use super::room::{Room, Share};
use crate::edge::deframe::Deframer;

/// The largest answer of an agent that a listener may allow, and what is around it.
pub(crate) const MAX_FRAME: usize = (64 << 20) + (1 << 20);
/// The first message of a stream that a peer opens, until its user knows what it is for.
pub(crate) const MAX_FIRST: usize = 64 << 10;

/// A stream that the peer has still to begin.
pub(super) type Coming = Pin<Box<dyn Future<Output = Result<Incoming, Lost>> + Send>>;

/// The receiving half.
pub(crate) struct Source {
    /// What came before the stream.
    early: Option<Box<Deframer>>,
    /// The largest message.
    limit: usize,
    /// What a message that is not whole yet counts for, beyond so many bytes.
    room: Option<(Share, usize)>,
    state: State,
}

enum State {
    Awaiting(Coming),
    Here(Messages),
    #[cfg(test)]
    Near(super::testing::Near),
}

/// Why nothing more comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The stream broke.
    Broken,
    /// What came is no message, or a larger one than may come.
    NoMessage,
    /// A message that is not whole yet finds no room.
    NoRoom,
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
    /// What a peer sends that has called.
    pub(super) fn of(body: Incoming) -> Self {
        State::Here(Messages::of(body, MAX_FRAME)).into()
    }

    pub(super) fn awaiting(stream: Coming) -> Self {
        State::Awaiting(stream).into()
    }

    /// From now on messages have at most `bytes` bytes.
    pub(crate) fn limit(&mut self, bytes: usize) {
        self.limit = bytes;
        self.early.iter_mut().for_each(|early| early.limit(bytes));
        match &mut self.state {
            State::Awaiting(_) => {}
            State::Here(messages) => messages.limit(bytes),
            #[cfg(test)]
            State::Near(near) => near.limit(bytes),
        }
    }

    /// The same behind these frames, which came before it.
    pub(super) fn behind(self, frames: Bytes) -> Self {
        let mut early = Deframer::new(MAX_FRAME);
        early.push(frames);
        Self {
            early: Some(Box::new(early)),
            ..self
        }
    }

    #[cfg(test)]
    pub(super) fn near(near: super::testing::Near) -> Self {
        State::Near(near).into()
    }

    /// From now on messages that are not whole yet find room in `room` for what they have beyond
    /// `free` bytes.
    pub(crate) fn share(&mut self, room: &Room, free: usize) {
        self.room = Some((room.share(), free));
    }

    /// The next message; `None`: the peer has ended the stream. Not to be asked again then.
    ///
    /// # Errors
    /// See [`Lost`].
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Lost>> {
        if let Some(early) = &mut self.early {
            if let Some(message) = early.next().map_err(|_| Lost::NoMessage)? {
                return Poll::Ready(Ok(Some(message)));
            }
            self.early = None;
        }
        let (next, unfinished) = loop {
            match &mut self.state {
                State::Here(messages) => {
                    let next = messages.poll_next(cx).map_err(Lost::from);
                    break (next, messages.unfinished());
                }
                #[cfg(test)]
                State::Near(near) => break (near.poll_next(cx), near.unfinished()),
                State::Awaiting(stream) => {
                    let body = ready!(stream.as_mut().poll(cx))?;
                    self.state = State::Here(Messages::of(body, self.limit));
                }
            }
        };
        if let Some((share, free)) = &mut self.room
            && !share.resize(unfinished.saturating_sub(*free))
        {
            return Poll::Ready(Err(Lost::NoRoom));
        }
        next
    }

    /// As [`Self::poll_next`]; may be dropped and called again.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Lost> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Reads to the end, in turns with other work, whatever comes.
    pub(crate) async fn read_out(&mut self) {
        while let Ok(Some(_)) = self.next().await {
            consume_budget().await;
        }
    }
}

/// The stream that answers a call.
pub(super) async fn stream_of(
    call: impl Future<Output = Result<http::Response<Incoming>, hyper::Error>>,
) -> Result<Incoming, Lost> {
    let (head, body) = match call.await {
        Ok(answer) => answer.into_parts(),
        Err(error) if error.is_canceled() => return Err(Lost::NotSent),
        Err(_) => return Err(Lost::Broken),
    };
    match Status::from_header_map(&head.headers).map(|status| status.code()) {
        None | Some(Code::Ok) => Ok(body),
        // Nothing was applied: the call was refused before its first message.
        Some(_) => Err(Lost::NotServed),
    }
}

impl From<State> for Source {
    fn from(state: State) -> Self {
        Self {
            early: None,
            limit: MAX_FRAME,
            room: None,
            state,
        }
    }
}

impl From<Broken> for Lost {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Stream => Self::Broken,
            Broken::Message => Self::NoMessage,
        }
    }
}
