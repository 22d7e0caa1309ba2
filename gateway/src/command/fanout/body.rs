//! The body of a SendCommand response.
//!
//! Responsible for carrying a fan-out's answers, and for dropping it with its caller (CMD-15). Must
//! never hold an answer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Sleep, sleep_until};
use tonic::Status;

use super::{Fanout, Piece};
use crate::edge::grpc;

/// The body of a SendCommand response. Dropped, it drops the fan-out (CMD-15).
pub(crate) struct FanoutBody {
    fanout: Arc<Fanout>,
    timeout: Pin<Box<Sleep>>,
    done: bool,
}

impl FanoutBody {
    pub(in crate::command) fn new(fanout: Arc<Fanout>) -> Self {
        Self {
            timeout: Box::pin(sleep_until(fanout.deadline)),
            fanout,
            done: false,
        }
    }

    /// The next answers, or how the call ended; not to be asked again then.
    ///
    /// # Errors
    /// The status of the end.
    pub(in crate::command) async fn next(&mut self) -> Result<Bytes, Status> {
        let fanout = &self.fanout;
        let piece = std::future::poll_fn(|cx| fanout.poll_piece(cx, self.timeout.as_mut())).await;
        match piece {
            Piece::Data(data) => Ok(data),
            Piece::End(status) => Err(status),
        }
    }
}

impl Body for FanoutBody {
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
        me.fanout.poll_piece(cx, me.timeout.as_mut()).map(|piece| {
            Some(Ok(match piece {
                Piece::Data(data) => Frame::data(data),
                Piece::End(status) => {
                    me.done = true;
                    Frame::trailers(grpc::trailers(&status))
                }
            }))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }
}

impl Drop for FanoutBody {
    fn drop(&mut self) {
        self.fanout.callers.remove(&self.fanout);
        self.fanout.abandon();
    }
}
