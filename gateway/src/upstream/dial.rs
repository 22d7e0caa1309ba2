//! One TCP connection to an endpoint.
//!
//! Responsible for resolving the name anew at each dial and for trying its addresses in order
//! within the connect timeout. Must never retry: [`super::channel`] does.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tracing::debug;

use super::error::ConnectError;
use crate::config::Endpoint;
use crate::system::{TcpStream, lookup_host, set_user_timeout};

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;

/// How a socket is set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// TCP_NODELAY.
    pub(crate) nodelay: bool,
    /// Time without an acknowledgement of what was sent until the connection is over (UPCH-10).
    pub(crate) user_timeout: Duration,
}

impl Options {
    fn apply(self, stream: &TcpStream) -> io::Result<()> {
        // A system that refuses it has a server all the same.
        if let Err(error) = set_user_timeout(stream, self.user_timeout) {
            debug!(%error, "no TCP user timeout");
        }
        stream.set_nodelay(self.nodelay)
    }
}

/// Connects within `limit`, the look-up included.
pub(crate) async fn dial(
    endpoint: &Endpoint,
    limit: Duration,
    options: Options,
) -> Result<TcpStream, ConnectError> {
    let deadline = Instant::now() + limit;
    let addresses = resolve(endpoint, deadline).await?;
    first_of(&addresses, deadline, options).await
}

/// Connects to the first address that answers.
pub(crate) async fn first_of(
    addresses: &[SocketAddr],
    deadline: Instant,
    options: Options,
) -> Result<TcpStream, ConnectError> {
    let mut last = ConnectError::new("other", "the name has no address");
    for (index, address) in addresses.iter().enumerate() {
        // An address that does not answer must not use up the time of those behind it.
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left / (addresses.len() - index) as u32;
        match connect(*address, Instant::now() + share, options).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn resolve(endpoint: &Endpoint, deadline: Instant) -> Result<Vec<SocketAddr>, ConnectError> {
    match timeout_at(
        deadline,
        lookup_host((endpoint.host.as_str(), endpoint.port)),
    )
    .await
    {
        Ok(Ok(addresses)) => Ok(addresses.take(ADDRESSES_MAX).collect()),
        Ok(Err(error)) => Err(ConnectError::new(
            "other",
            format!("cannot resolve {}: {error}", endpoint.host),
        )),
        Err(_) => Err(ConnectError::new(
            "timeout",
            format!("resolving {} took too long", endpoint.host),
        )),
    }
}

async fn connect(
    address: SocketAddr,
    deadline: Instant,
    options: Options,
) -> Result<TcpStream, ConnectError> {
    match timeout_at(deadline, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => {
            options
                .apply(&stream)
                .map_err(|error| ConnectError::io(&error))?;
            Ok(stream)
        }
        Ok(Err(error)) => Err(ConnectError::io(&error)),
        Err(_) => Err(ConnectError::new(
            "timeout",
            format!("{address} does not answer"),
        )),
    }
}
