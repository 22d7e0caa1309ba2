//! 600 Registers at once at a server that takes 50 ms for each, and beside it the floor: the same
//! calls straight to that server, 48 at a time, without a gateway.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use prost::Message;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use yuzu_proto::agent::v1::{AgentInfo, RegisterRequest};
use yuzu_proto::path;
use yuzu_server_stub::{Action, Fault, Rpc, StubConfig};
use yuzu_tests::agent::Agent;
use yuzu_tests::raw::{Connection, Options, Request};

pub(crate) const ABOUT: &str = "600 Registers at once, 48 permits, server 50 ms";

const AGENTS: u64 = 600;
const PERMITS: u64 = 48;
const DELAY: Duration = Duration::from_millis(50);
const ROUNDS: u64 = 5;
const ALONE: u64 = 11;
const LIMIT: Duration = Duration::from_secs(30);
const RPC: Rpc = Rpc::ProxyRegister;

/// One round, from both sides.
struct Round {
    refused: u64,
    at_server: Duration,
    at_callers: Duration,
}

pub(crate) async fn run(binaries: &Binaries) -> Result<Report, String> {
    let bed = Bed::start(binaries, StubConfig::default()).await?;
    let slow = Fault::new(RPC, Action::Delay(DELAY));
    bed.server.fault(slow).map_err(|e| e.to_string())?;
    let (mut straight, mut alone) = (Vec::new(), Vec::new());
    for number in 0..ALONE {
        straight.push(lone_call(bed.server.addr(), number).await?);
        alone.push(lone_register(&bed, number).await?);
    }
    let (straight, _) = bed::median_and_most(straight);
    let (alone, _) = bed::median_and_most(alone);
    let (mut floors, mut rounds) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        floors.push(floor(&bed, round).await?);
        rounds.push(storm(&bed, round).await?);
    }
    let counts = bed.server.view(|state| *state.counts(RPC));
    let metrics = bed::scrape(&bed.gateway).await?;
    let refused = bed::value(&metrics, "upstream_permit_refused_total", &[])?;
    let ideal = DELAY * u32::try_from(AGENTS.div_ceil(PERMITS)).unwrap_or(u32::MAX);
    let (floor, floor_most) = bed::median_and_most(floors.iter().map(|r| r.at_server).collect());
    let (server, server_most) = bed::median_and_most(rounds.iter().map(|r| r.at_server).collect());
    let (agents, agents_most) = bed::median_and_most(rounds.iter().map(|r| r.at_callers).collect());
    let all_refused = rounds.iter().chain(&floors).map(|r| r.refused).sum();

    let mut report = Report::default();
    report.exactly("refused, all rounds", all_refused, 0);
    report.exactly("permits refused, all rounds", refused, 0);
    report.exactly(
        "calls the server received",
        counts.received,
        2 * (AGENTS * ROUNDS + ALONE),
    );
    report.at_most(
        "most in flight at the server",
        counts.max_in_flight,
        PERMITS,
    );
    report.no_less("one call straight to the server, median", straight, DELAY);
    report.time("one Register alone, median", alone);
    report.time("floor: first call to last answer, median round", floor);
    report.time("the same, slowest round", floor_most);
    report.within(
        "first call to last answer, median round",
        server,
        ideal.mul_f64(1.03),
    );
    report.time("the same, slowest round", server_most);
    report.time("as the agents see it, median round", agents);
    report.time("the same, slowest round", agents_most);
    Ok(report)
}

async fn lone_call(server: SocketAddr, number: u64) -> Result<Duration, String> {
    let connection = Connection::open(server, &Options::default()).await;
    let connection = connection.map_err(|e| e.to_string())?;
    let started = Instant::now();
    let good = call(&connection, &format!("straight-{number}")).await;
    good.then(|| started.elapsed())
        .ok_or_else(|| "the server refuses".to_owned())
}

async fn lone_register(bed: &Bed, number: u64) -> Result<Duration, String> {
    let agent = Agent::connect(bed.gateway.agents, &format!("alone-{number}")).await;
    let mut agent = agent.map_err(|e| e.to_string())?;
    let started = Instant::now();
    agent.register().await?;
    Ok(started.elapsed())
}

/// The call that the gateway makes; false: it failed.
async fn call(connection: &Connection, agent_id: &str) -> bool {
    let request = RegisterRequest {
        info: Some(AgentInfo {
            agent_id: agent_id.into(),
            ..AgentInfo::default()
        }),
        ..RegisterRequest::default()
    };
    let call = Request::new(path::PROXY_REGISTER).timeout(Duration::from_secs(5));
    let answer = connection.unary(call, &request.encode_to_vec()).await;
    answer.is_ok_and(|answer| answer.status.is_ok())
}

async fn floor(bed: &Bed, round: u64) -> Result<Round, String> {
    let connection = Connection::open(bed.server.addr(), &Options::default()).await;
    let connection = Arc::new(connection.map_err(|e| e.to_string())?);
    let next = Arc::new(AtomicU64::new(0));
    let callers = (0..PERMITS).map(|_| {
        let (connection, next) = (Arc::clone(&connection), Arc::clone(&next));
        async move {
            let mut refused = 0;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= AGENTS {
                    return (connection, refused);
                }
                let good = call(&connection, &format!("floor-{round}-{number}")).await;
                refused += u64::from(!good);
            }
        }
    });
    measure(bed, callers).await
}

async fn storm(bed: &Bed, round: u64) -> Result<Round, String> {
    let mut agents = Vec::new();
    for number in 0..AGENTS {
        let id = format!("storm-{round}-{number}");
        let agent = Agent::connect(bed.gateway.agents, &id).await;
        agents.push(agent.map_err(|e| e.to_string())?);
    }
    let callers = agents.into_iter().map(|mut agent| async move {
        let refused = agent.register().await.is_err();
        (agent, u64::from(refused))
    });
    measure(bed, callers).await
}

/// Runs the callers, who make `AGENTS` calls in all. Each returns what is to live until all have
/// ended, and how many of its calls were refused.
async fn measure<T, C>(bed: &Bed, callers: impl Iterator<Item = C>) -> Result<Round, String>
where
    T: Send + 'static,
    C: Future<Output = (T, u64)> + Send + 'static,
{
    bed.server.clear_records();
    let answered = bed.server.view(|state| state.counts(RPC).received) + AGENTS;
    let started = Instant::now();
    let calls: JoinSet<(T, u64)> = callers.collect();
    let calls = async {
        let ended = calls.join_all().await;
        (started.elapsed(), ended)
    };
    let last_answer = bed.server_has("every answer", LIMIT, |state| {
        let counts = state.counts(RPC);
        (counts.received >= answered && counts.in_flight == 0).then(|| {
            let first = state.received(RPC).next();
            first.map(|first| first.at.elapsed())
        })
    });
    let ((at_callers, ended), at_server) = tokio::join!(calls, last_answer);
    Ok(Round {
        refused: ended.iter().map(|(_, refused)| refused).sum(),
        at_server: at_server?.ok_or("the server forgot its first call")?,
        at_callers,
    })
}
