//! A thin reader over the socket that sees every byte before hyper does.
//!
//! Responsible for the time of the last received byte and for counting costly frames. Must never
//! change, hold or delay a byte.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::connection::Connection;
use super::flood::{FloodGuard, FloodLimits, FrameScanner};

/// The socket (or the TLS stream) of one connection.
#[derive(Debug)]
pub(crate) struct CountedIo<I> {
    inner: I,
    connection: Arc<Connection>,
    scanner: FrameScanner,
    guard: FloodGuard,
}

impl<I> CountedIo<I> {
    pub(crate) fn new(inner: I, connection: Arc<Connection>, limits: FloodLimits) -> Self {
        let guard = FloodGuard::new(limits, Instant::now());
        Self {
            inner,
            connection,
            scanner: FrameScanner::default(),
            guard,
        }
    }

    fn received(&mut self, bytes: &[u8]) -> io::Result<()> {
        let now = Instant::now();
        let mut flooded = None;
        let guard = &mut self.guard;
        let own_words = self.scanner.scan(bytes, |frame| {
            if guard.count(frame, now) {
                flooded = Some(frame);
            }
        });
        // hyper asks connections without streams too; their answers keep nothing open (LSN-12).
        if own_words || self.connection.has_streams() {
            self.connection
                .byte_received(now, self.scanner.spoke_http2());
        }
        match flooded {
            None => Ok(()),
            Some(frame) => {
                self.connection.flooded(frame);
                Err(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    "peer floods",
                ))
            }
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for CountedIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let received = &buf.filled()[before..];
        if !received.is_empty() {
            self.received(received)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for CountedIo<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
