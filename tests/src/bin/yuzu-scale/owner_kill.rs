//! Owners that die: a single one, and a tenth of all at once.
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
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::{self, Fleet, Outcome};
use yuzu_tests::testbed::{Setup, TestBed};

pub(crate) const ABOUT: &str =
    "owners die: one of 100, 50 of 500 at once, 500 of 5,000 at once, three times";

pub(crate) const AGENTS: usize = 5_000;
/// Of the agents at once.
const SHARE: usize = 10;
const ROUNDS: usize = 3;
const HEARTBEAT: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(120);
/// The two smaller fleets.
const ALONE: usize = 100;
const FEW: usize = 500;
/// Recovery of many by the bare calls of as many: both are the server's time, and the machine's.
const TIMES: f64 = 1.5;
const ONE: Duration = Duration::from_millis(5);
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

/// A fleet some of whose owners die at once.
struct Case {
    agents: usize,
    killed: usize,
    /// What a recovery may take, beside the same calls without a gateway.
    bound: Bound,
}

#[derive(Clone, Copy)]
enum Bound {
    Times(f64),
    /// One recovery is two calls and a Register one after the other, as the bare calls are: what is
    /// beside them is the owner's death and new start.
    And(Duration),
}

pub(crate) async fn run(agents: usize) -> Result<Report, String> {
    if agents < SHARE {
        return Err(format!("--agents must be at least {SHARE}"));
    }
    check_descriptors(2 * agents)?;
    // As in the gateway's own process: a backtrace for each would take most of the time.
    yuzu_gateway::observe::log::install_panic_hook();
    let mut report = Report::default();
    let share = |agents, bound| Case {
        agents,
        killed: agents / SHARE,
        bound,
    };
    let one = Case {
        agents: ALONE,
        killed: 1,
        bound: Bound::And(ONE),
    };
    for case in [
        one,
        share(agents.min(FEW), Bound::Times(TIMES)),
        share(agents, Bound::Times(TIMES)),
    ] {
        measure(&case, &mut report).await?;
    }
    Ok(report)
}

async fn measure(case: &Case, report: &mut Report) -> Result<(), String> {
    let bed = Setup::default().start().await;
    let fleet = Fleet::start(fleet::Options {
        heartbeat: Some(HEARTBEAT),
        ..bed.fleet(case.agents)
    });
    let all = fleet.all_subscribed(LIMIT).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    calls(&bed, Rpc::NotifyStreamStatus, case.agents).await?;
    let before = fleet.snapshot();
    let (mut bare, mut rounds) = (Vec::new(), Vec::new());
    for number in 0..ROUNDS {
        bare.push(bare_calls(&bed, case.killed, number).await?);
        rounds.push(kill(&bed, &fleet, case.killed, number).await?);
    }
    sleep(HEARTBEAT).await;
    judge(case, report, &bed, &fleet.snapshot(), &before);
    judge_times(case, report, bare, &rounds);
    fleet.stop().await;
    bed.stop().await;
    Ok(())
}

fn judge(
    case: &Case,
    report: &mut Report,
    bed: &TestBed,
    seen: &fleet::Snapshot,
    before: &fleet::Snapshot,
) {
    let bad: u64 = seen.ends.values().sum::<u64>()
        - seen.ends_of(fleet::Rpc::Register, Outcome::Status(0))
        - seen.ends_of(fleet::Rpc::Heartbeat, Outcome::Status(0));
    let killed = (case.killed * ROUNDS) as u64;
    let name = |what: &str| case.name(what);
    report.exactly(
        &name("DISCONNECTED received, all rounds"),
        told(bed, Event::Disconnected),
        killed,
    );
    let again = told(bed, Event::Connected) - case.agents as u64;
    report.exactly(&name("CONNECTED after them"), again, killed);
    let outcomes = &bed.gateway.metrics().agent_owner_restarts_total;
    let outcome = |label| outcomes.with_label_values(&[label]).get();
    report.exactly(&name("owners recovered"), outcome("recovered"), killed);
    report.exactly(&name("agents that reconnected"), seen.reconnects, 0);
    let streams = seen.subscriptions - before.subscriptions;
    report.exactly(&name("streams opened since"), streams, 0);
    report.count(&name("heartbeats acknowledged"), seen.heartbeats_acked);
    report.exactly(&name("heartbeats refused, calls that failed"), bad, 0);
}

fn judge_times(case: &Case, report: &mut Report, bare: Vec<Duration>, rounds: &[Round]) {
    let name = |what: &str| case.name(what);
    let (bare, bare_most) = median_and_most(bare);
    let (recovered, recovered_most) = median_and_most(rounds.iter().map(|r| r.recovered).collect());
    let (commands, commands_most) = median_and_most(rounds.iter().map(|r| r.commands).collect());
    report.time(&name("the same bare calls, median"), bare);
    report.time(&name("the same, slowest"), bare_most);
    let bound = match case.bound {
        Bound::Times(times) => bare.mul_f64(times),
        Bound::And(more) => bare + more,
    };
    report.within(&name("all recovered, median"), recovered, bound);
    report.time(&name("the same, slowest"), recovered_most);
    let answered = rounds.iter().map(|round| round.answered as u64).sum();
    report.exactly(
        &name("commands answered right afterwards"),
        answered,
        (case.killed * ROUNDS) as u64,
    );
    report.time(&name("commands to them, median"), commands);
    report.time(&name("the same, slowest"), commands_most);
}

impl Case {
    fn name(&self, what: &str) -> String {
        format!("{} of {}: {what}", self.killed, self.agents)
    }
}

/// Notices of this kind about the gateway's own agents.
fn told(bed: &TestBed, event: Event) -> u64 {
    let of = |state: &State| {
        let notices = state.received(Rpc::NotifyStreamStatus);
        let notices = notices.filter_map(|received| received.stream_status());
        notices
            .filter(|n| n.event() == event && n.agent_id.starts_with("sim-"))
            .count() as u64
    };
    bed.server.view(of)
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

async fn kill(bed: &TestBed, fleet: &Fleet, killed: usize, number: usize) -> Result<Round, String> {
    let ids = (number * killed..(number + 1) * killed).map(|n| fleet.options().agent_id(n));
    let ids: Vec<String> = ids.collect();
    let notices = answered(bed, Rpc::NotifyStreamStatus);
    let registers = answered(bed, Rpc::ProxyRegister);
    let started = Instant::now();
    for id in &ids {
        if !bed.gateway.inject_owner_panic(id) {
            return Err(format!("{id} is not connected"));
        }
    }
    calls(bed, Rpc::NotifyStreamStatus, notices + 2 * killed).await?;
    calls(bed, Rpc::ProxyRegister, registers + killed).await?;
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

/// The calls of so many recoveries on a connection of their own, as many at once as the gateway has.
async fn bare_calls(bed: &TestBed, killed: usize, number: usize) -> Result<Duration, String> {
    let endpoint = Endpoint::from_shared(bed.server.uri()).map_err(|e| e.to_string())?;
    let channel = endpoint.connect().await.map_err(|e| e.to_string())?;
    let (notices, registers) = (
        Arc::new(Semaphore::new(NOTICES)),
        Arc::new(Semaphore::new(REGISTERS)),
    );
    let mut agents = Vec::new();
    for n in 0..killed {
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
