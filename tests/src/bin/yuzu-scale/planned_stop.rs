//! SIGTERM with 5,000 sessions, at a slow server and at one that never answers.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use yuzu_server_stub::{Action, Fault, RouteState, Rpc, State, StubConfig};
use yuzu_tests::fleet::Fleet;

pub(crate) const ABOUT: &str = "SIGTERM with 5,000 sessions: 50 ms a call, and no answer at all";

const AGENTS: usize = 5_000;
const ANSWER: Duration = Duration::from_millis(50);
/// Sent at once in a planned stop.
const WIDTH: usize = 64;
const BUDGET: Duration = Duration::from_secs(20);
/// For a process to end.
const END: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) async fn run(binaries: &Binaries) -> Result<Report, String> {
    let mut report = Report::default();
    slow(binaries, &mut report).await?;
    silent(binaries, &mut report).await?;
    Ok(report)
}

/// A gateway with its agents, all of them known to the server.
async fn attached(binaries: &Binaries) -> Result<(Bed, Fleet), String> {
    let bed = Bed::start(binaries, StubConfig::default()).await?;
    let fleet = Fleet::start(bed.fleet("stop-", AGENTS));
    let all = fleet.all_subscribed(LIMIT).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    let known =
        |state: &State| (bed::routes(state, RouteState::Connected) == AGENTS as u64).then_some(());
    bed.server_has("every CONNECTED", LIMIT, known).await?;
    bed.server.clear_records();
    Ok((bed, fleet))
}

async fn slow(binaries: &Binaries, report: &mut Report) -> Result<(), String> {
    let (mut bed, fleet) = attached(binaries).await?;
    let told = bed.server.view(|s| s.counts(Rpc::NotifyStreamStatus).ok);
    let slow = Fault::new(Rpc::NotifyStreamStatus, Action::Delay(ANSWER));
    bed.server.fault(slow).map_err(|e| e.to_string())?;
    let started = Instant::now();
    let status = bed.gateway.terminate(LIMIT).await?;
    let ended = started.elapsed();
    let (told, last, first) = bed.server.view(|state| {
        let ok = state.counts(Rpc::NotifyStreamStatus).ok - told;
        let times: Vec<_> = bed::notices(state).map(|(at, _)| at).collect();
        (ok, times.last().copied(), times.first().copied())
    });
    let (first, last) = first.zip(last).ok_or("the server was told nothing")?;
    let batches = u32::try_from(AGENTS.div_ceil(WIDTH)).unwrap_or(u32::MAX);
    report.exactly("50 ms: DISCONNECTED delivered", told, AGENTS as u64);
    report.time("50 ms: SIGTERM to the first of them", first - started);
    report.within(
        "50 ms: SIGTERM to the last answer",
        last + ANSWER - started,
        (ANSWER * batches).mul_f64(1.1),
    );
    report.time("50 ms: SIGTERM to the end of the process", ended);
    report.exactly("50 ms: exit code", code(status), 0);
    fleet.stop().await;
    Ok(())
}

async fn silent(binaries: &Binaries, report: &mut Report) -> Result<(), String> {
    let (mut bed, fleet) = attached(binaries).await?;
    let silent = Fault::new(Rpc::NotifyStreamStatus, Action::Hang);
    bed.server.fault(silent).map_err(|e| e.to_string())?;
    let started = Instant::now();
    let metrics = bed.gateway.metrics;
    let (status, scraped) = tokio::join!(bed.gateway.terminate(LIMIT), until_gone(metrics));
    let (status, ended) = (status?, started.elapsed());
    report.within("no answer: SIGTERM to the end", ended, BUDGET + END);
    report.no_less("no answer: the same", ended, BUDGET);
    report.exactly("no answer: exit code", code(status), 1);
    let log = bed.gateway.log();
    let lines = |text: &str| log.lines().filter(|line| line.contains(text)).count() as u64;
    let lost = format!("stream-status notification(s) sent, {AGENTS} not sent");
    report.exactly("no answer: lines that count all as lost", lines(&lost), 1);
    let cut = lines("call task ended without a result");
    report.exactly("no answer: lines about calls that the stop cut", cut, 0);
    report.within(
        "no answer: metrics were there until so long before the end",
        ended.saturating_sub(scraped - started),
        END,
    );
    fleet.stop().await;
    Ok(())
}

/// When metrics were last answered.
async fn until_gone(metrics: std::net::SocketAddr) -> Instant {
    let mut last = Instant::now();
    while yuzu_tests::http::get(metrics, "/metrics").await.is_ok() {
        last = Instant::now();
        sleep(Duration::from_millis(50)).await;
    }
    last
}

fn code(status: std::process::ExitStatus) -> u64 {
    // Ended by a signal has no code; no gateway ends with this one.
    status.code().map_or(255, i32::unsigned_abs).into()
}
