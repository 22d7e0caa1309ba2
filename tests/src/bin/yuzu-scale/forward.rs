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
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::{Fleet, Options};
use yuzu_tests::operator::Operator;
use yuzu_tests::testbed::{endpoint, scrape};

pub(crate) const ABOUT: &str =
    "commands for 5,000 agents of another node, beside the same sent there";

pub(crate) const AGENTS: usize = 5_000;
/// In each of them every way has its turn, and is held against the node itself in that round alone:
/// so the machine is the same for all. Judged are the medians.
const ROUNDS: usize = 9;
/// Commands of a round for one agent, of each way one after the other.
const SINGLE: usize = 1_000;
const LIMIT: Duration = Duration::from_secs(120);
/// Of what the node itself reaches.
const LEAST_RATE: f64 = 0.6;
const MOST_P50: f64 = 1.6;
const MOST_P99: f64 = 2.0;

/// One way to the agents.
struct Way {
    name: &'static str,
    operator: Operator,
    rounds: Vec<Round>,
}

/// What a way reached in one round.
#[derive(Debug, Clone, Copy)]
struct Round {
    /// Answers a second.
    rate: f64,
    /// Of single commands, in seconds.
    p50: f64,
    p99: f64,
}

fn config(name: &str, server: &StubServer, seed: Option<SocketAddr>, agents: usize) -> Config {
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
    // The others have none: nobody is to be moved there.
    config.shift.min_sessions = agents;
    config
}

async fn start(config: Config) -> Result<Gateway, String> {
    let gateway = Gateway::start(config).await;
    gateway.map_err(|error| error.to_string())
}

/// Waits until the node knows of all agents.
async fn knows(gateway: &Gateway, agents: usize) -> Result<(), String> {
    let known = async {
        let labels = [("node", "all")];
        while scrape(gateway)
            .await
            .value("yuzu_gw_adjacency_agents", &labels)
            != Some(agents as f64)
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
            rounds: Vec::new(),
        })
    }

    /// Answers a second of one command for all.
    async fn broadcast(&self, agents: usize) -> Result<f64, String> {
        let round = broadcast(&self.operator, command("round"), 60).await?;
        if round.latencies.len() != agents || round.tally.failures > 0 {
            let (answers, failures) = (round.latencies.len(), round.tally.failures);
            return Err(format!(
                "{answers} answers, {failures} failures: {}",
                self.name
            ));
        }
        Ok(round.answers_per_second())
    }

    async fn single(&self, agent: &str) -> Result<Duration, String> {
        let started = Instant::now();
        let sent = self.operator.send(&[agent], command("one"), 60).await;
        let answers = sent.map_err(|e| e.to_string())?.successes().await?;
        match answers {
            1 => Ok(started.elapsed()),
            _ => Err(format!("{answers} answers: {}", self.name)),
        }
    }

    /// The median over all rounds.
    fn median(&self, of: impl Fn(usize, &Round) -> f64) -> f64 {
        let rounds = self.rounds.iter().enumerate();
        let mut values: Vec<_> = rounds.map(|(n, round)| of(n, round)).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }
}

/// Every way once.
async fn round(ways: &mut [Way], fleet: &Fleet) -> Result<(), String> {
    let mut rates = Vec::new();
    for way in &*ways {
        rates.push(way.broadcast(fleet.options().agents).await?);
    }
    let mut times = vec![Vec::new(); ways.len()];
    for n in 0..SINGLE {
        for (way, times) in ways.iter().zip(&mut times) {
            let agent = fleet.options().agent_id(n % fleet.options().agents);
            times.push(way.single(&agent).await?);
        }
    }
    for ((way, rate), mut times) in ways.iter_mut().zip(rates).zip(times) {
        times.sort_unstable();
        let seconds = |share| {
            let time = percentile(&times, share).unwrap_or_default();
            time.as_secs_f64()
        };
        let (p50, p99) = (seconds(0.5), seconds(0.99));
        way.rounds.push(Round { rate, p50, p99 });
    }
    Ok(())
}

fn command(id: &str) -> CommandRequest {
    CommandRequest {
        command_id: id.into(),
        plugin: "shell".into(),
        ..Default::default()
    }
}

pub(crate) async fn run(agents: usize) -> Result<Report, String> {
    if agents == 0 {
        return Err("--agents must be at least 1".into());
    }
    check_descriptors(2 * agents)?;
    let server = StubServer::start(StubConfig::default()).await;
    let server = server.map_err(|error| error.to_string())?;
    let b = start(config("b", &server, None, agents)).await?;
    let a = start(config("a", &server, b.node_address(), agents)).await?;
    let c = start(config("c", &server, b.node_address(), agents)).await?;
    let address = b.agent_address().ok_or("no listener")?;
    let fleet = Fleet::start(Options {
        heartbeat: None,
        ..Options::new(address, agents)
    });
    let all = fleet.all_subscribed(LIMIT).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    tokio::try_join!(knows(&a, agents), knows(&c, agents))?;
    let mut ways = [
        Way::of("on the node itself", &b).await?,
        Way::of("from a node that dials", &a).await?,
        Way::of("from a node that is dialled", &c).await?,
    ];
    round(&mut ways, &fleet).await?;
    ways.iter_mut().for_each(|way| way.rounds.clear());
    for _ in 0..ROUNDS {
        round(&mut ways, &fleet).await?;
    }
    let report = judge(&ways);
    fleet.stop().await;
    for gateway in [a, b, c] {
        gateway.shutdown().await;
    }
    Ok(report)
}

fn judge([own, others @ ..]: &[Way; 3]) -> Report {
    let mut report = Report::default();
    let name = own.name;
    report.number(
        &format!("answers a second, {name}"),
        own.median(|_, round| round.rate),
    );
    let time = |of: fn(&Round) -> f64| Duration::from_secs_f64(own.median(|_, round| of(round)));
    report.time(
        &format!("one command, p50, {name}"),
        time(|round| round.p50),
    );
    report.time(
        &format!("one command, p99, {name}"),
        time(|round| round.p99),
    );
    for way in others {
        let name = way.name;
        // Of the same round.
        let rate = way.median(|n, round| round.rate / own.rounds[n].rate);
        let p50 = way.median(|n, round| round.p50 / own.rounds[n].p50);
        let p99 = way.median(|n, round| round.p99 / own.rounds[n].p99);
        report.no_less_than(&format!("answers a second, {name}"), rate, LEAST_RATE);
        report.times(&format!("one command, p50, {name}"), p50, MOST_P50);
        report.times(&format!("one command, p99, {name}"), p99, MOST_P99);
    }
    report
}
