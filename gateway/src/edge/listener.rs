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

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::Handler;
use super::connection::{Connection, ConnectionKey, Signal};
use super::dispatch::dispatch;
use super::drive::drive;
use super::flood::FloodLimits;
use super::io::CountedIo;
use super::origin::OriginRule;
use super::proxy_protocol::{self, Claim};
use super::sources::Place;
use super::stream::OpenStream;
use super::terms::{Intake, Terms};
use super::tls::{ServerTls, Transport};
use crate::config;
use crate::observe::metrics::Metrics;
use crate::supervise::{Kept, NodeSupervisor, keep_running};
use crate::tuning::Slot;

const BACKLOG: i32 = 4096;
/// A failed accept (out of descriptors, say) is tried again after this.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A socket that listens and is not served yet.
#[derive(Debug)]
pub(crate) struct BoundListener {
    socket: TcpListener,
    config: config::Listener,
}

/// A served listener.
pub(crate) struct RunningListener {
    shared: Arc<Shared>,
    intake: Arc<Intake>,
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
        let intake = Arc::new(Intake::new(&config, metrics));
        let acceptor = Arc::new(Acceptor {
            intake: Arc::clone(&intake),
            tls,
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
            intake,
            config,
            accept,
            accepting,
        })
    }
}

struct Acceptor<H> {
    intake: Arc<Intake>,
    tls: Option<Arc<ServerTls>>,
    shared: Arc<Shared>,
    handler: Arc<H>,
}

impl<H: Handler> Acceptor<H> {
    /// Accepts until it is dropped, and the socket with it.
    async fn accept(self: Arc<Self>, socket: Arc<TcpListener>) {
        let mut resized = self.intake.slots.watch();
        loop {
            // The slot is taken before the accept: over the ceiling newcomers wait in the kernel's
            // backlog (LSN-2).
            let slot = self.intake.slots.take().await;
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                // The slot may be one too many. The sender lives as long as the intake.
                _ = resized.changed() => continue,
            };
            match accepted {
                Ok((stream, peer)) => self.start(stream, peer, slot),
                Err(error) => {
                    warn!(listener = %self.shared.name, %error, "accept failed, trying again");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn start(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr, slot: Slot) {
        let terms = self.intake.terms();
        let Some(place) = self.place(&terms, peer.ip()) else {
            return;
        };
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "the connection went before it was served");
            return;
        }
        let metrics = Arc::clone(&self.shared.metrics);
        let connection = Connection::new(peer, Arc::clone(&terms.limits), metrics);
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
            acceptor.serve(stream, &connection, terms).await;
        });
    }

    async fn serve(
        self: Arc<Self>,
        mut stream: TcpStream,
        connection: &Arc<Connection>,
        terms: Arc<Terms>,
    ) {
        let Some(claim) = self.claim(&terms, &mut stream).await else {
            return;
        };
        // A trusted proxy takes no place; whom it speaks for does.
        let _place = match terms.origin.client(connection.peer_ip(), claim) {
            None => None,
            Some(client) => match self.intake.sources.take(client) {
                None => return self.refused(),
                place => place,
            },
        };
        let stream = match &self.tls {
            None => Transport::Plain(stream),
            // Boxed, so that the task of a connection is not as large as a handshake.
            Some(tls) => {
                let secured = tls.secure(stream, connection, terms.handshake_timeout);
                match Box::pin(secured).await {
                    Some(stream) => stream,
                    None => return,
                }
            }
        };
        connection.secured(Instant::now());
        let io = CountedIo::new(stream, Arc::clone(connection), FloodLimits::DEFAULT);
        let (acceptor, caller) = (Arc::clone(&self), Arc::clone(connection));
        let begun = Arc::clone(&terms);
        let service = service_fn(move |mut request| {
            let open = OpenStream::new(&caller);
            let mark = |origin: &OriginRule| origin.mark(&mut request, &caller, claim);
            acceptor.intake.with_origin(&begun, mark);
            let handler = Arc::clone(&acceptor.handler);
            let answer = dispatch(handler, request, Arc::clone(&caller));
            async move { Ok::<_, std::convert::Infallible>(open.answered(answer.await)) }
        });
        // Pinned where it is made: moved into another future it would take its room twice.
        let served = pin!(terms.builder.serve_connection(TokioIo::new(io), service));
        drop(self);
        drive(served, connection).await;
    }

    /// A place for one more connection of the TCP peer.
    fn place(&self, terms: &Terms, peer: IpAddr) -> Option<Option<Place>> {
        if terms.origin.trusts(peer) {
            return Some(None);
        }
        let place = self.intake.sources.take(peer);
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
    async fn claim(&self, terms: &Terms, stream: &mut TcpStream) -> Option<Claim> {
        if !terms.origin.expects_proxy_header() {
            return Some(Claim::None);
        }
        let read = proxy_protocol::read(stream);
        let (kind, error) = match timeout(terms.proxy_header_timeout, read).await {
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
    _slot: Slot,
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

    /// Puts the limits and the origin of `config` in force, for connections that come from now on;
    /// nothing else of it.
    pub(crate) fn retune(&self, config: &config::Listener) {
        self.intake.retune(config);
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
