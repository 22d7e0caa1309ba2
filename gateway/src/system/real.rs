//! The real ones.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
pub(crate) use tokio::net::{TcpListener, TcpStream, UdpSocket, lookup_host};
pub(crate) use tokio::task::spawn_blocking;

/// A socket that listens; port 0 takes any free one. Call inside a runtime.
///
/// # Errors
/// What the system says, such as an address in use.
pub(crate) fn listen(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    TcpListener::from_std(socket.into())
}

/// Ends `stream` when bytes are on their way for `timeout` and the other system has acknowledged
/// nothing (RFC 5482), or has had no room for as long. Linux alone can do it.
///
/// # Errors
/// What the system says.
pub(crate) fn set_user_timeout(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    SockRef::from(stream).set_tcp_user_timeout(Some(timeout))?;
    #[cfg(not(target_os = "linux"))]
    let _ = (SockRef::from(stream), timeout);
    Ok(())
}

/// A socket for datagrams. Call inside a runtime.
///
/// # Errors
/// As [`listen`].
pub(crate) fn datagrams(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// Whether an interface of this machine has it: nothing else can be bound.
pub(crate) fn is_local(ip: IpAddr) -> bool {
    std::net::UdpSocket::bind((ip, 0)).is_ok()
}

/// Time since 1970; none before.
pub(crate) fn since_epoch() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}
