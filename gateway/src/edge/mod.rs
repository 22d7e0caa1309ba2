//! The edge: sockets, connections and the limits that hold before any service is asked.
//!
//! Responsible for accepting connections, for identifying each of them by a key, for noticing its
//! end, and for what one connection may cost. Must never know a service: what a request means is
//! decided by the [`Handler`] above.

mod acceptor;
pub(crate) mod answers;
pub(crate) mod charge;
pub(crate) mod close;
pub(crate) mod connection;
mod cooldown;
mod cut;
pub(crate) mod deframe;
mod dispatch;
mod drive;
pub(crate) mod flood;
pub(crate) mod grpc;
pub(crate) mod io;
pub(crate) mod late;
pub(crate) mod listener;
pub(crate) mod origin;
pub(crate) mod pause;
mod places;
mod proxy_protocol;
mod rtt;
mod sources;
mod stream;
mod tasks;
pub(crate) mod terms;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod tls;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub(crate) use connection::ConnectionKey;
pub(crate) use tasks::{Prefetch, Sleeper};

/// A response as every service answers it.
pub(crate) type Response = http::Response<tonic::body::Body>;

/// What serves the requests of a listener.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Answers one request. A panic inside is answered with status 13 by the caller.
    fn call(
        &self,
        request: http::Request<hyper::body::Incoming>,
        connection: Arc<connection::Connection>,
    ) -> Pin<Box<dyn Future<Output = Response> + Send>>;

    /// A connection is ready for HTTP/2 over `stream`.
    fn connection_opened(&self, key: ConnectionKey, stream: &tls::Transport);

    /// Whether what is kept from others is open to the peer of this connection, as it is judged now.
    fn authorizes(&self, connection: &connection::Connection) -> bool;

    /// The connection is gone: no request of it comes any more.
    fn connection_closed(&self, key: ConnectionKey);
}
