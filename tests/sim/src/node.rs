//! One gateway on a host of its own.

use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use yuzu_gateway::Gateway;
use yuzu_gateway::config::{Broadcast, Config, Endpoint, Listener, Secret, Visibility};

use crate::ledger::{Ledger, now};

/// Where agents connect.
pub const AGENTS: u16 = 50051;
/// Where callers do.
pub const MANAGEMENT: u16 = 50063;
/// Where other nodes do.
pub const NODES: u16 = 9100;
/// Where metrics are.
pub const METRICS: u16 = 9568;
/// Where the server listens.
pub const SERVER: u16 = 50055;
/// The host of the server.
pub const SERVER_HOST: &str = "server";

/// What the driver has of a node.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its host and its name.
    pub name: String,
    /// Rung for a planned stop.
    pub stop: Rc<Notify>,
    /// How often it was started.
    pub lives: Rc<Cell<u32>>,
    config: Rc<RefCell<Config>>,
}

impl Node {
    /// One of `names`; the first is the public one.
    pub fn new(names: &[String], index: usize) -> Self {
        Self {
            name: names[index].clone(),
            stop: Rc::default(),
            lives: Rc::default(),
            config: Rc::new(RefCell::new(config(names, index))),
        }
    }

    /// Runs it until it is stopped as planned.
    pub async fn run(self, ledger: Ledger) -> turmoil::Result {
        let config = self.config.borrow().clone();
        self.lives.set(self.lives.get() + 1);
        let gateway = Gateway::start(config).await?;
        ledger.say(now(), format!("{} is up", self.name));
        tokio::select! {
            () = self.stop.notified() => {}
            () = gateway.given_up() => {
                ledger.wrong(now(), format!("{} gave itself up", self.name));
            }
        }
        ledger.say(now(), format!("{} stops", self.name));
        let report = gateway.shutdown().await;
        ledger.say(now(), format!("{} has stopped: {report:?}", self.name));
        Ok(())
    }
}

fn any(port: u16) -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, port).into()
}

fn endpoint(host: &str, port: u16) -> Endpoint {
    Endpoint {
        host: host.into(),
        port,
    }
}

/// What is deployed, with plaintext in place of TLS, and with times for a simulation of two minutes.
fn config(names: &[String], index: usize) -> Config {
    let mut config = Config {
        listeners: vec![
            Listener::agent(any(AGENTS)),
            Listener::management(any(MANAGEMENT)),
            Listener::node(any(NODES)),
        ],
        ..Config::default()
    };
    config.node.name = names[index].clone();
    config.node.peer_advertise = Some(endpoint(&names[index], NODES));
    config.node.visibility = match index {
        0 => Visibility::Public,
        _ => Visibility::Private,
    };
    config.observe.metrics_address = any(METRICS);
    config.observe.health_address = any(8081);
    config.observe.gauge_interval = Duration::from_secs(1);
    config.cluster.secret = Some(Secret::new("the secret of this cluster, 32 characters"));
    let others = names.iter().filter(|name| *name != &names[index]);
    config.cluster.seed_nodes = others.map(|name| endpoint(name, NODES)).collect();
    config.cluster.redial_interval = Duration::from_secs(1);
    config.command.broadcast = Broadcast::Mesh;
    config.upstream.endpoints = vec![endpoint(SERVER_HOST, SERVER)];
    config.upstream.connect_timeout = Duration::from_secs(2);
    config.upstream.breaker.reset_timeout = Duration::from_secs(1);
    config.upstream.breaker.max_reset_timeout = Duration::from_secs(2);
    // A stream whose peer is gone without a word ends within some seconds.
    config.listeners[0].http2.idle_timeout = Duration::from_secs(6);
    // Read by threads of the system: seldom.
    config.management.pin_refresh = Duration::from_secs(600);
    config.memory.shedding.enabled = false;
    config
}
