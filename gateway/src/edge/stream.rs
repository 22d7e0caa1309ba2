//! The open streams of a connection.
//!
//! Responsible for knowing that a stream is open from its request until its response is over: a
//! connection without one may be closed for being idle (LSN-4, LSN-12). Must never look into a
//! request or a response.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

use super::Response;
use super::connection::Connection;

/// A stream of this connection is open as long as this lives.
#[derive(Debug)]
pub(super) struct OpenStream(Arc<Connection>);

impl OpenStream {
    pub(super) fn new(connection: &Arc<Connection>) -> Self {
        connection.stream_opened();
        Self(Arc::clone(connection))
    }

    /// The response, holding the stream open until its body is dropped.
    pub(super) fn answered(self, response: Response) -> http::Response<TrackedBody> {
        response.map(|body| TrackedBody { body, _open: self })
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.stream_closed();
    }
}

/// The body of a response; its stream is open until it is dropped.
#[derive(Debug)]
pub(super) struct TrackedBody {
    body: tonic::body::Body,
    _open: OpenStream,
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
