//! TLS of one listener.
//!
//! Responsible for the handshake, off the accept loop and within its time (LSN-3, LSN-10), for
//! counting those that fail by kind (LSN-14), and for taking new credentials without touching an
//! open connection. Must never read a file, and never decide what an authenticated peer may do.

mod failure;
mod stream;
mod verifier;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;
use rustls::version::{TLS12, TLS13};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::debug;
use webpki::CertRevocationList;

use super::connection::Connection;
use crate::config::{ClientAuth, ListenerTls, TlsVersion};
use crate::observe::metrics::Metrics;
use crate::pki::{self, Credentials, PeerCertificate};
use crate::system::TcpStream;
use failure::HandshakeFailure;
pub(crate) use failure::KINDS;
pub(crate) use stream::{Transport, keying_material};

/// The TLS of a listener, as it is in force.
#[derive(Debug)]
pub(crate) struct ServerTls {
    listener: String,
    tls: ListenerTls,
    in_force: ArcSwap<Prepared>,
    metrics: Arc<Metrics>,
}

/// Credentials that TLS can't be served with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("TLS cannot be served: {0}")]
pub(crate) struct Unservable(String);

impl ServerTls {
    /// # Errors
    /// When the credentials do not fit together; their files were judged before.
    pub(crate) fn new(
        listener: &str,
        tls: &ListenerTls,
        credentials: &Credentials,
        metrics: Arc<Metrics>,
    ) -> Result<Self, Unservable> {
        for kind in KINDS {
            metrics
                .listener_tls_handshake_failures_total
                .with_label_values(&[listener, kind]);
        }
        let prepared = Prepared::of(tls, credentials)?;
        Ok(Self {
            listener: listener.to_owned(),
            tls: tls.clone(),
            in_force: ArcSwap::from_pointee(prepared),
            metrics,
        })
    }

    /// Makes what serves other credentials; nothing changes until it is [`put`](Self::put).
    ///
    /// # Errors
    /// As [`ServerTls::new`].
    pub(crate) fn prepare(&self, credentials: &Credentials) -> Result<Prepared, Unservable> {
        Prepared::of(&self.tls, credentials)
    }

    /// Serves every handshake from now on with `prepared`. Open connections keep what they have.
    pub(crate) fn put(&self, prepared: Prepared) {
        self.in_force.store(Arc::new(prepared));
    }

    /// What `ask` says about the beginning of the names that the CA in force gives to agents;
    /// `None` where their identities are not enforced.
    pub(crate) fn with_agent_prefix<T>(&self, ask: impl FnOnce(&str) -> T) -> Option<T> {
        let in_force = self.in_force.load();
        in_force.agent_prefix.as_deref().map(ask)
    }

    /// Whether a list in force names the certificate. The handshake has asked the lists of its
    /// time; a connection may outlive them.
    pub(crate) fn has_revoked(&self, peer: &PeerCertificate) -> bool {
        let in_force = self.in_force.load();
        let mut lists = in_force.revoked.iter();
        lists.any(|list| {
            // A list that can't be searched withdraws whatever it may speak of.
            list.issuer() == peer.issuer
                && list
                    .find_serial(&peer.raw_serial)
                    .map_or(true, |found| found.is_some())
        })
    }

    /// The handshake on a fresh connection, within `time` (LSN-3). `None`: it failed and is
    /// counted, or the connection is asked to end.
    pub(crate) async fn secure(
        &self,
        stream: TcpStream,
        connection: &Connection,
        time: Duration,
    ) -> Option<Transport> {
        let accepted = TlsAcceptor::from(Arc::clone(&self.in_force.load().config)).accept(stream);
        let handshake = async {
            match timeout(time, accepted).await {
                Ok(Ok(stream)) => Ok(stream),
                Ok(Err(error)) => Err(HandshakeFailure::of(&error)),
                Err(_) => Err(HandshakeFailure::Timeout),
            }
        };
        let stream = tokio::select! {
            result = handshake => result,
            // One without a request has nothing to finish.
            () = connection.asked_to_end() => return None,
        };
        match stream {
            Ok(stream) => {
                self.remember_peer(&stream, connection);
                Some(Transport::Right(Box::new(stream)))
            }
            Err(failure) => {
                let kind = failure.kind();
                self.metrics
                    .listener_tls_handshake_failures_total
                    .with_label_values(&[&*self.listener, kind])
                    .inc();
                debug!(listener = %self.listener, kind, "TLS handshake failed");
                None
            }
        }
    }

    fn remember_peer(
        &self,
        stream: &tokio_rustls::server::TlsStream<TcpStream>,
        connection: &Connection,
    ) {
        if self.tls.client_auth == ClientAuth::None {
            return;
        }
        let presented = stream.get_ref().1.peer_certificates();
        if let Some(certificate) = presented.and_then(<[_]>::first) {
            connection.authenticated(PeerCertificate::parse(certificate));
        }
    }
}

/// What [`ServerTls::put`] puts in force.
#[derive(Debug)]
pub(crate) struct Prepared {
    config: Arc<ServerConfig>,
    revoked: Arc<[CertRevocationList<'static>]>,
    agent_prefix: Option<String>,
}

impl Prepared {
    fn of(tls: &ListenerTls, credentials: &Credentials) -> Result<Self, Unservable> {
        let config = server_config(tls.client_auth, tls.min_version, credentials)?;
        let agent_prefix = match &credentials.authorities[..] {
            [one] if tls.enforce_agent_identity => Some(pki::agent_identity_prefix(one)),
            _ => None,
        };
        Ok(Self {
            config: Arc::new(config),
            revoked: Arc::clone(&credentials.revoked),
            agent_prefix,
        })
    }
}

fn server_config(
    client_auth: ClientAuth,
    min_version: TlsVersion,
    credentials: &Credentials,
) -> Result<ServerConfig, Unservable> {
    let versions: &[_] = match min_version {
        TlsVersion::V1_2 => &[&TLS13, &TLS12],
        TlsVersion::V1_3 => &[&TLS13],
    };
    let unservable = |error: &dyn std::fmt::Display| Unservable(error.to_string());
    let builder = ServerConfig::builder_with_provider(pki::provider())
        .with_protocol_versions(versions)
        .map_err(|error| unservable(&error))?;
    let builder = match verifier::of(client_auth, credentials).map_err(|e| unservable(&e))? {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let own = SingleCertAndKey::from(Arc::clone(&credentials.own));
    let mut config = builder.with_cert_resolver(Arc::new(own));
    config.alpn_protocols = vec![pki::ALPN_H2.to_vec()];
    // A resumed session would stand on the CA and the lists of its first handshake. gRPC clients
    // do not resume, so nothing is lost, and no state is kept for peers that are gone.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}
