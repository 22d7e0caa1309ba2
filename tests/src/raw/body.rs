//! Request bodies: one frame for unary calls, a bounded channel for streams.

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;

/// The body of a request.
#[derive(Debug)]
pub(super) enum Body {
    /// Bytes and then the end of the stream.
    Full(Option<Bytes>),
    /// Chunks as they come.
    Channel {
        chunks: mpsc::Receiver<Bytes>,
        finished: Arc<AtomicBool>,
    },
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        match self.get_mut() {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Self::Channel { chunks, finished } => Poll::Ready(match ready!(chunks.poll_recv(cx)) {
                Some(chunk) => Some(Ok(Frame::data(chunk))),
                None if finished.load(Ordering::Acquire) => None,
                None => Some(Err(h2::Reason::CANCEL.into())),
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Channel { .. } => SizeHint::default(),
        }
    }
}
