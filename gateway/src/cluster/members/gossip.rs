//! How the membership engine's datagrams travel: sealed, over one UDP socket (MESH-2).
//!
//! Responsible for sending and receiving them, and for counting those that are refused. Must never
//! hand the engine a byte that was not sealed with this cluster's secret.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatMessage, Deserializable, Serializable};

use crate::cluster::link::table::MAX_PEERS;
use crate::cluster::seal::{MAX_DATAGRAM, Opener, Rejected, Sealer};
use crate::cluster::secret::{Keys, random};
use crate::observe::log::{limit, limited};
use crate::observe::metrics::Metrics;
use crate::system::{UdpSocket, since_epoch};

/// Every node, and the earlier lives of those that restart, for as long as their datagrams count.
const MAX_SENDERS: usize = 4 * MAX_PEERS;
/// After an error of the socket.
const PAUSE: Duration = Duration::from_millis(50);

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    since_epoch().as_millis() as u64
}

/// What outlives the engine when it is started again: above all, which datagrams were seen.
pub(crate) struct SealedTransport(Arc<Shared>);

struct Shared {
    socket: UdpSocket,
    is_v6: bool,
    keys: Keys,
    opener: Mutex<Opener>,
    metrics: Arc<Metrics>,
}

impl SealedTransport {
    pub(crate) fn new(socket: UdpSocket, keys: Keys, metrics: Arc<Metrics>) -> Self {
        let opener = Mutex::new(Opener::new(keys.clone(), MAX_SENDERS));
        Self(Arc::new(Shared {
            is_v6: socket.local_addr().is_ok_and(|address| address.is_ipv6()),
            socket,
            keys,
            opener,
            metrics,
        }))
    }

    /// Where it listens.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.socket.local_addr()
    }
}

#[async_trait]
impl Transport for SealedTransport {
    /// The address is bound already.
    async fn open(&self, _address: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        Ok(Box::new(Sealed {
            sealer: Sealer::new(&self.0.keys, random()),
            shared: Arc::clone(&self.0),
            plain: Vec::new(),
            received: vec![0; MAX_DATAGRAM + 1].into(),
        }))
    }
}

/// The socket in the hands of the engine.
struct Sealed {
    shared: Arc<Shared>,
    sealer: Sealer,
    plain: Vec<u8>,
    received: Box<[u8]>,
}

#[async_trait]
impl Socket for Sealed {
    /// A datagram that can't be sent is as good as one that is lost: gossip is repeated.
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        self.plain.clear();
        message.serialize(&mut self.plain);
        let to = self.shared.within(to);
        for datagram in self.sealer.seal(&self.plain, unix_ms()).unwrap_or_default() {
            if let Err(error) = self.shared.socket.send_to(&datagram, to).await {
                tracing::debug!(%to, %error, "a datagram was not sent");
            }
        }
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            match self.shared.socket.recv_from(&mut self.received).await {
                Ok((len, from)) => {
                    if let Some(message) = self.shared.open(&mut self.received[..len], from) {
                        return Ok((from, message));
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "no datagram was received");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

impl Shared {
    /// An address as the socket takes it: one of IPv6 reaches IPv4 by mapped addresses.
    fn within(&self, to: SocketAddr) -> SocketAddr {
        match to.ip() {
            IpAddr::V4(ip) if self.is_v6 => SocketAddr::new(ip.to_ipv6_mapped().into(), to.port()),
            _ => to,
        }
    }

    /// What a datagram says, if it may be believed.
    fn open(&self, datagram: &mut [u8], from: SocketAddr) -> Option<ChitchatMessage> {
        let opened = {
            let mut opener = self.opener.lock().unwrap_or_else(PoisonError::into_inner);
            opener.open(datagram, unix_ms())
        };
        let rejected = match opened {
            Ok(None) => return None,
            Ok(Some(plain)) => match ChitchatMessage::deserialize(&mut &plain[..]) {
                Ok(message) => return Some(message),
                // A node of another version.
                Err(_) => Rejected::Malformed,
            },
            Err(rejected) => rejected,
        };
        let reason = rejected.label();
        let family = &self.metrics.cluster_datagrams_rejected_total;
        family.with_label_values(&[reason]).inc();
        limited!(
            warn,
            limit::CLUSTER_DATAGRAM_REFUSED,
            "Cluster: a datagram from {from} was refused: {reason}. forged: is YUZU_GW_COOKIE the \
             same there? stale: do the clocks agree?"
        );
        None
    }
}
