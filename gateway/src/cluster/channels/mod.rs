//! Streams of messages between two nodes that either of them may open.
//!
//! Only the side that dialled a link can open a stream of HTTP/2 on it. When the other side wants
//! one, it offers it over a stream that the dialler holds for this, and the dialler calls back.
//! Responsible for hiding the difference, and for waiting until there is a link. Must never know
//! what the messages say, nor bound how many channels there are: whoever opens them does.

mod outgoing;
mod room;
mod source;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use http::{HeaderValue, Request};
use http_body_util::Full;
use hyper::body::Incoming;
use prost::Message;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;
use tonic::Status;
use yuzu_proto::node::v1::{ForwardOffer, OffersRequest};
use yuzu_proto::path;

use super::link::handshake::Identity;
use super::link::messages::Messages;
use super::link::{Calls, Carrier, Failure, LinkUser, keep_open, unary};
use super::secret::random;
use crate::edge::connection::Connection;
use crate::edge::{Response, grpc};
pub(crate) use outgoing::holding;
use outgoing::{EARLY, Offer, Outgoing, Sink, outgoing};
pub(crate) use room::{Room, Share};
pub(crate) use source::{Lost, MAX_FRAME};
use source::{MAX_FIRST, Source, stream_of};

/// The number of an offer, in the call that takes it up.
const OFFER: &str = "yuzu-offer";
/// An offer: its number and early frames.
const MAX_OFFER: usize = EARLY + 64;
/// Offers that may lie unread: a peer that reads has taken them at once.
const MAX_UNREAD: usize = 1_024;

/// Whoever waits for a way that takes nothing more looks again so often.
const LOOK: Duration = Duration::from_millis(50);

/// A stream of messages in both directions. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) sink: Sink,
    pub(crate) source: Source,
    _counted: Counted,
}

/// Takes the channels that peers open.
pub(crate) trait Acceptor: fmt::Debug + Send + Sync {
    /// Must not wait. Messages over it have at most 64 KiB until it says otherwise.
    fn accept(self: Arc<Self>, peer: Identity, channel: Channel);
}

/// The ways to all peers.
#[derive(Debug)]
pub(crate) struct Channels {
    own: Arc<str>,
    ways: Mutex<HashMap<Arc<str>, (u64, Way)>>,
    /// Rung when there is another way.
    came: watch::Sender<()>,
    /// Offers that nobody has taken up yet.
    offered: Mutex<HashMap<u64, Offered>>,
    /// Of ways.
    numbers: AtomicU64,
    acceptor: OnceLock<Arc<dyn Acceptor>>,
    opened: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
}

/// A stream that a peer was asked for.
struct Offered {
    /// Nobody else may take it up.
    peer: Identity,
    body: Outgoing,
    taken: oneshot::Sender<Incoming>,
}

impl fmt::Debug for Offered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Offered")
    }
}

/// How a stream to a peer begins.
#[derive(Debug, Clone)]
enum Way {
    /// This node dialled.
    Call(Calls),
    /// The peer did.
    Offer(Identity, Arc<Sink>),
}

/// One more, while it lives.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Channels {
    /// Those of the node of this name.
    pub(crate) fn new(own: &Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            own: Arc::clone(own),
            ways: Mutex::default(),
            came: watch::Sender::default(),
            offered: Mutex::default(),
            numbers: AtomicU64::default(),
            acceptor: OnceLock::new(),
            opened: Arc::default(),
            accepted: Arc::default(),
        })
    }

    /// The name of this node.
    pub(crate) fn own(&self) -> &Arc<str> {
        &self.own
    }

    /// Has one take the channels of peers; once, before the first peer comes.
    pub(crate) fn accepted_by(&self, acceptor: Arc<dyn Acceptor>) {
        let first = self.acceptor.set(acceptor);
        debug_assert!(first.is_ok());
    }

    /// Channels that are open: those of this node, and those of peers.
    pub(crate) fn open_now(&self) -> (usize, usize) {
        let read = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        (read(&self.opened), read(&self.accepted))
    }

    fn ways(&self) -> MutexGuard<'_, HashMap<Arc<str>, (u64, Way)>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn offered(&self) -> MutexGuard<'_, HashMap<u64, Offered>> {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// A channel to this node. Waits without end while there is no link to it.
    pub(crate) async fn open(self: Arc<Self>, node: Arc<str>) -> Channel {
        let mut came = self.came.subscribe();
        loop {
            came.mark_unchanged();
            if let Some(channel) = self.try_open(&node) {
                return channel;
            }
            // A way that takes nothing more for now says nothing when it does.
            let is_busy = self.ways().contains_key(&node);
            let again = async {
                match is_busy {
                    true => sleep(LOOK).await,
                    false => std::future::pending().await,
                }
            };
            // An error would say that the sender is gone, which lives here.
            tokio::select! {
                _ = came.changed() => {}
                () = again => {}
            }
        }
    }

    /// A channel to this node; `None`: there is no link to it, or one that takes no more for now.
    pub(crate) fn try_open(self: &Arc<Self>, node: &str) -> Option<Channel> {
        let way = self.ways().get(node).map(|(_, way)| way.clone());
        let (sink, source) = match way? {
            Way::Call(calls) => call(calls)?,
            Way::Offer(peer, offers) => self.offer(peer, &offers)?,
        };
        Some(Channel {
            sink,
            source,
            _counted: Counted::new(&self.opened),
        })
    }

    /// None: the link is ending, or the peer reads no offers.
    fn offer(self: &Arc<Self>, peer: Identity, offers: &Arc<Sink>) -> Option<(Sink, Source)> {
        if offers.is_gone() || offers.waiting() >= MAX_UNREAD {
            return None;
        }
        // Not to be guessed by other peers.
        let number = u64::from_ne_bytes(random());
        let (sink, body) = outgoing(None);
        sink.offered(Offer {
            number,
            offers: Arc::clone(offers),
        });
        let (taken, stream) = oneshot::channel();
        let offered = Offered { peer, body, taken };
        self.offered().insert(number, offered);
        let withdrawn = Withdrawn(Arc::clone(self), number);
        let gone = offers.gone();
        let coming = async move {
            let _withdrawn = withdrawn;
            tokio::select! {
                stream = stream => stream.map_err(|_| Lost::Broken),
                () = gone => Err(Lost::Broken),
            }
        };
        Some((sink, Source::awaiting(Box::pin(coming))))
    }

    fn register(self: &Arc<Self>, node: &Arc<str>, way: Way) -> Registered {
        let number = self.number();
        self.ways().insert(Arc::clone(node), (number, way));
        self.came.send_replace(());
        Registered {
            channels: Arc::clone(self),
            node: Arc::clone(node),
            number,
        }
    }

    fn accept(&self, peer: Identity, sink: Sink, mut source: Source) {
        source.limit(MAX_FIRST);
        let channel = Channel {
            sink,
            source,
            _counted: Counted::new(&self.accepted),
        };
        match self.acceptor.get() {
            Some(acceptor) => Arc::clone(acceptor).accept(peer, channel),
            None => drop(channel),
        }
    }

    /// Follows the offers of a peer that this node dialled.
    async fn follow(&self, peer: &Identity, mut calls: Calls) -> Result<(), Failure> {
        let ask = Full::new(grpc::frame(&OffersRequest {}.encode_to_vec()));
        let ask = tonic::body::Body::new(ask);
        let body = calls.stream(path::NODE_OFFERS, ask).await?;
        let mut offers = Messages::of(body, MAX_OFFER);
        while let Ok(Some(offer)) = offers.next().await {
            let offer = ForwardOffer::decode(offer).map_err(|_| Failure::Protocol)?;
            // A peer that offers without end does not keep its thread.
            tokio::task::coop::consume_budget().await;
            // Those that have been offered before go on.
            let Some(carrier) = calls.carrier() else {
                continue;
            };
            let (sink, body) = outgoing(Some(carrier));
            let mut request = unary::request(path::NODE_ACCEPT, tonic::body::Body::new(body))?;
            let headers = request.headers_mut();
            headers.insert(OFFER, HeaderValue::from(offer.offer));
            let stream = Box::pin(stream_of(calls.begin(request)));
            let source = Source::awaiting(stream).behind(offer.frames);
            self.accept(peer.clone(), sink, source);
        }
        Ok(())
    }

    /// Takes out the offer of this number, which was made to `peer`; it stays if it was not.
    fn take_offer(&self, number: u64, peer: &Identity) -> Option<Offered> {
        let mut offered = self.offered();
        let is_its = offered.get(&number)?.peer == *peer;
        is_its.then(|| offered.remove(&number)).flatten()
    }

    /// The peer takes an offer up.
    fn taken_up(
        &self,
        peer: &Identity,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
    ) -> Result<Response, Status> {
        let number = request.headers().get(OFFER);
        let number = number.and_then(|value| value.to_str().ok()?.parse().ok());
        let taken = number.and_then(|number| self.take_offer(number, peer));
        let Offered { body, taken, .. } =
            taken.ok_or_else(|| Status::not_found("no such offer"))?;
        // Whoever wanted it may not want it any more: it ends.
        drop(taken.send(request.into_body()));
        Ok(grpc::stream(
            body.carried_by(Carrier::Answer(Arc::clone(connection))),
        ))
    }
}

/// None: the link is ending, or the peer takes no streams.
fn call(mut calls: Calls) -> Option<(Sink, Source)> {
    let (sink, body) = outgoing(Some(calls.carrier()?));
    let request = unary::request(path::NODE_FORWARD, tonic::body::Body::new(body)).ok()?;
    let stream = Box::pin(stream_of(calls.begin(request)));
    Some((sink, Source::awaiting(stream)))
}

impl LinkUser for Channels {
    fn dialled(
        self: Arc<Self>,
        peer: Identity,
        calls: Calls,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let _way = self.register(&peer.name, Way::Call(calls.clone()));
            keep_open(&peer, "offers", || self.follow(&peer, calls.clone())).await;
        })
    }

    fn called(
        self: Arc<Self>,
        peer: &Identity,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
    ) -> Option<Response> {
        let answering = || Carrier::Answer(Arc::clone(connection));
        let response = match request.uri().path() {
            path::NODE_FORWARD => {
                let (sink, body) = outgoing(Some(answering()));
                self.accept(peer.clone(), sink, Source::of(request.into_body()));
                grpc::stream(body)
            }
            path::NODE_OFFERS => {
                let (sink, mut body) = outgoing(Some(answering()));
                body.keep(self.register(&peer.name, Way::Offer(peer.clone(), Arc::new(sink))));
                grpc::stream(body)
            }
            path::NODE_ACCEPT => {
                let answer = self.taken_up(peer, request, connection);
                answer.unwrap_or_else(grpc::refuse)
            }
            _ => return None,
        };
        Some(response)
    }
}

/// A way, until it is dropped.
#[derive(Debug)]
struct Registered {
    channels: Arc<Channels>,
    node: Arc<str>,
    number: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut ways = self.channels.ways();
        let is_own = ways
            .get(&self.node)
            .is_some_and(|(number, _)| *number == self.number);
        let gone = is_own.then(|| ways.remove(&self.node));
        drop(ways);
        drop(gone);
    }
}

/// Takes an offer back that nobody has taken up.
struct Withdrawn(Arc<Channels>, u64);

impl Drop for Withdrawn {
    fn drop(&mut self) {
        let withdrawn = self.0.offered().remove(&self.1);
        drop(withdrawn);
    }
}

#[cfg(test)]
mod tests;
