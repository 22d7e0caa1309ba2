//! Several nodes: MESH and CLUSTER.

mod adjacency;
mod aside;
mod forward;
mod links;
mod members;
mod peers;
mod refused;
mod shift;
mod visibility;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::Value;
use yuzu_gateway::Gateway;
use yuzu_gateway::config::{Config, Endpoint, Listener, Secret};
use yuzu_proto::gateway::v1::StreamStatusNotification;
use yuzu_server_stub::{Rpc, State, StubServer};
use yuzu_tests::agent::PATIENCE;
use yuzu_tests::http;
use yuzu_tests::testbed::scrape;

use crate::logs::Log;

const SECRET: &str = "the secret of this cluster, 32 characters";
const OTHER_SECRET: &str = "another secret, which is as long as that";

/// What the page says of a node that has left.
const LEFT: &str = "left: the name belongs to an older node";

/// Between two looks at what is to become true.
const LOOK: Duration = Duration::from_millis(20);

/// Waits until a line of the log has this text.
async fn says(log: &Log, text: &str) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !log.text().contains(text) {
            tokio::time::sleep(LOOK).await;
        }
    });
    assert!(waited.await.is_ok(), "{text:?} is not in\n{}", log.text());
}

/// Waits until the server has been told so, by the notices that it had, in their order.
async fn told(
    server: &StubServer,
    what: &str,
    is_so: impl Fn(&[StreamStatusNotification]) -> bool,
) {
    let look = |state: &State| is_so(&notices_of(state)).then_some(());
    let told = server.wait_for(what, PATIENCE, look).await;
    told.unwrap_or_else(|problem| panic!("{problem}"));
}

/// Every notice so far, in the order in which they came.
fn notices(server: &StubServer) -> Vec<StreamStatusNotification> {
    server.view(notices_of)
}

fn notices_of(state: &State) -> Vec<StreamStatusNotification> {
    let received = state.received(Rpc::NotifyStreamStatus);
    received.filter_map(|one| one.stream_status()).collect()
}

/// A node without a server, told of by nobody.
fn config(name: &str) -> Config {
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut config = Config {
        listeners: vec![Listener::agent(free), Listener::node(free)],
        ..Config::default()
    };
    config.node.name = name.into();
    config.upstream.endpoints.clear();
    config.lab.allow_no_upstream = true;
    config.observe.metrics_address = free;
    config.observe.health_address = free;
    config.cluster.secret = Some(Secret::new(SECRET));
    config.cluster.dead_after = Duration::from_secs(2);
    config.cluster.redial_interval = Duration::from_millis(200);
    config
}

fn seed(address: SocketAddr) -> Endpoint {
    Endpoint {
        host: address.ip().to_string(),
        port: address.port(),
    }
}

/// A running node.
struct Node {
    gateway: Gateway,
}

impl Node {
    async fn start(config: Config) -> Self {
        let gateway = Gateway::start(config).await.expect("the gateway starts");
        Self { gateway }
    }

    /// A node that looks for `seeds`.
    async fn join(mut config: Config, seeds: &[&Node]) -> Self {
        config.cluster.seed_nodes = seeds.iter().map(|node| seed(node.address())).collect();
        Self::start(config).await
    }

    /// Where other nodes connect.
    fn address(&self) -> SocketAddr {
        self.gateway.node_address().expect("a node listener")
    }

    async fn page(&self) -> Value {
        let answer = http::get(self.gateway.health_address(), "/cluster").await;
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str(&answer.body).expect("JSON")
    }

    /// Names and incarnations of the other nodes.
    async fn listed(&self) -> Vec<(String, u64)> {
        let page = self.page().await;
        let rows = page["members"].as_array().expect("a list").iter();
        let others = rows.filter(|row| row["self"] == false);
        let life = |row: &Value| {
            let name = row["name"].as_str().expect("a name");
            (
                name.to_owned(),
                row["incarnation"].as_u64().expect("a number"),
            )
        };
        others.map(life).collect()
    }

    async fn names(&self) -> Vec<String> {
        self.listed()
            .await
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    }

    /// Waits until exactly these others are listed.
    async fn lists(&self, names: &[&str]) {
        let waited = tokio::time::timeout(PATIENCE, async {
            while self.names().await != names {
                tokio::time::sleep(LOOK).await;
            }
        });
        if waited.await.is_err() {
            panic!(
                "{:?} instead of {names:?}: {:#}",
                self.names().await,
                self.page().await
            );
        }
    }

    /// Waits until a node that stops is listed.
    async fn lists_draining(&self) {
        let is_so = |page: &Value| {
            let members = page["members"].as_array().expect("a list");
            members.iter().any(|row| row["draining"] == true)
        };
        self.shows("a node that stops", is_so).await;
    }

    /// Waits until it has found that another node has its name.
    async fn leaves(&self) {
        let is_so = |page: &Value| page["state"] == LEFT;
        self.shows("that it has left", is_so).await;
    }

    async fn shows(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        let waited = tokio::time::timeout(PATIENCE, async {
            while !is_so(&self.page().await) {
                tokio::time::sleep(LOOK).await;
            }
        });
        assert!(waited.await.is_ok(), "{what}: {:#}", self.page().await);
    }

    /// A metric without its prefix; 0 when there is no such series.
    async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let metrics = scrape(&self.gateway).await;
        metrics
            .value(&format!("yuzu_gw_{name}"), labels)
            .unwrap_or_default()
    }

    /// Waits until a metric is at least this.
    async fn counts(&self, name: &str, labels: &[(&str, &str)], least: f64) {
        self.waits_for(name, labels, |value| value >= least).await;
    }

    /// Waits until a metric has this value.
    async fn metric_becomes(&self, name: &str, labels: &[(&str, &str)], wanted: f64) {
        self.waits_for(name, labels, |value| value == wanted).await;
    }

    async fn waits_for(&self, name: &str, labels: &[(&str, &str)], wanted: impl Fn(f64) -> bool) {
        let waited = tokio::time::timeout(PATIENCE, async {
            while !wanted(self.metric(name, labels).await) {
                tokio::time::sleep(LOOK).await;
            }
        });
        if waited.await.is_err() {
            panic!("{name}{labels:?} is {}", self.metric(name, labels).await);
        }
    }
}
