//! Making a link from this side: TCP, TLS, HTTP/2, the two proofs.
//!
//! Responsible for one attempt within its time, and for the connection until it ends. Must never try
//! again, nor use a connection whose peer has not proven itself.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::version::TLS13;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tracing::{debug, warn};
use yuzu_proto::node::v1::ProveResponse;
use yuzu_proto::path;

use super::calls::Calls;
use super::failure::{Failure, Fault};
use super::handshake::{Binding, Dialling, Identity};
use super::table::Side;
use super::timer::LazyTimer;
use super::{Closer, LinkUser, Mesh, tls, unary};
use crate::cluster::secret::random;
use crate::config::{ClusterTls, Endpoint};
use crate::observe::log::safe_text;
use crate::pki::{self, Credentials, Snapshot};
use crate::system::{TcpStream, lookup_host, spawn_blocking};

/// For the whole way from the look-up to the second proof.
const PATIENCE: Duration = Duration::from_secs(5);
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;
/// What a link's keying material is made for (RFC 5705).
pub(super) const BINDING_LABEL: &[u8] = b"EXPORTER-yuzu-node-v1";

/// Whom to dial.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) name: Arc<str>,
    pub(crate) incarnation: u64,
    /// None: its address can't be read.
    pub(crate) address: Option<Endpoint>,
    /// It may be gone any moment.
    pub(crate) is_stopping: bool,
}

/// As a line of the log names it.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        safe_text(&*self.name).fmt(f)?;
        match &self.address {
            Some(address) => write!(f, " at {}", safe_text(&address.to_string())),
            None => Ok(()),
        }
    }
}

/// How this node dials.
#[derive(Debug)]
pub(crate) struct Dialler {
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) tls: ClusterTls,
    /// A peer that answers no PING for this long is gone.
    pub(crate) patience: Duration,
    /// What links are made for.
    pub(crate) user: Arc<dyn LinkUser>,
}

/// Moves frames until the connection ends; a fault, if TLS ended it.
type Driver = Pin<Box<dyn Future<Output = Option<Fault>> + Send>>;
/// A proven peer, its connection and what moves the frames of it.
type Connected = (Identity, Calls, Driver);

impl Dialler {
    /// Makes a link and holds it until it ends. False: there was none; a failure is counted, unless
    /// it is that of a peer that stops.
    pub(crate) async fn link(&self, target: &Target) -> bool {
        let outcome = timeout(PATIENCE, self.connect(target)).await;
        let (peer, calls, driver) = match outcome.unwrap_or(Err(Failure::Timeout.into())) {
            Ok(Some(connected)) => connected,
            // It met itself, at an address that was told in an earlier life.
            Ok(None) => return false,
            Err(fault) if target.is_stopping => {
                debug!(node = %safe_text(&*target.name), ?fault, "no link with a peer that stops");
                return false;
            }
            Err(fault) => {
                self.mesh.failed(fault, target);
                return false;
            }
        };
        let (closer, mut closed) = watch::channel(());
        let link = self
            .mesh
            .admit(peer.clone(), Side::Dialler, Closer::Dialler(closer));
        match link {
            Ok(_link) => {
                tokio::select! {
                    _ = driver => {}
                    () = calls.stuck() => {
                        warn!(node = %safe_text(&*peer.name), "Cluster: the peer takes nothing of what it is sent");
                    }
                    // The closer was dropped.
                    _ = closed.changed() => {}
                    () = Arc::clone(&self.user).dialled(peer.clone(), calls.clone()) => {}
                }
                true
            }
            Err(failure) => {
                self.mesh.failed(failure, target);
                false
            }
        }
    }

    async fn connect(&self, target: &Target) -> Result<Option<Connected>, Fault> {
        let address = target.address.as_ref().ok_or(Failure::Resolve)?;
        let stream = tcp(address).await?;
        match self.tls.is_set() {
            false => self.prove(stream, None, target).await,
            true => {
                let stream = self.secure(stream, address).await?;
                let exported =
                    stream
                        .get_ref()
                        .1
                        .export_keying_material([0; 32], BINDING_LABEL, None);
                let binding = exported
                    .map_err(|_| Failure::Tls.because("the connection has no keys".to_owned()))?;
                self.prove(stream, Some(binding), target).await
            }
        }
    }

    /// TLS 1.3 alone: the binding needs it, and both sides are this gateway.
    async fn secure(
        &self,
        stream: TcpStream,
        address: &Endpoint,
    ) -> Result<tokio_rustls::client::TlsStream<TcpStream>, Fault> {
        let files = self.tls.clone();
        let config = spawn_blocking(move || client_config(&files)).await;
        let config = config.map_err(|_| Failure::Tls)?.map_err(|fault| {
            tracing::error!("Cluster: no peer can be dialled: {fault}");
            Failure::Tls.because(fault)
        })?;
        let name = match self.tls.server_name.is_empty() {
            true => &address.host,
            false => &self.tls.server_name,
        };
        let name = ServerName::try_from(name.trim_end_matches('.').to_owned());
        let name = name.map_err(|_| {
            let why = "its address is no name that a certificate can have";
            Failure::Tls.because(why.to_owned())
        })?;
        let connected = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await;
        connected.map_err(|error| tls::failed(&error))
    }

    /// HTTP/2, then the handshake.
    async fn prove<S>(
        &self,
        stream: S,
        binding: Binding,
        target: &Target,
    ) -> Result<Option<Connected>, Fault>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut calls, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(LazyTimer)
            .keep_alive_interval(self.patience / 3)
            .keep_alive_timeout(self.patience / 2)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|_| Failure::Refused)?;
        let mut driver: Driver = Box::pin(async move {
            let error = connection.await.err()?;
            debug!(%error, "the connection to a peer ended");
            tls::ended(&error)
        });
        let (outcome, ended) = {
            let mut shake = pin!(self.shake(&mut calls, binding, target));
            tokio::select! {
                outcome = &mut shake => (outcome, None),
                // What the peer refuses with comes right before the end.
                ended = &mut driver => {
                    let outcome = shake.now_or_never().unwrap_or(Err(Failure::Refused));
                    (outcome.and(Err(Failure::Refused)), Some(ended))
                }
            }
        };
        match outcome {
            Ok(peer) => Ok(peer.map(|peer| (peer, Calls::new(calls), driver))),
            Err(Failure::Refused) => {
                let ended = ended.or_else(|| driver.now_or_never());
                Err(ended.flatten().unwrap_or(Failure::Refused.into()))
            }
            Err(failure) => Err(failure.into()),
        }
    }

    async fn shake(
        &self,
        calls: &mut http2::SendRequest<tonic::body::Body>,
        binding: Binding,
        target: &Target,
    ) -> Result<Option<Identity>, Failure> {
        let mesh = &self.mesh;
        let (dialling, hello) = Dialling::begin(&mesh.own, &mesh.address(), random(), binding)?;
        let answer = unary::call(calls, path::NODE_HELLO, &hello).await?;
        let (peer, prove) = dialling.answered(&answer, &mesh.keys)?;
        if peer.instance == mesh.own.instance {
            return Ok(None);
        }
        if peer.name != target.name || peer.incarnation != target.incarnation {
            return Err(Failure::UnexpectedNode);
        }
        let proven = unary::call::<ProveResponse>(calls, path::NODE_PROVE, &prove).await;
        // It has proven itself, so a namesake is known, whatever it answers (MESH-6). Not before: the
        // older one is to count it.
        mesh.judge_namesake(&peer);
        proven?;
        Ok(Some(peer))
    }
}

async fn tcp(address: &Endpoint) -> Result<TcpStream, Failure> {
    let found = lookup_host((address.host.as_str(), address.port)).await;
    let found = found.map_err(|_| Failure::Resolve)?;
    let mut last = Failure::Resolve;
    for address in found.take(ADDRESSES_MAX) {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(|_| Failure::Connect)?;
                return Ok(stream);
            }
            Err(_) => last = Failure::Connect,
        }
    }
    Err(last)
}

/// What the files say now. Blocks.
fn client_config(tls: &ClusterTls) -> Result<ClientConfig, String> {
    let files = Snapshot::read(tls.paths().iter());
    let credentials = Credentials::of(tls.paths(), &files).map_err(|faults| {
        let told: Vec<_> = faults
            .iter()
            .map(|fault| format!("cluster.tls.{fault}"))
            .collect();
        told.join("; ")
    })?;
    let builder = ClientConfig::builder_with_provider(pki::provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?;
    let own = SingleCertAndKey::from(credentials.own);
    let mut config = builder
        .with_root_certificates(credentials.roots)
        .with_client_cert_resolver(Arc::new(own));
    config.alpn_protocols = vec![pki::ALPN_H2.to_vec()];
    // Each connection shows the certificate as it is then.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}
