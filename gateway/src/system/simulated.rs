//! Those of a host of turmoil. All of it works inside of a simulation only.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::JoinError;
pub(crate) use turmoil::net::{TcpStream, UdpSocket, lookup_host};

/// As tokio's.
pub struct TcpListener(turmoil::net::TcpListener);

impl TcpListener {
    pub(crate) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.0.accept().await
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TcpListener")
    }
}

pub(crate) fn listen(address: SocketAddr, _backlog: i32) -> io::Result<TcpListener> {
    at_once(turmoil::net::TcpListener::bind(address)).map(TcpListener)
}

/// Nothing is acknowledged there.
pub(crate) fn set_user_timeout(_stream: &TcpStream, _timeout: Duration) -> io::Result<()> {
    Ok(())
}

pub(crate) fn datagrams(address: SocketAddr) -> io::Result<UdpSocket> {
    at_once(UdpSocket::bind(address))
}

/// Asynchronous in name only.
fn at_once<T>(bound: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    bound.now_or_never().expect("it does not wait")
}

/// Done at once: when a thread of the system is done depends on more than the seed.
pub(crate) async fn spawn_blocking<T>(work: impl FnOnce() -> T) -> Result<T, JoinError> {
    Ok(work())
}

/// A node is not told of itself.
pub(crate) fn is_local(_ip: IpAddr) -> bool {
    false
}

/// None when the simulation is over and its hosts are dropped.
pub(crate) fn since_epoch() -> Duration {
    turmoil::since_epoch().unwrap_or_default()
}
