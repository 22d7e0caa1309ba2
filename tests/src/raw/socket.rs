//! What bytes go through: a TCP socket, or a pipe of this process.
//!
//! Must never look at a byte.

use socket2::SockRef;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::DuplexStream;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_util::either::Either;

/// What a direction of a pipe holds at most.
const PIPE_BYTES: usize = 16 << 10;

/// Makes connections within this process: each call gives the near end of one whose far end is
/// served.
#[derive(Clone)]
pub struct Dialer(Arc<dyn Fn() -> io::Result<DuplexStream> + Send + Sync>);

impl Dialer {
    /// A dialer that calls this.
    pub fn new(dial: impl Fn() -> io::Result<DuplexStream> + Send + Sync + 'static) -> Self {
        Self(Arc::new(dial))
    }

    /// Pipes whose other end, from an address of its own each, goes to `serve` on `runtime`; false
    /// refuses it.
    pub fn pipes(
        runtime: Handle,
        serve: impl Fn(DuplexStream, SocketAddr) -> bool + Send + Sync + 'static,
    ) -> Self {
        let number = AtomicU32::new(0);
        Self::new(move || {
            let _entered = runtime.enter();
            let number = number.fetch_add(1, Ordering::Relaxed) & 0x00FF_FFFF;
            let own = Ipv4Addr::from_bits(10 << 24 | number);
            let (near, far) = tokio::io::duplex(PIPE_BYTES);
            match serve(far, SocketAddr::from((own, 1))) {
                true => Ok(near),
                false => Err(io::ErrorKind::ConnectionRefused.into()),
            }
        })
    }

    pub(super) fn dial(&self) -> io::Result<DuplexStream> {
        (self.0)()
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dialer")
    }
}

/// A socket, or a pipe.
pub(super) type Socket = Either<TcpStream, DuplexStream>;

/// Makes the close a TCP reset; a pipe knows one kind of close only.
pub(super) fn reset_at_close(socket: &Socket) {
    if let Socket::Left(tcp) = socket {
        // A failure here only turns the reset into an ordinary close.
        let _ = SockRef::from(tcp).set_linger(Some(Duration::ZERO));
    }
}
