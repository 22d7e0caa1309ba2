//! The socket under a connection, with a hand on it.
//!
//! Responsible for cutting the connection without a farewell and for pausing reads, so that the
//! peer sees a full socket. Must never alter bytes.

use super::socket::{Socket, reset_at_close};
use futures_util::task::AtomicWaker;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What a holder of the connection may do to its socket.
#[derive(Debug, Default)]
pub(super) struct Control {
    cut: AtomicBool,
    reset: AtomicBool,
    paused: AtomicBool,
    received: AtomicU64,
    reader: AtomicWaker,
}

impl Control {
    /// Ends the socket now: with a TCP reset, or with an ordinary close.
    pub(super) fn cut(&self, reset: bool) {
        self.reset.store(reset, Ordering::Release);
        self.cut.store(true, Ordering::Release);
        self.reader.wake();
    }

    /// Stops or resumes reading from the socket.
    pub(super) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Release);
        self.reader.wake();
    }

    /// Bytes read from the socket so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    fn check(&self) -> io::Result<()> {
        if self.cut.load(Ordering::Acquire) {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "cut by the test",
            ));
        }
        Ok(())
    }
}

/// The socket.
#[derive(Debug)]
pub(super) struct Wire {
    socket: Socket,
    control: Arc<Control>,
}

impl Wire {
    pub(super) fn new(socket: Socket, control: Arc<Control>) -> Self {
        Self { socket, control }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.control.reader.register(cx.waker());
        this.control.check()?;
        if this.control.paused.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.socket).poll_read(cx, buf);
        let read = (buf.filled().len() - before) as u64;
        this.control.received.fetch_add(read, Ordering::Relaxed);
        polled
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.control.check()?;
        Pin::new(&mut self.get_mut().socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.control.check()?;
        Pin::new(&mut self.get_mut().socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.control.reset.load(Ordering::Acquire) {
            reset_at_close(&self.socket);
        }
    }
}
