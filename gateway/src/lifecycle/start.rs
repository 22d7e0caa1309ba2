//! Bringing a node up: everything is bound before anything is served (BOOT-19, LSN-1).

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;
use tracing::{info, warn};

use super::certificates::{self, Certificates};
use super::clustered::{names, part_of_cluster, start_router, start_shifter};
use super::control::ControlPlane;
use super::services::Services;
use super::{Gateway, Tasks};
use crate::agent_service::AgentService;
use crate::cluster::Cluster;
use crate::command::Router;
use crate::config::{self, Config, Service};
use crate::edge::charge::NodeMemory;
use crate::edge::listener::{BoundListener, RunningListener};
use crate::edge::terms::NodeParts;
use crate::gateways::Names;
use crate::management::ManagementService;
use crate::observe::health::{self, Readiness};
use crate::observe::http::{self, HttpServer};
use crate::observe::metrics::{self, Metrics};
use crate::observe::{descriptors, process};
use crate::replay::Replayer;
use crate::session::{
    Arriving, Events, OwnerContext, Recovery, Registry, Roster, Supervisor, TableLimits,
};
use crate::shed::{Listeners, MemoryShedder};
use crate::supervise::{NodeSupervisor, keep_running};
use crate::system::{TcpListener, UdpSocket, datagrams};
use crate::upstream::{BreakerState, Upstream};

/// Rows whose time is over are removed this often.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address can not be listened on.
    #[error(
        "{key} = \"{address}\" can not be listened on: {error}; {}",
        cure(error)
    )]
    Bind {
        /// The configuration key.
        key: String,
        /// The address.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// A listener's certificate files can't be served (BOOT-24).
    #[error("listener_tls_files: {0}")]
    Credentials(String),
    /// The CA files of the management listeners leave nobody to admit, or too many (MGMT-AUTH-8,
    /// MGMT-AUTH-9, MGMT-AUTH-13).
    #[error("{0}")]
    Peer(String),
    /// A listener serves other gateways, and the configuration has no secret (BOOT-18).
    #[error("insecure_distribution_cookie: YUZU_GW_COOKIE is not set")]
    NoSecret,
    /// The metrics could not be registered.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// A bound socket could not be served.
    #[error("a bound socket could not be served: {0}")]
    Serve(#[from] io::Error),
}

fn cure(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another process has it (ss -ltnp names it): stop that one, or take another port"
        }
        io::ErrorKind::AddrNotAvailable => "give an address of this machine",
        io::ErrorKind::PermissionDenied => "ports below 1024 need CAP_NET_BIND_SERVICE",
        _ => "give an address that this process may listen on",
    }
}

impl Gateway {
    /// Starts a node, all of it on the present tokio runtime.
    ///
    /// # Errors
    /// When an address can not be bound; nothing is served then.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let control = Handle::current();
        Self::start_with(config, &control).await
    }

    /// As [`Gateway::start`], with what talks to the server on the runtime `control`: there its
    /// socket does not wait behind those of thousands of agents that are ready at once.
    ///
    /// # Errors
    /// As [`Gateway::start`].
    pub async fn start_with(config: Config, control: &Handle) -> Result<Self, StartError> {
        Self::start_prepared(config, control, |_| ()).await
    }

    /// As [`Gateway::start`], as a node that tells peers of so many agents from the beginning, of
    /// which it holds none: a million sessions do not fit into a test. See
    /// [`Gateway::pretended_agent`].
    ///
    /// # Errors
    /// As [`Gateway::start`].
    #[cfg(feature = "in-memory")]
    pub async fn start_pretending(config: Config, agents: u64) -> Result<Self, StartError> {
        let pretend = |cluster: &Cluster| cluster.sharing().pretend(0..agents);
        Self::start_prepared(config, &Handle::current(), pretend).await
    }

    /// `prepare` sees the node's part of the cluster before anyone else does.
    async fn start_prepared(
        config: Config,
        control: &Handle,
        prepare: impl FnOnce(&Cluster) + Send,
    ) -> Result<Self, StartError> {
        let metrics = Arc::new(Metrics::new(&config.node.name)?);
        let certificates = Certificates::load(&config, &metrics).await?;
        let bound = bind_listeners(&config, &metrics)?;
        let gossip = bind_gossip(&config, &bound)?;
        let health = bind_http("observe.health_address", config.observe.health_address)?;
        let scrape = bind_http("observe.metrics_address", config.observe.metrics_address)?;

        Upstream::warn_of_files(&config.upstream).await;
        let supervisor = NodeSupervisor::new();
        let registry = Arc::new(Registry::new(table_limits(&config.session)));
        let names = names(&config);
        let ControlPlane {
            upstream,
            notifier,
            replayer,
            batcher,
        } = ControlPlane::start(&config, &names, &registry, &metrics, control);
        let owners = Arc::new(OwnerContext {
            registry: Arc::clone(&registry),
            roster: Roster::default(),
            events: Arc::new(Events::new()),
            notifier: notifier.clone(),
            upstream: upstream.clone(),
            metrics: Arc::clone(&metrics),
            supervisor: Supervisor::new(&config.session, supervisor.clone()),
            recovery: Recovery::new(&config.upstream),
            arriving: Arriving::new(&metrics),
        });
        let cluster = gossip
            .map(|socket| part_of_cluster(&config, socket, &owners, &names))
            .transpose()?;
        if let Some(cluster) = &cluster {
            prepare(cluster);
        }
        let (router, served) = start_router(&config, &owners, cluster.as_ref());
        let agents = Arc::new(AgentService::new(
            Arc::clone(&owners),
            batcher.clone(),
            config.observe.gauge_interval,
        ));
        let node = NodeParts {
            memory: NodeMemory::new(config.memory.max_unfinished_request_bytes),
            metrics: Arc::clone(&metrics),
            supervisor: supervisor.clone(),
        };
        let parts = ServedParts {
            owners: &owners,
            router: &router,
            agents: &agents,
            cluster: cluster.as_ref(),
            names: &names,
        };
        let listeners = serve(bound, &certificates, &parts, &node)?;
        let listeners = Arc::new(listeners);
        let tasks = start_tasks(&config, &registry, &listeners, &metrics, certificates);
        tasks.supervise(&supervisor);
        upstream.supervise(&supervisor);
        notifier.supervise(&supervisor);
        replayer.supervise(&supervisor);
        batcher.supervise(&supervisor);
        let readiness = readiness(&config, &upstream, &replayer, &tasks, &listeners);
        let mut routes = health::routes(&config.node.name, readiness);
        if let Some(cluster) = &cluster {
            cluster.start();
            cluster.supervise(&supervisor);
            routes = routes.get("/cluster", cluster.page());
        }
        let shifter = cluster
            .as_ref()
            .map(|cluster| start_shifter(config.shift, &owners, &tasks.shedder, cluster));
        if let Some(shifter) = &shifter {
            shifter.supervise(&supervisor);
        }
        let health = HttpServer::start(health, routes)?;
        let scrape = HttpServer::start(scrape, metrics::routes(Arc::clone(&metrics)))?;
        say_started(&config, &listeners);
        Ok(Self {
            config: Mutex::new(config),
            metrics,
            registry,
            owners,
            router,
            agents,
            upstream,
            notifier,
            replayer,
            batcher,
            memory: node.memory,
            listeners,
            cluster,
            shifter,
            served,
            health,
            scrape,
            tasks,
            supervisor,
        })
    }
}

/// Binds every listener, each with the connection ceiling that the descriptors allow (LSN-13).
fn bind_listeners(
    config: &Config,
    metrics: &Metrics,
) -> Result<Vec<(config::Listener, BoundListener)>, StartError> {
    descriptors::raise_limit().unwrap_or_else(|error| {
        warn!(%error, "the limit on open files could not be raised");
        descriptors::current_limit()
    });
    as_served(&config.listeners, &config.cluster)
        .enumerate()
        .map(|(index, listener)| {
            say_ceiling(&config.listeners[index], &listener);
            let gauge = metrics
                .listener_connections
                .with_label_values(&[&*listener.name]);
            gauge.set(0);
            let bound = BoundListener::bind(&listener).map_err(|error| StartError::Bind {
                key: format!("listener[{index}].address"),
                address: listener.address,
                error,
            })?;
            Ok((listener, bound))
        })
        .collect()
}

/// The listeners, each with the connection ceiling that the limit on open files leaves (LSN-13). A
/// link is idle for as long as a node may be silent: its dialler sends PINGs only while it hears
/// nothing, so this side alone can tell that nothing comes from there any more (MESH-5).
pub(super) fn as_served(
    listeners: &[config::Listener],
    cluster: &config::Cluster,
) -> impl Iterator<Item = config::Listener> {
    let silence = cluster.dead_after;
    let limit = descriptors::current_limit();
    let wanted: Vec<_> = listeners
        .iter()
        .map(|listener| listener.limits.max_connections)
        .collect();
    let ceilings = descriptors::ceilings(&wanted, limit, descriptors::RESERVE);
    listeners
        .iter()
        .zip(ceilings)
        .map(move |(wanted, ceiling)| {
            let mut listener = wanted.clone();
            listener.limits.max_connections = ceiling;
            if listener.services == [Service::Node] {
                listener.http2.idle_timeout = listener.http2.idle_timeout.min(silence);
            }
            listener
        })
}

/// Says that a listener does not have the ceiling that it wants.
pub(super) fn say_ceiling(wanted: &config::Listener, in_force: &config::Listener) {
    let max_connections = wanted.limits.max_connections;
    let in_force = in_force.limits.max_connections;
    if in_force < max_connections {
        warn!(
            listener = %wanted.name,
            max_connections,
            in_force,
            "the limit on open files lowers the connection ceiling; raise LimitNOFILE"
        );
    }
}

pub(super) fn table_limits(config: &config::Session) -> TableLimits {
    TableLimits {
        max_per_connection: config.max_per_connection,
        grace: config.dead_connection_grace,
    }
}

/// The socket of gossip, where a listener serves nodes.
fn bind_gossip(
    config: &Config,
    bound: &[(config::Listener, BoundListener)],
) -> Result<Option<UdpSocket>, StartError> {
    let Some((index, _)) = config.node_listener() else {
        return Ok(None);
    };
    let address = bound[index].1.address()?;
    datagrams(address)
        .map(Some)
        .map_err(|error| StartError::Bind {
            key: format!("listener[{index}].address (UDP)"),
            address,
            error,
        })
}

fn bind_http(key: &str, address: SocketAddr) -> Result<TcpListener, StartError> {
    http::bind(address).map_err(|error| StartError::Bind {
        key: key.to_owned(),
        address,
        error,
    })
}

/// What the listeners serve.
struct ServedParts<'a> {
    owners: &'a Arc<OwnerContext>,
    router: &'a Arc<Router>,
    agents: &'a Arc<AgentService>,
    cluster: Option<&'a Cluster>,
    names: &'a Names,
}

fn serve(
    bound: Vec<(config::Listener, BoundListener)>,
    certificates: &Certificates,
    parts: &ServedParts<'_>,
    node: &NodeParts,
) -> Result<Vec<(config::Listener, RunningListener)>, StartError> {
    let &ServedParts {
        owners,
        router,
        agents,
        cluster,
        names,
    } = parts;
    let management = Arc::new(ManagementService::new(
        Arc::clone(&owners.registry),
        Arc::clone(router),
        Arc::clone(&owners.events),
        cluster.map(Cluster::sharing),
        names.clone(),
    ));
    bound
        .into_iter()
        .map(|(listener, bound)| {
            let services = Services {
                agent: listener.serves(Service::Agent).then(|| Arc::clone(agents)),
                management: listener
                    .serves(Service::Management)
                    .then(|| Arc::clone(&management)),
                identity_gate: certificates.identity_gate(&listener),
                gate: certificates.gate(&listener.name),
                node: cluster
                    .filter(|_| listener.serves(Service::Node))
                    .map(Cluster::service),
                registry: Arc::clone(&owners.registry),
            };
            let tls = certificates.of(&listener.name);
            let running = bound.serve(Arc::new(services), tls, node)?;
            Ok((listener, running))
        })
        .collect()
}

fn start_tasks(
    config: &Config,
    registry: &Arc<Registry>,
    listeners: &Listeners,
    metrics: &Arc<Metrics>,
    certificates: Certificates,
) -> Tasks {
    let swept = Arc::clone(registry);
    let sweeper = keep_running("session sweeper", move || sweep(Arc::clone(&swept)));
    let (counted, gauges) = (Arc::clone(registry), Arc::clone(metrics));
    let sampler = process::spawn_sampler(
        Arc::clone(metrics),
        config.observe.gauge_interval,
        move || {
            gauges.agents_current.set(counted.len() as i64);
        },
    );
    let used = process::resident_anonymous_bytes;
    let shedder = MemoryShedder::start(&config.memory, listeners, metrics, used);
    Tasks {
        sweeper: Arc::new(sweeper),
        shedder,
        certificates: certificates.follow(),
        sampler,
    }
}

async fn sweep(registry: Arc<Registry>) {
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        registry.sweep();
    }
}

/// The checks of READY-3 that this node can fail; none of them waits (READY-5).
fn readiness(
    config: &Config,
    upstream: &Upstream,
    replayer: &Replayer,
    tasks: &Tasks,
    listeners: &Listeners,
) -> Arc<Readiness> {
    let (running, breaker, files) = (upstream.clone(), upstream.clone(), upstream.clone());
    let replayer = replayer.clone();
    let sweeper = Arc::clone(&tasks.sweeper);
    let served = Arc::clone(listeners);
    let allow_none = config.lab.allow_no_listeners;
    let listening = move || {
        let agents = served
            .iter()
            .any(|(config, _)| config.serves(Service::Agent));
        served.iter().all(|(_, listener)| listener.is_running()) && (agents || allow_none)
    };
    let readiness = Readiness::builder()
        .check("registry", move || !sweeper.is_finished())
        .check("upstream", move || {
            running.is_running() && replayer.is_running()
        })
        .check("circuit_breaker", move || {
            !matches!(breaker.breaker_state(), BreakerState::Open { .. })
        })
        .check("listeners", listening)
        // Sessions, their index and the router are shared state of this process: they have no task
        // that could die alone.
        .check("agent_sup", || true)
        .check("router", || true)
        .check("sessions_index", || true)
        .check("upstream_tls_files", move || files.tls_files_usable())
        .build();
    Arc::new(readiness)
}

fn services(listener: &config::Listener) -> String {
    let names = listener.services.iter().map(|service| match service {
        Service::Agent => "agent",
        Service::Management => "management",
        Service::Node => "node",
    });
    names.collect::<Vec<_>>().join(",")
}

fn say_started(config: &Config, listeners: &[(config::Listener, RunningListener)]) {
    info!(
        "Heartbeat admission is connection-bound: a heartbeat is admitted only on the connection \
         that opened its session"
    );
    for (listener, running) in listeners {
        info!(
            listener = %listener.name,
            address = %running.address(),
            services = %services(listener),
            transport = certificates::transport(listener),
            "listening"
        );
    }
    let endpoints = &config.upstream.endpoints;
    let upstream = match endpoints.is_empty() {
        true => "none".to_owned(),
        false => endpoints
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    };
    info!(
        node = %config.node.name,
        upstream,
        transport = certificates::upstream_transport(&config.upstream),
        "gateway started"
    );
}
