//! One call: what is asked, the sending half, the receiving half.

use super::frame::{FrameError, FrameReader, frame, frame_message};
use super::status::{CallError, Status};
use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use http_body::Body as _;
use hyper::body::Incoming;
use prost::Message;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// What is asked: path, deadline and metadata.
#[derive(Debug, Clone)]
pub struct Request {
    path: PathAndQuery,
    timeout: Option<Duration>,
    metadata: HeaderMap,
}

impl Request {
    /// A request for a full method path such as `/package.Service/Method`.
    ///
    /// # Panics
    /// If it is no path.
    pub fn new(path: &str) -> Self {
        let path = path.parse().expect("a path");
        Self {
            path,
            timeout: None,
            metadata: HeaderMap::new(),
        }
    }

    /// Sets the deadline: sent as `grpc-timeout` and kept by the client.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Adds a metadata entry.
    ///
    /// # Panics
    /// If the value can not stand in a header.
    #[must_use]
    pub fn metadata(mut self, name: &'static str, value: &[u8]) -> Self {
        let value = HeaderValue::from_bytes(value).expect("a header value");
        self.metadata.append(HeaderName::from_static(name), value);
        self
    }

    /// Says that the body is something else than `application/grpc`.
    ///
    /// # Panics
    /// If the value can not stand in a header.
    #[must_use]
    pub fn content_type(mut self, value: &[u8]) -> Self {
        let value = HeaderValue::from_bytes(value).expect("a header value");
        self.metadata.insert(http::header::CONTENT_TYPE, value);
        self
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.timeout
    }

    pub(crate) fn to_http<B>(
        &self,
        scheme: Scheme,
        authority: Authority,
        body: B,
    ) -> http::Request<B> {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(scheme);
        uri.authority = Some(authority);
        uri.path_and_query = Some(self.path.clone());
        let mut request = http::Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_parts(uri).expect("scheme, authority and path");
        let headers = request.headers_mut();
        headers.insert(http::header::TE, HeaderValue::from_static("trailers"));
        headers.insert(
            http::header::CONTENT_TYPE,
            HeaderValue::from_static("application/grpc"),
        );
        if let Some(timeout) = self.timeout {
            headers.insert("grpc-timeout", timeout_value(timeout));
        }
        headers.extend(self.metadata.clone());
        request
    }
}

/// `grpc-timeout` holds at most eight digits: milliseconds reach more than a day.
fn timeout_value(timeout: Duration) -> HeaderValue {
    let millis = timeout.as_millis().min(99_999_999);
    HeaderValue::from_str(&format!("{millis}m")).expect("digits")
}

/// The answer to a unary call.
#[derive(Debug, Clone)]
pub struct Answer {
    /// How it ended.
    pub status: Status,
    /// The message, as it stood on the wire; absent when there was none.
    pub message: Option<Bytes>,
    /// Headers of the answer.
    pub headers: HeaderMap,
}

impl Answer {
    /// Decodes the message.
    ///
    /// # Errors
    /// When the status is not OK or there is no decodable message, with the reason as text.
    pub fn decode<M: Message + Default>(&self) -> Result<M, String> {
        if !self.status.is_ok() {
            return Err(self.status.to_string());
        }
        let message = self.message.clone().ok_or("OK without a message")?;
        M::decode(message).map_err(|e| e.to_string())
    }
}

/// The sending half of a stream. Dropping it without [`Sender::half_close`] resets the stream.
#[derive(Debug)]
pub struct Sender {
    chunks: Option<mpsc::Sender<Bytes>>,
    finished: Arc<AtomicBool>,
}

impl Sender {
    pub(super) fn new(chunks: mpsc::Sender<Bytes>, finished: Arc<AtomicBool>) -> Self {
        Self {
            chunks: Some(chunks),
            finished,
        }
    }

    /// Sends an encoded message; waits while the stream's send window is closed.
    ///
    /// # Errors
    /// [`CallError::Disconnected`] when the stream has ended or was half-closed.
    pub async fn send(&self, message: &[u8]) -> Result<(), CallError> {
        self.send_raw(frame(message)).await
    }

    /// Encodes and sends a message; waits while the stream's send window is closed.
    ///
    /// # Errors
    /// [`CallError::Disconnected`] when the stream has ended or was half-closed.
    pub async fn send_message(&self, message: &impl Message) -> Result<(), CallError> {
        self.send_raw(frame_message(message)).await
    }

    /// Sends bytes as they are, without a prefix.
    ///
    /// # Errors
    /// [`CallError::Disconnected`] when the stream has ended or was half-closed.
    pub async fn send_raw(&self, bytes: Bytes) -> Result<(), CallError> {
        self.ready().await?.send_raw(bytes);
        Ok(())
    }

    /// Waits until the stream takes another chunk. Safe to drop while it waits.
    ///
    /// # Errors
    /// [`CallError::Disconnected`] when the stream has ended or was half-closed.
    pub async fn ready(&self) -> Result<Slot<'_>, CallError> {
        let gone = || CallError::Disconnected("the stream has ended".into());
        let chunks = self.chunks.as_ref().ok_or_else(gone)?;
        chunks.reserve().await.map(Slot).map_err(|_| gone())
    }

    /// Half-closes: no more messages will come.
    pub fn half_close(&mut self) {
        self.finished.store(true, Ordering::Release);
        self.chunks = None;
    }
}

/// A place in the stream's send queue, see [`Sender::ready`].
#[derive(Debug)]
pub struct Slot<'a>(mpsc::Permit<'a, Bytes>);

impl Slot<'_> {
    /// Sends bytes as they are, without a prefix.
    pub fn send_raw(self, bytes: Bytes) {
        self.0.send(bytes);
    }
}

/// The receiving half of a call. Its window opens only as far as messages are taken.
#[derive(Debug)]
pub struct Receiver {
    headers: HeaderMap,
    body: Incoming,
    frames: FrameReader,
    status: Option<Status>,
}

impl Receiver {
    pub(super) fn new(response: http::Response<Incoming>, limit: usize) -> Result<Self, CallError> {
        let (parts, body) = response.into_parts();
        if parts.status != StatusCode::OK {
            return Err(CallError::Http(parts.status));
        }
        let status = Status::from_headers(&parts.headers);
        Ok(Self {
            headers: parts.headers,
            body,
            frames: FrameReader::new(limit),
            status,
        })
    }

    /// Headers of the answer.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The status, once the call has ended; at once for a trailers-only answer.
    pub fn status(&self) -> Option<&Status> {
        self.status.as_ref()
    }

    /// The next message, or `None` when the call has ended with a status. Safe to drop while
    /// it waits: no bytes are lost.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn message(&mut self) -> Result<Option<Bytes>, CallError> {
        loop {
            if let Some(message) = self.frames.take_message().map_err(framing)? {
                return Ok(Some(message));
            }
            if self.status.is_some() {
                return Ok(None);
            }
            let body = &mut self.body;
            let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await;
            match frame {
                None => return Err(CallError::Framing("the stream ended without a status")),
                Some(Err(error)) => return Err(error.into()),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.frames.push(data),
                    Err(frame) => self.end(frame.trailers_ref())?,
                },
            }
        }
    }

    /// Takes messages until the call ends, and says how it ended.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn finish(&mut self) -> Result<Status, CallError> {
        while self.message().await?.is_some() {}
        Ok(self
            .status
            .clone()
            .expect("message() said the call has ended"))
    }

    /// The one message and the status of a unary call.
    pub(super) async fn answer(&mut self) -> Result<Answer, CallError> {
        let message = self.message().await?;
        if message.is_some() && self.message().await?.is_some() {
            return Err(CallError::Framing("a second message in a unary answer"));
        }
        let status = self
            .status
            .clone()
            .expect("message() said the call has ended");
        Ok(Answer {
            status,
            message,
            headers: std::mem::take(&mut self.headers),
        })
    }

    fn end(&mut self, trailers: Option<&HeaderMap>) -> Result<(), CallError> {
        if self.frames.is_mid_message() {
            return Err(CallError::Framing("the stream ended inside a message"));
        }
        let status = trailers.and_then(Status::from_headers);
        self.status = Some(status.ok_or(CallError::Framing("trailers without a status"))?);
        Ok(())
    }
}

fn framing(error: FrameError) -> CallError {
    CallError::Framing(match error {
        FrameError::Compressed => "a compressed message",
        FrameError::TooLong(_) => "a message over the receive limit",
    })
}
