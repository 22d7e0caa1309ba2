//! A server that stands still while agents leave.

use crate::bed::{self, Binaries};
use crate::report::Report;
use crate::tap::Tap;
use serde_json::Value;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use yuzu_tests::agent::Agent;
use yuzu_tests::metrics::Metrics;
use yuzu_tests::process::GatewayProcess;
use yuzu_tests::stub_process::StubProcess;

pub(crate) const ABOUT: &str = "a frozen server, an open breaker, 10 agents leave";

const AGENTS: usize = 10;
/// The breaker's threshold.
const FAILURES: usize = 5;
const CONFIG: &str = "rpc_timeout_ms = 500\n\n\
    [upstream.breaker]\nreset_timeout_ms = 500\nmax_reset_timeout_ms = 1500\n";
/// A twentieth of 10, 20, 30 and 30 s: doubled by each failed probe, up to a most that is not twice
/// the time before.
const OPEN_MS: [u64; 5] = [500, 1_000, 1_500, 1_500, 1_500];
/// What two scrapes and a busy machine may add to an open time or take from it.
const TOLERANCE_MS: u64 = 100;
const LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

pub(crate) async fn run(binaries: &Binaries) -> Result<Report, String> {
    let server = StubProcess::start(&binaries.stub).await?;
    let tap = Tap::start(server.address).await;
    let tap = tap.map_err(|e| e.to_string())?;
    let gateway = bed::gateway(binaries, tap.address, CONFIG).await?;
    let mut agents = Vec::new();
    for number in 0..AGENTS {
        agents.push(Agent::attach(gateway.agents, &agent_id(number)).await?);
    }
    let told = |metrics: &Metrics| sent(metrics) == AGENTS as u64;
    bed::gateway_has(&gateway, "every CONNECTED", LIMIT, told).await?;

    server.freeze()?;
    tap.forget();
    let opening = open_the_breaker(&gateway);
    let watching = watch(&gateway, agents);
    let (failed, watched) = tokio::join!(opening, watching);
    let (failed, watched) = (failed?, watched?);
    let before = bed::scrape(&gateway).await?;
    server.thaw()?;
    let thawed = Instant::now();
    let all = |metrics: &Metrics| sent(metrics) == 2 * AGENTS as u64;
    bed::gateway_has(&gateway, "every DISCONNECTED", LIMIT, all).await?;
    let delivered = thawed.elapsed();
    let seen = disconnected(
        &server
            .read("/received?rpc=NotifyStreamStatus&limit=1000")
            .await?,
    );

    let mut report = Report::default();
    report.exactly("Registers that failed", failed, FAILURES as u64);
    report.exactly(
        "half-open periods before the server woke",
        watched.half_open,
        OPEN_MS.len() as u64 - 1,
    );
    report.exactly("probes in them", errors(&before), watched.half_open);
    report.at_most("most notices in flight meanwhile", watched.in_flight, 1);
    let held = bed::value(&before, "upstream_notify_pending", &[])?;
    report.exactly("notices held before the server woke", held, AGENTS as u64);
    judge_open_times(&mut report, &watched.open);
    report.time("SIGCONT to the last DISCONNECTED", delivered);
    judge_wire(&mut report, &tap, watched.half_open);
    judge_delivery(&mut report, &seen);
    Ok(report)
}

/// How many Registers failed.
async fn open_the_breaker(gateway: &GatewayProcess) -> Result<u64, String> {
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..FAILURES {
        let agent = Agent::connect(gateway.agents, &format!("late-{number}")).await;
        let mut agent = agent.map_err(|e| e.to_string())?;
        calls.spawn(async move { agent.register().await.is_err() });
    }
    Ok(calls
        .join_all()
        .await
        .into_iter()
        .filter(|failed| *failed)
        .count() as u64)
}

#[derive(Default)]
struct Watched {
    half_open: u64,
    /// Each open time that ended.
    open: Vec<Duration>,
    in_flight: u64,
}

/// Lets the agents leave when the breaker has opened, and watches it until it is open for the
/// last time.
async fn watch(gateway: &GatewayProcess, mut agents: Vec<Agent>) -> Result<Watched, String> {
    let mut watched = Watched::default();
    let (mut opened, mut since) = (0, Instant::now());
    let deadline = Instant::now() + LIMIT;
    while opened < OPEN_MS.len() as u64 {
        if Instant::now() >= deadline {
            return Err(format!("the breaker opened {opened} times"));
        }
        let metrics = bed::scrape(gateway).await?;
        let of = |state| {
            bed::value(
                &metrics,
                "upstream_circuit_transitions_total",
                &[("state", state)],
            )
        };
        let (open, half_open) = (of("open")?, of("half_open")?);
        if half_open > watched.half_open {
            watched.half_open = half_open;
            watched.open.push(since.elapsed());
        }
        if open > opened {
            (opened, since) = (open, Instant::now());
        }
        let in_flight = bed::value(&metrics, "upstream_notify_inflight", &[])?;
        watched.in_flight = watched.in_flight.max(in_flight);
        if opened == 1 {
            leave(gateway, &mut agents).await?;
        }
        sleep(POLL).await;
    }
    Ok(watched)
}

/// One after the other, so that their order is known.
async fn leave(gateway: &GatewayProcess, agents: &mut Vec<Agent>) -> Result<(), String> {
    for (number, mut agent) in agents.drain(..).enumerate() {
        agent.half_close().await?;
        let held = |metrics: &Metrics| {
            bed::value(metrics, "upstream_notify_pending", &[]) == Ok(number as u64 + 1)
        };
        bed::gateway_has(gateway, "a held notice", LIMIT, held).await?;
    }
    Ok(())
}

fn judge_open_times(report: &mut Report, open: &[Duration]) {
    let mut kept = 0;
    for (number, wanted) in OPEN_MS[..OPEN_MS.len() - 1].iter().enumerate() {
        let Some(time) = open.get(number) else {
            continue;
        };
        report.time(
            &format!("open time {}, wanted {wanted} ms", number + 1),
            *time,
        );
        let off = time.abs_diff(Duration::from_millis(*wanted));
        kept += u64::from(off <= Duration::from_millis(TOLERANCE_MS));
    }
    report.exactly(
        "open times that kept to 100 ms",
        kept,
        OPEN_MS.len() as u64 - 1,
    );
}

/// What the gateway sent: the probe in each half-open period, the last of which closed the
/// breaker, and then the others.
fn judge_wire(report: &mut Report, tap: &Tap, failed: u64) {
    let ids: Vec<String> = (0..AGENTS).map(agent_id).collect();
    let order = tap.order(&ids);
    let probes = order.iter().take_while(|number| **number == 0).count();
    let rest = &order[probes..];
    let in_place = rest.iter().zip(1..).filter(|(a, b)| **a == *b).count();
    report.exactly(
        "times the probe's notice was sent",
        probes as u64,
        failed + 1,
    );
    report.exactly(
        "notices sent after it",
        rest.len() as u64,
        AGENTS as u64 - 1,
    );
    report.exactly(
        "of them in the order of leaving",
        in_place as u64,
        AGENTS as u64 - 1,
    );
}

fn judge_delivery(report: &mut Report, seen: &[String]) {
    let times = |id: &String| seen.iter().filter(|other| *other == id).count();
    let others = (1..AGENTS).map(agent_id);
    let once = others.filter(|id| times(id) == 1).count();
    let probe = agent_id(0);
    let first = seen.iter().take_while(|id| **id == probe).count();
    report.count(
        "times the server saw the probe's notice",
        times(&probe) as u64,
    );
    let after = times(&probe) - first;
    report.exactly("of them after another notice", after as u64, 0);
    report.exactly(
        "other notices it saw exactly once",
        once as u64,
        AGENTS as u64 - 1,
    );
}

/// Agents of the DISCONNECTED notices, in the order in which the server had them.
fn disconnected(received: &Value) -> Vec<String> {
    let last = received["last"].as_array().into_iter().flatten();
    let notices = last.map(|entry| &entry["message"]);
    // DISCONNECTED is 1 in the contract.
    let gone = notices.filter(|notice| notice["event"] == 1);
    gone.filter_map(|notice| notice["agent_id"].as_str().map(str::to_owned))
        .collect()
}

/// Notices that were acknowledged.
fn sent(metrics: &Metrics) -> u64 {
    let labels = [("rpc_name", "notify_stream")];
    bed::value_or_zero(metrics, "upstream_rpc_duration_ms_count", &labels)
}

/// Notices that failed.
fn errors(metrics: &Metrics) -> u64 {
    bed::value_or_zero(
        metrics,
        "upstream_rpc_errors_total",
        &[("rpc_name", "notify_stream")],
    )
}

fn agent_id(number: usize) -> String {
    format!("leaver-{number}")
}
