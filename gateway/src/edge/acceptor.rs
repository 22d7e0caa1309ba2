//! What a listener does with each connection.
//!
//! Responsible for the accept loop, the ceiling on connections and who holds how many places, for
//! one task per connection, which begins with the PROXY header and the TLS handshake, and for
//! undoing all of it at the end. Must never know what is served.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
#[cfg(feature = "in-memory")]
use tokio::io::DuplexStream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::Handler;
use super::close::CloseReason;
use super::connection::{Connection, ConnectionKey, Signal};
use super::dispatch::dispatch;
use super::drive::{Drive, GracefulConnection};
use super::flood::FloodLimits;
use super::io::CountedIo;
use super::origin::OriginRule;
use super::places::Occupant;
use super::proxy_protocol::{self, Claim};
use super::sources::{Place, Source};
use super::stream::OpenStream;
use super::tasks::StreamExecutor;
use super::terms::{Intake, Terms};
use super::tls::{ServerTls, Transport};
use crate::observe::metrics::Metrics;
use crate::system::{TcpListener, TcpStream};
use crate::tuning::Slot;

/// A failed accept (out of descriptors, say) is tried again after this.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// While all places are taken, this often it is asked anew who holds them: a certificate may have
/// been withdrawn, and a newcomer has had its time to become known.
const FULL_RECHECK: Duration = Duration::from_secs(1);

/// The open connections of a listener.
#[derive(Debug)]
pub(super) struct Shared {
    name: String,
    open: Mutex<HashMap<ConnectionKey, Arc<Connection>>>,
    /// Rung when a connection has gone.
    pub(super) gone: Notify,
    metrics: Arc<Metrics>,
}

/// See the module.
pub(super) struct Acceptor<H> {
    pub(super) intake: Arc<Intake>,
    /// None: plaintext.
    pub(super) tls: Option<Arc<ServerTls>>,
    pub(super) shared: Arc<Shared>,
    pub(super) handler: Arc<H>,
}

impl<H: Handler> Acceptor<H> {
    /// Accepts until it is dropped, and the socket with it.
    pub(super) async fn accept(self: Arc<Self>, socket: Arc<TcpListener>) {
        let mut resized = self.intake.slots.watch();
        loop {
            // The slot is taken before the accept: over the ceiling newcomers wait in the kernel's
            // backlog (LSN-2).
            let slot = self.slot().await;
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

    async fn slot(&self) -> Slot {
        let mut taken = pin!(self.intake.slots.take());
        loop {
            match timeout(FULL_RECHECK, &mut taken).await {
                Ok(slot) => return slot,
                Err(_) => self.make_room(&self.intake.terms(), None),
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
        let (connection, closed) = self.opened(peer, &terms, Some(slot), place);
        self.make_room(&terms, Some(connection.key()));
        tokio::spawn(Arc::clone(self).serve(stream, connection, terms, closed));
    }

    /// As [`Self::start`], for a stream that no socket carries: it takes neither a slot nor a place,
    /// and begins after what a socket begins with.
    #[cfg(feature = "in-memory")]
    pub(super) fn bring(self: &Arc<Self>, stream: DuplexStream, peer: SocketAddr) {
        let terms = self.intake.terms();
        let (connection, closed) = self.opened(peer, &terms, None, None);
        let acceptor = Arc::clone(self);
        tokio::spawn(async move {
            let _closed = closed;
            let tasks = terms.tasks(&connection);
            let served = acceptor.http2(stream, &connection, &terms, Claim::None);
            let driven = pin!(Drive::new(served, &connection, tasks));
            drop((acceptor, terms));
            driven.await;
        });
    }

    /// Notes a connection, until the second value is dropped.
    fn opened(
        &self,
        peer: SocketAddr,
        terms: &Terms,
        slot: Option<Slot>,
        place: Option<Place>,
    ) -> (Arc<Connection>, Closed<H>) {
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
        (connection, closed)
    }

    /// All that a connection is, from its first byte to its end.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn keeps its arguments twice, and a connection lives long"
    )]
    fn serve(
        self: Arc<Self>,
        mut stream: TcpStream,
        connection: Arc<Connection>,
        terms: Arc<Terms>,
        closed: Closed<H>,
    ) -> impl Future<Output = ()> + Send {
        async move {
            let _closed = closed;
            let connection = &connection;
            let Some(claim) = self.claim(&terms, &mut stream).await else {
                return;
            };
            let peer = connection.peer_ip();
            let client = terms.origin.client(peer, claim);
            // A trusted proxy takes no place; whom it speaks for does.
            let _place = match client {
                None => None,
                Some(client) => match self.intake.sources.take(client) {
                    None => return self.refused(),
                    place => place,
                },
            };
            // Nor does it wait for what came through it.
            let direct = (!terms.origin.trusts(peer)).then_some(peer);
            let source = client.or(direct).map(Source::of);
            if let Some(source) = source
                && !self.waited(source, connection).await
            {
                return;
            }
            let stream = match &self.tls {
                None => Transport::Left(stream),
                // Boxed, so that the task of a connection is not as large as a handshake.
                Some(tls) => {
                    let secured = tls.secure(stream, connection, terms.handshake_timeout);
                    match Box::pin(secured).await {
                        Some(stream) => stream,
                        None => return,
                    }
                }
            };
            self.handler.connection_opened(connection.key(), &stream);
            let tasks = terms.tasks(connection);
            // Pinned where it is made: moved into another future it would take its room twice.
            let served = self.http2(stream, connection, &terms, claim);
            let driven = pin!(Drive::new(served, connection, tasks));
            let intake = Arc::clone(&self.intake);
            drop(self);
            driven.await;
            if let Some(source) = source
                && connection.has_flooded()
            {
                intake.cooldowns().flooded(source, Instant::now());
            }
        }
    }

    /// HTTP/2 over a stream that is ready for it.
    fn http2<I>(
        self: &Arc<Self>,
        stream: I,
        connection: &Arc<Connection>,
        terms: &Arc<Terms>,
        claim: Claim,
    ) -> impl GracefulConnection + use<H, I>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        connection.secured(Instant::now());
        let io = CountedIo::new(stream, Arc::clone(connection), FloodLimits::DEFAULT);
        let (acceptor, caller) = (Arc::clone(self), Arc::clone(connection));
        let begun = Arc::clone(terms);
        let service = service_fn(move |mut request| {
            let open = OpenStream::new(&caller);
            let mark = |origin: &OriginRule| origin.mark(&mut request, &caller, claim);
            acceptor.intake.with_origin(&begun, mark);
            let handler = Arc::clone(&acceptor.handler);
            let answer = dispatch(handler, request, Arc::clone(&caller));
            // Boxed: hyper keeps its room for as long as the stream lives.
            Box::pin(async move { Ok::<_, Infallible>(open.answered(answer.await)) })
        });
        let builder = terms.http2.builder(StreamExecutor(Arc::clone(connection)));
        builder.serve_connection(TokioIo::new(io), service)
    }

    /// Waits when this source has just flooded (LSN-18). Whether the connection is still wanted.
    async fn waited(&self, source: Source, connection: &Connection) -> bool {
        let wait = self.intake.cooldowns().wait(source, Instant::now());
        let Some(wait) = wait else {
            return true;
        };
        let family = &self.shared.metrics.listener_source_delayed_total;
        family.with_label_values(&[&*self.shared.name]).inc();
        timeout(wait, connection.asked_to_end()).await.is_err()
    }

    /// Closes a stranger when places are short (LSN-17).
    fn make_room(&self, terms: &Terms, newcomer: Option<ConnectionKey>) {
        let open = self.shared.open();
        if terms.places.suffice_for(open.len()) {
            return;
        }
        let staying = open.values().filter(|connection| !connection.is_killed());
        let occupants: Vec<_> = staying
            .map(|connection| Occupant {
                key: connection.key(),
                authorized: self.handler.authorizes(connection),
            })
            .collect();
        let gone = terms.places.gives_way(newcomer, &occupants);
        if let Some(stranger) = gone.and_then(|key| open.get(&key)) {
            stranger.kill(CloseReason::Unauthorized);
        }
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
    _slot: Option<Slot>,
    _place: Option<Place>,
}

impl<H: Handler> Drop for Closed<H> {
    fn drop(&mut self) {
        self.shared.closed(self.key);
        self.handler.connection_closed(self.key);
    }
}

impl Shared {
    pub(super) fn new(name: &str, metrics: Arc<Metrics>) -> Self {
        Self {
            name: name.to_owned(),
            open: Mutex::default(),
            gone: Notify::new(),
            metrics,
        }
    }

    pub(super) fn open(&self) -> MutexGuard<'_, HashMap<ConnectionKey, Arc<Connection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self, connection: &Arc<Connection>) {
        self.open().insert(connection.key(), Arc::clone(connection));
        let name = &[&*self.name];
        let metrics = &self.metrics;
        metrics
            .listener_accepted_total
            .with_label_values(name)
            .inc();
        metrics.listener_connections.with_label_values(name).inc();
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

    pub(super) fn signal_all(&self, signal: Signal) {
        for connection in self.open().values() {
            connection.signal(signal);
        }
    }
}
