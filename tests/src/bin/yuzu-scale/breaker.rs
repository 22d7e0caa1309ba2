//! What opens the breaker and what does not: statuses about a request, and calls that are cut.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tonic::Code;
use yuzu_server_stub::{Action, Fault, Rpc, State, StubConfig};
use yuzu_tests::agent::Agent;
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::http;

pub(crate) const ABOUT: &str =
    "Registers answered with 3, 5, 6, 9 and 11 leave the breaker closed, 5 that are cut open it";

/// Agents, each of which registers once for each status.
pub(crate) const AGENTS: usize = 50;
/// Statuses that say that the request is wrong, not the server (BREAKER-5).
const ABOUT_THE_REQUEST: [Code; 5] = [
    Code::InvalidArgument,
    Code::NotFound,
    Code::AlreadyExists,
    Code::FailedPrecondition,
    Code::OutOfRange,
];
/// What an agent gets when its call failed at the server (REG-12).
const INTERNAL: u16 = 13;
/// What it gets when the gateway did not call.
const UNAVAILABLE: u16 = 14;
/// The breaker's threshold.
const FAILURES: u64 = 5;
/// How long the breaker is open the first time, by default.
const OPEN: Duration = Duration::from_secs(10);
/// A refusal without a call waits for nobody.
const AT_ONCE: Duration = Duration::from_millis(100);
/// What a look every 50 ms and a busy machine may add to that time or take from it.
const TOLERANCE: Duration = Duration::from_millis(300);
const LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
const RPC: Rpc = Rpc::ProxyRegister;

pub(crate) async fn run(binaries: &Binaries, agents: usize) -> Result<Report, String> {
    if agents == 0 {
        return Err("--agents must be at least 1".into());
    }
    check_descriptors(agents)?;
    let bed = Bed::start(binaries, StubConfig::default()).await?;
    let mut report = Report::default();
    for code in ABOUT_THE_REQUEST {
        about_the_request(&bed, &mut report, code, agents).await?;
    }
    cut(&bed, &mut report).await?;
    open(&bed, &mut report, agents).await?;
    Ok(report)
}

/// Every Register of this many agents is answered with this status.
async fn about_the_request(
    bed: &Bed,
    report: &mut Report,
    code: Code,
    agents: usize,
) -> Result<(), String> {
    let action = Action::Status(code, "scale suite".into());
    let fault = bed.server.fault(Fault::new(RPC, action));
    let fault = fault.map_err(|e| e.to_string())?;
    let before = received(bed);
    let told = registers(bed, &format!("status-{}-", code as i32), agents).await?;
    bed.server.remove_fault(fault);
    let name = |what: &str| format!("status {}: {what}", code as i32);
    let calls = received(bed) - before;
    report.exactly(&name("calls at the server"), calls, agents as u64);
    let internal = told.iter().filter(|(code, _)| *code == INTERNAL).count();
    report.exactly(&name("agents that got 13"), internal as u64, agents as u64);
    report.exactly(&name("times the breaker opened"), opened(bed).await?, 0);
    report.exactly(&name("`circuit_breaker` is true"), check(bed).await?, 1);
    Ok(())
}

/// As many Registers as the threshold, each with a connection that the server closes.
async fn cut(bed: &Bed, report: &mut Report) -> Result<(), String> {
    let fault = bed.server.fault(Fault::new(RPC, Action::DropConnection));
    let fault = fault.map_err(|e| e.to_string())?;
    let before = received(bed);
    let mut internal = 0;
    for number in 0..FAILURES {
        connected(bed, number + 1).await?;
        report.exactly(
            &format!("times it opened after {number} cut calls"),
            opened(bed).await?,
            0,
        );
        let (code, _) = register(bed, &format!("cut-{number}")).await?;
        internal += u64::from(code == INTERNAL);
    }
    bed.server.remove_fault(fault);
    report.exactly("calls cut", received(bed) - before, FAILURES);
    report.exactly("their agents that got 13", internal, FAILURES);
    let name = format!("times it opened after {FAILURES}");
    report.exactly(&name, opened(bed).await?, 1);
    report.exactly("`circuit_breaker` is true", check(bed).await?, 0);
    Ok(())
}

/// The server is there again, and the breaker does not let a call through before its time.
async fn open(bed: &Bed, report: &mut Report, agents: usize) -> Result<(), String> {
    let since = Instant::now();
    connected(bed, FAILURES + 1).await?;
    let before = received(bed);
    let told = registers(bed, "open-", agents).await?;
    let in_time = since.elapsed() < OPEN;
    report.exactly("asked while it was open", in_time.into(), 1);
    let refused = told.iter().filter(|(code, _)| *code == UNAVAILABLE).count();
    report.exactly("agents that got 14", refused as u64, agents as u64);
    report.exactly("calls at the server for them", received(bed) - before, 0);
    let (code, took) = register(bed, "alone").await?;
    report.exactly("status of one alone", code.into(), UNAVAILABLE.into());
    report.within("time of its refusal", took, AT_ONCE);
    while since.elapsed() < OPEN + LIMIT {
        if register(bed, "alone").await?.0 == 0 {
            let open = since.elapsed();
            report.within("open until a Register passes", open, OPEN + TOLERANCE);
            report.no_less("the same", open, OPEN - TOLERANCE);
            let calls = received(bed) - before;
            report.exactly("calls at the server until then", calls, 1);
            return Ok(());
        }
        sleep(POLL).await;
    }
    Err(format!("the breaker stays open\n{}", bed.gateway.log_end()))
}

/// The statuses of this many Registers at once, and how long each took.
async fn registers(bed: &Bed, prefix: &str, agents: usize) -> Result<Vec<(u16, Duration)>, String> {
    let mut calls = JoinSet::new();
    for number in 0..agents {
        let (address, id) = (bed.gateway.agents, format!("{prefix}{number}"));
        calls.spawn(async move { one(address, &id).await });
    }
    calls.join_all().await.into_iter().collect()
}

async fn register(bed: &Bed, id: &str) -> Result<(u16, Duration), String> {
    one(bed.gateway.agents, id).await
}

/// One Register on a connection of its own, without the time of the connect.
async fn one(gateway: std::net::SocketAddr, id: &str) -> Result<(u16, Duration), String> {
    let agent = Agent::connect(gateway, id).await;
    let agent = agent.map_err(|e| e.to_string())?;
    let request = prost::Message::encode_to_vec(&agent.register_request());
    let started = Instant::now();
    let answer = agent.register_raw(&request).await;
    let answer = answer.map_err(|e| format!("{id}: {e}"))?;
    Ok((answer.status.code, started.elapsed()))
}

/// Waits for the gateway's connection with this number, from 1.
async fn connected(bed: &Bed, number: u64) -> Result<(), String> {
    let there = |state: &State| (state.connections_accepted() == number).then_some(());
    bed.server_has("the gateway's connection", LIMIT, there)
        .await
}

fn received(bed: &Bed) -> u64 {
    bed.server.view(|state| state.counts(RPC).received)
}

async fn opened(bed: &Bed) -> Result<u64, String> {
    let metrics = bed::scrape(&bed.gateway).await?;
    let labels = [("state", "open")];
    bed::value(&metrics, "upstream_circuit_transitions_total", &labels)
}

/// What `/readyz` says of the breaker: 1 for true.
async fn check(bed: &Bed) -> Result<u64, String> {
    let answer = http::get(bed.gateway.health, "/readyz").await?;
    let answer: serde_json::Value =
        serde_json::from_str(&answer.body).map_err(|e| e.to_string())?;
    let check = answer["checks"]["circuit_breaker"].as_bool();
    check
        .map(u64::from)
        .ok_or_else(|| format!("no such check in {answer}"))
}
