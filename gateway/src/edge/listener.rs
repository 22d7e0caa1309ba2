//! The accept loop of one listener.
//!
//! Responsible for the socket (backlog 4,096, TCP_NODELAY), the ceiling on connections, one task
//! per connection, which begins with the PROXY header and the TLS handshake, and the two ways to
//! stop: draining with GOAWAY, then closing. Must never know what is served.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::Handler;
use super::connection::{Connection, ConnectionKey, ConnectionLimits, Signal};
use super::dispatch::dispatch;
use super::drive::drive;
use super::flood::FloodLimits;
use super::io::CountedIo;
use super::origin::OriginRule;
use super::proxy_protocol::{self, Claim};
use super::sources::{Place, Sources};
use super::stream::OpenStream;
use super::tls::{ServerTls, Transport};
use crate::config;
use crate::observe::metrics::Metrics;
use crate::supervise::{Kept, NodeSupervisor, keep_running};

const BACKLOG: i32 = 4096;
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// A failed accept (out of descriptors, say) is tried again after this.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// A keep-alive PING must be answered within this time.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

const PROXY_HEADER_FAILURES: [&str; 3] = ["timeout", "malformed", "closed"];

/// A socket that listens and is not served yet.
#[derive(Debug)]
pub(crate) struct BoundListener {
    socket: TcpListener,
    config: config::Listener,
}

/// A served listener.
pub(crate) struct RunningListener {
    shared: Arc<Shared>,
    /// With the address that it is bound to, also when any port was asked for.
    config: config::Listener,
    accept: Box<dyn Fn(TcpListener) -> Kept + Send + Sync>,
    accepting: Mutex<Accepting>,
}

/// What the socket of a listener does.
#[derive(Debug)]
enum Accepting {
    Running(Kept),
    /// Closed, and may be opened again.
    Suspended,
    /// Closed for good.
    Stopped,
}

#[derive(Debug)]
struct Shared {
    name: String,
    open: Mutex<HashMap<ConnectionKey, Arc<Connection>>>,
    /// Rung when a connection has gone.
    gone: Notify,
    metrics: Arc<Metrics>,
}

impl BoundListener {
    /// Binds the address of `config`.
    ///
    /// # Errors
    /// Whatever the socket calls say; the address is not part of the error.
    pub(crate) fn bind(config: &config::Listener) -> io::Result<Self> {
        let domain = Domain::for_address(config.address);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&config.address.into())?;
        socket.listen(BACKLOG)?;
        Ok(Self {
            socket: TcpListener::from_std(socket.into())?,
            config: config.clone(),
        })
    }

    /// Starts to accept; without `tls` in plaintext. The restarts of the accept loop count at
    /// `node` (GEN-3).
    ///
    /// # Errors
    /// When the bound address can not be read back.
    pub(crate) fn serve<H: Handler>(
        self,
        handler: Arc<H>,
        tls: Option<Arc<ServerTls>>,
        metrics: Arc<Metrics>,
        node: &NodeSupervisor,
    ) -> io::Result<RunningListener> {
        let mut config = self.config;
        config.address = self.socket.local_addr()?;
        let shared = Arc::new(Shared {
            name: config.name.clone(),
            open: Mutex::default(),
            gone: Notify::new(),
            metrics: Arc::clone(&metrics),
        });
        let ceiling = config.limits.max_connections.min(Semaphore::MAX_PERMITS);
        metrics
            .listener_connections_max
            .with_label_values(&[&config.name])
            .set(ceiling as i64);
        let refused = &metrics.listener_source_refused_total;
        refused.with_label_values(&[&*config.name]);
        let origin = OriginRule::new(config.origin.clone(), Arc::clone(&metrics));
        if origin.expects_proxy_header() {
            let family = &metrics.listener_proxy_header_failures_total;
            for kind in PROXY_HEADER_FAILURES {
                family.with_label_values(&[&*config.name, kind]);
            }
        }
        let acceptor = Arc::new(Acceptor {
            slots: Arc::new(Semaphore::new(ceiling)),
            limits: Arc::new(connection_limits(&config)),
            origin,
            sources: Sources::new(config.limits.max_connections_per_source),
            proxy_header_timeout: config.limits.proxy_header_timeout,
            tls,
            builder: http2_builder(&config),
            shared: Arc::clone(&shared),
            handler,
        });
        let node = node.clone();
        let accept = Box::new(move |socket| {
            let (acceptor, socket) = (Arc::clone(&acceptor), Arc::new(socket));
            let task = keep_running("listener", move || {
                Arc::clone(&acceptor).accept(Arc::clone(&socket))
            });
            node.watch(&task);
            task
        });
        let accepting = Mutex::new(Accepting::Running(accept(self.socket)));
        Ok(RunningListener {
            shared,
            config,
            accept,
            accepting,
        })
    }
}

fn connection_limits(config: &config::Listener) -> ConnectionLimits {
    ConnectionLimits {
        preface_timeout: PREFACE_TIMEOUT.min(config.http2.idle_timeout),
        idle_timeout: config.http2.idle_timeout,
        unregistered_timeout: config.limits.unregistered_timeout,
        answer_patience: config.limits.request_timeout,
        request_timeout: config.limits.request_timeout,
        max_message_bytes: config.limits.max_message_bytes,
        max_memory_bytes: config.limits.max_connection_memory_bytes,
    }
}

fn http2_builder(config: &config::Listener) -> http2::Builder<TokioExecutor> {
    let management = config.serves(config::Service::Management);
    // A paused stream holds at most its window. h2 ends a connection whose unread small DATA
    // frames lack more bytes to 256 each than half of the connection's window: at 128 to 1 a paused
    // agent may fill its window with frames of 16 bytes, which no answer is shorter than.
    let (stream, connection) = if management {
        (1 << 20, 4 << 20)
    } else {
        (64 << 10, 8 << 20)
    };
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(config.http2.max_concurrent_streams)
        .max_header_list_size(config.limits.max_header_list_bytes)
        .initial_stream_window_size(stream)
        .initial_connection_window_size(connection)
        // LSN-12: a third of the idle time without a byte asks the peer for one.
        .keep_alive_interval(config.http2.idle_timeout / 3)
        .keep_alive_timeout(PING_TIMEOUT)
        // A caller may cancel many calls at once; the rate of cancelled streams has its own limit.
        .max_pending_accept_reset_streams(FloodLimits::DEFAULT.resets as usize)
        .auto_date_header(false);
    builder
}

struct Acceptor<H> {
    slots: Arc<Semaphore>,
    limits: Arc<ConnectionLimits>,
    origin: OriginRule,
    sources: Arc<Sources>,
    proxy_header_timeout: Duration,
    tls: Option<Arc<ServerTls>>,
    builder: http2::Builder<TokioExecutor>,
    shared: Arc<Shared>,
    handler: Arc<H>,
}

impl<H: Handler> Acceptor<H> {
    /// Accepts until it is dropped, and the socket with it.
    async fn accept(self: Arc<Self>, socket: Arc<TcpListener>) {
        loop {
            // The slot is taken before the accept: over the ceiling newcomers wait in the kernel's
            // backlog (LSN-2).
            let Ok(slot) = Arc::clone(&self.slots).acquire_owned().await else {
                return;
            };
            match socket.accept().await {
                Ok((stream, peer)) => self.start(stream, peer, slot),
                Err(error) => {
                    warn!(listener = %self.shared.name, %error, "accept failed, trying again");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn start(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr, slot: OwnedSemaphorePermit) {
        let Some(place) = self.place(peer.ip()) else {
            return;
        };
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "the connection went before it was served");
            return;
        }
        let metrics = Arc::clone(&self.shared.metrics);
        let connection = Connection::new(peer, Arc::clone(&self.limits), metrics);
        self.shared.opened(&connection);
        let closed = Closed {
            shared: Arc::clone(&self.shared),
            handler: Arc::clone(&self.handler),
            key: connection.key(),
            _slot: slot,
            _place: place,
        };
        let acceptor = Arc::clone(self);
        tokio::spawn(async move {
            let _closed = closed;
            acceptor.serve(stream, &connection).await;
        });
    }

    async fn serve(self: Arc<Self>, mut stream: TcpStream, connection: &Arc<Connection>) {
        let Some(claim) = self.claim(&mut stream).await else {
            return;
        };
        // A trusted proxy takes no place; whom it speaks for does.
        let _place = match self.origin.client(connection.peer_ip(), claim) {
            None => None,
            Some(client) => match self.sources.take(client) {
                None => return self.refused(),
                place => place,
            },
        };
        let stream = match &self.tls {
            None => Transport::Plain(stream),
            // Boxed, so that the task of a connection is not as large as a handshake.
            Some(tls) => match Box::pin(tls.secure(stream, connection)).await {
                Some(stream) => stream,
                None => return,
            },
        };
        connection.secured(Instant::now());
        let io = CountedIo::new(stream, Arc::clone(connection), FloodLimits::DEFAULT);
        let (acceptor, caller) = (Arc::clone(&self), Arc::clone(connection));
        let service = service_fn(move |mut request| {
            let open = OpenStream::new(&caller);
            acceptor.origin.mark(&mut request, &caller, claim);
            let handler = Arc::clone(&acceptor.handler);
            let answer = dispatch(handler, request, Arc::clone(&caller));
            async move { Ok::<_, std::convert::Infallible>(open.answered(answer.await)) }
        });
        let served = self.builder.serve_connection(TokioIo::new(io), service);
        drop(self);
        drive(served, connection).await;
    }

    /// A place for one more connection of the TCP peer.
    fn place(&self, peer: IpAddr) -> Option<Option<Place>> {
        if self.origin.trusts(peer) {
            return Some(None);
        }
        let place = self.sources.take(peer);
        if place.is_none() {
            self.refused();
        }
        place.map(Some)
    }

    /// Counts a connection that is closed because its source has too many.
    fn refused(&self) {
        let family = &self.shared.metrics.listener_source_refused_total;
        family.with_label_values(&[&*self.shared.name]).inc();
    }

    /// The PROXY header, where one is due; `None`: there is no usable one in time (ORIGIN-6).
    async fn claim(&self, stream: &mut TcpStream) -> Option<Claim> {
        if !self.origin.expects_proxy_header() {
            return Some(Claim::None);
        }
        let read = proxy_protocol::read(stream);
        let (kind, error) = match timeout(self.proxy_header_timeout, read).await {
            Ok(Ok(claim)) => return Some(claim),
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                ("malformed", error.to_string())
            }
            Ok(Err(error)) => ("closed", error.to_string()),
            Err(_) => ("timeout", "not complete in time".to_owned()),
        };
        let family = &self.shared.metrics.listener_proxy_header_failures_total;
        family.with_label_values(&[&*self.shared.name, kind]).inc();
        debug!(error, "connection closed: no PROXY header");
        None
    }
}

/// Undoes what accepting did, however the connection's task ends.
struct Closed<H: Handler> {
    shared: Arc<Shared>,
    handler: Arc<H>,
    key: ConnectionKey,
    _slot: OwnedSemaphorePermit,
    _place: Option<Place>,
}

impl<H: Handler> Drop for Closed<H> {
    fn drop(&mut self) {
        self.shared.closed(self.key);
        self.handler.connection_closed(self.key);
    }
}

impl Shared {
    fn open(&self) -> std::sync::MutexGuard<'_, HashMap<ConnectionKey, Arc<Connection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self, connection: &Arc<Connection>) {
        self.open().insert(connection.key(), Arc::clone(connection));
        self.metrics
            .listener_connections
            .with_label_values(&[&self.name])
            .inc();
    }

    fn closed(&self, key: ConnectionKey) {
        let mut open = self.open();
        open.remove(&key);
        if open.len() < open.capacity() / 4 {
            open.shrink_to_fit();
        }
        drop(open);
        self.metrics
            .listener_connections
            .with_label_values(&[&self.name])
            .dec();
        self.gone.notify_waiters();
    }

    fn signal_all(&self, signal: Signal) {
        for connection in self.open().values() {
            connection.signal(signal);
        }
    }
}

impl std::fmt::Debug for RunningListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningListener")
            .field("name", &self.config.name)
            .field("address", &self.config.address)
            .finish_non_exhaustive()
    }
}

impl RunningListener {
    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.config.address
    }

    fn accepting(&self) -> std::sync::MutexGuard<'_, Accepting> {
        self.accepting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the accept loop runs (READY-4).
    pub(crate) fn is_running(&self) -> bool {
        matches!(&*self.accepting(), Accepting::Running(task) if !task.is_finished())
    }

    /// Whether its socket is closed until [`Self::resume`].
    pub(crate) fn is_suspended(&self) -> bool {
        matches!(*self.accepting(), Accepting::Suspended)
    }

    /// Closes the socket for good: new connects are refused, open connections go on.
    pub(crate) fn stop_accepting(&self) {
        let before = std::mem::replace(&mut *self.accepting(), Accepting::Stopped);
        // A running one ends, and the socket is closed with it.
        drop(before);
    }

    /// Closes the socket until [`Self::resume`]: new connects are refused, open connections go on
    /// (SHED-2). Does nothing when it is closed.
    pub(crate) async fn suspend(&self) {
        let task = {
            let mut accepting = self.accepting();
            if !matches!(*accepting, Accepting::Running(_)) {
                return;
            }
            std::mem::replace(&mut *accepting, Accepting::Suspended)
        };
        if let Accepting::Running(task) = task {
            // The socket is closed when its task has gone.
            task.end().await;
        }
    }

    /// Opens the socket again, on the same address. Does nothing unless it is suspended.
    ///
    /// # Errors
    /// When it can't be bound; it stays suspended.
    pub(crate) fn resume(&self) -> io::Result<()> {
        let mut accepting = self.accepting();
        if matches!(*accepting, Accepting::Suspended) {
            let bound = BoundListener::bind(&self.config)?;
            *accepting = Accepting::Running((self.accept)(bound.socket));
        }
        Ok(())
    }

    /// Every connection, for the caller to let them go.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        self.shared.open().values().map(Arc::clone).collect()
    }

    /// Waits until every connection has gone, closing what is left at `deadline`.
    pub(crate) async fn closed(&self, deadline: Instant) {
        loop {
            let gone = self.shared.gone.notified();
            let mut gone = pin!(gone);
            gone.as_mut().enable();
            if self.shared.open().is_empty() {
                return;
            }
            if tokio::time::timeout_at(deadline, gone).await.is_err() {
                break;
            }
        }
        self.shared.signal_all(Signal::Kill);
        let kill_time = Instant::now() + Duration::from_secs(1);
        while !self.shared.open().is_empty() {
            if tokio::time::timeout_at(kill_time, self.shared.gone.notified())
                .await
                .is_err()
            {
                return;
            }
        }
    }
}
