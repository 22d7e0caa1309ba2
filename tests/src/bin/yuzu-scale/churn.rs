//! 10,000 agents that connect, answer and leave, three times over.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_server_stub::{RouteState, Rpc, State, StubConfig};
use yuzu_tests::broadcast::broadcast;
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::Fleet;
use yuzu_tests::metrics::Metrics;
use yuzu_tests::operator::Operator;

pub(crate) const ABOUT: &str = "10,000 agents connect, answer, leave, three times: memory, counts";

pub(crate) const AGENTS: usize = 10_000;
const ROUNDS: usize = 3;
const CONNECTS_PER_SECOND: f64 = 2_000.0;
const LIMIT: Duration = Duration::from_secs(180);
/// After a round.
const SETTLE: Duration = Duration::from_secs(60);
/// What may stay of an agent that left.
const LEFT_BYTES: u64 = 2 << 10;

/// Gauges that are 0 on a node without agents.
const IDLE: [&str; 6] = [
    "agents_current",
    "upstream_notify_pending",
    "upstream_notify_inflight",
    "upstream_permits_held",
    "upstream_permits_waiting",
    "upstream_notify_unacked_keys",
];

pub(crate) async fn run(binaries: &Binaries, agents: usize) -> Result<Report, String> {
    check_descriptors(agents)?;
    let bed = Bed::start(binaries, StubConfig::default()).await?;
    sleep(Duration::from_secs(1)).await;
    let start = bed.gateway.anonymous_memory()?;
    let mut report = Report::default();
    let kib = |bytes: u64| bytes >> 10;
    report.count("anonymous memory at the start, KiB", kib(start));
    let mut after = Vec::new();
    for number in 1..=ROUNDS {
        let peak = round(&bed, agents, number, &mut report).await?;
        sleep(SETTLE).await;
        let left = bed.gateway.anonymous_memory()?;
        report.count(&format!("round {number}: at its peak, KiB"), kib(peak));
        report.count(&format!("round {number}: a minute later, KiB"), kib(left));
        after.push(left);
    }
    judge_counts(&bed, agents, &mut report).await?;
    let (first, last) = (after[0], after[ROUNDS - 1]);
    report.at_most(
        "after the last round, 1.05 of that after the first, KiB",
        kib(last),
        kib(first * 105 / 100),
    );
    report.at_most(
        "after the last round, the start and 2 KiB an agent, KiB",
        kib(last),
        kib(start + LEFT_BYTES * agents as u64),
    );
    Ok(report)
}

/// One round; the memory when all agents have answered.
async fn round(
    bed: &Bed,
    agents: usize,
    number: usize,
    report: &mut Report,
) -> Result<u64, String> {
    let mut options = bed.fleet(&format!("churn-{number}-"), agents);
    options.connects_per_second = Some(CONNECTS_PER_SECOND);
    options.heartbeat = Some(Duration::from_secs(10));
    let fleet = Fleet::start(options);
    let all = fleet.all_subscribed(LIMIT).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    // One that still waits when its agent leaves would give way to the DISCONNECTED.
    let told =
        |state: &State| (bed::routes(state, RouteState::Connected) == agents as u64).then_some(());
    bed.server_has("every CONNECTED", LIMIT, told).await?;
    let operator = Operator::connect(bed.gateway.management).await;
    let operator = operator.map_err(|e| e.to_string())?;
    let command = CommandRequest {
        command_id: format!("round-{number}"),
        plugin: "shell".into(),
        ..CommandRequest::default()
    };
    let sent = broadcast(&operator, command, 120).await?;
    drop(operator);
    let tally = &sent.tally;
    let wrong = tally.doubled + tally.failures + tally.strays + usize::from(!sent.status.is_ok());
    let peak = bed.gateway.anonymous_memory()?;
    let name = |what: &str| format!("round {number}: {what}");
    report.exactly(
        &name("agents that answered"),
        tally.answered() as u64,
        agents as u64,
    );
    report.exactly(&name("answers that were wrong"), wrong as u64, 0);
    let started = Instant::now();
    let left = fleet.stop().await;
    report.exactly(&name("agents that reconnected"), left.reconnects, 0);
    let gone = |state: &State| {
        let gone = bed::routes(state, RouteState::Disconnected);
        (gone == (agents * number) as u64).then_some(())
    };
    bed.server_has("every DISCONNECTED", LIMIT, gone).await?;
    report.time(&name("leave to last DISCONNECTED"), started.elapsed());
    Ok(peak)
}

async fn judge_counts(bed: &Bed, agents: usize, report: &mut Report) -> Result<(), String> {
    let metrics: Metrics = bed::scrape(&bed.gateway).await?;
    let of = |name: &str| bed::value(&metrics, name, &[]);
    let all = (agents * ROUNDS) as u64;
    report.exactly("connected, all rounds", of("agents_connected_total")?, all);
    report.exactly("disconnected", of("agents_disconnected_total")?, all);
    report.exactly(
        "sessions timed",
        of("agent_session_duration_ms_count")?,
        all,
    );
    report.exactly("commands dispatched", of("commands_dispatched_total")?, all);
    report.exactly("commands answered", of("command_duration_ms_count")?, all);
    for name in [
        "commands_timed_out_total",
        "upstream_notify_dropped_total",
        "upstream_notify_lost_total",
        "heartbeat_buffer_dropped_total",
        "session_limit_rejected_total",
        "agent_owner_restarts_total",
    ] {
        report.exactly(name, of(name)?, 0);
    }
    for name in IDLE {
        report.exactly(name, of(name)?, 0);
    }
    let listener = [("listener", "agent")];
    let open = bed::value(&metrics, "listener_connections", &listener)?;
    report.exactly("connections of agents", open, 0);
    let operator = Operator::connect(bed.gateway.management).await;
    let operator = operator.map_err(|e| e.to_string())?;
    let listed = operator.list(1_000, "").await.map_err(|e| e.to_string())?;
    let listed: yuzu_proto::server::v1::ListAgentsResponse = listed.decode()?;
    report.exactly("agents listed", listed.agents.len() as u64, 0);
    let notices = bed.server.view(|s| *s.counts(Rpc::NotifyStreamStatus));
    report.exactly("notices the server recorded", notices.ok, 2 * all);
    Ok(())
}
