//! Links: one proven connection for each pair of nodes (MESH-2).
//!
//! Responsible for admitting peers that have proven the secret, whichever side dialled, for closing
//! their connections, and for leaving the cluster when the name belongs to another node (MESH-6).
//! Must never carry a message of another room: those have streams of their own on the connection.

pub(super) mod calls;
pub(super) mod dial;
pub(super) mod failure;
pub(super) mod handshake;
pub(super) mod messages;
pub(super) mod service;
pub(super) mod table;
mod timer;
mod tls;
pub(super) mod unary;

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use tokio::sync::{Notify, watch};
use tracing::{error, info};
use yuzu_proto::path;

use super::secret::Keys;
use crate::edge::Response;
use crate::edge::connection::{Connection, Signal};
use crate::observe::log::{PerReason, limited, safe_text};
use crate::observe::metrics::Metrics;
pub(super) use calls::{Calls, Carrier, keep_open};
pub(super) use failure::{Failure, Fault};
use handshake::Identity;
use table::{LinkId, Links, Side};

/// Between two lines of one reason.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// What a link is used for once both sides have proven the secret.
pub(crate) trait LinkUser: fmt::Debug + Send + Sync {
    /// Uses a link that this node dialled; dropped when the link ends.
    fn dialled(
        self: Arc<Self>,
        peer: Identity,
        calls: Calls,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Answers a call over a link that the peer dialled; `None` for a method that it lacks.
    fn called(
        self: Arc<Self>,
        peer: &Identity,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
    ) -> Option<Response>;
}

/// What all links of a node share.
#[derive(Debug)]
pub(crate) struct Mesh {
    own: Identity,
    keys: Keys,
    /// Where peers are told to dial this node; empty until it joins.
    address: Mutex<Arc<str>>,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
    /// Whether this node has left the cluster.
    left: watch::Sender<bool>,
    /// Rung when a link has come or gone.
    changed: Notify,
    /// Which failures were told of.
    told: PerReason<{ Failure::COUNT }>,
}

#[derive(Debug)]
struct State {
    links: Links,
    closers: HashMap<LinkId, Closer>,
    next: LinkId,
}

/// How a connection is ended.
#[derive(Debug)]
enum Closer {
    /// A peer dialled it.
    Dialled(Arc<Connection>),
    /// Dropped, its task ends it.
    Dialler(#[expect(dead_code, reason = "it acts by being dropped")] watch::Sender<()>),
}

impl Closer {
    fn close(self) {
        if let Self::Dialled(connection) = self {
            connection.signal(Signal::Kill);
        }
    }
}

/// The link of a peer, until it is dropped.
#[derive(Debug)]
pub(crate) struct Linked {
    mesh: Arc<Mesh>,
    peer: Identity,
    id: LinkId,
}

impl Mesh {
    pub(crate) fn new(own: Identity, keys: Keys, metrics: Arc<Metrics>) -> Arc<Self> {
        let state = State {
            links: Links::new(own.clone()),
            closers: HashMap::new(),
            next: 0,
        };
        Arc::new(Self {
            own,
            keys,
            address: Mutex::new("".into()),
            metrics,
            state: Mutex::new(state),
            left: watch::Sender::new(false),
            changed: Notify::new(),
            told: PerReason::new(TELL_EVERY),
        })
    }

    pub(crate) fn own(&self) -> &Identity {
        &self.own
    }

    /// Where peers are told to dial this node; empty until that is known.
    pub(crate) fn address(&self) -> Arc<str> {
        let address = self.address.lock();
        Arc::clone(&address.unwrap_or_else(PoisonError::into_inner))
    }

    /// What peers are told from now on: each start of the engine looks for the address anew.
    pub(crate) fn is_at(&self, address: &str) {
        let known = self.address.lock();
        *known.unwrap_or_else(PoisonError::into_inner) = address.into();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a peer that has proven the secret.
    fn admit(
        self: &Arc<Self>,
        peer: Identity,
        side: Side,
        closer: Closer,
    ) -> Result<Linked, Failure> {
        let mut state = self.state();
        if self.has_left() {
            return Err(Failure::Left);
        }
        let id = state.next;
        let admitted = state.links.admit(&peer, side, id);
        let replaced = match admitted {
            Ok(replaced) => replaced,
            Err(failure) => {
                drop(state);
                self.judge_namesake(&peer);
                return Err(failure);
            }
        };
        state.next += 1;
        state.closers.insert(id, closer);
        let replaced = replaced.and_then(|id| state.closers.remove(&id));
        self.show(&state);
        drop(state);
        if let Some(closer) = replaced {
            closer.close();
        }
        info!(node = %safe_text(&*peer.name), ?side, "Cluster: linked");
        Ok(Linked {
            mesh: Arc::clone(self),
            peer,
            id,
        })
    }

    /// MESH-6: of two nodes with one name the younger goes.
    fn judge_namesake(&self, peer: &Identity) {
        let is_namesake = peer.name == self.own.name && peer.instance != self.own.instance;
        if is_namesake && self.own.is_younger_than(peer) && !self.left.send_replace(true) {
            error!(
                "CRITICAL Cluster: another node is named {} and is older: this one has left the \
                 cluster and serves alone. Give each node its own node.name and start this one again",
                safe_text(&*self.own.name)
            );
            self.close_all();
        }
    }

    /// Whether this node serves alone, until it is started again.
    pub(crate) fn has_left(&self) -> bool {
        *self.left.borrow()
    }

    /// Waits until it does.
    pub(crate) async fn leaving(&self) {
        // An error would say that the sender is gone, which lives here.
        let _ = self.left.subscribe().wait_for(|left| *left).await;
    }

    /// Waits until a link has come or gone since the last time.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The names and lives of the peers that are linked.
    pub(crate) fn linked(&self) -> HashMap<Arc<str>, u64> {
        let state = self.state();
        let peers = state.links.peers();
        peers
            .map(|peer| (Arc::clone(&peer.name), peer.incarnation))
            .collect()
    }

    /// See [`Links::due`].
    pub(crate) fn due<'a>(
        &self,
        live: impl Iterator<Item = (&'a Arc<str>, u64)>,
    ) -> Vec<(Arc<str>, u64)> {
        self.state().links.due(live)
    }

    /// See [`Links::dialled`].
    pub(crate) fn dialled(&self, name: &str) {
        self.state().links.dialled(name);
    }

    /// Ends the link of a node of which nothing is heard any more.
    pub(crate) fn close(&self, name: &str, incarnation: u64) {
        let closer = {
            let mut state = self.state();
            let found = state.links.of(name);
            let id = found
                .filter(|(peer, _)| peer.incarnation == incarnation)
                .map(|(_, id)| id);
            id.and_then(|id| state.closers.remove(&id))
        };
        if let Some(closer) = closer {
            closer.close();
        }
    }

    /// Ends every link.
    pub(crate) fn close_all(&self) {
        let closers = std::mem::take(&mut self.state().closers);
        closers.into_values().for_each(Closer::close);
    }

    /// Counts who wants a command carried out without having proven the secret (FWD-3).
    fn called_unproven(&self, method: &str) {
        if [path::NODE_FORWARD, path::NODE_ACCEPT].contains(&method) {
            let family = &self.metrics.forwarded_refused_total;
            family.with_label_values(&["unauthenticated"]).inc();
        }
    }

    /// Counts a peer that was not linked, and says so now and then.
    pub(crate) fn failed(&self, fault: impl Into<Fault>, who: impl fmt::Display) {
        let fault = fault.into();
        let family = &self.metrics.cluster_connect_failures_total;
        family.with_label_values(&[fault.failure.label()]).inc();
        limited!(
            warn,
            self.told.of(fault.failure as usize),
            "Cluster: no link with {who}: {fault}"
        );
    }

    fn show(&self, state: &State) {
        self.metrics
            .cluster_peers_connected
            .set(state.links.len() as i64);
        self.changed.notify_one();
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        let mut state = self.mesh.state();
        state.closers.remove(&self.id);
        if state.links.ended(&self.peer.name, self.id) {
            self.mesh.show(&state);
            drop(state);
            info!(node = %safe_text(&*self.peer.name), "Cluster: link ended");
        }
    }
}
