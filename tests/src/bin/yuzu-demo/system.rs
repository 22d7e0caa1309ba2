//! What the demo runs: server, gateway, fleet, operator.

use crate::screen::Row;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;
use yuzu_gateway::Gateway;
use yuzu_gateway::config::{Config, Endpoint, Listener};
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_server_stub::{Rpc, State, StubConfig, StubServer};
use yuzu_tests::broadcast::{Round, broadcast};
use yuzu_tests::fleet::{Fleet, Options};
use yuzu_tests::operator::Operator;

const PREFIX: &str = "demo-";
const HEARTBEAT: Duration = Duration::from_secs(5);
const ATTACH_LIMIT: Duration = Duration::from_secs(60);
const COMMAND_TIMEOUT_S: i32 = 20;

pub(crate) struct System {
    server: StubServer,
    gateway: Gateway,
    fleet: Fleet,
    operator: Option<Operator>,
    operators_at: SocketAddr,
    ids: Vec<String>,
    /// Number of the last batch of heartbeats that was counted.
    last_batch: u64,
}

/// What the end of the gateway left behind.
pub(crate) struct Farewell {
    /// Notices sent while stopping.
    pub(crate) sent: usize,
    /// Notices that could not be sent.
    pub(crate) unsent: usize,
    /// Simulated agents the server knows as disconnected.
    pub(crate) disconnected: usize,
}

impl System {
    pub(crate) async fn start(agents: usize) -> Result<Self, String> {
        let server = StubConfig {
            listen: preferred(50_055),
            ..StubConfig::default()
        };
        let server = StubServer::start(server).await;
        let server = server.map_err(|e| format!("the server does not start: {e}"))?;
        let gateway = Gateway::start(config(server.addr())).await;
        let gateway = gateway.map_err(|e| format!("the gateway does not start: {e}"))?;
        let (agents_at, operators_at) = (gateway.agent_address(), gateway.management_address());
        let (Some(agents_at), Some(operators_at)) = (agents_at, operators_at) else {
            return Err("the gateway has no listener for agents or for operators".into());
        };
        let options = Options {
            prefix: PREFIX.into(),
            heartbeat: Some(HEARTBEAT),
            ..Options::new(agents_at, agents)
        };
        let ids = (0..agents).map(|index| options.agent_id(index)).collect();
        let fleet = Fleet::start(options);
        Ok(Self {
            server,
            gateway,
            fleet,
            operator: None,
            operators_at,
            ids,
            last_batch: 0,
        })
    }

    pub(crate) fn agents(&self) -> usize {
        self.ids.len()
    }

    /// Where everything is, and what to try by hand.
    pub(crate) fn describe(&self) -> String {
        let (agents, management) = (self.fleet.options().gateway, self.operators_at);
        format!(
            "gateway: agents on {agents}, management on {management}\n\
             metrics: http://{}/metrics   health: http://{}/readyz\n\
             server stub: {}\n\n\
             one more agent by hand:\n  \
             cargo run --release --bin yuzu-fleet -- --gateway {agents} \
             --prefix by-hand-\n\
             one command by hand:\n  \
             cargo run --release --bin yuzu-server-stub -- send --gateway {management} \
             --agent {PREFIX}0 --plugin shell --action echo\n\
             Ctrl-C ends the demo\n",
            self.gateway.metrics_address(),
            self.gateway.health_address(),
            self.server.addr(),
        )
    }

    /// Waits for all agents, and connects the operator.
    pub(crate) async fn attach(&mut self) -> Result<String, String> {
        let started = tokio::time::Instant::now();
        self.fleet
            .all_subscribed(ATTACH_LIMIT)
            .await
            .map_err(|now| {
                format!(
                    "only {} of {} agents are subscribed",
                    now.subscribed,
                    self.ids.len()
                )
            })?;
        let operator = Operator::connect(self.operators_at).await;
        self.operator = Some(operator.map_err(|e| e.to_string())?);
        let took = started.elapsed().as_secs_f64();
        Ok(format!(
            "{} agents registered and subscribed in {took:.2} s",
            self.ids.len()
        ))
    }

    /// Sends a broadcast and adds what came back.
    pub(crate) async fn broadcast(&mut self, row: &mut Row) -> Result<(), String> {
        let operator = self.operator.as_ref().ok_or("no operator is connected")?;
        row.rounds += 1;
        let command = CommandRequest {
            command_id: format!("demo-{}", row.rounds),
            plugin: "shell".into(),
            action: "echo".into(),
            ..CommandRequest::default()
        };
        let round = broadcast(operator, command, COMMAND_TIMEOUT_S).await?;
        self.note(row, &round);
        Ok(())
    }

    fn note(&mut self, row: &mut Row, round: &Round) {
        let tally = &round.tally;
        row.agents = tally.answered();
        row.answers += tally.answered() as u64;
        row.answers_per_second = round.answers_per_second();
        row.p50 = round.latency(0.5).unwrap_or_default();
        row.p99 = round.latency(0.99).unwrap_or_default();
        row.missing += tally.missing(self.ids.iter().map(String::as_str)) as u64;
        row.wrong += (tally.doubled + tally.misordered + tally.failures + tally.strays) as u64;
        let last = self.last_batch;
        let (batches, heartbeats, last) = self.server.view(|state| new_heartbeats(state, last));
        row.batches += batches;
        row.heartbeats += heartbeats;
        self.last_batch = last;
    }

    /// Stops the gateway as planned, then everything else.
    pub(crate) async fn stop(self) -> Farewell {
        let report = self.gateway.shutdown().await;
        let disconnected = self.server.view(disconnected);
        self.fleet.stop().await;
        self.server.kill().await;
        Farewell {
            sent: report.sent,
            unsent: report.unsent,
            disconnected,
        }
    }
}

/// Batches received after number `last`, heartbeats in them, number of the newest.
fn new_heartbeats(state: &State, last: u64) -> (u64, u64, u64) {
    let new = state
        .received(Rpc::BatchHeartbeat)
        .rev()
        .take_while(|batch| batch.seq > last);
    let mut sum = (0, 0, last);
    for batch in new {
        let heartbeats = batch.heartbeats().map_or(0, |batch| batch.heartbeats.len());
        sum = (sum.0 + 1, sum.1 + heartbeats as u64, sum.2.max(batch.seq));
    }
    sum
}

/// Simulated agents whose last notice is DISCONNECTED.
fn disconnected(state: &State) -> usize {
    let mut ended = std::collections::HashMap::new();
    for notice in state
        .received(Rpc::NotifyStreamStatus)
        .filter_map(|n| n.stream_status())
    {
        if notice.agent_id.starts_with(PREFIX) {
            ended.insert(
                notice.agent_id.clone(),
                notice.event() == Event::Disconnected,
            );
        }
    }
    ended.values().filter(|&&ended| ended).count()
}

fn config(server: SocketAddr) -> Config {
    let mut config = Config {
        listeners: vec![
            Listener::agent(preferred(50_051)),
            Listener::management(preferred(50_063)),
        ],
        ..Config::default()
    };
    config.upstream.endpoints = vec![Endpoint {
        host: server.ip().to_string(),
        port: server.port(),
    }];
    config.observe.metrics_address = preferred(9_568);
    config.observe.health_address = preferred(8_081);
    config
}

/// This port on loopback when it is free, else any free one.
fn preferred(port: u16) -> SocketAddr {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match TcpListener::bind(address) {
        Ok(_) => address,
        Err(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
    }
}
