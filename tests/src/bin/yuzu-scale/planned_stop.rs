//! SIGTERM with few and with many sessions, at a slow server and at one that never answers.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use crate::server::Server;
use std::net::SocketAddr;
use std::process::ExitStatus;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use yuzu_server_stub::{Action, Fault, RouteState, Rpc, State, StubConfig};
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::Fleet;
use yuzu_tests::http;

pub(crate) const ABOUT: &str =
    "SIGTERM with 100 and 5,000 sessions: 50 ms and 200 ms a call, and no answer at all";

pub(crate) const AGENTS: usize = 5_000;
const FEW: usize = 100;
/// Sent at once in a planned stop.
const WIDTH: usize = 64;
const QUICK: Duration = Duration::from_millis(50);
const SLOW: Duration = Duration::from_millis(200);
/// What a stop takes at most, by default.
const BUDGET: Duration = Duration::from_secs(20);
const SHORT_BUDGET: Duration = Duration::from_millis(1_500);
/// What pacing and a busy machine may add to the arithmetic.
const SPARE: f64 = 1.1;
/// For a process to end.
const END: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(120);
const RPC: Rpc = Rpc::NotifyStreamStatus;

/// A stop that is measured.
struct Case {
    agents: usize,
    budget: Duration,
}

impl Case {
    /// With a budget that `answer` does not use up.
    fn in_time(agents: usize, answer: Duration) -> Self {
        Self {
            agents,
            budget: BUDGET.max(notices(agents, answer) * 2),
        }
    }
}

pub(crate) async fn run(binaries: &Binaries, agents: usize) -> Result<Report, String> {
    if agents == 0 {
        return Err("--agents must be at least 1".into());
    }
    check_descriptors(agents.max(FEW))?;
    let mut report = Report::default();
    for (agents, answer) in [(FEW, QUICK), (agents, QUICK), (agents, SLOW)] {
        let case = Case::in_time(agents, answer);
        slow(binaries, &mut report, &case, answer).await?;
    }
    for (agents, budget) in [(FEW, SHORT_BUDGET), (agents, BUDGET)] {
        silent(binaries, &mut report, &Case { agents, budget }).await?;
    }
    Ok(report)
}

/// How long this many notices take, as many at once as there may be.
fn notices(agents: usize, answer: Duration) -> Duration {
    answer * u32::try_from(agents.div_ceil(WIDTH)).unwrap_or(u32::MAX)
}

/// A gateway with its agents, all of them known to the server.
async fn attached(binaries: &Binaries, case: &Case) -> Result<(Bed, Fleet), String> {
    let server = Server::start(StubConfig::default()).await?;
    let budget = case.budget.as_millis();
    let budget = format!("[shutdown]\nflush_budget_ms = {budget}\n");
    let gateway = bed::gateway(binaries, server.addr(), &budget).await?;
    let bed = Bed { server, gateway };
    let fleet = Fleet::start(bed.fleet("stop-", case.agents));
    let all = fleet.all_subscribed(LIMIT).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    let wanted = case.agents as u64;
    let known = |state: &State| {
        let all = bed::routes(state, RouteState::Connected) == wanted;
        (all && state.in_flight() == 0).then_some(())
    };
    bed.server_has("every CONNECTED", LIMIT, known).await?;
    bed.server.clear_records();
    Ok((bed, fleet))
}

/// Every notice is answered, after this long.
async fn slow(
    binaries: &Binaries,
    report: &mut Report,
    case: &Case,
    answer: Duration,
) -> Result<(), String> {
    let (mut bed, fleet) = attached(binaries, case).await?;
    let agents = case.agents as u64;
    let told = bed.server.view(|s| s.counts(RPC).ok);
    let slow = Fault::new(RPC, Action::Delay(answer));
    bed.server.fault(slow).map_err(|e| e.to_string())?;
    let before = bed.gateway.log().len();
    let started = Instant::now();
    let all = |state: &State| (state.counts(RPC).ok == told + agents).then(Instant::now);
    let (status, last) = tokio::join!(
        async { (bed.gateway.terminate(LIMIT).await, started.elapsed()) },
        bed.server.wait_for("every DISCONNECTED", LIMIT, all)
    );
    let (status, ended) = (status.0?, status.1);
    let told = bed.server.view(|s| s.counts(RPC).ok) - told;
    let first = bed
        .server
        .view(|state| bed::notices(state).map(|(at, _)| at).next());
    let first = first.ok_or("the server was told nothing")?;
    let last = last.map_err(|e| e.to_string())?;
    let name = |what: &str| format!("{agents}, {} ms: {what}", answer.as_millis());
    report.exactly(&name("DISCONNECTED answered"), told, agents);
    report.time(&name("SIGTERM to the first of them"), first - started);
    report.within(
        &name("SIGTERM to the last answer"),
        last - started,
        notices(case.agents, answer).mul_f64(SPARE) + END / 5,
    );
    let before_the_end = last < started + ended;
    report.exactly(
        &name("all answered before the end"),
        before_the_end.into(),
        1,
    );
    report.time(&name("SIGTERM to the end of the process"), ended);
    report.exactly(&name("exit code"), code(status), 0);
    let lines = lines(&bed, before);
    report.exactly(
        &name("warnings and errors of the stop"),
        lines.len() as u64,
        0,
    );
    fleet.stop().await;
    Ok(())
}

/// No notice is answered: the budget ends it.
async fn silent(binaries: &Binaries, report: &mut Report, case: &Case) -> Result<(), String> {
    let (mut bed, fleet) = attached(binaries, case).await?;
    let silent = Fault::new(RPC, Action::Hang);
    bed.server.fault(silent).map_err(|e| e.to_string())?;
    let before = bed.gateway.log().len();
    let started = Instant::now();
    let metrics = bed.gateway.metrics;
    let (status, scraped) = tokio::join!(bed.gateway.terminate(LIMIT), until_gone(metrics));
    let (status, ended) = (status?, started.elapsed());
    let name = |what: &str| format!("{}, no answer: {what}", case.agents);
    report.within(&name("SIGTERM to the end"), ended, case.budget + END);
    report.no_less(&name("the same"), ended, case.budget);
    report.exactly(&name("exit code"), code(status), 1);
    let lines = lines(&bed, before);
    let lost = format!(
        "stream-status notification(s) sent, {} not sent",
        case.agents
    );
    let told = lines.iter().filter(|line| line.contains(&lost)).count();
    report.exactly(&name("lines that count all as lost"), told as u64, 1);
    let mut late = 0;
    for line in &lines {
        late += usize::from(is_of_the_server(line, late));
    }
    report.count(
        &name("lines about calls without an answer in time"),
        late as u64,
    );
    let others = lines.len() - told - late;
    report.exactly(
        &name("other warnings and errors of the stop"),
        others as u64,
        0,
    );
    report.within(
        &name("metrics gone to the end"),
        ended.saturating_sub(scraped - started),
        END,
    );
    fleet.stop().await;
    Ok(())
}

/// A call that ran into its own deadline, and the breaker that such calls open: the server caused
/// them, not the stop. `late` are the lines of this kind before.
fn is_of_the_server(line: &str, late: usize) -> bool {
    line.contains("no answer in time") || (late > 0 && line.contains("Circuit breaker: OPEN"))
}

/// What was written to the log since it was so long: it has warnings and errors only.
fn lines(bed: &Bed, before: usize) -> Vec<String> {
    let log = bed.gateway.log();
    let since = log.get(before..).unwrap_or(&log);
    since.lines().map(str::to_owned).collect()
}

/// When metrics were last answered.
async fn until_gone(metrics: SocketAddr) -> Instant {
    let mut last = Instant::now();
    while http::get(metrics, "/metrics").await.is_ok() {
        last = Instant::now();
        sleep(Duration::from_millis(50)).await;
    }
    last
}

fn code(status: ExitStatus) -> u64 {
    // Ended by a signal has no code; no gateway ends with this one.
    status.code().map_or(255, i32::unsigned_abs).into()
}
