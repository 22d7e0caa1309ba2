//! A whole system on loopback: the stub server, a real gateway, and peers on real sockets.
//!
//! Responsible for starting both on free ports and for handing out agents, operators, metrics and
//! health. Must never reach into the gateway: it is started and stopped by its public door only.

use crate::agent::{Agent, PATIENCE};
use crate::fleet;
use crate::http;
use crate::metrics::Metrics;
use crate::operator::Operator;
use crate::raw::Dialer;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use yuzu_gateway::config::{Config, Endpoint, Listener};
use yuzu_gateway::{Gateway, StopReport};
use yuzu_proto::gateway::v1::StreamStatusNotification;
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_proto::server::v1::management_service_client::ManagementServiceClient;
use yuzu_server_stub::{Rpc, State, StubConfig, StubServer};

/// A running gateway with its server.
#[derive(Debug)]
pub struct TestBed {
    /// The server.
    pub server: StubServer,
    /// The gateway.
    pub gateway: Gateway,
}

/// How a bed is set up.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The server.
    pub server: StubConfig,
    /// The gateway; its upstream is set to the server when that has started.
    pub gateway: Config,
}

impl Default for Setup {
    fn default() -> Self {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut gateway = Config {
            listeners: vec![Listener::agent(free), Listener::management(free)],
            ..Config::default()
        };
        gateway.observe.metrics_address = free;
        gateway.observe.health_address = free;
        gateway.heartbeat.batch_interval = Duration::from_millis(100);
        Self {
            server: StubConfig::default(),
            gateway,
        }
    }
}

impl Setup {
    /// Changes the gateway's configuration.
    #[must_use]
    pub fn gateway(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.gateway);
        self
    }

    /// Changes the configuration of the gateway's agent listener.
    #[must_use]
    pub fn agent_listener(self, change: impl FnOnce(&mut Listener)) -> Self {
        self.gateway(|config| change(&mut config.listeners[0]))
    }

    /// Starts server and gateway.
    ///
    /// # Panics
    /// When one of them does not start: no test can go on without.
    pub async fn start(mut self) -> TestBed {
        let server = StubServer::start(self.server)
            .await
            .expect("the server stub starts");
        self.gateway.upstream.endpoints = vec![endpoint(server.addr())];
        let gateway = Gateway::start(self.gateway)
            .await
            .expect("the gateway starts");
        TestBed { server, gateway }
    }
}

/// An endpoint of the gateway's upstream.
pub fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint {
        host: address.ip().to_string(),
        port: address.port(),
    }
}

/// Connections to the agent listener that no socket carries, each from an address of its own. The
/// gateway's end is served on `runtime`.
pub fn in_memory(gateway: &Arc<Gateway>, runtime: Handle) -> Dialer {
    let gateway = Arc::clone(gateway);
    Dialer::pipes(runtime, move |pipe, from| gateway.serve_agent(pipe, from))
}

/// Scrapes the metrics of a gateway.
///
/// # Panics
/// When the endpoint does not answer as it must.
pub async fn scrape(gateway: &Gateway) -> Metrics {
    let answer = http::get(gateway.metrics_address(), "/metrics")
        .await
        .expect("a scrape");
    assert_eq!(answer.status, 200, "{}", answer.body);
    Metrics::parse(&answer.body).expect("the text format")
}

impl TestBed {
    /// A bed with the defaults.
    pub async fn start() -> Self {
        Setup::default().start().await
    }

    /// Where agents connect.
    pub fn agents(&self) -> SocketAddr {
        self.gateway
            .agent_address()
            .expect("a bed has an agent listener")
    }

    /// Where operators connect.
    pub fn operators(&self) -> SocketAddr {
        self.gateway
            .management_address()
            .expect("a bed has a management listener")
    }

    /// An agent that is registered and subscribed, CONNECTED included.
    ///
    /// # Panics
    /// When it can not attach.
    pub async fn agent(&self, id: &str) -> Agent {
        let agent = Agent::attach(self.agents(), id).await;
        let agent = agent.unwrap_or_else(|problem| panic!("agent {id}: {problem}"));
        self.notice(Event::Connected, &agent.session_id).await;
        agent
    }

    /// An agent that is connected and has not registered.
    ///
    /// # Panics
    /// When it can not connect.
    pub async fn bare_agent(&self, id: &str) -> Agent {
        Agent::connect(self.agents(), id)
            .await
            .expect("a connection")
    }

    /// Options of a fleet at this gateway without heartbeats and with fast backoff.
    pub fn fleet(&self, agents: usize) -> fleet::Options {
        fleet::Options {
            heartbeat: None,
            backoff_scale: 0.01,
            ..fleet::Options::new(self.agents(), agents)
        }
    }

    /// An operator.
    ///
    /// # Panics
    /// When it can not connect.
    pub async fn operator(&self) -> Operator {
        Operator::connect(self.operators())
            .await
            .expect("a connection")
    }

    /// tonic's own client for the management listener.
    ///
    /// # Panics
    /// When it can not connect.
    pub async fn management(&self) -> ManagementServiceClient<tonic::transport::Channel> {
        let uri = format!("http://{}", self.operators());
        let endpoint = tonic::transport::Endpoint::from_shared(uri).expect("an address");
        ManagementServiceClient::new(endpoint.connect().await.expect("a connection"))
    }

    /// Scrapes the metrics.
    ///
    /// # Panics
    /// When the endpoint does not answer as it must.
    pub async fn metrics(&self) -> Metrics {
        scrape(&self.gateway).await
    }

    /// One value of a fresh scrape; the name without `yuzu_gw_`.
    ///
    /// # Panics
    /// When there is no such series.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let value = self
            .metrics()
            .await
            .value(&format!("yuzu_gw_{name}"), labels);
        value.unwrap_or_else(|| panic!("no series {name} {labels:?}"))
    }

    /// Scrapes until a value is there; for values that follow an event no peer can see.
    ///
    /// # Panics
    /// When it is not there within [`PATIENCE`].
    pub async fn metric_becomes(&self, name: &str, labels: &[(&str, &str)], wanted: f64) {
        let reached = async {
            while self.metric(name, labels).await != wanted {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, reached).await.is_err() {
            let value = self.metric(name, labels).await;
            panic!("{name} {labels:?} is {value}, not {wanted}");
        }
    }

    /// `/readyz`: the HTTP status and the JSON body.
    ///
    /// # Panics
    /// When the endpoint does not answer as it must.
    pub async fn ready(&self) -> (u16, serde_json::Value) {
        let answer = http::get(self.gateway.health_address(), "/readyz")
            .await
            .expect("an answer");
        (
            answer.status,
            serde_json::from_str(&answer.body).expect("JSON"),
        )
    }

    /// Waits for the server to receive a notice about this session.
    ///
    /// # Panics
    /// When it does not come within [`PATIENCE`].
    pub async fn notice(&self, event: Event, session_id: &str) -> StreamStatusNotification {
        let look = |state: &State| {
            notices(state).find(|n| n.event() == event && n.session_id == session_id)
        };
        self.server
            .wait_for(event.as_str_name(), PATIENCE, look)
            .await
            .expect("a notice")
    }

    /// The notices the server received about this session so far.
    pub fn notices_of(&self, session_id: &str) -> Vec<StreamStatusNotification> {
        self.server.view(|state| {
            notices(state)
                .filter(|n| n.session_id == session_id)
                .collect()
        })
    }

    /// Stops the gateway as planned, and then the server.
    ///
    /// # Panics
    /// When the gateway does not stop in time.
    pub async fn stop(self) -> StopReport {
        let stopped = tokio::time::timeout(PATIENCE * 2, self.gateway.shutdown()).await;
        let report = stopped.expect("the gateway stops");
        self.server.kill().await;
        report
    }
}

fn notices(state: &State) -> impl Iterator<Item = StreamStatusNotification> {
    state
        .received(Rpc::NotifyStreamStatus)
        .filter_map(|received| received.stream_status())
}
