//! Unary gRPC over HTTP/2, with the message kept as bytes.
//!
//! Responsible for taking one message out of a request and for the forms an answer can have, the
//! broken ones included. Must never decode a message.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tonic::Status;

use crate::connection::StreamGuard;
use crate::faults::Garbage;

const PREFIX_LEN: usize = 5;

/// Reads the only message of a unary request.
pub(crate) async fn read_message<B>(mut body: B, limit: usize) -> Result<Bytes, Status>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Status::cancelled("request body ended early"))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        read.extend_from_slice(&data);
        if declared_len(&read)
            .unwrap_or(0)
            .max(read.len().saturating_sub(PREFIX_LEN))
            > limit
        {
            let text = format!("received message larger than max ({limit} bytes)");
            return Err(Status::resource_exhausted(text));
        }
    }
    let Some(declared) = declared_len(&read) else {
        return Err(Status::internal("request has no message"));
    };
    if read[0] != 0 {
        return Err(Status::unimplemented("request message is compressed"));
    }
    if read.len() - PREFIX_LEN != declared {
        return Err(Status::internal("request is not exactly one message"));
    }
    Ok(read.freeze().slice(PREFIX_LEN..))
}

fn declared_len(read: &[u8]) -> Option<usize> {
    let len = read.get(1..PREFIX_LEN)?;
    Some(
        len.iter()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
    )
}

/// Body of an answer: at most one piece of data and trailers.
#[derive(Default)]
pub(crate) struct AnswerBody {
    data: Option<Bytes>,
    trailers: Option<HeaderMap>,
    stream: Option<StreamGuard>,
}

impl AnswerBody {
    /// Counts the stream as open until the last piece is taken, and never longer: the peer may
    /// open the next one as soon as it has that piece.
    pub(crate) fn hold(&mut self, stream: StreamGuard) {
        self.stream = Some(stream).filter(|_| !self.is_end_stream());
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = self.data.take().map(Frame::data);
        let frame = data.or_else(|| self.trailers.take().map(Frame::trailers));
        if self.is_end_stream() {
            self.stream = None;
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.data.as_ref().map_or(0, |data| data.len() as u64))
    }
}

/// An answer of any form.
pub(crate) type Answer = Response<AnswerBody>;

/// OK with this message.
pub(crate) fn message(bytes: &[u8]) -> Answer {
    framed(0, bytes.len(), bytes, Some(ok_trailers()))
}

/// A status and nothing else.
pub(crate) fn status(status: Status) -> Answer {
    status.into_http()
}

/// Something that is no answer.
pub(crate) fn garbage(kind: Garbage, ordinary: &[u8]) -> Answer {
    match kind {
        // Field 0 does not exist, wire type 7 neither.
        Garbage::Message => message(&[0x07; 8]),
        Garbage::Frame => framed(0, ordinary.len() + 1000, ordinary, Some(ok_trailers())),
        Garbage::Compressed => framed(1, ordinary.len(), ordinary, Some(ok_trailers())),
        Garbage::NoStatus => framed(0, ordinary.len(), ordinary, None),
        Garbage::Http => {
            let data = Some(Bytes::from_static(
                b"<html><body>502 Bad Gateway</body></html>",
            ));
            let mut answer = Response::new(AnswerBody {
                data,
                ..AnswerBody::default()
            });
            *answer.status_mut() = http::StatusCode::BAD_GATEWAY;
            let html = HeaderValue::from_static("text/html");
            answer.headers_mut().insert(header::CONTENT_TYPE, html);
            answer
        }
    }
}

fn framed(flag: u8, declared: usize, bytes: &[u8], trailers: Option<HeaderMap>) -> Answer {
    let mut data = BytesMut::with_capacity(PREFIX_LEN + bytes.len());
    data.put_u8(flag);
    data.put_u32(u32::try_from(declared).unwrap_or(u32::MAX));
    data.put_slice(bytes);
    let body = AnswerBody {
        data: Some(data.freeze()),
        trailers,
        stream: None,
    };
    let mut answer = Response::new(body);
    let grpc = HeaderValue::from_static("application/grpc");
    answer.headers_mut().insert(header::CONTENT_TYPE, grpc);
    answer
}

fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    trailers
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use tokio::sync::watch;
    use tonic::Code;

    use super::*;
    use crate::connection::Connection;

    #[tokio::test]
    async fn a_stream_ends_with_the_last_piece_of_its_answer() {
        let peer = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
        let connection = Connection::new(1, peer, 9, watch::Sender::new(0));
        let mut body = message(b"hi").into_body();
        body.hold(connection.open_stream().expect("a stream"));
        assert!(
            body.frame()
                .await
                .is_some_and(|frame| frame.unwrap().is_data())
        );
        assert_eq!(connection.view().streams, 1);
        assert!(
            body.frame()
                .await
                .is_some_and(|frame| frame.unwrap().is_trailers())
        );
        assert_eq!(connection.view().streams, 0);
        let mut empty = status(Status::internal("no body")).into_body();
        empty.hold(connection.open_stream().expect("a stream"));
        assert_eq!(connection.view().streams, 0);
    }

    async fn read(bytes: &'static [u8]) -> Result<Bytes, Code> {
        read_message(Full::new(Bytes::from_static(bytes)), 4)
            .await
            .map_err(|s| s.code())
    }

    #[tokio::test]
    async fn a_request_is_exactly_one_plain_message_within_the_limit() {
        assert_eq!(read(b"\0\0\0\0\x02hi").await, Ok(Bytes::from_static(b"hi")));
        assert_eq!(read(b"\0\0\0\0\0").await, Ok(Bytes::new()));
        assert_eq!(
            read(b"\0\0\0\0\x04four").await,
            Ok(Bytes::from_static(b"four"))
        );
        assert_eq!(
            read(b"\0\0\0\0\x05fives").await,
            Err(Code::ResourceExhausted)
        );
        assert_eq!(
            read(b"\0\xff\xff\xff\xff").await,
            Err(Code::ResourceExhausted)
        );
        assert_eq!(read(b"\x01\0\0\0\x02hi").await, Err(Code::Unimplemented));
        assert_eq!(read(b"\0\0\0\0\x03hi").await, Err(Code::Internal));
        assert_eq!(read(b"\0\0\0\0\x01hi").await, Err(Code::Internal));
        assert_eq!(read(b"\0\0").await, Err(Code::Internal));
        assert_eq!(read(b"").await, Err(Code::Internal));
    }
}
