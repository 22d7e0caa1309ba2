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
use prost::Message;
use tokio::sync::watch;
use tonic::Status;
use yuzu_proto::node::v1::ForwardOffer;

use super::super::link::Carrier;
use super::Registered;
use crate::edge::grpc;

/// First frames of so many bytes go with the offer: a way and back is spared.
pub(super) const EARLY: usize = 16 << 10;

#[derive(Default)]
struct State {
    frames: VecDeque<Bytes>,
    /// Nothing follows.
    ended: bool,
    reader: Option<Waker>,
    /// The peer is still to be asked for the stream.
    offer: Option<Offer>,
}

/// How a peer is asked.
pub(super) struct Offer {
    pub(super) number: u64,
    pub(super) offers: Arc<Sink>,
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
    /// None: the peer has still to call for it.
    carrier: Option<Carrier>,
    done: bool,
    kept: Option<Registered>,
}

/// Both halves.
pub(super) fn outgoing(carrier: Option<Carrier>) -> (Sink, Outgoing) {
    let state = Arc::<Mutex<State>>::default();
    let (sender, alive) = watch::channel(());
    let sink = Sink {
        state: Arc::clone(&state),
        alive,
    };
    let body = Outgoing {
        state,
        _alive: sender,
        carrier,
        done: false,
        kept: None,
    };
    (sink, body)
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sink {
    /// Sends framed messages. What is for a stream that is gone goes nowhere.
    pub(crate) fn push(&self, frames: Bytes) {
        let mut state = lock(&self.state);
        let offer = state.offer.take();
        let early = offer.is_some() && frames.len() <= EARLY;
        if !early {
            state.frames.push_back(frames.clone());
        }
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        if let Some(Offer { number, offers }) = offer {
            let offer = ForwardOffer {
                offer: number,
                frames: if early { frames.clone() } else { Bytes::new() },
            };
            let offer = grpc::frame(&offer.encode_to_vec());
            // What counts the frames counts them as long as they lie there.
            offers.push(holding(offer, frames));
        }
    }

    /// Frames that HTTP/2 has not taken.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.state).frames.len()
    }

    /// Ends the stream behind what HTTP/2 has taken: nobody wants the rest.
    pub(crate) fn abandon(&self) {
        let rest = std::mem::take(&mut lock(&self.state).frames);
        drop(rest);
        self.end();
    }

    /// The peer is asked for the stream with the first push.
    pub(super) fn offered(&self, offer: Offer) {
        lock(&self.state).offer = Some(offer);
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

    /// Ends when the stream is gone.
    pub(super) fn gone(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut alive = self.alive.clone();
        async move { while alive.changed().await.is_ok() {} }
    }

    /// Whether the stream is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.alive.has_changed().is_err()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.end();
    }
}

impl Outgoing {
    /// The same, brought to the peer so.
    pub(super) fn carried_by(mut self, carrier: Carrier) -> Self {
        self.carrier = Some(carrier);
        self
    }

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
            let frame = match &me.carrier {
                Some(carrier) => carrier.watch(frame),
                None => frame,
            };
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        if !state.ended {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        me.done = true;
        let end = me.carrier.as_ref().and_then(Carrier::end);
        Poll::Ready(end.map(|end| Ok(Frame::trailers(end))))
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

/// `data`, which holds `with` as long as anybody holds its bytes.
pub(crate) fn holding<T: Send + 'static>(data: Bytes, with: T) -> Bytes {
    Bytes::from_owner(Holding { data, _with: with })
}

struct Holding<T> {
    data: Bytes,
    _with: T,
}

impl<T> AsRef<[u8]> for Holding<T> {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}
