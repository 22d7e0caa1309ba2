//! TLS as a client speaks it.

use super::wire::Wire;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, version};
use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

/// What carries HTTP/2: the bare wire, or TLS over it.
pub(super) type Carrier = Either<Wire, Box<TlsStream<Wire>>>;

/// TLS of a connection: whom it trusts, whom it expects, what it presents.
#[derive(Debug, Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// TLS 1.2.
    V1_2,
    /// TLS 1.3.
    V1_3,
}

impl Tls {
    /// Trusts the CA certificates in `ca_pem`, expects `localhost`, offers both versions and HTTP/2,
    /// presents nothing.
    ///
    /// # Errors
    /// A sentence when that is no PEM text with certificates.
    pub fn trusting(ca_pem: &str) -> Result<Self, String> {
        Self::new(ca_pem, None, &[&version::TLS13, &version::TLS12])
    }

    /// As [`Tls::trusting`], in one version.
    ///
    /// # Errors
    /// As [`Tls::trusting`].
    pub fn in_version(ca_pem: &str, wanted: Version) -> Result<Self, String> {
        let wanted = match wanted {
            Version::V1_2 => &version::TLS12,
            Version::V1_3 => &version::TLS13,
        };
        Self::new(ca_pem, None, &[wanted])
    }

    /// As [`Tls::trusting`], presenting a certificate.
    ///
    /// # Errors
    /// As [`Tls::trusting`], and when the key does not belong to the certificate.
    pub fn presenting(ca_pem: &str, certificate: &str, key: &str) -> Result<Self, String> {
        let own = Some((certificate, key));
        Self::new(ca_pem, own, &[&version::TLS13, &version::TLS12])
    }

    fn new(
        ca_pem: &str,
        own: Option<(&str, &str)>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(ca_pem)? {
            roots.add(certificate).map_err(|e| e.to_string())?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(|e| e.to_string())?
            .with_root_certificates(roots);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
                builder
                    .with_client_auth_cert(certificates(certificate)?, key.map_err(text)?)
                    .map_err(text)?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        let name = ServerName::try_from("localhost").map_err(text)?;
        Ok(Self {
            config: Arc::new(config),
            name,
        })
    }

    /// Expects another name.
    ///
    /// # Errors
    /// When it is neither a host name nor an IP address.
    pub fn named(mut self, name: &str) -> Result<Self, String> {
        self.name = ServerName::try_from(name.to_owned()).map_err(text)?;
        Ok(self)
    }

    /// Offers these protocols instead of HTTP/2.
    #[must_use]
    pub fn offering(mut self, protocols: &[&str]) -> Self {
        let protocols = protocols.iter().map(|p| p.as_bytes().to_vec());
        Arc::make_mut(&mut self.config).alpn_protocols = protocols.collect();
        self
    }

    /// The handshake on a bare socket.
    ///
    /// # Errors
    /// As the handshake fails.
    pub async fn connect(&self, tcp: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let connector = TlsConnector::from(Arc::clone(&self.config));
        connector.connect(self.name.clone(), tcp).await
    }

    pub(super) async fn secure(&self, wire: Wire) -> io::Result<Carrier> {
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let stream = connector.connect(self.name.clone(), wire).await?;
        Ok(Carrier::Right(Box::new(stream)))
    }
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    found.map_err(text)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
