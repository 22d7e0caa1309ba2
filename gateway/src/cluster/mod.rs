//! The other gateways: who they are, and a proven connection to each (MESH-1 to MESH-6).
//!
//! Responsible for one task that keeps the membership engine running, follows what it believes,
//! tells it of seeds and dials peers. A node without a listener for nodes has none of this. Must
//! never make this node unready, nor know what links are used for.

mod addressees;
pub(crate) mod adjacency;
mod announce;
mod channels;
mod dialling;
mod events;
mod following;
mod link;
mod members;
mod public;
mod seal;
mod secret;
mod seeds;
mod seeking;
mod status;
mod users;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chitchat::ChitchatHandle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use crate::config::{self, Config, Endpoint};
use crate::gateways::Names;
use crate::observe::http::Reply;
use crate::observe::log::safe_text;
use crate::observe::metrics::Metrics;
use crate::session::{OwnerContext, Registry};
use crate::supervise::{Kept, NodeSupervisor, keep_running};
use crate::system::UdpSocket;
pub(crate) use adjacency::{Sharing, Whereabouts};
use announce::Announcer;
#[cfg(test)]
pub(crate) use channels::testing as channel_testing;
pub(crate) use channels::{Acceptor, Channel, Channels, Lost, MAX_FRAME, Room, Share, holding};
use link::dial::Dialler;
pub(crate) use link::handshake::Identity as Peer;
use link::handshake::{Identity, PROTOCOL};
pub(crate) use link::service::NodeService;
use link::{LinkUser, Mesh};
use members::engine;
use members::gossip::{SealedTransport, unix_ms};
use members::labels::Labels;
use members::patience::Patience;
use members::view::View;
pub(crate) use public::Elsewhere;
use public::Public;
use secret::{Keys, random};
use seeds::Addresses;
use seeking::{Sought, seek};
use users::Users;

/// A clustered node's part of the cluster.
pub(crate) struct Cluster {
    parts: Arc<Parts>,
    service: Arc<NodeService>,
    /// Of a private node.
    announcer: Option<Arc<Announcer>>,
    tasks: Mutex<Vec<Arc<Kept>>>,
}

/// What the tasks share.
struct Parts {
    mesh: Arc<Mesh>,
    dialler: Dialler,
    sharing: Arc<Sharing>,
    channels: Arc<Channels>,
    config: config::Cluster,
    node: config::Node,
    transport: SealedTransport,
    view: Mutex<View>,
    /// All that the seeds ever had.
    addresses: Mutex<Addresses>,
    seeds: watch::Sender<Sought>,
    draining: AtomicBool,
    names: Names,
    public: Public,
    /// Rung when a label has changed that must not wait.
    relabel: Notify,
    registry: Arc<Registry>,
    metrics: Arc<Metrics>,
    labelled: Mutex<HashSet<Arc<str>>>,
}

impl Cluster {
    /// Prepares the node's part, before the first agent comes; nothing is sent until [`Self::start`].
    /// `gossip` has the port of the node listener.
    pub(crate) fn new(
        config: &Config,
        secret: &config::Secret,
        gossip: UdpSocket,
        owners: &OwnerContext,
        names: &Names,
    ) -> Self {
        let OwnerContext {
            registry,
            events,
            notifier,
            metrics,
            ..
        } = owners;
        let own = Identity {
            name: config.node.name.as_str().into(),
            incarnation: unix_ms(),
            instance: random(),
        };
        let keys = Keys::derive(secret);
        let view = View::new(
            (Arc::clone(&own.name), own.incarnation),
            config.cluster.dead_after,
        );
        let transport = SealedTransport::new(gossip, keys.clone(), Arc::clone(metrics));
        let mesh = Mesh::new(own, keys, Arc::clone(metrics));
        let sharing = Sharing::new(registry, events, metrics, config.observe.metrics_per_peer);
        let channels = Channels::new(&mesh.own().name);
        let user = Arc::new(Users {
            sharing: Arc::clone(&sharing),
            channels: Arc::clone(&channels),
        }) as Arc<dyn LinkUser>;
        let dialler = Dialler {
            mesh: Arc::clone(&mesh),
            tls: config.cluster.tls.clone(),
            patience: config.cluster.dead_after,
            user: Arc::clone(&user),
        };
        let service = Arc::new(NodeService::new(Arc::clone(&mesh), user));
        let parts = Parts {
            mesh,
            dialler,
            sharing,
            channels,
            config: config.cluster.clone(),
            node: config.node.clone(),
            transport,
            view: Mutex::new(view),
            addresses: Mutex::new(Addresses::new(config.cluster.max_lifetime_addrs)),
            seeds: watch::Sender::default(),
            draining: AtomicBool::new(false),
            names: names.clone(),
            public: Public::new(names.is_private(), config.cluster.dead_after, metrics),
            relabel: Notify::new(),
            registry: Arc::clone(registry),
            metrics: Arc::clone(metrics),
            labelled: Mutex::default(),
        };
        let wanted = parts.public.subscribe();
        let announcer = || Announcer::new(names, wanted, registry, notifier);
        Self {
            announcer: names.is_private().then(announcer),
            parts: Arc::new(parts),
            service,
            tasks: Mutex::default(),
        }
    }

    /// What answers peers on the node listener.
    pub(crate) fn service(&self) -> Arc<NodeService> {
        Arc::clone(&self.service)
    }

    /// Who holds which agent.
    pub(crate) fn sharing(&self) -> Arc<Sharing> {
        Arc::clone(&self.parts.sharing)
    }

    /// Streams to other nodes.
    pub(crate) fn channels(&self) -> Arc<Channels> {
        Arc::clone(&self.parts.channels)
    }

    /// Joins.
    pub(crate) fn start(&self) {
        let (seeking, joining) = (Arc::clone(&self.parts), Arc::clone(&self.parts));
        let seeker = keep_running("cluster seeds", move || seek(Arc::clone(&seeking)));
        let member = keep_running("cluster membership", move || join(Arc::clone(&joining)));
        let sharing = Arc::clone(&self.parts.sharing);
        let gauges = keep_running("adjacency gauges", move || Arc::clone(&sharing).measure());
        let mut tasks = vec![seeker, member, gauges];
        tasks.extend(self.announcer.as_ref().map(|announcer| {
            let announcer = Arc::clone(announcer);
            keep_running("announcements", move || Arc::clone(&announcer).run())
        }));
        *self.tasks() = tasks.into_iter().map(Arc::new).collect();
    }

    fn tasks(&self) -> MutexGuard<'_, Vec<Arc<Kept>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the restarts of its tasks at the node (GEN-3).
    pub(crate) fn supervise(&self, node: &NodeSupervisor) {
        self.tasks().iter().for_each(|task| node.watch(task));
    }

    /// Tells the others that this node is stopping.
    pub(crate) fn drain(&self) {
        self.parts.draining.store(true, Ordering::Relaxed);
        self.parts.names.wait_no_longer();
        self.parts.relabel.notify_one();
    }

    /// Leaves: the others hear nothing more, and every link ends.
    pub(crate) fn leave(&self) {
        self.tasks().iter().for_each(|task| task.stop());
        self.parts.mesh.close_all();
    }

    /// Where agents of this node may go, as this node sees it.
    pub(crate) fn elsewhere(&self) -> impl Fn() -> Elsewhere + Send + Sync + use<> {
        let parts = Arc::clone(&self.parts);
        move || {
            let census = parts.sharing.census();
            Elsewhere::of(parts.names.is_private(), parts.view().members(), &census)
        }
    }

    /// `/cluster`: who is there, as this node sees it.
    pub(crate) fn page(&self) -> impl Fn() -> Reply + Send + Sync + use<> {
        let parts = Arc::clone(&self.parts);
        move || parts.page()
    }
}

/// Is a member, until the name turns out to be another's; then this node serves alone.
async fn join(parts: Arc<Parts>) {
    while !parts.mesh.has_left() {
        tokio::select! {
            ended = take_part(&parts) => {
                error!(?ended, "Cluster: the membership engine ended and is started again");
                tokio::time::sleep(parts.config.redial_interval).await;
            }
            () = parts.mesh.leaving() => {}
        }
        let changes = parts.view().clear();
        parts.sharing.keep_only(|_, _| false);
        parts.tell(changes);
        parts.expect();
        parts.name_public();
    }
    std::future::pending().await
}

/// Never returns but with an error.
async fn take_part(parts: &Arc<Parts>) -> anyhow::Result<()> {
    let address = parts.own_address().await?;
    let mut labels = parts.labels(address);
    parts.mesh.is_at(labels.peer.as_deref().unwrap_or_default());
    let own = parts.mesh.own();
    let dead_after = parts.config.dead_after;
    let handle = engine::start(own, address, dead_after, &labels, &parts.transport).await?;
    info!(node = %safe_text(&*own.name), %address, "Cluster: started");
    let mut live = handle
        .with_chitchat(|engine| engine.live_nodes_watcher())
        .await;
    let mut seeds = parts.seeds.subscribe();
    seeds.mark_changed();
    let mut seeking = parts.seeking();
    let mut links = JoinSet::new();
    let mut pulse = tokio::time::interval(Patience::pace(dead_after));
    pulse.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut ended = std::pin::pin!(handle.termination_watcher());
    loop {
        tokio::select! {
            ended = &mut ended => return ended,
            () = parts.relabel.notified() => {}
            _ = pulse.tick() => {
                parts.beat();
                let patient = parts.view().is_patient();
                // Nothing else tells that the term is over.
                if patient && parts.look(&live.borrow()) {
                    parts.dial(&mut links);
                }
                parts.tell_solitude(&mut seeking);
                continue;
            }
            () = parts.mesh.changed() => {
                parts.settle();
                continue;
            }
            Some(ended) = links.join_next() => {
                // One that worked is made again at once, one that failed with the next look.
                if ended.is_ok_and(|was_linked| was_linked) {
                    parts.dial(&mut links);
                }
                continue;
            }
            changed = live.changed() => {
                changed?;
                if parts.look(&live.borrow_and_update()) {
                    parts.dial(&mut links);
                }
                continue;
            }
            changed = seeds.changed() => {
                changed?;
                let sought = seeds.borrow_and_update().clone();
                parts.seek_out(&handle, sought, address, &mut seeking)?;
                parts.dial(&mut links);
            }
        }
        parts.name_public();
        let now = parts.labels(address);
        if now != labels {
            labels = now;
            relabel(&handle, &labels).await;
        }
    }
}

async fn relabel(handle: &ChitchatHandle, labels: &Labels) {
    let pairs = labels.pairs();
    let set = |engine: &mut chitchat::Chitchat| {
        let state = engine.self_node_state();
        // One that has not changed costs nothing.
        pairs.iter().for_each(|(key, value)| state.set(*key, value));
    };
    handle.with_chitchat(set).await;
}

impl Parts {
    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        self.addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Where peers gossip with this node, and dial it (CLUSTER-3).
    async fn own_address(&self) -> anyhow::Result<SocketAddr> {
        let bound = self.transport.local_addr()?;
        if let Some(told) = &self.node.peer_advertise {
            let seed = Endpoint {
                host: told.host.clone(),
                port: port_or(told.port, bound.port()),
            };
            match seeds::resolve(&seed).await.unwrap_or_default().first() {
                Some(address) => return Ok(*address),
                None => warn!("node.peer_advertise has no address; another one is told to peers"),
            }
        }
        let host = rustix::system::uname()
            .nodename()
            .to_str()
            .ok()
            .map(str::to_owned);
        let ip = seeds::own_ip(bound.ip(), &self.config.seeds(), host).await;
        Ok(SocketAddr::new(ip, bound.port()))
    }

    fn labels(&self, address: SocketAddr) -> Labels {
        let told = self.node.peer_advertise.as_ref().map(|told| Endpoint {
            host: told.host.clone(),
            port: port_or(told.port, address.port()),
        });
        let (forwarding, forwarded) = self.channels.open_now();
        Labels {
            incarnation: self.mesh.own().incarnation,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: PROTOCOL,
            is_private: self.names.is_private(),
            draining: self.draining.load(Ordering::Relaxed),
            advertise: self
                .node
                .advertise
                .iter()
                .map(ToString::to_string)
                .collect(),
            peer: Some(told.map_or_else(|| address.to_string(), |told| told.to_string())),
            sessions: self.registry.len() as u64,
            forwarding: forwarding as u64,
            forwarded: forwarded as u64,
        }
    }
}

fn port_or(port: u16, default: u16) -> u16 {
    match port {
        0 => default,
        port => port,
    }
}

#[cfg(test)]
mod tests;
