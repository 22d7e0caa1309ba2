//! What a stub is started with.
//!
//! Responsible for the settings and their defaults. Must never show a token in `Debug`.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Who may enrol.
#[derive(Clone, PartialEq, Eq)]
pub enum Enrolment {
    /// Everyone.
    Open,
    /// Whoever brings one of these tokens; anyone else is denied with `invalid token`.
    Tokens(HashSet<String>),
    /// Nobody yet: not accepted, status `pending`, a reason that contains `pending`.
    Pending,
    /// Nobody: not accepted, status `denied`.
    Denied,
}

impl fmt::Debug for Enrolment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Enrolment::Open => f.write_str("Open"),
            Enrolment::Tokens(tokens) => write!(f, "Tokens({} tokens)", tokens.len()),
            Enrolment::Pending => f.write_str("Pending"),
            Enrolment::Denied => f.write_str("Denied"),
        }
    }
}

/// What a registration that carries a CSR gets back. Fixed text, nothing is signed.
#[derive(Clone, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// `RegisterResponse.issued_certificate`.
    pub certificate: String,
    /// `RegisterResponse.issued_ca_chain`.
    pub chain: String,
}

impl IssuedCertificate {
    /// Text in the shape of PEM that says of itself that it is no certificate.
    #[must_use]
    pub fn dummy() -> Self {
        let text = |what: &str| {
            format!(
                "-----BEGIN CERTIFICATE-----\nstub {what}, not real\n-----END CERTIFICATE-----\n"
            )
        };
        IssuedCertificate {
            certificate: text("certificate"),
            chain: text("chain"),
        }
    }
}

impl fmt::Debug for IssuedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "IssuedCertificate({} + {} bytes)",
            self.certificate.len(),
            self.chain.len()
        )
    }
}

/// Settings of a [`crate::StubServer`]. The defaults suit tests.
#[derive(Debug, Clone)]
pub struct StubConfig {
    /// Where to listen; port 0 takes a free port and keeps it over `kill` and `start_again`.
    pub listen: SocketAddr,
    /// Who may enrol.
    pub enrolment: Enrolment,
    /// Answer to a CSR; none: no certificate is returned.
    pub issued: Option<IssuedCertificate>,
    /// `SETTINGS_MAX_CONCURRENT_STREAMS` announced to new connections.
    pub stream_limit: u32,
    /// HTTP/2 ping interval and timeout. Off by default, since a paused clock would run through
    /// it; the real server has 60 s and 20 s.
    pub keepalive: Option<(Duration, Duration)>,
    /// Largest request message in bytes; larger ones end with 8.
    pub max_message_bytes: usize,
    /// Entries kept per RPC; older ones are dropped and counted.
    pub record_entries: usize,
    /// Request bytes kept per RPC; older entries are dropped and counted.
    pub record_bytes: usize,
    /// Agents in the directory; a new one beyond it ends with 14.
    pub max_agents: usize,
    /// Open connections; one beyond it is closed at once and counted.
    pub max_connections: usize,
    /// TLS of new connections; none: plaintext.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// How long a graceful shutdown waits for open calls before it cuts them.
    pub shutdown_grace: Duration,
}

impl Default for StubConfig {
    fn default() -> Self {
        StubConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            enrolment: Enrolment::Open,
            issued: None,
            stream_limit: 128,
            keepalive: None,
            max_message_bytes: 4_194_304,
            record_entries: 100_000,
            record_bytes: 64 << 20,
            max_agents: 200_000,
            max_connections: 4_096,
            tls: None,
            shutdown_grace: Duration::from_secs(5),
        }
    }
}
