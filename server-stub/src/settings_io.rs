//! A connection's bytes, with SETTINGS frames of our own put between those of the HTTP/2 library.
//!
//! Responsible for announcing a new stream limit on a live connection, which the library can't
//! do: the frame goes out at the next place where a frame may stand, and its acknowledgement is
//! taken out again, since the library never sent such a frame. Also counts the peer's pings.
//!
//! Must never change any other byte.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connection::Connection;
use crate::frame::{HEADER_LEN, PREFACE_LEN, Tracker, stream_limit_settings};

const READ_CHUNK: usize = 16 * 1024;
/// SETTINGS frames sent and not acknowledged; a peer that never acknowledges gets no more of ours.
const MAX_UNACKNOWLEDGED: usize = 64;

enum Sent {
    ByLibrary,
    ByUs(u32),
}

/// A TCP or TLS stream for the HTTP/2 library.
pub(crate) struct SettingsIo<I> {
    stream: I,
    connection: Arc<Connection>,
    outgoing: Tracker,
    /// The library's own SETTINGS are out, which must come first.
    started: bool,
    /// Our frame and how much of it is written.
    own_frame: Option<([u8; HEADER_LEN + 6], usize)>,
    unacknowledged: VecDeque<Sent>,
    incoming: Tracker,
    last_stream: u32,
    streams_seen: u64,
    preface_left: usize,
    /// A frame header that is not complete yet.
    held: Vec<u8>,
    /// Bytes for the library.
    ready: Vec<u8>,
    ready_at: usize,
    chunk: Box<[u8]>,
}

impl<I: AsyncRead + AsyncWrite + Unpin> SettingsIo<I> {
    pub(crate) fn new(stream: I, connection: Arc<Connection>) -> Self {
        SettingsIo {
            stream,
            connection,
            outgoing: Tracker::default(),
            started: false,
            own_frame: None,
            unacknowledged: VecDeque::new(),
            incoming: Tracker::default(),
            last_stream: 0,
            streams_seen: 0,
            preface_left: PREFACE_LEN,
            held: Vec::with_capacity(HEADER_LEN),
            ready: Vec::with_capacity(READ_CHUNK),
            ready_at: 0,
            chunk: vec![0; READ_CHUNK].into_boxed_slice(),
        }
    }

    /// Writes a waiting frame of ours if one may stand here. Pending only in the middle of one.
    fn poll_own_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.own_frame.is_none() {
            let room = self.unacknowledged.len() < MAX_UNACKNOWLEDGED;
            if !self.started || !room || !self.outgoing.at_boundary() {
                return Poll::Ready(Ok(()));
            }
            let Some(limit) = self.connection.take_announcement() else {
                return Poll::Ready(Ok(()));
            };
            self.own_frame = Some((stream_limit_settings(limit), 0));
            self.unacknowledged.push_back(Sent::ByUs(limit));
        }
        while let Some((frame, written)) = &mut self.own_frame {
            let n = ready!(Pin::new(&mut self.stream).poll_write(cx, &frame[*written..]))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *written += n;
            if *written == frame.len() {
                self.own_frame = None;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn note_outgoing(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (took, header) = self.outgoing.step(bytes);
            if header.is_some_and(|h| h.is_settings()) {
                self.unacknowledged.push_back(Sent::ByLibrary);
                self.started = true;
            }
            bytes = &bytes[took..];
        }
    }

    fn take_in(&mut self, len: usize) {
        let mut at = self.preface_left.min(len);
        self.preface_left -= at;
        self.ready.extend_from_slice(&self.chunk[..at]);
        while at < len {
            let in_header = !self.incoming.in_payload();
            let (took, header) = self.incoming.step(&self.chunk[at..len]);
            let bytes = &self.chunk[at..at + took];
            at += took;
            if in_header {
                self.held.extend_from_slice(bytes);
            } else {
                self.ready.extend_from_slice(bytes);
            }
            let Some(header) = header else { continue };
            if header.is_ping() {
                self.connection.count_ping();
            }
            if let Some(stream) = header.headers_of().filter(|id| *id > self.last_stream) {
                self.last_stream = stream;
                self.streams_seen += 1;
            }
            let ours = header
                .is_settings_ack()
                .then(|| self.unacknowledged.pop_front())
                .flatten();
            match ours {
                Some(Sent::ByUs(limit)) => self.connection.enforce(limit, self.streams_seen),
                Some(Sent::ByLibrary) | None => self.ready.extend_from_slice(&self.held),
            }
            self.held.clear();
        }
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncRead for SettingsIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let me = &mut *self;
        // A connection that has nothing to write is only ever polled here.
        me.connection.register(cx.waker());
        if let Poll::Ready(Err(err)) = me.poll_own_frame(cx) {
            return Poll::Ready(Err(err));
        }
        while me.ready_at == me.ready.len() {
            me.ready.clear();
            me.ready_at = 0;
            let mut chunk = ReadBuf::new(&mut me.chunk);
            ready!(Pin::new(&mut me.stream).poll_read(cx, &mut chunk))?;
            let len = chunk.filled().len();
            if len > 0 {
                me.take_in(len);
            } else if me.held.is_empty() {
                return Poll::Ready(Ok(()));
            } else {
                me.ready.append(&mut me.held);
            }
        }
        let n = (me.ready.len() - me.ready_at).min(buf.remaining());
        buf.put_slice(&me.ready[me.ready_at..me.ready_at + n]);
        me.ready_at += n;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for SettingsIo<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let me = &mut *self;
        ready!(me.poll_own_frame(cx))?;
        let n = ready!(Pin::new(&mut me.stream).poll_write(cx, buf))?;
        me.note_outgoing(&buf[..n]);
        Poll::Ready(Ok(n))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_own_frame(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
