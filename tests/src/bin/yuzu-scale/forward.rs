//! What it costs that the agents are on another node: one that was dialled, and one that dials.
//!
//! Three gateways in this process: all agents are on `b`; `a` dials it, `c` is dialled by it.

use crate::report::Report;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use yuzu_gateway::Gateway;
use yuzu_gateway::config::{Broadcast, Config, Listener, Secret};
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_server_stub::{StubConfig, StubServer};
use yuzu_tests::broadcast::{broadcast, percentile};
use yuzu_tests::fleet::{Fleet, Options};
use yuzu_tests::operator::Operator;
use yuzu_tests::testbed::{endpoint, scrape};

pub(crate) const ABOUT: &str =
    "commands for 5,000 agents of another node, beside the same sent there";

const AGENTS: usize = 5_000;
const ROUNDS: usize = 7;
const SINGLE: usize = 1_500;
const LIMIT: Duration = Duration::from_secs(120);
/// Of what the node itself reaches.
const LEAST_RATE: f64 = 0.6;
const MOST_TIME: f64 = 1.6;

/// One way to the agents.
struct Way {
    name: &'static str,
    operator: Operator,
    rates: Vec<f64>,
    singles: Vec<Duration>,
}

fn config(name: &str, server: &StubServer, seed: Option<SocketAddr>) -> Config {
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut config = Config {
        listeners: vec![
            Listener::agent(free),
            Listener::node(free),
            Listener::management(free),
        ],
        ..Config::default()
    };
    config.node.name = name.into();
    config.upstream.endpoints = vec![endpoint(server.addr())];
    config.observe.metrics_address = free;
    config.observe.health_address = free;
    config.cluster.secret = Some(Secret::new("a secret of 32 characters or more"));
    config.cluster.redial_interval = Duration::from_millis(200);
    config.cluster.seed_nodes = seed.into_iter().map(endpoint).collect();
    config.command.broadcast = Broadcast::Mesh;
    config
}

async fn start(config: Config) -> Result<Gateway, String> {
    let gateway = Gateway::start(config).await;
    gateway.map_err(|error| error.to_string())
}

/// Waits until the node knows of all agents.
async fn knows(gateway: &Gateway) -> Result<(), String> {
    let known = async {
        let labels = [("node", "all")];
        while scrape(gateway)
            .await
            .value("yuzu_gw_adjacency_agents", &labels)
            != Some(AGENTS as f64)
        {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let known = timeout(LIMIT, known).await;
    known.map_err(|_| "a node does not know of all agents".to_owned())
}

impl Way {
    async fn of(name: &'static str, gateway: &Gateway) -> Result<Self, String> {
        let address = gateway.management_address().ok_or("no listener")?;
        let operator = Operator::connect(address).await;
        Ok(Self {
            name,
            operator: operator.map_err(|error| error.to_string())?,
            rates: Vec::new(),
            singles: Vec::new(),
        })
    }

    async fn round(&mut self) -> Result<(), String> {
        let round = broadcast(&self.operator, command("round"), 60).await?;
        if round.latencies.len() != AGENTS || round.tally.failures > 0 {
            let (answers, failures) = (round.latencies.len(), round.tally.failures);
            return Err(format!(
                "{answers} answers, {failures} failures: {}",
                self.name
            ));
        }
        self.rates.push(round.answers_per_second());
        Ok(())
    }

    async fn single(&mut self, agent: &str) -> Result<(), String> {
        let started = Instant::now();
        let sent = self.operator.send(&[agent], command("one"), 60).await;
        let answers = sent.map_err(|e| e.to_string())?.successes().await?;
        self.singles.push(started.elapsed());
        match answers {
            1 => Ok(()),
            _ => Err(format!("{answers} answers: {}", self.name)),
        }
    }

    fn rate(&mut self) -> f64 {
        self.rates.sort_by(f64::total_cmp);
        self.rates[self.rates.len() / 2]
    }

    fn time(&mut self) -> Duration {
        self.singles.sort_unstable();
        percentile(&self.singles, 0.5).unwrap_or_default()
    }
}

fn command(id: &str) -> CommandRequest {
    CommandRequest {
        command_id: id.into(),
        plugin: "shell".into(),
        ..Default::default()
    }
}

pub(crate) async fn run() -> Result<Report, String> {
    let server = StubServer::start(StubConfig::default()).await;
    let server = server.map_err(|error| error.to_string())?;
    let b = start(config("b", &server, None)).await?;
    let a = start(config("a", &server, b.node_address())).await?;
    let c = start(config("c", &server, b.node_address())).await?;
    let agents = b.agent_address().ok_or("no listener")?;
    let fleet = Fleet::start(Options {
        heartbeat: None,
        ..Options::new(agents, AGENTS)
    });
    let all = fleet.all_subscribed(LIMIT).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    tokio::try_join!(knows(&a), knows(&c))?;
    let mut ways = [
        Way::of("on the node itself", &b).await?,
        Way::of("from a node that dials", &a).await?,
        Way::of("from a node that is dialled", &c).await?,
    ];
    // By turns, so that the machine is the same for all.
    for way in &mut ways {
        way.round().await?;
        way.rates.clear();
    }
    for _ in 0..ROUNDS {
        for way in &mut ways {
            way.round().await?;
        }
    }
    for n in 0..SINGLE {
        for way in &mut ways {
            way.single(&fleet.options().agent_id(n)).await?;
        }
    }
    let [own, dials, dialled] = &mut ways;
    let (rate, time) = (own.rate(), own.time());
    let mut report = Report::default();
    report.number("answers a second, on the node itself", rate);
    report.time("one command, on the node itself", time);
    for way in [dials, dialled] {
        let (its_rate, its_time) = (way.rate(), way.time());
        report.no_less_than(
            &format!("answers a second, {}", way.name),
            its_rate / rate,
            LEAST_RATE,
        );
        report.times(
            &format!("one command, {}", way.name),
            its_time.as_secs_f64() / time.as_secs_f64(),
            MOST_TIME,
        );
    }
    fleet.stop().await;
    for gateway in [a, b, c] {
        gateway.shutdown().await;
    }
    Ok(report)
}
