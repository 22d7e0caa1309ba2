//! Frames of agents on the wire, in either direction (ADJ-1).
//!
//! Responsible for framing, for the limit on a frame, and for a sending half that holds one frame
//! and waits while the peer reads nothing. Must never know what a frame says.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use prost::Message;
use tokio::sync::mpsc;
use tonic::Status;
use yuzu_proto::node::v1::AgentsFrame;
use yuzu_proto::node::v1::agents_frame::Kind;

use crate::cluster::link::Carrier;
use crate::cluster::link::messages::Messages;
use crate::edge::grpc;

/// A frame is some 256 KiB of texts and a row beyond, with at most 1,024 rows around them.
const MAX_FRAME: usize = 512 << 10;

/// What a peer sends.
pub(super) struct Frames(Messages);

impl Frames {
    pub(super) fn of(body: Incoming) -> Self {
        Self(Messages::of(body, MAX_FRAME))
    }

    /// The next frame; `None`: the stream is over, or what came is none. Frames of a kind that is not
    /// known here are those of a later version, and passed over. May be dropped and called again.
    pub(super) async fn next(&mut self) -> Option<Kind> {
        loop {
            let message = self.0.next().await.ok()??;
            let kind = AgentsFrame::decode(message).ok()?.kind;
            if kind.is_some() {
                return kind;
            }
            tokio::task::coop::consume_budget().await;
        }
    }
}

/// A frame with its prefix.
pub(super) fn encode(kind: Kind) -> Bytes {
    let frame = AgentsFrame { kind: Some(kind) };
    grpc::frame(&frame.encode_to_vec())
}

/// The sending half, and the body that it fills.
pub(super) fn pipe(carrier: Carrier) -> (mpsc::Sender<Bytes>, Sending) {
    let (sender, frames) = mpsc::channel(1);
    let sending = Sending {
        frames,
        carrier: Some(carrier),
    };
    (sender, sending)
}

/// The body of a stream to a peer; it ends when the other half is dropped.
pub(super) struct Sending {
    frames: mpsc::Receiver<Bytes>,
    /// None: it has ended.
    carrier: Option<Carrier>,
}

impl Body for Sending {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let next = ready!(self.frames.poll_recv(cx));
        let frame = match (next, &self.carrier) {
            (Some(frame), Some(carrier)) => Some(Frame::data(carrier.watch(frame))),
            _ => self
                .carrier
                .take()
                .and_then(|carrier| carrier.end())
                .map(Frame::trailers),
        };
        Poll::Ready(frame.map(Ok))
    }
}
