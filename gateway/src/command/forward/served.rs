//! The forwarded sessions that this node serves for others.
//!
//! Responsible for judging the marker of each (FWD-3), for their number, and for finding the session
//! that another stream resumes (FWD-8). Must never run a command.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::debug;
use yuzu_proto::node::v1::forward_refused::Reason;
use yuzu_proto::node::v1::{ForwardOpen, ForwardRefused, ForwardResume};

use super::super::Router;
use super::frames::{Kind, VERSION, decode, encode};
use super::serving::{Attach, Serving};
use crate::cluster::{Acceptor, Channel, Lost, Peer, Room, Sharing};
use crate::config::Routing;
use crate::observe::log::safe_text;
use crate::observe::metrics::Metrics;
use crate::session::{Epoch, Registry};

/// A peer has so long to end its half of a stream after it was refused.
const PARTING: Duration = Duration::from_secs(1);

/// One session: the life of the entry node, and its number there.
type Key = (Arc<str>, u64, u64);

/// See the module.
pub(crate) struct Served {
    pub(super) router: Arc<Router>,
    pub(super) registry: Arc<Registry>,
    sharing: Arc<Sharing>,
    routing: ArcSwap<Routing>,
    metrics: Arc<Metrics>,
    sessions: Mutex<HashMap<Key, mpsc::Sender<Attach>>>,
    /// Streams of each peer that have not begun a session.
    waiting: Mutex<HashMap<Arc<str>, usize>>,
    /// Bytes that sessions keep for entry nodes that may not have them.
    pub(super) kept: Arc<AtomicUsize>,
    /// Of commands, those that have not come as a whole included.
    pub(super) commands: Room,
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Served")
    }
}

/// A stream that has not begun a session, until it is dropped.
struct Waiting {
    served: Arc<Served>,
    peer: Arc<str>,
}

/// A session's place in the table, until it is dropped.
pub(super) struct Entered {
    served: Arc<Served>,
    key: Key,
}

impl Served {
    pub(crate) fn new(
        router: &Arc<Router>,
        registry: &Arc<Registry>,
        sharing: Arc<Sharing>,
        metrics: &Arc<Metrics>,
        routing: &Routing,
    ) -> Arc<Self> {
        Arc::new(Self {
            router: Arc::clone(router),
            registry: Arc::clone(registry),
            sharing,
            routing: ArcSwap::from_pointee(routing.clone()),
            metrics: Arc::clone(metrics),
            sessions: Mutex::default(),
            waiting: Mutex::default(),
            kept: Arc::default(),
            commands: Room::new(routing.max_inflight_bytes),
        })
    }

    /// Puts other bounds in force, for what comes from now on.
    pub(crate) fn retune(&self, routing: &Routing) {
        self.commands.retune(routing.max_inflight_bytes);
        self.routing.store(Arc::new(routing.clone()));
    }

    /// The bounds in force.
    pub(super) fn bounds(&self) -> Arc<Routing> {
        self.routing.load_full()
    }

    /// Whether another node holds a newer session of the agent (ADJ-3).
    pub(super) fn is_elsewhere(&self, agent_id: &str, own: Epoch) -> bool {
        self.sharing.elsewhere(agent_id, Some(own)).is_some()
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<Key, mpsc::Sender<Attach>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, sessions: usize) {
        self.metrics.forwarded_sessions.set(sessions as i64);
    }

    async fn begin(self: Arc<Self>, peer: Peer, mut channel: Channel, waiting: Waiting) {
        let first = timeout(self.bounds().idle_close, channel.source.next()).await;
        let frame = match first {
            Ok(Ok(Some(message))) => decode(message),
            Ok(Err(Lost::NoMessage | Lost::NoRoom)) | Err(_) => None,
            // It left before it had said anything.
            Ok(_) => return,
        };
        match frame {
            Some(Kind::Open(marker)) => match self.judge(&peer, &marker) {
                Ok((entered, attached)) => match Serving::new(&entered, &marker) {
                    Ok(serving) => {
                        debug!(
                            entry = %safe_text(&*peer.name),
                            caller = %safe_text(&*marker.identity),
                            call = marker.call,
                            "a forwarded session began"
                        );
                        drop(waiting);
                        serving.run(channel, attached).await;
                    }
                    Err(reason) => self.refuse(channel, reason).await,
                },
                Err(reason) => self.refuse(channel, reason).await,
            },
            Some(Kind::Resume(resume)) => self.resume(&peer, &resume, channel).await,
            _ => self.refuse(channel, Reason::NoMarker).await,
        }
    }

    /// Whether a session with this marker is served.
    fn judge(
        self: &Arc<Self>,
        peer: &Peer,
        marker: &ForwardOpen,
    ) -> Result<(Entered, mpsc::Receiver<Attach>), Reason> {
        if marker.version != VERSION {
            return Err(Reason::Version);
        }
        if *marker.origin != *peer.name {
            return Err(Reason::NoMarker);
        }
        if marker.hop != 1 {
            return Err(Reason::Hop);
        }
        let key = (Arc::clone(&peer.name), peer.incarnation, marker.session);
        let mut sessions = self.sessions();
        if sessions.contains_key(&key) {
            return Err(Reason::SecondMarker);
        }
        if sessions.len() >= self.bounds().max_sessions {
            return Err(Reason::Limit);
        }
        let (attach, attached) = mpsc::channel(1);
        sessions.insert(key.clone(), attach);
        self.show(sessions.len());
        drop(sessions);
        let entered = Entered {
            served: Arc::clone(self),
            key,
        };
        Ok((entered, attached))
    }

    async fn resume(&self, peer: &Peer, resume: &ForwardResume, channel: Channel) {
        let key = (Arc::clone(&peer.name), peer.incarnation, resume.session);
        let attach = self.sessions().get(&key).cloned();
        let attached = Attach {
            channel,
            received: resume.received,
        };
        let lost = match attach {
            Some(attach) => attach.send(attached).await.err().map(|unsent| unsent.0),
            None => Some(attached),
        };
        if let Some(Attach { channel, .. }) = lost {
            self.refuse(channel, Reason::UnknownSession).await;
        }
    }

    /// Says why the session is not served, and counts it.
    pub(super) async fn refuse(&self, mut channel: Channel, reason: Reason) {
        self.count_refused(reason);
        channel.sink.push(refused(reason));
        channel.sink.end();
        let _ = timeout(PARTING, channel.source.read_out()).await;
    }

    fn count_refused(&self, reason: Reason) {
        let family = &self.metrics.forwarded_refused_total;
        let label = match reason {
            Reason::Version => "version",
            Reason::Hop => "hop",
            Reason::SecondMarker => "second_marker",
            Reason::NoMarker | Reason::Unspecified => "no_marker",
            Reason::Malformed => "malformed",
            Reason::Stopping => "stopping",
            Reason::Limit => "limit",
            Reason::UnknownSession => "unknown_session",
        };
        family.with_label_values(&[label]).inc();
    }
}

fn refused(reason: Reason) -> Bytes {
    encode(Kind::Refused(ForwardRefused {
        reason: reason.into(),
    }))
}

impl Entered {
    pub(super) fn served(&self) -> &Arc<Served> {
        &self.served
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut sessions = self.served.sessions();
        sessions.remove(&self.key);
        self.served.show(sessions.len());
    }
}

impl Waiting {
    /// None: the peer has as many as it may have sessions.
    fn of(served: &Arc<Served>, peer: &Arc<str>) -> Option<Self> {
        let most = served.bounds().max_sessions_per_owner;
        let mut all = served.waiting();
        let waiting = all.get(peer).copied().unwrap_or_default();
        if waiting >= most {
            return None;
        }
        all.insert(Arc::clone(peer), waiting + 1);
        drop(all);
        Some(Self {
            served: Arc::clone(served),
            peer: Arc::clone(peer),
        })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut all = self.served.waiting();
        if let Some(waiting) = all.get_mut(&self.peer) {
            *waiting -= 1;
            if *waiting == 0 {
                all.remove(&self.peer);
            }
        }
    }
}

impl Acceptor for Served {
    fn accept(self: Arc<Self>, peer: Peer, channel: Channel) {
        match Waiting::of(&self, &peer.name) {
            Some(waiting) => drop(tokio::spawn(self.begin(peer, channel, waiting))),
            // The entry node is told that nothing was applied (FWD-6), and not waited for: that is what
            // there is too much of.
            None => {
                self.count_refused(Reason::Limit);
                channel.sink.push(refused(Reason::Limit));
                channel.sink.end();
            }
        }
    }
}

#[cfg(test)]
mod tests;
