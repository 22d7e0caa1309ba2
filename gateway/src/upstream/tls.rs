//! TLS to the server.
//!
//! Responsible for reading the files anew at each connection (UPCH-3), for telling which of them
//! is at fault (UPCH-4, UPCH-5), and for the handshake. Must never print the path of a key, and
//! never try again: [`super::keeper`] does.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio_rustls::TlsConnector;

use super::carrier::Carrier;
use super::error::ConnectError;
use crate::config::{self, Endpoint, Scheme, UpstreamFile, UpstreamTls};
use crate::observe::log::limit::RateLimit;
use crate::observe::log::safe_text;
use crate::pki::{self, FileFault};
use crate::system::{TcpStream, spawn_blocking};

/// The label `kind` of files that TLS can't be spoken with.
pub(crate) const BAD_TLS_OPTIONS: &str = "bad_tls_options";

/// While files are at fault, the log says so this often.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// How connections to the server are secured.
#[derive(Debug)]
pub(crate) struct ClientTls {
    files: UpstreamTls,
    /// Whether the latest attempt found its files usable.
    usable: AtomicBool,
    report: Mutex<RateLimit>,
}

/// A file of `[upstream.tls]` that can't be used, as an operator is told.
#[derive(Debug, PartialEq, Eq)]
struct Unusable(String);

impl ClientTls {
    /// `None` for plaintext endpoints.
    pub(crate) fn new(upstream: &config::Upstream) -> Option<Self> {
        (upstream.scheme == Scheme::Https).then(|| Self {
            files: upstream.tls.clone(),
            usable: AtomicBool::new(true),
            report: Mutex::new(RateLimit::new(REPORT_INTERVAL)),
        })
    }

    /// See [`super::Upstream::warn_of_files`].
    pub(crate) async fn warn_of_files(&self, endpoint: &Endpoint) {
        let files = self.files.clone();
        let read = move || files.faults(&files.read());
        // A panic there says nothing of the files; the first connection will.
        let faults = spawn_blocking(read).await.unwrap_or_default();
        for (file, fault) in faults {
            let shown = shown(file, &self.files);
            tracing::warn!(
                "Upstream channel default_channel endpoint {endpoint}: {shown} {fault}. Every \
                 connection to it fails until this is fixed. The gateway starts anyway and keeps \
                 trying ({})",
                file.key()
            );
        }
    }

    /// Whether no file was at fault at the latest attempt.
    pub(crate) fn files_usable(&self) -> bool {
        self.usable.load(Ordering::Relaxed)
    }

    /// The latest attempt did not come to TLS: nothing is known of the files (UPCH-5).
    pub(crate) fn not_reached(&self) {
        self.usable.store(true, Ordering::Relaxed);
    }

    /// The handshake on a fresh connection to `endpoint`.
    ///
    /// # Errors
    /// `tls_alert` with the alert's name, or `other` with [`BAD_TLS_OPTIONS`].
    pub(crate) async fn secure(
        &self,
        stream: TcpStream,
        endpoint: &Endpoint,
    ) -> Result<Carrier, ConnectError> {
        let files = self.files.clone();
        let config = spawn_blocking(move || client_config(&files))
            .await
            .unwrap_or_else(|_panic| Err(Unusable("the files cannot be read".into())));
        let config = match config {
            Ok(config) => {
                self.files_are_usable();
                config
            }
            Err(unusable) => {
                self.usable.store(false, Ordering::Relaxed);
                self.report_files(&unusable);
                return Err(ConnectError::tls("other", BAD_TLS_OPTIONS, unusable.0));
            }
        };
        let name = match self.files.server_name.is_empty() {
            true => &endpoint.host,
            false => &self.files.server_name,
        };
        let name = ServerName::try_from(name.trim_end_matches('.').to_owned())
            .map_err(|_| ConnectError::new("other", "the endpoint's host is no server name"))?;
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector
            .connect(name, stream)
            .await
            .map_err(|error| ConnectError::io(&error))?;
        if stream.get_ref().1.alpn_protocol() != Some(pki::ALPN_H2) {
            let text = "the server does not speak http/2 (ALPN)";
            return Err(ConnectError::tls(
                "tls_alert",
                "no_application_protocol",
                text,
            ));
        }
        Ok(Carrier::tls(stream))
    }

    fn files_are_usable(&self) {
        if !self.usable.swap(true, Ordering::Relaxed) {
            // The next fault is told at once.
            *self.report() = RateLimit::new(REPORT_INTERVAL);
        }
    }

    fn report(&self) -> std::sync::MutexGuard<'_, RateLimit> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report_files(&self, unusable: &Unusable) {
        if self.report().admit(Instant::now()).is_some() {
            tracing::error!(
                "Upstream channel default_channel: the TLS client options cannot be used, so every \
                 connection fails: {}. The gateway keeps retrying and /readyz stays 503 until this \
                 is fixed",
                unusable.0
            );
        }
    }
}

/// A file as operators know it, with its path unless it is a key.
fn shown(file: UpstreamFile, files: &UpstreamTls) -> String {
    let with_path = |name: &str, path: &Path| {
        let path = path.to_string_lossy();
        format!("{name} {}", safe_text(path.as_bytes()))
    };
    match file {
        UpstreamFile::Authorities => with_path("cacertfile", &files.ca_file),
        UpstreamFile::Certificate => with_path("certfile", &files.cert_file),
        UpstreamFile::Key => "keyfile".into(),
    }
}

/// What the files say now. Blocks.
fn client_config(tls: &UpstreamTls) -> Result<ClientConfig, Unusable> {
    let files = tls.read();
    let told = |(file, fault): &(UpstreamFile, FileFault)| format!("{} {fault}", shown(*file, tls));
    let faults: Vec<_> = tls.faults(&files).iter().map(told).collect();
    if !faults.is_empty() {
        return Err(Unusable(faults.join("; ")));
    }
    let at = |file| move |fault| Unusable(told(&(file, fault)));
    let builder = ClientConfig::builder_with_provider(pki::provider())
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|error| Unusable(error.to_string()))?;
    let builder = if tls.ca_file.as_os_str().is_empty() {
        // Refused at the start unless a lab switch asks for it (BOOT-13).
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(TakesAnyServer))
    } else {
        let pem = files.bytes(&tls.ca_file);
        let roots = pem
            .and_then(pki::certificates)
            .and_then(|found| pki::roots(&found));
        builder.with_root_certificates(roots.map_err(at(UpstreamFile::Authorities))?)
    };
    let mut config = if tls.cert_file.as_os_str().is_empty() {
        builder.with_no_client_auth()
    } else {
        let certificate = files.bytes(&tls.cert_file);
        let certificate = certificate.map_err(at(UpstreamFile::Certificate))?;
        let key = files.bytes(&tls.key_file).map_err(at(UpstreamFile::Key))?;
        let own = pki::certified_key(certificate, key);
        let own = own.map_err(|fault| Unusable(fault.to_string()))?;
        builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)))
    };
    config.alpn_protocols = vec![pki::ALPN_H2.to_vec()];
    // Each connection shows the certificate as it is then.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// Takes whoever answers for the server. For rigs.
#[derive(Debug)]
struct TakesAnyServer;

impl ServerCertVerifier for TakesAnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = pki::provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = pki::provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = pki::provider().signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}
