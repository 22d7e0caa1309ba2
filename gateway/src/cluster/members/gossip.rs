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

use crate::cluster::addressees::{Addressees, Say};
use crate::cluster::link::table::MAX_PEERS;
use crate::cluster::seal::{MAX_DATAGRAM, Opener, Rejected, Said, Sealer};
use crate::cluster::secret::{Keys, SenderId, random};
use crate::observe::log::{PerReason, limited};
use crate::observe::metrics::Metrics;
use crate::system::{UdpSocket, since_epoch};

/// Every node, and the earlier lives of those that restart, for as long as their datagrams count.
const MAX_SENDERS: usize = 4 * MAX_PEERS;
/// Every node, by several addresses.
const MAX_ADDRESSES: usize = 4 * MAX_PEERS;
/// Between two lines of one reason.
const TELL_EVERY: Duration = Duration::from_secs(60);
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
    /// Which reasons were told of.
    told: PerReason<{ Rejected::LABELS.len() }>,
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
            told: PerReason::new(TELL_EVERY),
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
            addressees: Addressees::new(MAX_ADDRESSES),
            asked: None,
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
    addressees: Addressees,
    /// Who sent the message that the engine has just been handed: what it answers is for him.
    asked: Option<(SocketAddr, SenderId)>,
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
        let asked = self.asked.take().filter(|(from, _)| *from == to);
        let say = match asked {
            Some((_, life)) => self.addressees.reply(to, life, &self.plain),
            None => self.addressees.say(to, &self.plain),
        };
        let datagrams = match say {
            Say::To(life) => self.sealer.seal(&life, &self.plain, unix_ms()),
            Say::Greet(token) => Some(vec![self.sealer.greet(token, unix_ms())]),
        };
        self.shared.send(datagrams.unwrap_or_default(), to).await;
        Ok(())
    }

    /// Dropped while it greets or answers, it has lost a datagram at most.
    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        // What is sent from now on answers nobody.
        self.asked = None;
        loop {
            match self.shared.socket.recv_from(&mut self.received).await {
                Ok((len, from)) => {
                    if let Some(message) = self.take(len, from).await {
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

impl Sealed {
    /// A datagram came. The message for the engine, if there is one.
    async fn take(&mut self, len: usize, from: SocketAddr) -> Option<ChitchatMessage> {
        let own = self.sealer.sender();
        let (life, said) = self.shared.open(&mut self.received[..len], &own, from)?;
        let now_ms = unix_ms();
        self.addressees.heard(from, life, now_ms);
        let (to, datagrams) = match said {
            Said::Payload(plain) => {
                let message = self.shared.read(&plain, from)?;
                self.asked = Some((from, life));
                return Some(message);
            }
            Said::Greeting(token) => (from, vec![self.sealer.answer(&life, token, now_ms)]),
            Said::Answer(token) => {
                let (to, waits) = self.addressees.answered(token, life, now_ms)?;
                (to, self.sealer.seal(&life, &waits?, now_ms)?)
            }
        };
        self.shared.send(datagrams, to).await;
        None
    }
}

impl Shared {
    async fn send(&self, datagrams: Vec<Vec<u8>>, to: SocketAddr) {
        for datagram in datagrams {
            if let Err(error) = self.socket.send_to(&datagram, to).await {
                tracing::debug!(%to, %error, "a datagram was not sent");
            }
        }
    }

    /// An address as the socket takes it: one of IPv6 reaches IPv4 by mapped addresses.
    fn within(&self, to: SocketAddr) -> SocketAddr {
        match to.ip() {
            IpAddr::V4(ip) if self.is_v6 => SocketAddr::new(ip.to_ipv6_mapped().into(), to.port()),
            _ => to,
        }
    }

    /// What a datagram says to `own` and who says it, if it may be believed.
    fn open(
        &self,
        datagram: &mut [u8],
        own: &SenderId,
        from: SocketAddr,
    ) -> Option<(SenderId, Said)> {
        let opened = {
            let mut opener = self.opener.lock().unwrap_or_else(PoisonError::into_inner);
            opener.open(datagram, own, unix_ms())
        };
        opened.unwrap_or_else(|rejected| {
            self.refuse(rejected, from);
            None
        })
    }

    fn read(&self, plain: &[u8], from: SocketAddr) -> Option<ChitchatMessage> {
        let message = ChitchatMessage::deserialize(&mut &*plain).ok();
        if message.is_none() {
            self.refuse(Rejected::Malformed, from);
        }
        message
    }

    fn refuse(&self, rejected: Rejected, from: SocketAddr) {
        let reason = rejected.label();
        let family = &self.metrics.cluster_datagrams_rejected_total;
        family.with_label_values(&[reason]).inc();
        // Usual for a moment after a restart: the others speak to the life that has ended.
        if rejected == Rejected::Misaddressed {
            tracing::debug!(%from, "a datagram for another node, or an earlier life of this one");
            return;
        }
        limited!(
            warn,
            self.told.of(rejected as usize),
            "Cluster: a datagram from {from} was refused: {reason}. forged: is YUZU_GW_COOKIE the \
             same there? stale: do the clocks agree? version: is it the same release?"
        );
    }
}
