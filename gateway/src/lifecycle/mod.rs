//! Starting and stopping a node.
//!
//! Responsible for the order in which the rooms come up and go down. Must never know a rule of
//! the rooms below.

mod certificates;
mod clustered;
mod control;
mod reload;
mod services;
mod start;
mod stop;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::agent_service::AgentService;
use crate::cluster::Cluster;
use crate::command::{Router, Served};
use crate::config;
use crate::edge::charge::NodeMemory;
use crate::heartbeat::Batcher;
use crate::notify::Notifier;
use crate::observe::http::HttpServer;
use crate::observe::metrics::Metrics;
use crate::observe::process::Sampler;
use crate::replay::Replayer;
use crate::session::{OwnerContext, Registry};
use crate::shed::{Listeners, MemoryShedder};
use crate::shift::Shifter;
use crate::supervise::{Kept, NodeSupervisor};
use crate::upstream::Upstream;

use certificates::Follower;
pub use start::StartError;
pub use stop::StopReport;

/// A running node. Dropped without [`Gateway::shutdown`] it takes no more connections and leaves
/// those it has to the runtime.
pub struct Gateway {
    /// In force; written by reloads.
    config: Mutex<config::Config>,
    metrics: Arc<Metrics>,
    registry: Arc<Registry>,
    owners: Arc<OwnerContext>,
    router: Arc<Router>,
    agents: Arc<AgentService>,
    upstream: Upstream,
    notifier: Notifier,
    replayer: Replayer,
    batcher: Batcher,
    /// Room for unfinished requests.
    memory: Arc<NodeMemory>,
    listeners: Listeners,
    /// None: this node has no listener for others.
    cluster: Option<Cluster>,
    /// As `cluster`.
    shifter: Option<Shifter>,
    /// Commands of other nodes; there with `cluster`.
    served: Option<Arc<Served>>,
    health: HttpServer,
    scrape: HttpServer,
    tasks: Tasks,
    supervisor: NodeSupervisor,
}

/// Tasks that live as long as the node.
struct Tasks {
    sweeper: Arc<Kept>,
    shedder: MemoryShedder,
    certificates: Follower,
    sampler: Sampler,
}

impl Tasks {
    /// Counts their restarts at the node (GEN-3).
    fn supervise(&self, node: &NodeSupervisor) {
        node.watch(&self.sweeper);
        node.watch(self.certificates.task());
        self.shedder.supervise(node);
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway")
            .field("node", &self.in_force().node.name)
            .finish_non_exhaustive()
    }
}

impl Gateway {
    /// The configuration in force: what the node was started with, and what reloads changed.
    pub fn config(&self) -> config::Config {
        self.in_force().clone()
    }

    /// Where the listener `name` accepts.
    pub fn listener_address(&self, name: &str) -> Option<SocketAddr> {
        let found = self
            .listeners
            .iter()
            .find(|(config, _)| config.name == name);
        found.map(|(_, listener)| listener.address())
    }

    fn in_force(&self) -> MutexGuard<'_, config::Config> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serving(&self, service: config::Service) -> Option<SocketAddr> {
        let found = self
            .listeners
            .iter()
            .find(|(config, _)| config.serves(service));
        found.map(|(_, listener)| listener.address())
    }

    /// Where agents connect: the first listener that serves them.
    pub fn agent_address(&self) -> Option<SocketAddr> {
        self.serving(config::Service::Agent)
    }

    /// Where the server connects: the first listener that serves management.
    pub fn management_address(&self) -> Option<SocketAddr> {
        self.serving(config::Service::Management)
    }

    /// Where other gateways connect.
    pub fn node_address(&self) -> Option<SocketAddr> {
        self.serving(config::Service::Node)
    }

    /// Where `/healthz` and `/readyz` are served.
    pub fn health_address(&self) -> SocketAddr {
        self.health.local_addr()
    }

    /// Where `/metrics` is served.
    pub fn metrics_address(&self) -> SocketAddr {
        self.scrape.local_addr()
    }

    /// The metrics of this node.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Agents connected now.
    pub fn agents_connected(&self) -> usize {
        self.registry.len()
    }

    /// Waits until the node is no longer worth running: its top-level tasks panicked more than 10
    /// times within 60 s (GEN-3). Whoever runs it should stop it and start a new one.
    pub async fn given_up(&self) {
        self.supervisor.given_up().await;
    }

    /// Returns when called if what every agent depends on can be reached, and not before: a
    /// watchdog that waits for it sees a node that hangs.
    pub fn pulse(&self) -> impl Fn() + Send + use<> {
        let registry = Arc::clone(&self.registry);
        move || registry.sweep()
    }

    /// Serves an agent over a stream that no socket carries, as the first listener of agents does
    /// once it has accepted one: no descriptor limits how many there are. `peer` is where it is
    /// said to come from. False: no listener serves agents.
    #[cfg(feature = "in-memory")]
    pub fn serve_agent(&self, stream: tokio::io::DuplexStream, peer: SocketAddr) -> bool {
        let mut listeners = self.listeners.iter();
        let agents = listeners.find(|(config, _)| config.serves(config::Service::Agent));
        agents.is_some_and(|(_, listener)| {
            listener.bring(stream, peer);
            true
        })
    }

    /// The id of an agent that [`Gateway::start_pretending`] tells of.
    #[cfg(feature = "in-memory")]
    pub fn pretended_agent(number: u64) -> String {
        crate::cluster::adjacency::pretend::agent_id(number)
    }

    /// Tells peers that such an agent went.
    #[cfg(feature = "in-memory")]
    pub fn pretend_end(&self, number: u64) {
        if let Some(cluster) = &self.cluster {
            cluster.sharing().pretend_end(number);
        }
    }

    /// Makes the owner of an agent panic inside its pump. False: the agent is not connected.
    #[cfg(feature = "fault-injection")]
    pub fn inject_owner_panic(&self, agent_id: &str) -> bool {
        let session = self.registry.route(agent_id);
        session.is_some_and(|session| {
            session.ask(crate::session::Control::Panic);
            true
        })
    }

    /// Ends an agent's session from this side; its stream ends with OK (SUB-10). False: the agent
    /// is not connected.
    #[cfg(feature = "fault-injection")]
    pub fn end_session(&self, agent_id: &str) -> bool {
        let session = self.registry.route(agent_id);
        session.is_some_and(|session| {
            session.ask(crate::session::Control::End);
            true
        })
    }
}
