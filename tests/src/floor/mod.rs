//! Floors: servers that do the work of a gateway and nothing else, to hold the gateway against.
//!
//! Responsible for three of them ([`Kind`]), each as a process of its own, and for the one load
//! that measures them and the gateway alike. A floor relays: it registers agents at the server,
//! fans commands out, gathers one answer of each agent and acknowledges heartbeats. It has no
//! limit, no timeout, no notice and no metric, and must never be used as more than a yardstick.

mod agent;
mod board;
mod grpc_load;
mod load;
mod measure;
mod process;
mod sockets_load;
mod transport;
mod with_hyper;
mod with_sockets;
mod with_tonic;

pub use measure::{CONCURRENCIES, Figures, Plan, Subject, measure, measure_broadcasts};
pub use process::FloorProcess;
pub use transport::server_config;
pub use with_hyper::in_memory;

use clap::ValueEnum;
use rustls::ServerConfig;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// As the gateway's own listeners.
const BACKLOG: i32 = 4096;

/// What a floor stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Kind {
    /// Plain sockets, one write and one read for each command: the limit of the machine.
    Tcp,
    /// An accept loop over hyper's HTTP/2 server, messages as bytes.
    Hyper,
    /// tonic's own server with generated code.
    Tonic,
}

impl Kind {
    /// Its name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Hyper => "hyper",
            Self::Tonic => "tonic",
        }
    }
}

/// The two sockets of a floor.
#[derive(Debug)]
pub struct Listeners {
    agents: TcpListener,
    management: TcpListener,
    /// TLS of the agents; operators speak plaintext.
    tls: Option<Arc<ServerConfig>>,
}

impl Listeners {
    /// Binds both; agents speak TLS when there is what to serve it with.
    ///
    /// # Errors
    /// Whatever the socket calls say.
    pub fn bind(
        agents: SocketAddr,
        management: SocketAddr,
        tls: Option<Arc<ServerConfig>>,
    ) -> io::Result<Self> {
        Ok(Self {
            agents: listen(agents)?,
            management: listen(management)?,
            tls,
        })
    }

    /// The addresses of agents and of operators.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.agents.local_addr()?, self.management.local_addr()?))
    }
}

/// Serves until a socket fails. `server` is where Registers go.
///
/// # Errors
/// A sentence for the user.
pub async fn serve(kind: Kind, listeners: Listeners, server: SocketAddr) -> Result<(), String> {
    match kind {
        Kind::Tcp if listeners.tls.is_some() => Err("plain sockets have no TLS".into()),
        Kind::Tcp => with_sockets::serve(listeners).await,
        Kind::Hyper => with_hyper::serve(listeners, server).await,
        Kind::Tonic => with_tonic::serve(listeners, server).await,
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}
