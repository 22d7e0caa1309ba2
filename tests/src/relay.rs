//! A relay in front of a node listener, whose links can be cut.
//!
//! Responsible for passing TCP and UDP on to one node, both on the same port, and for breaking the
//! TCP connections when told to, while gossip goes on. Must never look into a byte.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Ports tried: one that is free for TCP may be taken for UDP.
const ATTEMPTS: usize = 8;
/// Largest datagram.
const DATAGRAM: usize = 64 << 10;

/// See the module. Ends when it is dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    target: Arc<OnceLock<SocketAddr>>,
    /// Connections that are let through: the number of cuts so far, and whether there are any.
    line: watch::Sender<(u64, bool)>,
    _tasks: JoinSet<()>,
}

impl Relay {
    /// Listens on a free port; passes nothing on before [`Relay::lead_to`].
    ///
    /// # Errors
    /// When no port can be had for both.
    pub async fn start() -> io::Result<Self> {
        let (listener, socket) = both().await?;
        let address = listener.local_addr()?;
        let target = Arc::<OnceLock<SocketAddr>>::default();
        let line = watch::Sender::new((0, true));
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&target), line.subscribe()));
        tasks.spawn(datagrams(Arc::new(socket), Arc::clone(&target)));
        Ok(Self {
            address,
            target,
            line,
            _tasks: tasks,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Passes on to this address from now on; once.
    pub fn lead_to(&self, target: SocketAddr) {
        let _ = self.target.set(target);
    }

    /// Breaks every connection, and each that comes until [`Relay::heal`].
    pub fn cut(&self) {
        self.line.send_modify(|(cuts, open)| {
            *cuts += 1;
            *open = false;
        });
    }

    /// Lets connections through again.
    pub fn heal(&self) {
        self.line.send_modify(|(_, open)| *open = true);
    }
}

/// One port of both kinds.
async fn both() -> io::Result<(TcpListener, UdpSocket)> {
    let mut failed = None;
    for _ in 0..ATTEMPTS {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        match UdpSocket::bind(listener.local_addr()?).await {
            Ok(socket) => return Ok((listener, socket)),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
}

async fn accept(
    listener: TcpListener,
    target: Arc<OnceLock<SocketAddr>>,
    line: watch::Receiver<(u64, bool)>,
) {
    let mut connections = JoinSet::new();
    while let Ok((mut near, _)) = listener.accept().await {
        let (cuts, open) = *line.borrow();
        let (Some(target), true) = (target.get().copied(), open) else {
            continue;
        };
        let mut line = line.clone();
        connections.spawn(async move {
            let Ok(mut far) = TcpStream::connect(target).await else {
                return;
            };
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            tokio::select! {
                _ = copy_bidirectional(&mut near, &mut far) => {}
                _ = line.wait_for(|(now, _)| *now != cuts) => {}
            }
        });
    }
}

/// Each sender has a socket of its own, so that what is answered finds its way back.
async fn datagrams(socket: Arc<UdpSocket>, target: Arc<OnceLock<SocketAddr>>) {
    let mut senders: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut answers = JoinSet::new();
    let mut buffer = vec![0; DATAGRAM];
    while let Ok((len, from)) = socket.recv_from(&mut buffer).await {
        let Some(target) = target.get() else {
            continue;
        };
        let far = match senders.get(&from) {
            Some(far) => Arc::clone(far),
            None => {
                let Ok(far) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await else {
                    continue;
                };
                let far = Arc::new(far);
                answers.spawn(back(Arc::clone(&far), Arc::clone(&socket), from));
                senders.insert(from, Arc::clone(&far));
                far
            }
        };
        let _ = far.send_to(&buffer[..len], target).await;
    }
}

async fn back(far: Arc<UdpSocket>, socket: Arc<UdpSocket>, to: SocketAddr) {
    let mut buffer = vec![0; DATAGRAM];
    while let Ok(len) = far.recv(&mut buffer).await {
        let _ = socket.send_to(&buffer[..len], to).await;
    }
}
