//! A gateway that memory is short for: it takes no more agents, and serves those that it has.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use crate::server::Server;
use bytes::Bytes;
use std::io::ErrorKind;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_proto::path;
use yuzu_server_stub::StubConfig;
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::{Fleet, Options};
use yuzu_tests::http;
use yuzu_tests::operator::Operator;
use yuzu_tests::raw::{self, CallError, Connection, Receiver, Request, Sender};

pub(crate) const ABOUT: &str =
    "memory over the high mark: new agents are refused, the others served, until the low mark";

pub(crate) const AGENTS: usize = 500;
/// Agents that come while none is taken.
const NEWCOMERS: usize = 100;
/// Agents whose Registers take the memory: all of them stay below what requests may hold.
const LARGE: usize = 56;
/// Of a Register, which is sent but for its last byte; 4 MiB is the limit.
const BYTES: usize = 4_000_000;
/// Of them leave first, which is not enough for the low mark.
const LEAVE_FIRST: usize = 6;
/// The low mark: what the gateway itself takes, and each agent at most.
const ITSELF: usize = 32 << 20;
const EACH: usize = 96 << 10;
const BETWEEN: usize = 64 << 20;
/// Between two looks at the memory.
const INTERVAL: Duration = Duration::from_millis(50);
/// Many looks, and the time in which free memory goes back.
const HOLD: Duration = Duration::from_secs(5);
/// Loopback refuses in microseconds; a machine with other work may take longer.
const AT_ONCE: Duration = Duration::from_millis(20);
const CONNECTS: usize = 20;
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

pub(crate) async fn run(binaries: &Binaries, agents: usize) -> Result<Report, String> {
    if agents == 0 {
        return Err("--agents must be at least 1".into());
    }
    check_descriptors(agents + NEWCOMERS + LARGE + CONNECTS)?;
    let low = (ITSELF + EACH * (agents + NEWCOMERS)) as u64;
    let high = low + BETWEEN as u64;
    let server = Server::start(StubConfig::default()).await?;
    let marks = format!(
        "[memory.shedding]\ninterval_ms = {}\nhigh_water_bytes = {high}\nlow_water_bytes = {low}\n",
        INTERVAL.as_millis()
    );
    let gateway = bed::gateway(binaries, server.addr(), &marks).await?;
    let bed = Bed { server, gateway };
    let fleet = Fleet::start(bed.fleet("held-", agents));
    let all = fleet.all_subscribed(LIMIT).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    let operator = Operator::connect(bed.gateway.management).await;
    let operator = operator.map_err(|e| e.to_string())?;

    let mut report = Report::default();
    report.count("low mark, MiB", low >> 20);
    report.count("high mark, MiB", high >> 20);
    report.count("memory before, MiB", bed.gateway.anonymous_memory()? >> 20);
    report.exactly("connects refused before", connects(&bed).await?.refused, 0);
    let mut large = fill(&bed, &mut report).await?;
    let newcomers = Fleet::start(Options {
        // Most of them come back while they are refused.
        backoff_scale: 0.2,
        ..bed.fleet("new-", NEWCOMERS)
    });
    above(&bed, &mut report, "above the high mark").await?;
    command(&operator, &mut report, "above", agents).await?;

    large.truncate(large.len() - LEAVE_FIRST);
    sleep(HOLD).await;
    let now = bed.gateway.anonymous_memory()?;
    report.count("memory between the marks, MiB", now >> 20);
    let between = now > low && now < high;
    report.exactly("it is between the marks", between.into(), 1);
    above(&bed, &mut report, "between the marks").await?;
    command(&operator, &mut report, "between", agents).await?;
    report.exactly("newcomers in", newcomers.snapshot().subscribed, 0);

    drop(large);
    resumed(&bed, &mut report, low).await?;
    let all = newcomers.all_subscribed(LIMIT).await;
    let inside = all.unwrap_or_else(|now| *now).subscribed;
    report.exactly("newcomers in afterwards", inside, NEWCOMERS as u64);
    let refused = newcomers.snapshot().connect_failures;
    report.at_least(
        "connects of theirs refused before",
        refused,
        NEWCOMERS as u64,
    );
    command(&operator, &mut report, "afterwards", agents + NEWCOMERS).await?;
    let seen = fleet.snapshot();
    report.exactly("agents held that reconnected", seen.reconnects, 0);
    fleet.stop().await;
    newcomers.stop().await;
    Ok(report)
}

/// An agent whose Register is not complete: the gateway holds what came.
struct Large {
    connection: Connection,
    sender: Sender,
    /// Opens the stream, and waits for an answer that never comes.
    call: JoinHandle<Result<Receiver, CallError>>,
}

impl Drop for Large {
    fn drop(&mut self) {
        self.call.abort();
        self.connection.cut();
    }
}

/// Sends large Registers one after the other until the gateway takes no agents.
async fn fill(bed: &Bed, report: &mut Report) -> Result<Vec<Large>, String> {
    let mut all = Vec::new();
    for _ in 0..LARGE {
        let connection = Connection::open(bed.gateway.agents, &raw::Options::default()).await;
        let connection = connection.map_err(|e| e.to_string())?;
        let (sender, answer) = connection.begin_stream(&Request::new(path::REGISTER));
        all.push(Large {
            connection,
            sender,
            call: tokio::spawn(answer),
        });
    }
    let mut body = raw::frame(&vec![0; BYTES]).to_vec();
    body.pop();
    let body = Bytes::from(body);
    let mut sent = 0;
    while !active(bed).await? {
        let next = all.get(sent).ok_or_else(|| {
            format!(
                "{LARGE} large Registers do not reach the mark\n{}",
                bed.gateway.log_end()
            )
        })?;
        let took = next.sender.send_raw(body.clone()).await;
        took.map_err(|e| format!("{e}, closed: {}", next.connection.is_closed()))?;
        sent += 1;
        sleep(2 * INTERVAL).await;
    }
    report.count("large Registers until it sheds", sent as u64);
    report.count("memory then, MiB", bed.gateway.anonymous_memory()? >> 20);
    // Those that sent nothing hold nothing.
    all.truncate(sent);
    Ok(all)
}

/// Agents are refused at once, and the gateway says so.
async fn above(bed: &Bed, report: &mut Report, when: &str) -> Result<(), String> {
    let name = |what: &str| format!("{when}: {what}");
    let tried = connects(bed).await?;
    report.exactly(&name("connects refused"), tried.refused, CONNECTS as u64);
    report.within(&name("slowest refusal"), tried.slowest, AT_ONCE);
    let (status, listeners) = ready(bed).await?;
    report.exactly(&name("`/readyz`"), status.into(), 503);
    report.exactly(&name("`listeners` is true"), listeners.into(), 0);
    Ok(())
}

/// Waits until the gateway listens again.
async fn resumed(bed: &Bed, report: &mut Report, low: u64) -> Result<(), String> {
    let started = Instant::now();
    while active(bed).await? {
        if started.elapsed() > LIMIT {
            let now = bed.gateway.anonymous_memory()? >> 20;
            return Err(format!(
                "it sheds with {now} MiB\n{}",
                bed.gateway.log_end()
            ));
        }
        sleep(POLL).await;
    }
    report.time("large Registers gone to listening again", started.elapsed());
    let now = bed.gateway.anonymous_memory()?;
    // The first of the newcomers may be in already.
    let most = low + (EACH * NEWCOMERS) as u64;
    report.at_most("memory then, MiB", now >> 20, most >> 20);
    report.exactly("connects refused then", connects(bed).await?.refused, 0);
    let (status, listeners) = ready(bed).await?;
    report.exactly("`/readyz`", status.into(), 200);
    report.exactly("`listeners` is true", listeners.into(), 1);
    let metrics = bed::scrape(&bed.gateway).await?;
    let times = bed::value(&metrics, "memory_shedding_suspensions_total", &[])?;
    report.exactly("times it shed", times, 1);
    Ok(())
}

#[derive(Default)]
struct Connects {
    refused: u64,
    slowest: Duration,
}

/// Some connects to the agents' port, one after the other.
async fn connects(bed: &Bed) -> Result<Connects, String> {
    let mut all = Connects::default();
    for _ in 0..CONNECTS {
        let started = Instant::now();
        match TcpStream::connect(bed.gateway.agents).await {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => all.refused += 1,
            Err(e) => return Err(format!("a connect failed otherwise: {e}")),
        }
        all.slowest = all.slowest.max(started.elapsed());
    }
    Ok(all)
}

/// A command to all agents.
async fn command(
    operator: &Operator,
    report: &mut Report,
    when: &str,
    agents: usize,
) -> Result<(), String> {
    let command = CommandRequest {
        command_id: format!("shed-{when}"),
        plugin: "shell".into(),
        ..CommandRequest::default()
    };
    let started = Instant::now();
    let fanout = operator.send(&[], command, 30).await;
    let (entries, status) = fanout.map_err(|e| e.to_string())?.rest().await?;
    let good = entries.iter().filter(|entry| entry.response.status == 1);
    let name = |what: &str| format!("{when}: {what}");
    report.exactly(
        &name("agents that answered"),
        good.count() as u64,
        agents as u64,
    );
    report.exactly(&name("status of the command"), status.code.into(), 0);
    report.time(&name("command to all of them"), started.elapsed());
    Ok(())
}

async fn active(bed: &Bed) -> Result<bool, String> {
    let metrics = bed::scrape(&bed.gateway).await?;
    Ok(bed::value(&metrics, "memory_shedding_active", &[])? == 1)
}

/// The status of `/readyz`, and whether it is for the listeners.
async fn ready(bed: &Bed) -> Result<(u16, bool), String> {
    let answer = http::get(bed.gateway.health, "/readyz").await?;
    let body: serde_json::Value = serde_json::from_str(&answer.body).map_err(|e| e.to_string())?;
    let listeners = body["checks"]["listeners"].as_bool();
    let listeners = listeners.ok_or_else(|| format!("no such check in {body}"))?;
    Ok((answer.status, listeners))
}
