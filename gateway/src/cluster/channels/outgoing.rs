//! The sending half of a channel, and the body that it fills.
//!
//! Responsible for handing frames to HTTP/2 in their order, one at a time. It takes whatever it is
//! given: its user bounds what is on its way. Must never wait.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::sync::watch;
use tonic::Status;

use super::Registered;
use crate::edge::connection::Connection;
use crate::edge::grpc;

#[derive(Default)]
struct State {
    frames: VecDeque<Bytes>,
    /// Nothing follows.
    ended: bool,
    reader: Option<Waker>,
}

/// The sending half. Dropped, it ends the stream behind what it was given.
pub(crate) struct Sink {
    state: Arc<Mutex<State>>,
    /// Closed with the body.
    alive: watch::Receiver<()>,
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sink")
    }
}

/// The body; dropped when the stream is gone.
pub(super) struct Outgoing {
    state: Arc<Mutex<State>>,
    _alive: watch::Sender<()>,
    /// Of a peer that dialled: it notices when nothing is taken.
    connection: Option<Arc<Connection>>,
    done: bool,
    kept: Option<Registered>,
}

/// Both halves; `connection` is that of a call which the body answers.
pub(super) fn outgoing(connection: Option<Arc<Connection>>) -> (Sink, Outgoing) {
    let state = Arc::<Mutex<State>>::default();
    let (sender, alive) = watch::channel(());
    let sink = Sink {
        state: Arc::clone(&state),
        alive,
    };
    let body = Outgoing {
        state,
        _alive: sender,
        connection,
        done: false,
        kept: None,
    };
    (sink, body)
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sink {
    /// Sends a framed message. One for a stream that is gone goes nowhere.
    pub(crate) fn push(&self, frame: Bytes) {
        let mut state = lock(&self.state);
        state.frames.push_back(frame);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Ends the stream behind what was pushed.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        state.ended = true;
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Waits until the stream is gone.
    pub(super) async fn gone(&self) {
        let mut alive = self.alive.clone();
        while alive.changed().await.is_ok() {}
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.end();
    }
}

impl Outgoing {
    /// Lives as long as the stream.
    pub(super) fn keep(&mut self, kept: Registered) {
        self.kept = Some(kept);
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let me = &mut *self;
        if me.done {
            return Poll::Ready(None);
        }
        let mut state = lock(&me.state);
        if let Some(frame) = state.frames.pop_front() {
            let frame = match &me.connection {
                Some(connection) => connection.watch(frame),
                None => frame,
            };
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        if !state.ended {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        me.done = true;
        // An answer ends with its status, a request does not.
        let end = me.connection.as_ref();
        Poll::Ready(end.map(|_| Ok(Frame::trailers(grpc::ok_trailers()))))
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        // Whoever pushes still must not keep what goes nowhere.
        let rest = std::mem::take(&mut lock(&self.state).frames);
        drop(rest);
    }
}
