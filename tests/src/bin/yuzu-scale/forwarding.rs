//! What it costs that an agent is held by another node than the one that was asked.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use crate::server::Server;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;
use tokio::time::Instant;
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_server_stub::StubConfig;
use yuzu_tests::broadcast::percentile;
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::Fleet;
use yuzu_tests::operator::Operator;

pub(crate) const ABOUT: &str =
    "commands for agents of another node: time and rate beside local ones";

const AGENTS: usize = 5_000;
const LIMIT: Duration = Duration::from_secs(60);
/// Local and remote take turns so often; medians count.
const ROUNDS: usize = 5;
const SINGLE: usize = 500;
const BROADCASTS: usize = 8;
const TIMEOUT_S: i32 = 60;
const P50: f64 = 1.6;
const P99: f64 = 2.0;
const RATE: f64 = 0.6;

/// Figures of one side, one of each round.
#[derive(Debug, Default)]
struct Side {
    p50: Vec<Duration>,
    p99: Vec<Duration>,
    /// Of one agent in a broadcast.
    each: Vec<Duration>,
}

pub(crate) async fn run(binaries: &Binaries) -> Result<Report, String> {
    check_descriptors(AGENTS)?;
    let address = node_address().map_err(|e| e.to_string())?;
    let owner = node(binaries, "yuzu_gw@owner", address, None).await?;
    let own = node_address().map_err(|e| e.to_string())?;
    let entry = node(binaries, "yuzu_gw@entry", own, Some(address)).await?;
    let fleet = Fleet::start(owner.fleet("remote-", AGENTS));
    let all = fleet.all_subscribed(LIMIT).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    let all = [("node", "all")];
    bed::gateway_has(
        &entry.gateway,
        "the agents of the other node",
        LIMIT,
        |now| bed::value_or_zero(now, "adjacency_agents", &all) == AGENTS as u64,
    )
    .await?;

    let agents: Vec<String> = (0..AGENTS).map(|n| format!("remote-{n}")).collect();
    let (mut local, mut remote) = (Side::default(), Side::default());
    for round in 0..ROUNDS {
        local
            .measure(&owner, &agents, &format!("local-{round}"))
            .await?;
        remote
            .measure(&entry, &agents, &format!("remote-{round}"))
            .await?;
    }
    let mut report = Report::default();
    let local = [local.p50, local.p99, local.each].map(|of| bed::median_and_most(of).0);
    let remote = [remote.p50, remote.p99, remote.each].map(|of| bed::median_and_most(of).0);
    let by = |at: usize| remote[at].as_secs_f64() / local[at].as_secs_f64();
    for (at, what) in ["a single command, p50", "the same, p99"]
        .into_iter()
        .enumerate()
    {
        report.time(&format!("{what}, local"), local[at]);
        report.time(&format!("{what}, remote"), remote[at]);
        report.times("remote by local", by(at), [P50, P99][at]);
    }
    for (side, each) in [("local", local[2]), ("remote", remote[2])] {
        let rate = (1.0 / each.as_secs_f64()) as u64;
        report.count(&format!("broadcast answers a second, {side}"), rate);
    }
    report.times("local by remote", by(2), 1.0 / RATE);
    let metrics = bed::scrape(&entry.gateway).await?;
    let wanted = (ROUNDS * (SINGLE + BROADCASTS * AGENTS)) as u64;
    let ok = bed::value(&metrics, "forward_requests_total", &[("outcome", "ok")])?;
    report.exactly("commands passed on and answered", ok, wanted);
    Ok(report)
}

impl Side {
    async fn measure(&mut self, bed: &Bed, agents: &[String], name: &str) -> Result<(), String> {
        let operator = Operator::connect(bed.gateway.management).await;
        let operator = operator.map_err(|e| e.to_string())?;
        let command = |of: String| CommandRequest {
            command_id: format!("{name}-{of}"),
            plugin: "shell".into(),
            ..CommandRequest::default()
        };
        let send = async |agents: &[&str], of: String| {
            let started = Instant::now();
            let fanout = operator.send(agents, command(of), TIMEOUT_S).await;
            let answers = fanout.map_err(|e| e.to_string())?.successes().await?;
            match answers == agents.len() {
                true => Ok(started.elapsed()),
                false => Err(format!("{answers} answers of {} agents", agents.len())),
            }
        };
        let mut times = Vec::with_capacity(SINGLE);
        for (number, agent) in agents.iter().cycle().step_by(7).take(SINGLE).enumerate() {
            times.push(send(&[agent], format!("single-{number}")).await?);
        }
        times.sort_unstable();
        let of = |share| percentile(&times, share).unwrap_or_default();
        self.p50.push(of(0.5));
        self.p99.push(of(0.99));
        let agents: Vec<&str> = agents.iter().map(|id| &**id).collect();
        let started = Instant::now();
        for number in 0..BROADCASTS {
            send(&agents, format!("all-{number}")).await?;
        }
        let targets = BROADCASTS * agents.len();
        self.each.push(started.elapsed().div_f64(targets as f64));
        Ok(())
    }
}

/// A gateway with a server of its own, and a node of a cluster.
async fn node(
    binaries: &Binaries,
    name: &str,
    address: SocketAddr,
    seed: Option<SocketAddr>,
) -> Result<Bed, String> {
    let server = Server::start(StubConfig::default()).await?;
    let seeds = seed.map_or_else(String::new, |seed| format!("\"{seed}\""));
    let more = format!(
        "[node]\nname = \"{name}\"\n\
         [cluster]\nseed_nodes = [{seeds}]\nredial_interval_ms = 200\n\
         [[listener]]\nname = \"node\"\nservices = [\"node\"]\naddress = \"{address}\"\n"
    );
    let gateway = bed::gateway(binaries, server.addr(), &more).await?;
    Ok(Bed { server, gateway })
}

/// A port that is free for the links and for the gossip.
fn node_address() -> std::io::Result<SocketAddr> {
    loop {
        let links = TcpListener::bind(("127.0.0.1", 0))?;
        let address = links.local_addr()?;
        if UdpSocket::bind(address).is_ok() {
            return Ok(address);
        }
    }
}
