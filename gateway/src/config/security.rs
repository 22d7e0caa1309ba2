//! The shape of TLS and of who may manage, with their defaults; a part of [`super::schema`].
//!
//! Responsible for names, types and defaults only.

use std::path::PathBuf;
use std::time::Duration;

use super::schema::{Listener, Service};
pub use crate::pki::{KeyPin, Serial};

/// What a listener asks of its peers' certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// None is asked for.
    None,
    /// Asked for; a peer without one is served, one with a bad one is not.
    Request,
    /// A peer without a good one is not served.
    Require,
}

/// Least version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVersion {
    /// 1.2 and 1.3.
    V1_2,
    /// 1.3 alone.
    V1_3,
}

/// `[listener.tls]`. PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerTls {
    /// The listener's certificate, with its chain behind it.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
    /// The CAs of client certificates.
    pub ca_file: PathBuf,
    /// What is asked of clients: nothing of agents, a certificate of whoever manages and of nodes.
    pub client_auth: ClientAuth,
    /// Least version.
    pub min_version: TlsVersion,
    /// Revocation lists for client certificates; with any, a certificate whose issuer has no list
    /// is refused.
    pub crl_files: Vec<PathBuf>,
    /// An agent speaks for the id that its certificate names, and without one may only register.
    pub enforce_agent_identity: bool,
}

impl ListenerTls {
    /// The defaults, without files, of a listener that serves `services`.
    pub fn of(services: &[Service]) -> Self {
        let mut services = services.iter();
        let is_guarded = services.any(|s| matches!(s, Service::Management | Service::Node));
        Self {
            cert_file: PathBuf::new(),
            key_file: PathBuf::new(),
            ca_file: PathBuf::new(),
            client_auth: if is_guarded {
                ClientAuth::Require
            } else {
                ClientAuth::None
            },
            min_version: TlsVersion::V1_2,
            crl_files: Vec::new(),
            enforce_agent_identity: false,
        }
    }
}

/// How the server is spoken to, the same way at all of its endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheme {
    /// Plaintext.
    #[default]
    Http,
    /// TLS by [`UpstreamTls`].
    Https,
}

/// `[upstream.tls]`. PEM files; an empty path is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UpstreamTls {
    /// The CA of the server, and the only one that is trusted.
    pub ca_file: PathBuf,
    /// The gateway's client certificate.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
    /// The name that the server's certificate must have; empty is the endpoint's host.
    pub server_name: String,
}

/// What admits a management peer (MGMT-AUTH-2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerAuthMode {
    /// A pinned key.
    Pin,
    /// The identity in its certificate, and a pinned key when there are pins.
    Identity,
    /// Either.
    IdentityOrPin,
}

/// One entry of `management.peer_pins`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerPin {
    /// The key of the first certificate in this file, followed when the file changes.
    CertFile(PathBuf),
    /// This key.
    Spki(KeyPin),
    /// An entry that could not be read: it pins nothing and stays counted (MGMT-AUTH-11).
    Malformed,
}

/// `[management]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Management {
    /// What admits a peer.
    pub peer_auth_mode: PeerAuthMode,
    /// The server's identity; empty is derived from the listener's CA file (MGMT-AUTH-8).
    pub peer_identity: String,
    /// Pinned keys.
    pub peer_pins: Vec<PeerPin>,
    /// Serials of certificates that are refused in every mode (MGMT-AUTH-10).
    pub peer_denied: Vec<Serial>,
    /// Time between two looks at the certificate files (CERT-1).
    pub pin_refresh: Duration,
}

impl Listener {
    /// Whether management calls are authorized here: it asks for the certificate to judge by.
    pub fn guards_management(&self) -> bool {
        let asks = |tls: &ListenerTls| tls.client_auth != ClientAuth::None;
        self.serves(Service::Management) && self.tls.as_ref().is_some_and(asks)
    }
}

/// `[lab]`: for rigs and tests, never for production.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lab {
    /// Boot without a listener that serves agents.
    pub allow_no_listeners: bool,
    /// Boot without an upstream endpoint.
    pub allow_no_upstream: bool,
    /// A management listener beyond loopback without mutual TLS.
    pub allow_insecure_management: bool,
    /// An upstream that is not verified.
    pub allow_unverified_upstream: bool,
}
