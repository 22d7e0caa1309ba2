//! TLS from PEM files, for the listener and for the operator's connection.
//!
//! Responsible for reading the files and for saying which one is at fault. Must never fall back to
//! plaintext or to a peer that is not verified.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// Why files give no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read, or is not what it should be.
    #[error("{path}: {fault}", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        fault: String,
    },
    /// They do not go together.
    #[error("the TLS files do not go together: {0}")]
    Config(#[from] rustls::Error),
    /// The CA for clients is of no use.
    #[error("clients can not be verified: {0}")]
    Clients(#[from] VerifierBuilderError),
}

/// A certificate (its chain behind it) and its key.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// PEM file.
    pub certificate: &'a Path,
    /// PEM file.
    pub key: &'a Path,
}

/// What a listener serves with; with `client_ca` a client must show a certificate of that CA.
///
/// # Errors
/// A file is at fault, or they do not go together.
pub fn server(own: Identity<'_>, client_ca: Option<&Path>) -> Result<Arc<ServerConfig>, TlsError> {
    let builder =
        ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let roots = Arc::new(roots(file)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            builder.with_client_cert_verifier(verifier.build()?)
        }
    };
    let mut config = builder.with_single_cert(certificates(own.certificate)?, key(own.key)?)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// What a client speaks with: it trusts the CA of `ca` alone, and shows `own`.
///
/// # Errors
/// As [`server`].
pub fn client(ca: &Path, own: Option<Identity<'_>>) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(ca)?);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            builder.with_client_auth_cert(certificates(own.certificate)?, key(own.key)?)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn fault(path: &Path, fault: impl ToString) -> TlsError {
    TlsError::File {
        path: path.to_owned(),
        fault: fault.to_string(),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|error: io::Error| fault(path, error))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    match found {
        Ok(found) if found.is_empty() => Err(fault(path, "holds no PEM certificate")),
        Ok(found) => Ok(found),
        Err(error) => Err(fault(path, error)),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|_| fault(path, "holds no PEM private key"))
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| fault(path, error))?;
    }
    Ok(roots)
}
