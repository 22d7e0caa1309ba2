//! What carries HTTP/2 to the server: the bare socket, or TLS over it.
//!
//! Responsible for one type for both, and for remembering a TLS alert that HTTP/2 would reduce to
//! text: a server that refuses the client certificate says so after the handshake (TLS 1.3). Must
//! never change a byte.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

use super::error::ConnectError;
use crate::system::TcpStream;

/// The alert that ended a connection, once there was one.
pub(crate) type Alert = Arc<OnceLock<ConnectError>>;

/// The carrier.
#[derive(Debug)]
pub(crate) enum Carrier {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>, Alert),
}

impl Carrier {
    pub(crate) fn tls(stream: TlsStream<TcpStream>) -> Self {
        Self::Tls(Box::new(stream), Alert::default())
    }

    /// Where an alert of the server will be found.
    pub(crate) fn alert(&self) -> Alert {
        match self {
            Self::Plain(_) => Alert::default(),
            Self::Tls(_, alert) => Arc::clone(alert),
        }
    }
}

impl AsyncRead for Carrier {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_read(cx, buf),
            Self::Tls(io, alert) => {
                let polled = Pin::new(io).poll_read(cx, buf);
                if let Poll::Ready(Err(error)) = &polled
                    && error
                        .get_ref()
                        .is_some_and(|cause| cause.is::<rustls::Error>())
                {
                    // The first one says why.
                    let _ = alert.set(ConnectError::io(error));
                }
                polled
            }
        }
    }
}

impl AsyncWrite for Carrier {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write(cx, buf),
            Self::Tls(io, _) => Pin::new(io).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_flush(cx),
            Self::Tls(io, _) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Self::Tls(io, _) => Pin::new(io).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            Self::Tls(io, _) => Pin::new(io).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(io) => io.is_write_vectored(),
            Self::Tls(io, _) => io.is_write_vectored(),
        }
    }
}
