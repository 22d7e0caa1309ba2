//! The listener and the tasks that own connections.
//!
//! Responsible for the socket, its backlog and options, for a bound on open connections and for
//! ending them: drained or cut. Must never accept beyond the bound, nor leave a task behind.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::call;
use crate::connection::Connection;
use crate::settings_io::SettingsIo;
use crate::state::Shared;

const BACKLOG: i32 = 4096;
/// Pause after a failed accept, so that a lack of descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Streams that the peer may reset early; a client that cancels often is no attacker here.
const RESET_STREAMS: usize = 10_000;

/// What the running tasks shall do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Accept and serve.
    Serve,
    /// Accept no more, let open calls end.
    Drain,
    /// Close everything now.
    Cut,
}

/// A socket that holds the address and does not listen yet. `shared_port`: a second one may hold
/// it too.
pub(crate) fn bind(addr: SocketAddr, shared_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared_port)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    Ok(socket)
}

pub(crate) fn listen(socket: Socket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Accepts until the phase moves on. The socket is closed when this returns.
pub(crate) async fn run(
    listener: TcpListener,
    shared: Arc<Shared>,
    mut phase: watch::Receiver<Phase>,
) {
    let orders = phase.clone();
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    if let Some(open) = admit(&shared, peer) {
                        tokio::spawn(own(open, stream, orders.clone()));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        _ = phase.wait_for(|phase| *phase != Phase::Serve) => {}
    }
}

/// A place for a connection; `None`: too many are open.
pub(crate) fn admit(shared: &Arc<Shared>, peer: SocketAddr) -> Option<Open> {
    let connection = shared.update(|state| {
        if state.connections.len() >= shared.config.max_connections {
            state.connections_refused += 1;
            return None;
        }
        state.connections_accepted += 1;
        let id = state.connections_accepted;
        let changed = shared.changed.clone();
        let connection = Connection::new(id, peer, state.stream_limit, changed);
        state.connections.insert(id, Arc::clone(&connection));
        Some(connection)
    });
    connection.map(|connection| Open {
        shared: Arc::clone(shared),
        connection,
    })
}

/// The entry of a connection in the state, for as long as its task lives.
pub(crate) struct Open {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shared
            .update(|state| state.connections.remove(&self.connection.id));
    }
}

async fn own(open: Open, stream: TcpStream, phase: watch::Receiver<Phase>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "connection was lost before it was served");
        return;
    }
    let Some(tls) = open.shared.config.tls.clone() else {
        return serve(open, stream, phase).await;
    };
    let handshake = TlsAcceptor::from(tls).accept(stream);
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok(stream)) => serve(open, stream, phase).await,
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake took too long"),
    }
}

/// Serves HTTP/2 until either side ends it.
pub(crate) async fn serve<I>(open: Open, stream: I, mut phase: watch::Receiver<Phase>)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Open { shared, connection } = &open;
    let mut cut = connection.cut_ordered();
    let io = TokioIo::new(SettingsIo::new(stream, Arc::clone(connection)));
    let service = service_fn(|request| {
        // Here and not in the call, which begins at a time of its own.
        let stream = connection.open_stream();
        call::serve(Arc::clone(shared), Arc::clone(connection), stream, request)
    });
    let limit = connection.view().stream_limit;
    let serving = builder(shared, limit).serve_connection(io, service);
    tokio::pin!(serving);
    let mut now = Phase::Serve;
    loop {
        tokio::select! {
            biased;
            _ = cut.wait_for(|cut| *cut) => return,
            order = next_order(&mut phase, now) => {
                match order {
                    Phase::Cut => return,
                    Phase::Drain => serving.as_mut().graceful_shutdown(),
                    Phase::Serve => {}
                }
                now = order;
            }
            result = &mut serving => {
                if let Err(error) = result {
                    tracing::debug!(%error, id = connection.id, "connection ended");
                }
                return;
            }
        }
    }
}

/// Waits for an order other than the one in force; nobody left to give orders means cut.
async fn next_order(orders: &mut watch::Receiver<Phase>, now: Phase) -> Phase {
    orders
        .wait_for(|phase| *phase != now)
        .await
        .map_or(Phase::Cut, |phase| *phase)
}

fn builder(shared: &Shared, stream_limit: u32) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(stream_limit)
        .max_pending_accept_reset_streams(RESET_STREAMS)
        .max_local_error_reset_streams(RESET_STREAMS)
        .auto_date_header(false);
    if let Some((interval, timeout)) = shared.config.keepalive {
        builder
            .keep_alive_interval(interval)
            .keep_alive_timeout(timeout);
    }
    builder
}
