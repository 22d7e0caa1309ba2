//! Whom the certificate of a connection lets it speak for.
//!
//! Responsible for the gate of a listener that enforces agent identities: without a certificate a
//! connection may only register, with one it speaks for the agent that the certificate names.
//! Must never ask where agents are not asked who they are.

use std::sync::Arc;

use tonic::Status;

use crate::edge::connection::Connection;
use crate::edge::tls::ServerTls;
use crate::observe::metrics::Metrics;
use crate::pki::{BadCertificate, PeerCertificate};

/// The gate of one listener.
#[derive(Debug)]
pub(crate) struct IdentityGate {
    tls: Arc<ServerTls>,
    metrics: Arc<Metrics>,
}

/// Why a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// Something other than Register without a certificate.
    NoCertificate,
    /// A certificate that can't be read.
    BadCertificate,
    /// On a revocation list by now.
    Revoked,
    /// The certificate names nobody, or another agent.
    AnotherAgent,
}

impl Refusal {
    /// Value of the label `reason`.
    fn label(self) -> &'static str {
        match self {
            Self::NoCertificate => "no_certificate",
            Self::BadCertificate => "bad_certificate",
            Self::Revoked => "revoked",
            Self::AnotherAgent => "identity_mismatch",
        }
    }

    fn status(self) -> Status {
        match self {
            Self::AnotherAgent => {
                Status::permission_denied("the certificate does not name this agent")
            }
            _ => Status::unauthenticated("a certificate of an agent is needed"),
        }
    }
}

impl IdentityGate {
    pub(crate) fn new(tls: Arc<ServerTls>, metrics: Arc<Metrics>) -> Self {
        Self { tls, metrics }
    }

    /// An agent that has no certificate yet registers to get one; whether it may is the server's
    /// decision.
    pub(super) fn may_register(
        &self,
        connection: &Connection,
        agent_id: &str,
    ) -> Result<(), Status> {
        match connection.peer_certificate() {
            None => Ok(()),
            Some(_) => self.speaks_for(connection, agent_id),
        }
    }

    /// The connection acts as this agent.
    pub(super) fn speaks_for(&self, connection: &Connection, agent_id: &str) -> Result<(), Status> {
        let peer = connection.peer_certificate();
        self.tell(self.certificate(peer).and_then(|peer| {
            let names = |prefix: &str| {
                let mut names = peer.uris.iter().filter_map(|uri| uri.strip_prefix(prefix));
                names.any(|name| name == agent_id)
            };
            match self.tls.with_agent_prefix(names) {
                Some(true) => Ok(()),
                Some(false) | None => Err(Refusal::AnotherAgent),
            }
        }))
    }

    /// The connection acts for a session that is bound to it.
    pub(super) fn shows_certificate(&self, connection: &Connection) -> Result<(), Status> {
        let peer = connection.peer_certificate();
        self.tell(self.certificate(peer).map(drop))
    }

    fn certificate<'a>(
        &self,
        peer: Option<Result<&'a PeerCertificate, BadCertificate>>,
    ) -> Result<&'a PeerCertificate, Refusal> {
        match peer {
            None => Err(Refusal::NoCertificate),
            Some(Err(BadCertificate)) => Err(Refusal::BadCertificate),
            Some(Ok(peer)) if self.tls.has_revoked(peer) => Err(Refusal::Revoked),
            Some(Ok(peer)) => Ok(peer),
        }
    }

    fn tell(&self, judged: Result<(), Refusal>) -> Result<(), Status> {
        judged.map_err(|refusal| {
            self.metrics
                .agent_identity_rejected_total
                .with_label_values(&[refusal.label()])
                .inc();
            refusal.status()
        })
    }
}
