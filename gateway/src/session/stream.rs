//! The sending half of a Subscribe stream.
//!
//! Responsible for handing commands from the mailbox to HTTP/2, one at a time and only while the
//! agent's window is open. Must never hold more than the command it hands over.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use prometheus::IntCounter;
use tonic::{Code, Status};

use super::live::{Control, Session};
use crate::edge::connection::Connection;
use crate::edge::grpc;

/// The body of a Subscribe response.
pub(crate) struct SubscribeBody {
    session: Arc<Session>,
    connection: Arc<Connection>,
    write_errors: IntCounter,
    done: bool,
}

impl SubscribeBody {
    /// Of a stream of `connection`.
    pub(crate) fn new(
        session: Arc<Session>,
        connection: Arc<Connection>,
        write_errors: IntCounter,
    ) -> Self {
        Self {
            session,
            connection,
            write_errors,
            done: false,
        }
    }
}

impl Body for SubscribeBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.done {
            return Poll::Ready(None);
        }
        let reader = || self.connection.sleeper(cx);
        match ready!(self.session.poll_command(reader)) {
            Ok(frame) => Poll::Ready(Some(Ok(Frame::data(frame)))),
            Err(status) => {
                self.done = true;
                let trailers = match status.code() {
                    Code::Ok => grpc::ok_trailers(),
                    _ => grpc::trailers(&status),
                };
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }
}

impl Drop for SubscribeBody {
    fn drop(&mut self) {
        let (ended, queued) = self.session.stream_state();
        if !ended && queued > 0 {
            self.write_errors.inc_by(queued as u64);
        }
        self.session.ask(Control::StreamGone);
    }
}
