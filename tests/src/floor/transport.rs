//! What a connection of a floor is carried by: the bare socket, or TLS over it.
//!
//! Responsible for the TLS that the floors serve: the certificate alone, TLS 1.3, nothing kept for
//! resumption, as the gateway's agent listener. Must never look at a byte.

use crate::certs::{Authority, Directory};
use crate::raw::{Tls, Version};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

/// What agents and a subject need for TLS between them, in files that are gone with this value.
#[derive(Debug)]
pub(super) struct Certificates {
    _directory: Directory,
    pub(super) ca_file: PathBuf,
    pub(super) cert_file: PathBuf,
    pub(super) key_file: PathBuf,
    /// How agents connect.
    pub(super) client: Tls,
}

impl Certificates {
    pub(super) fn new() -> Result<Self, String> {
        let (authority, directory) = (Authority::new("scale"), Directory::new());
        let (cert_file, key_file) = directory.write_leaf("gateway", &authority.gateway());
        let pem = authority.pem();
        Ok(Self {
            ca_file: directory.write("ca.pem", &pem),
            client: Tls::in_version(&pem, Version::V1_3)?,
            cert_file,
            key_file,
            _directory: directory,
        })
    }
}

/// What a floor serves TLS with.
///
/// # Errors
/// A sentence for the user, when the files are not a certificate and its key.
pub fn server_config(cert_file: &Path, key_file: &Path) -> Result<Arc<ServerConfig>, String> {
    let of = |file: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let chain = CertificateDer::pem_file_iter(cert_file).map_err(|e| of(cert_file, &e))?;
    let chain: Result<Vec<_>, _> = chain.collect();
    let chain = chain.map_err(|e| of(cert_file, &e))?;
    let key = PrivateKeyDer::from_pem_file(key_file).map_err(|e| of(key_file, &e))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|e| e.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|e| of(cert_file, &e))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The carrier. TLS is boxed: its state is many times a socket's.
#[derive(Debug)]
pub(super) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Transport {
    /// The carrier over an accepted socket, after the handshake if there is one.
    pub(super) async fn over(
        socket: TcpStream,
        tls: Option<Arc<ServerConfig>>,
    ) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        Ok(match tls {
            None => Self::Plain(socket),
            Some(config) => Self::Tls(Box::new(TlsAcceptor::from(config).accept(socket).await?)),
        })
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_read(cx, buf),
            Self::Tls(io) => Pin::new(io).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write(cx, buf),
            Self::Tls(io) => Pin::new(io).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            Self::Tls(io) => Pin::new(io).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(io) => io.is_write_vectored(),
            Self::Tls(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_flush(cx),
            Self::Tls(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Self::Tls(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}

impl Connected for Transport {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}
