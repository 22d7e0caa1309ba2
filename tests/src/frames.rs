//! A peer that speaks HTTP/2 frame by frame, and says exactly what the test tells it to.
//!
//! Responsible for framing and for waiting. Nothing is sent that was not asked for: no
//! acknowledgement, no window update, no answer to a PING. Every wait is bounded by [`PATIENCE`].

use std::io;
use std::net::SocketAddr;

use crate::agent::PATIENCE;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// What a client begins with.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame type.
pub const DATA: u8 = 0;
/// Frame type.
pub const HEADERS: u8 = 1;
/// Frame type.
pub const RST_STREAM: u8 = 3;
/// Frame type.
pub const SETTINGS: u8 = 4;
/// Frame type.
pub const PING: u8 = 6;
/// Frame type.
pub const GOAWAY: u8 = 7;
/// Frame type.
pub const WINDOW_UPDATE: u8 = 8;
/// Frame type.
pub const CONTINUATION: u8 = 9;

/// On DATA and HEADERS.
pub const END_STREAM: u8 = 1;
/// On SETTINGS and PING.
pub const ACK: u8 = 1;
/// On HEADERS and CONTINUATION.
pub const END_HEADERS: u8 = 4;

/// SETTINGS value.
pub const MAX_CONCURRENT_STREAMS: u16 = 3;
/// SETTINGS value.
pub const INITIAL_WINDOW_SIZE: u16 = 4;
/// SETTINGS value.
pub const MAX_HEADER_LIST_SIZE: u16 = 6;

/// Error code.
pub const REFUSED_STREAM: u32 = 7;
/// Error code.
pub const CANCEL: u32 = 8;
/// Error code.
pub const ENHANCE_YOUR_CALM: u32 = 11;

const HEADER_BYTES: usize = 9;

/// One frame.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its type.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// Its stream; 0 is the connection.
    pub stream: u32,
    /// What it carries.
    pub payload: Vec<u8>,
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            kind,
            flags,
            stream,
            payload,
        } = self;
        write!(
            f,
            "frame {kind} flags {flags} stream {stream} of {} bytes",
            payload.len()
        )?;
        match self.kind {
            GOAWAY | RST_STREAM => write!(f, " code {}", self.error_code()),
            _ => Ok(()),
        }
    }
}

impl Frame {
    /// A frame of these parts.
    pub fn new(kind: u8, flags: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            kind,
            flags,
            stream,
            payload: payload.into(),
        }
    }

    /// SETTINGS with these values.
    pub fn settings(values: &[(u16, u32)]) -> Self {
        let mut payload = Vec::new();
        for (id, value) in values {
            payload.extend(id.to_be_bytes());
            payload.extend(value.to_be_bytes());
        }
        Self::new(SETTINGS, 0, 0, payload)
    }

    /// A PING that carries this number.
    pub fn ping(number: u64) -> Self {
        Self::new(PING, 0, 0, number.to_be_bytes())
    }

    /// The answer to a PING with this payload.
    pub fn pong(ping: &Frame) -> Self {
        Self::new(PING, ACK, 0, ping.payload.clone())
    }

    /// RST_STREAM with CANCEL.
    pub fn reset(stream: u32) -> Self {
        Self::new(RST_STREAM, 0, stream, CANCEL.to_be_bytes())
    }

    /// WINDOW_UPDATE.
    pub fn window_update(stream: u32, by: u32) -> Self {
        Self::new(WINDOW_UPDATE, 0, stream, by.to_be_bytes())
    }

    /// The headers of a gRPC request; the body follows.
    pub fn request(stream: u32, path: &str, metadata: &[(&str, &str)]) -> Self {
        Self::new(
            HEADERS,
            END_HEADERS,
            stream,
            request_headers(path, metadata),
        )
    }

    /// A whole message as the last DATA of its stream.
    pub fn message(stream: u32, message: &[u8]) -> Self {
        let body = crate::raw::frame(message);
        Self::new(DATA, END_STREAM, stream, &body[..])
    }

    /// The number in a RST_STREAM, or the last one in a GOAWAY.
    ///
    /// # Panics
    /// When the frame is shorter.
    pub fn error_code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        let bytes = self.payload[at..at + 4].try_into().unwrap();
        u32::from_be_bytes(bytes)
    }

    /// The pairs in a SETTINGS frame.
    ///
    /// # Panics
    /// Never: the chunks have their length.
    pub fn values(&self) -> Vec<(u16, u32)> {
        let pairs = self.payload.chunks_exact(6);
        pairs
            .map(|pair| {
                let (id, value) = pair.split_at(2);
                (
                    u16::from_be_bytes(id.try_into().unwrap()),
                    u32::from_be_bytes(value.try_into().unwrap()),
                )
            })
            .collect()
    }

    fn put(&self, out: &mut Vec<u8>) {
        let len = u32::try_from(self.payload.len()).unwrap();
        out.extend(&len.to_be_bytes()[1..]);
        out.extend([self.kind, self.flags]);
        out.extend(self.stream.to_be_bytes());
        out.extend(&self.payload);
    }
}

/// A header block of literals that enter no table.
pub fn request_headers(path: &str, metadata: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    let fixed = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "gateway.test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    for (name, value) in fixed.iter().chain(metadata) {
        block.extend(literal(name, value));
    }
    block
}

/// One literal header field that enters no table.
pub fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut out = vec![0];
    for text in [name, value] {
        put_length(&mut out, text.len());
        out.extend(text.as_bytes());
    }
    out
}

/// An HPACK integer with a prefix of seven bits; the bit for Huffman stays 0.
fn put_length(out: &mut Vec<u8>, len: usize) {
    if len < 127 {
        return out.push(len as u8);
    }
    out.push(127);
    let mut rest = len - 127;
    while rest >= 128 {
        out.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    out.push(rest as u8);
}

/// One connection, on a socket or whatever else carries bytes.
#[derive(Debug)]
pub struct Peer<S = TcpStream> {
    carrier: S,
    inbox: Vec<u8>,
}

impl Peer {
    /// Connects and says nothing.
    ///
    /// # Panics
    /// When there is no connection.
    pub async fn dial(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.expect("a connection");
        socket.set_nodelay(true).expect("a socket");
        Self::over(socket)
    }

    /// Connects and sends the preface and SETTINGS with these values.
    ///
    /// # Panics
    /// When there is no connection.
    pub async fn open(address: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let mut peer = Self::dial(address).await;
        peer.begin(settings).await.expect("an open socket");
        peer
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    /// Over what is connected already; says nothing.
    pub fn over(carrier: S) -> Self {
        Self {
            carrier,
            inbox: Vec::new(),
        }
    }

    /// Sends the preface and SETTINGS with these values.
    ///
    /// # Errors
    /// What the carrier says.
    pub async fn begin(&mut self, settings: &[(u16, u32)]) -> io::Result<()> {
        self.write(PREFACE).await?;
        self.try_send(&[Frame::settings(settings)]).await
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// What the carrier says.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.carrier.write_all(bytes).await?;
        self.carrier.flush().await
    }

    /// Sends frames in one write.
    ///
    /// # Errors
    /// What the carrier says.
    pub async fn try_send(&mut self, frames: &[Frame]) -> io::Result<()> {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.put(&mut bytes));
        self.write(&bytes).await
    }

    /// Sends frames in one write.
    ///
    /// # Panics
    /// When the other side has closed.
    pub async fn send(&mut self, frames: &[Frame]) {
        self.try_send(frames).await.expect("an open socket");
    }

    /// The next frame; none when the other side has closed.
    ///
    /// # Panics
    /// When nothing comes within [`PATIENCE`].
    pub async fn next(&mut self) -> Option<Frame> {
        let received = tokio::time::timeout(PATIENCE, self.receive()).await;
        received.expect("a frame or the end of the connection")
    }

    /// As [`Peer::next`], however long it takes. Nothing is lost when the future is dropped.
    pub async fn receive(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.take_frame() {
                return Some(frame);
            }
            // A reset is an end like any other.
            if !matches!(self.carrier.read_buf(&mut self.inbox).await, Ok(1..)) {
                return None;
            }
        }
    }

    fn take_frame(&mut self) -> Option<Frame> {
        let &[a, b, c, kind, flags, d, e, f, g, ..] = self.inbox.as_slice() else {
            return None;
        };
        let end = HEADER_BYTES + u32::from_be_bytes([0, a, b, c]) as usize;
        if self.inbox.len() < end {
            return None;
        }
        let payload = self.inbox[HEADER_BYTES..end].to_vec();
        self.inbox.drain(..end);
        Some(Frame::new(
            kind,
            flags,
            u32::from_be_bytes([d, e, f, g]),
            payload,
        ))
    }

    /// The next frame that `wanted` picks; others are dropped.
    ///
    /// # Panics
    /// When the connection ends before.
    pub async fn until(&mut self, what: &str, wanted: impl Fn(&Frame) -> bool) -> Frame {
        let mut others = Vec::new();
        loop {
            match self.next().await {
                Some(frame) if wanted(&frame) => return frame,
                Some(frame) => others.push(frame),
                None => panic!("the connection ended before {what}: {others:?}"),
            }
        }
    }

    /// Everything until the other side closes.
    ///
    /// # Panics
    /// As [`Peer::next`].
    pub async fn closed(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            frames.push(frame);
        }
        frames
    }

    /// Sends a PING and waits for its answer: whatever was sent before has been read by then.
    ///
    /// # Panics
    /// When the connection ends before.
    pub async fn round_trip(&mut self, number: u64) {
        let ping = Frame::ping(number);
        let pong = Frame::pong(&ping);
        self.send(&[ping]).await;
        self.until("the answer to a PING", |frame| *frame == pong)
            .await;
    }

    /// The one message of an answer, from DATA frames that may be cut anywhere.
    ///
    /// # Panics
    /// When the connection ends before, or the answer has none.
    pub async fn answer(&mut self, stream: u32) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let frame = self
                .until("an answer", |frame| {
                    frame.stream == stream && [DATA, HEADERS].contains(&frame.kind)
                })
                .await;
            if frame.kind == DATA {
                body.extend(frame.payload);
            } else if frame.flags & END_STREAM != 0 {
                assert!(body.len() >= 5, "an answer without a message");
                return body.split_off(5);
            }
        }
    }
}
