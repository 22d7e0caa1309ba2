//! 500 of 5,000 owners that die at once.
//!
//! The gateway runs in this process: only a build with fault injection can let an owner die.

use crate::bed::median_and_most;
use crate::report::Report;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tonic::Request;
use tonic::transport::{Channel, Endpoint};
use yuzu_proto::SESSION_HEADER;
use yuzu_proto::agent::v1::{AgentInfo, CommandRequest, RegisterRequest};
use yuzu_proto::gateway::v1::StreamStatusNotification;
use yuzu_proto::gateway::v1::gateway_upstream_client::GatewayUpstreamClient;
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_server_stub::{Rpc, State};
use yuzu_tests::fleet::{self, Fleet, Outcome};
use yuzu_tests::testbed::{Setup, TestBed};

pub(crate) const ABOUT: &str = "500 of 5,000 owners die at once, three times";

const AGENTS: usize = 5_000;
const KILLED: usize = 500;
const ROUNDS: usize = 3;
const HEARTBEAT: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(120);
/// In flight at once, as the gateway has them.
const NOTICES: usize = 10;
const REGISTERS: usize = 24;

/// What one round took.
struct Round {
    /// Until every call of the recoveries was answered.
    recovered: Duration,
    /// Until a command to each of them was answered.
    commands: Duration,
    answered: usize,
}

pub(crate) async fn run() -> Result<Report, String> {
    // As in the gateway's own process: a backtrace for each would take most of the time.
    yuzu_gateway::observe::log::install_panic_hook();
    let bed = Setup::default().start().await;
    let fleet = Fleet::start(fleet::Options {
        heartbeat: Some(HEARTBEAT),
        ..bed.fleet(AGENTS)
    });
    let all = fleet.all_subscribed(LIMIT).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    calls(&bed, Rpc::NotifyStreamStatus, AGENTS).await?;
    let (mut bare, mut rounds) = (Vec::new(), Vec::new());
    for number in 0..ROUNDS {
        bare.push(bare_calls(&bed, number).await?);
        rounds.push(kill(&bed, &fleet, number).await?);
    }
    sleep(HEARTBEAT).await;
    let seen = fleet.snapshot();
    let bad: u64 = seen.ends.values().sum::<u64>()
        - seen.ends_of(fleet::Rpc::Register, Outcome::Status(0))
        - seen.ends_of(fleet::Rpc::Heartbeat, Outcome::Status(0));
    let (bare, bare_most) = median_and_most(bare);
    let (recovered, recovered_most) = median_and_most(rounds.iter().map(|r| r.recovered).collect());
    let (commands, commands_most) = median_and_most(rounds.iter().map(|r| r.commands).collect());
    let killed = (KILLED * ROUNDS) as u64;
    let mut report = Report::default();
    report.exactly("DISCONNECTED received, all rounds", told(&bed), killed);
    let outcomes = &bed.gateway.metrics().agent_owner_restarts_total;
    let outcome = |label| outcomes.with_label_values(&[label]).get();
    report.exactly("owners recovered", outcome("recovered"), killed);
    report.exactly("agents that reconnected", seen.reconnects, 0);
    report.count("heartbeats acknowledged", seen.heartbeats_acked);
    report.exactly("heartbeats refused, calls that failed", bad, 0);
    report.time("1,500 bare calls, median", bare);
    report.time("the same, slowest", bare_most);
    report.within("all 500 recovered, median", recovered, bare.mul_f64(1.5));
    report.time("the same, slowest", recovered_most);
    let answered = rounds.iter().map(|round| round.answered as u64).sum();
    report.exactly("commands answered right afterwards", answered, killed);
    report.time("500 commands, median", commands);
    report.time("the same, slowest", commands_most);
    fleet.stop().await;
    bed.stop().await;
    Ok(report)
}

/// DISCONNECTED of the gateway's own agents.
fn told(bed: &TestBed) -> u64 {
    let gone = |state: &State| {
        let notices = state.received(Rpc::NotifyStreamStatus);
        let notices = notices.filter_map(|received| received.stream_status());
        notices
            .filter(|n| n.event() == Event::Disconnected && n.agent_id.starts_with("sim-"))
            .count() as u64
    };
    bed.server.view(gone)
}

/// Waits until so many more calls were answered well.
async fn calls(bed: &TestBed, rpc: Rpc, good: usize) -> Result<(), String> {
    let reached = |state: &State| (state.counts(rpc).ok >= good as u64).then_some(());
    let reached = bed.server.wait_for("calls", LIMIT, reached).await;
    reached.map_err(|e| e.to_string())
}

fn answered(bed: &TestBed, rpc: Rpc) -> usize {
    bed.server.view(|state| state.counts(rpc).ok as usize)
}

async fn kill(bed: &TestBed, fleet: &Fleet, number: usize) -> Result<Round, String> {
    let ids = (number * KILLED..(number + 1) * KILLED).map(|n| fleet.options().agent_id(n));
    let ids: Vec<String> = ids.collect();
    let notices = answered(bed, Rpc::NotifyStreamStatus);
    let registers = answered(bed, Rpc::ProxyRegister);
    let started = Instant::now();
    for id in &ids {
        if !bed.gateway.inject_owner_panic(id) {
            return Err(format!("{id} is not connected"));
        }
    }
    calls(bed, Rpc::NotifyStreamStatus, notices + 2 * KILLED).await?;
    calls(bed, Rpc::ProxyRegister, registers + KILLED).await?;
    let recovered = started.elapsed();
    let operator = bed.operator().await;
    let wanted: Vec<&str> = ids.iter().map(String::as_str).collect();
    let command = CommandRequest {
        command_id: format!("after-{number}"),
        plugin: "shell".into(),
        ..CommandRequest::default()
    };
    let started = Instant::now();
    let fanout = operator.send(&wanted, command, 60).await;
    let (entries, status) = fanout.map_err(|e| e.to_string())?.rest().await?;
    if !status.is_ok() {
        return Err(format!("the command ended with {status}"));
    }
    let good = entries.iter().filter(|entry| entry.response.status == 1);
    Ok(Round {
        recovered,
        commands: started.elapsed(),
        answered: good.count(),
    })
}

/// The calls of 500 recoveries on a connection of their own, as many at once as the gateway has.
async fn bare_calls(bed: &TestBed, number: usize) -> Result<Duration, String> {
    let endpoint = Endpoint::from_shared(bed.server.uri()).map_err(|e| e.to_string())?;
    let channel = endpoint.connect().await.map_err(|e| e.to_string())?;
    let (notices, registers) = (
        Arc::new(Semaphore::new(NOTICES)),
        Arc::new(Semaphore::new(REGISTERS)),
    );
    let mut agents = Vec::new();
    for n in 0..KILLED {
        let mut agent = BareAgent {
            client: GatewayUpstreamClient::new(channel.clone()),
            agent_id: format!("bare-{number}-{n}"),
            session_id: String::new(),
        };
        agent.register().await?;
        agents.push(agent);
    }
    let started = Instant::now();
    let mut all = JoinSet::new();
    for mut agent in agents {
        let (notices, registers) = (Arc::clone(&notices), Arc::clone(&registers));
        all.spawn(async move {
            {
                let _turn = notices.acquire().await;
                agent.notify(Event::Disconnected).await?;
            }
            {
                let _turn = registers.acquire().await;
                agent.register().await?;
            }
            let _turn = notices.acquire().await;
            agent.notify(Event::Connected).await
        });
    }
    while let Some(agent) = all.join_next().await {
        agent.map_err(|e| e.to_string())??;
    }
    Ok(started.elapsed())
}

struct BareAgent {
    client: GatewayUpstreamClient<Channel>,
    agent_id: String,
    session_id: String,
}

impl BareAgent {
    /// A fresh session, or the one it has.
    async fn register(&mut self) -> Result<(), String> {
        let mut request = Request::new(RegisterRequest {
            info: Some(AgentInfo {
                agent_id: self.agent_id.clone(),
                hostname: format!("{}.example", self.agent_id),
                ..AgentInfo::default()
            }),
            gateway_observed_peer: "127.0.0.1".into(),
            ..RegisterRequest::default()
        });
        if !self.session_id.is_empty() {
            let session = self.session_id.parse().map_err(|_| "no metadata")?;
            request.metadata_mut().insert(SESSION_HEADER, session);
        }
        let answer = self.client.proxy_register(request).await;
        self.session_id = answer.map_err(|e| e.to_string())?.into_inner().session_id;
        Ok(())
    }

    async fn notify(&mut self, event: Event) -> Result<(), String> {
        let notice = StreamStatusNotification {
            agent_id: self.agent_id.clone(),
            session_id: self.session_id.clone(),
            event: event.into(),
            peer_addr: "127.0.0.1".into(),
            gateway_node: "bare".into(),
            stream_home_id: "0".repeat(32),
            ..StreamStatusNotification::default()
        };
        let answer = self.client.notify_stream_status(notice).await;
        answer.map(drop).map_err(|e| e.to_string())
    }
}
