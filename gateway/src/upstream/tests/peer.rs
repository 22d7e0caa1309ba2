//! A server made of single HTTP/2 frames, for what no stack lets one script: a stream limit that
//! changes, refused streams, GOAWAY at will.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{BufMut, Bytes, BytesMut};
use socket2::{SockFilter, SockRef};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use yuzu_proto::wire::GRPC_PREFIX;

use crate::upstream::frame::prefixed;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const MAX_CONCURRENT_STREAMS: u16 = 3;

/// What the client did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A stream opened.
    Opened(u32),
    /// Its request is complete.
    Complete(u32),
    /// The client reset it.
    Reset(u32),
    /// It acknowledged our SETTINGS.
    SettingsAcked,
    /// The connection is over.
    Closed,
}

/// One connection.
pub(crate) struct Peer {
    io: TcpStream,
    input: BytesMut,
    /// Streams opened and not ended.
    pub(crate) open: BTreeSet<u32>,
    /// PINGs answered.
    pub(crate) pings: usize,
    /// The bytes of each request, prefix included, until [`Peer::message`] takes them.
    bodies: BTreeMap<u32, BytesMut>,
}

impl Peer {
    /// Accepts a connection and announces `max_streams`.
    pub(crate) async fn accept(listener: &TcpListener, max_streams: Option<u32>) -> Self {
        let mut peer = Self::accept_silently(listener).await;
        peer.announce(max_streams).await;
        peer
    }

    /// Accepts a connection and announces nothing.
    pub(crate) async fn accept_silently(listener: &TcpListener) -> Self {
        let (mut io, _) = listener.accept().await.unwrap();
        io.set_nodelay(true).unwrap();
        let mut preface = [0; PREFACE.len()];
        io.read_exact(&mut preface).await.unwrap();
        assert_eq!(preface, PREFACE);
        Self {
            io,
            input: BytesMut::new(),
            open: BTreeSet::new(),
            pings: 0,
            bodies: BTreeMap::new(),
        }
    }

    /// Sends SETTINGS.
    pub(crate) async fn announce(&mut self, max_streams: Option<u32>) {
        let mut payload = BytesMut::new();
        if let Some(max) = max_streams {
            payload.put_u16(MAX_CONCURRENT_STREAMS);
            payload.put_u32(max);
        }
        self.send(SETTINGS, 0, 0, &payload).await;
    }

    /// The next thing the client did. Cancel safe.
    pub(crate) async fn next(&mut self) -> Seen {
        loop {
            let Some((kind, flags, stream, payload)) = self.frame().await else {
                return Seen::Closed;
            };
            match kind {
                HEADERS => {
                    assert!(flags & END_HEADERS != 0, "no CONTINUATION expected");
                    self.open.insert(stream);
                    return Seen::Opened(stream);
                }
                DATA => {
                    self.bodies.entry(stream).or_default().extend(&payload);
                    let mut increment = BytesMut::new();
                    increment.put_u32(payload.len() as u32);
                    self.send(WINDOW_UPDATE, 0, 0, &increment).await;
                    if flags & END_STREAM != 0 {
                        return Seen::Complete(stream);
                    }
                    self.send(WINDOW_UPDATE, 0, stream, &increment).await;
                }
                RST_STREAM => {
                    self.open.remove(&stream);
                    return Seen::Reset(stream);
                }
                SETTINGS if flags & ACK != 0 => return Seen::SettingsAcked,
                SETTINGS => self.send(SETTINGS, ACK, 0, &[]).await,
                PING if flags & ACK == 0 => {
                    self.send(PING, ACK, 0, &payload).await;
                    self.pings += 1;
                }
                _ => {}
            }
        }
    }

    /// The message of a complete request.
    pub(crate) fn message(&mut self, stream: u32) -> Bytes {
        let body = self.bodies.remove(&stream).expect("a request");
        body.freeze().split_off(GRPC_PREFIX)
    }

    /// Answers OK with `message` and ends the stream.
    pub(crate) async fn answer(&mut self, stream: u32, message: &[u8]) {
        let mut headers = BytesMut::new();
        // Index 8 of the static table: `:status: 200`.
        headers.put_u8(0x88);
        literal(&mut headers, "content-type", "application/grpc");
        self.send(HEADERS, END_HEADERS, stream, &headers).await;
        self.send(DATA, 0, stream, &prefixed(message)).await;
        let mut trailers = BytesMut::new();
        literal(&mut trailers, "grpc-status", "0");
        self.send(HEADERS, END_HEADERS | END_STREAM, stream, &trailers)
            .await;
        self.open.remove(&stream);
    }

    /// Resets a stream.
    pub(crate) async fn reset(&mut self, stream: u32, code: u32) {
        self.send(RST_STREAM, 0, stream, &code.to_be_bytes()).await;
        self.open.remove(&stream);
    }

    /// Sends GOAWAY without an error.
    pub(crate) async fn go_away(&mut self, last: u32) {
        let mut payload = BytesMut::new();
        payload.put_u32(last);
        payload.put_u32(0);
        self.send(GOAWAY, 0, 0, &payload).await;
    }

    /// From now on the system drops what comes and acknowledges nothing, as if it were not there.
    pub(crate) fn drop_what_comes(&self) {
        const RETURN: u16 = 0x06;
        let nothing = SockFilter::new(RETURN, 0, 0, 0);
        SockRef::from(&self.io).attach_filter(&[nothing]).unwrap();
    }

    async fn frame(&mut self) -> Option<(u8, u8, u32, Bytes)> {
        loop {
            if self.input.len() >= 9 {
                let len = u32::from_be_bytes([0, self.input[0], self.input[1], self.input[2]]);
                if self.input.len() >= 9 + len as usize {
                    let head = self.input.split_to(9);
                    let payload = self.input.split_to(len as usize).freeze();
                    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                    return Some((head[3], head[4], stream, payload));
                }
            }
            match self.io.read_buf(&mut self.input).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut frame = BytesMut::new();
        frame.put_uint(payload.len() as u64, 3);
        frame.put_u8(kind);
        frame.put_u8(flags);
        frame.put_u32(stream);
        frame.extend_from_slice(payload);
        self.io.write_all(&frame).await.unwrap();
    }
}

/// A literal header field without indexing, not Huffman coded.
fn literal(block: &mut BytesMut, name: &str, value: &str) {
    block.put_u8(0);
    for text in [name, value] {
        block.put_u8(text.len() as u8);
        block.extend_from_slice(text.as_bytes());
    }
}
