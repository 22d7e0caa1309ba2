//! gRPC over HTTP/2 messages, by hand: one request message out, one answer message in.
//!
//! Responsible for the length prefix, the request headers, the status in headers or trailers and
//! the answer's size limit. The bytes of a message pass unchanged. Must never wait for more than
//! the answer; [`super::client`] bounds the time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE, USER_AGENT};
use http::uri::{Authority, Scheme};
use http::{Request, Response, StatusCode, Uri, Version};
use yuzu_proto::SESSION_HEADER;
use yuzu_proto::wire::{GRPC_PREFIX, put_grpc_prefix};

use super::error::CallError;
use super::rpc::Rpc;
use super::transport::broken;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("yuzu-gateway/", env!("CARGO_PKG_VERSION")));
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const SESSION: HeaderName = HeaderName::from_static(SESSION_HEADER);
const GRPC_STATUS: &str = "grpc-status";
const GRPC_MESSAGE: &str = "grpc-message";

/// `message` behind its length prefix. `message` fits 32 bits.
pub(crate) fn prefixed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(GRPC_PREFIX + message.len());
    put_grpc_prefix(&mut framed, message.len());
    framed.extend_from_slice(message);
    framed.freeze()
}

/// The headers of one call with `left` to live. A session that is no header value is a fault of
/// whoever stored it, and ends the call as one that cannot be encoded.
pub(crate) fn request(
    rpc: Rpc,
    (scheme, authority): (&Scheme, &Authority),
    session: Option<&str>,
    left: Duration,
) -> Result<Request<()>, CallError> {
    let uri = Uri::builder()
        .scheme(scheme.clone())
        .authority(authority.clone())
        .path_and_query(rpc.path())
        .build()
        .map_err(|_| CallError::Encode)?;
    let mut request = Request::new(());
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_2;
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC);
    headers.insert(TE, TRAILERS);
    headers.insert(USER_AGENT, AGENT);
    headers.insert(GRPC_TIMEOUT, grpc_timeout(left));
    if let Some(session) = session {
        let mut value = HeaderValue::from_str(session).map_err(|_| CallError::Encode)?;
        value.set_sensitive(true);
        headers.insert(SESSION, value);
    }
    Ok(request)
}

/// Milliseconds, rounded up, so that a live call never claims to have no time left.
fn grpc_timeout(left: Duration) -> HeaderValue {
    let ms = left.as_nanos().div_ceil(1_000_000).clamp(1, 99_999_999) as u32;
    let mut text = String::with_capacity(9);
    text.push_str(&ms.to_string());
    text.push('m');
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("1m"))
}

/// The answer's message, at most `max` bytes.
pub(crate) async fn answer(response: Response<RecvStream>, max: usize) -> Result<Bytes, CallError> {
    let (head, mut body) = response.into_parts();
    if head.status != StatusCode::OK || !is_grpc(&head.headers) {
        return Err(CallError::Http(head.status.as_u16()));
    }
    if let Some(status) = status(&head.headers) {
        status?;
        return Err(CallError::Answer("ok without a message"));
    }
    let mut data = Gathered::default();
    while let Some(bytes) = body.data().await {
        let bytes = bytes.map_err(|error| broken(&error))?;
        // What is gathered has its own limit. An error means that the stream is over.
        let _ = body.flow_control().release_capacity(bytes.len());
        data.push(bytes, max)?;
    }
    let trailers = body.trailers().await.map_err(|error| broken(&error))?;
    status(&trailers.unwrap_or_default()).unwrap_or_else(no_status)?;
    data.message()
}

fn no_status() -> Result<(), CallError> {
    Err(CallError::Stream("no grpc status at its end".into()))
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(GRPC.as_bytes()))
}

/// The status, if there is one; one that is no number is 2 (UNKNOWN).
fn status(headers: &HeaderMap) -> Option<Result<(), CallError>> {
    let code = headers.get(GRPC_STATUS)?;
    let code = code
        .to_str()
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(2);
    if code == 0 {
        return Some(Ok(()));
    }
    let message = headers
        .get(GRPC_MESSAGE)
        .map_or(&[][..], HeaderValue::as_bytes);
    Some(Err(CallError::status(code, percent_decoded(message))))
}

fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let hex = |byte: u8| char::from(byte).to_digit(16);
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let escape = match tail {
            [high, low, ..] if first == b'%' => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match escape {
            Some((high, low)) => {
                decoded.push((high * 16 + low) as u8);
                rest = &tail[2..];
            }
            None => {
                decoded.push(first);
                rest = tail;
            }
        }
    }
    decoded
}

/// Prefix and message as they arrive; one frame is kept as it is.
#[derive(Default)]
struct Gathered {
    first: Bytes,
    more: BytesMut,
}

impl Gathered {
    fn push(&mut self, bytes: Bytes, max: usize) -> Result<(), CallError> {
        if self.len() + bytes.len() > max.saturating_add(GRPC_PREFIX) {
            return Err(CallError::Answer("over the size limit"));
        }
        if self.len() == 0 {
            self.first = bytes;
        } else if self.more.is_empty() {
            self.more.reserve(self.first.len() + bytes.len());
            self.more
                .extend_from_slice(&std::mem::take(&mut self.first));
            self.more.extend_from_slice(&bytes);
        } else {
            self.more.extend_from_slice(&bytes);
        }
        Ok(())
    }

    fn len(&self) -> usize {
        self.first.len() + self.more.len()
    }

    fn message(self) -> Result<Bytes, CallError> {
        let mut data = if self.more.is_empty() {
            self.first
        } else {
            self.more.freeze()
        };
        let Some((prefix, rest)) = data.split_first_chunk::<GRPC_PREFIX>() else {
            return Err(CallError::Answer(match data.is_empty() {
                true => "ok without a message",
                false => "half a message",
            }));
        };
        let [flag, length @ ..] = *prefix;
        if flag != 0 {
            return Err(CallError::Answer("compressed"));
        }
        match rest.len().cmp(&(u32::from_be_bytes(length) as usize)) {
            std::cmp::Ordering::Less => Err(CallError::Answer("half a message")),
            std::cmp::Ordering::Greater => Err(CallError::Answer("more than one message")),
            std::cmp::Ordering::Equal => Ok(data.split_off(GRPC_PREFIX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(frames: &[&[u8]]) -> Result<Bytes, CallError> {
        let mut data = Gathered::default();
        for frame in frames {
            data.push(Bytes::copy_from_slice(frame), 8)?;
        }
        data.message()
    }

    #[test]
    fn a_message_is_its_bytes_however_they_are_cut() {
        let whole = b"\0\0\0\0\x03abc";
        assert_eq!(gathered(&[whole]).unwrap(), "abc");
        for cut in 0..whole.len() {
            let (head, tail) = whole.split_at(cut);
            assert_eq!(gathered(&[head, tail]).unwrap(), "abc", "cut at {cut}");
        }
        assert_eq!(
            gathered(&[b"\0\0\0", b"\0", b"\x03", b"a", b"bc"]).unwrap(),
            "abc"
        );
        assert_eq!(gathered(&[b"\0\0\0\0\0"]).unwrap(), "");
    }

    #[test]
    fn what_is_not_one_plain_message_is_refused() {
        let refused = |frames: &[&[u8]]| gathered(frames).unwrap_err();
        assert_eq!(refused(&[]), CallError::Answer("ok without a message"));
        assert_eq!(refused(&[b"\0\0"]), CallError::Answer("half a message"));
        assert_eq!(
            refused(&[b"\0\0\0\0\x04abc"]),
            CallError::Answer("half a message")
        );
        assert_eq!(
            refused(&[b"\0\0\0\0\x01abc"]),
            CallError::Answer("more than one message")
        );
        assert_eq!(
            refused(&[b"\x01\0\0\0\x03abc"]),
            CallError::Answer("compressed")
        );
        assert_eq!(
            refused(&[b"\0\0\0\0\x09abcd", b"efghi"]),
            CallError::Answer("over the size limit")
        );
    }

    #[test]
    fn permit_5_the_time_left_is_sent_in_milliseconds_rounded_up() {
        assert_eq!(grpc_timeout(Duration::from_secs(5)), "5000m");
        assert_eq!(grpc_timeout(Duration::from_micros(1_001)), "2m");
        assert_eq!(grpc_timeout(Duration::ZERO), "1m");
        assert_eq!(grpc_timeout(Duration::from_secs(1 << 40)), "99999999m");
    }

    #[test]
    fn statuses_are_read_from_headers_and_their_messages_decoded() {
        let mut headers = HeaderMap::new();
        assert_eq!(status(&headers), None);
        headers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
        assert_eq!(status(&headers), Some(Ok(())));
        headers.insert(GRPC_STATUS, HeaderValue::from_static("14"));
        headers.insert(
            GRPC_MESSAGE,
            HeaderValue::from_static("store%20down%0A100%, %zz"),
        );
        let expected = CallError::status(14, "store down\n100%, %zz");
        assert_eq!(status(&headers), Some(Err(expected)));
        headers.insert(GRPC_STATUS, HeaderValue::from_static("x"));
        assert_eq!(
            status(&headers).unwrap().unwrap_err().status_code(),
            Some(2)
        );
    }
}
