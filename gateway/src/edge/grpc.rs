//! gRPC over HTTP/2 for unary calls, as bytes.
//!
//! Responsible for reading one request message within the limits of the connection, and for
//! answering one message or one status. Streams (Subscribe, SendCommand, WatchEvents) write their
//! own bodies and share the framing below. Must never decode a message.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, header};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tonic::Status;
use yuzu_proto::wire::{GRPC_PREFIX, WireError, put_grpc_prefix};

use super::Response;
use super::charge::Charge;
use super::connection::Connection;
use super::deframe::Deframer;

/// Messages up to this size are copied behind their prefix so that they leave in one DATA frame.
const COPY_LIMIT: usize = 64 << 10;

/// A status without a message: headers only.
pub(crate) fn refuse(status: Status) -> Response {
    status.into_http()
}

/// A successful answer of one message.
pub(crate) fn answer(message: Bytes, connection: &Arc<Connection>) -> Response {
    let (first, second) = if message.len() <= COPY_LIMIT {
        (frame(&message), Bytes::new())
    } else {
        let mut prefix = BytesMut::with_capacity(GRPC_PREFIX);
        put_grpc_prefix(&mut prefix, message.len());
        (prefix.freeze(), message)
    };
    stream(UnaryBody {
        first,
        second,
        done: false,
        connection: Arc::clone(connection),
    })
}

/// A streaming answer with the headers of gRPC.
pub(crate) fn stream<B>(body: B) -> Response
where
    B: Body<Data = Bytes, Error = Status> + Send + 'static,
{
    let mut response = http::Response::new(tonic::body::Body::new(body));
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, grpc);
    response
}

/// `message` behind its prefix.
pub(crate) fn frame(message: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(GRPC_PREFIX + message.len());
    put_grpc_prefix(&mut out, message.len());
    out.extend_from_slice(message);
    out.freeze()
}

/// The trailers that end a stream with `status`.
pub(crate) fn trailers(status: &Status) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(2);
    if status.add_header(&mut map).is_err() {
        map.clear();
        map.insert(Status::GRPC_STATUS, HeaderValue::from(status.code() as i32));
    }
    map
}

/// The trailers that end a stream with OK.
pub(crate) fn ok_trailers() -> HeaderMap {
    let mut map = HeaderMap::with_capacity(1);
    map.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
    map
}

/// The status of a message that is not one: what any gRPC server answers to it.
pub(crate) fn malformed(error: WireError) -> Status {
    Status::internal(format!("the message is malformed: {error}"))
}

/// The caller's `grpc-timeout`; absent or unreadable counts as none.
pub(crate) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// Whether the request speaks gRPC at all.
pub(crate) fn is_grpc<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.as_bytes().strip_prefix(b"application/grpc"));
    request.method() == http::Method::POST
        && kind.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// Reads the one message of a unary request (LSN-7, LSN-8 and the listener's message limit). The
/// charge stands for it in the budget of the connection: it is kept as long as the message, so that
/// requests waiting for the server count too (PERMIT-15), and in that of the node (LSN-16).
///
/// # Errors
/// The status to answer: 8 over a limit, 4 not complete in time, 12 compressed, 13 malformed or
/// cut short, 1 when the stream was reset.
pub(crate) async fn read_unary(
    body: Incoming,
    connection: &Arc<Connection>,
) -> Result<(Bytes, Charge), Status> {
    let timeout = connection.limits().request_timeout;
    match tokio::time::timeout(timeout, read_message(body, connection)).await {
        Ok(result) => result,
        Err(_) => {
            connection.metrics().grpc_recv_timeout_total.inc();
            Err(Status::deadline_exceeded(
                "the request was not complete in time",
            ))
        }
    }
}

async fn read_message(
    mut body: Incoming,
    connection: &Arc<Connection>,
) -> Result<(Bytes, Charge), Status> {
    let mut deframer = Deframer::new(connection.limits().max_message_bytes);
    let mut charge = Charge::of_request(connection);
    let mut message = None;
    let mut received = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Status::cancelled("the request was reset"))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if message.is_some() {
            count_extra(connection, data.len());
            continue;
        }
        received += data.len();
        deframer.push(data);
        if let Some(whole) = deframer.next()? {
            count_extra(connection, received - GRPC_PREFIX - whole.len());
            charge.set(whole.len())?;
            message = Some(whole);
        } else {
            charge.set(deframer.held())?;
        }
    }
    let cut_short = "the request ended before its message was complete";
    let message = message.ok_or_else(|| Status::internal(cut_short))?;
    Ok((message, charge))
}

fn count_extra(connection: &Connection, bytes: usize) {
    let family = &connection.metrics().grpc_dropped_data_bytes_total;
    family
        .with_label_values(&["extra_request_data"])
        .inc_by(bytes as u64);
}

struct UnaryBody {
    first: Bytes,
    second: Bytes,
    done: bool,
    connection: Arc<Connection>,
}

impl Body for UnaryBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let me = &mut *self;
        for part in [&mut me.first, &mut me.second] {
            if !part.is_empty() {
                let part = me.connection.watch(std::mem::take(part));
                return Poll::Ready(Some(Ok(Frame::data(part))));
            }
        }
        if std::mem::replace(&mut me.done, true) {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::trailers(ok_trailers()))))
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_grpc_timeouts_and_ignores_what_is_none() {
        let read = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", HeaderValue::from_static(text));
            timeout(&headers)
        };
        assert_eq!(read("30S"), Some(Duration::from_secs(30)));
        assert_eq!(read("29999m"), Some(Duration::from_millis(29_999)));
        assert_eq!(read("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(read("99999999n"), Some(Duration::from_nanos(99_999_999)));
        for none in ["", "S", "30", "30s", "-1S", "123456789S", "+5S", "3 S"] {
            assert_eq!(read(none), None, "{none:?}");
        }
        assert_eq!(timeout(&HeaderMap::new()), None);
    }
}
