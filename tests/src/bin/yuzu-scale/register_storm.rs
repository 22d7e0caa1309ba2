//! 600 Registers at once at a server that takes 50 ms for each.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use yuzu_server_stub::{Action, Fault, Rpc, StubConfig};
use yuzu_tests::agent::Agent;

pub(crate) const ABOUT: &str = "600 Registers at once, 48 permits, server 50 ms";

const AGENTS: u64 = 600;
const PERMITS: u64 = 48;
const DELAY: Duration = Duration::from_millis(50);
const ROUNDS: u64 = 5;
const ALONE: u64 = 11;
const LIMIT: Duration = Duration::from_secs(30);

/// One round, from both sides.
struct Round {
    refused: u64,
    at_server: Duration,
    at_agents: Duration,
}

pub(crate) async fn run(binaries: &Binaries) -> Result<Report, String> {
    let bed = Bed::start(binaries, StubConfig::default()).await?;
    let (timer, taken) = bed::timer(DELAY).await;
    let slow = Fault::new(Rpc::ProxyRegister, Action::Delay(timer));
    bed.server.fault(slow).map_err(|e| e.to_string())?;
    let mut alone = Vec::new();
    for number in 0..ALONE {
        alone.push(lone_register(&bed, number).await?);
    }
    let (alone, _) = bed::median_and_most(alone);
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        rounds.push(storm(&bed, round).await?);
    }
    let counts = bed.server.view(|state| *state.counts(Rpc::ProxyRegister));
    let metrics = bed::scrape(&bed.gateway).await?;
    let ideal = DELAY * u32::try_from(AGENTS.div_ceil(PERMITS)).unwrap_or(u32::MAX);
    let bound = ideal.mul_f64(1.03);
    let (server, server_most) = bed::median_and_most(rounds.iter().map(|r| r.at_server).collect());
    let (agents, agents_most) = bed::median_and_most(rounds.iter().map(|r| r.at_agents).collect());
    let mut report = Report::default();
    report.exactly(
        "refused, all rounds",
        rounds.iter().map(|r| r.refused).sum(),
        0,
    );
    let refused = bed::value(&metrics, "upstream_permit_refused_total", &[])?;
    report.exactly("permits refused, all rounds", refused, 0);
    report.exactly(
        "calls the server received",
        counts.received,
        AGENTS * ROUNDS + ALONE,
    );
    report.at_most(
        "most in flight at the server",
        counts.max_in_flight,
        PERMITS,
    );
    report.no_less("the server's time for one call, median", taken, DELAY);
    report.time("one Register alone, median", alone);
    report.within("first call to last answer, median round", server, bound);
    report.time("the same, slowest round", server_most);
    report.time("as the agents see it, median round", agents);
    report.time("the same, slowest round", agents_most);
    Ok(report)
}

/// What the server's timer and one round trip make of its 50 ms.
async fn lone_register(bed: &Bed, number: u64) -> Result<Duration, String> {
    let agent = Agent::connect(bed.gateway.agents, &format!("alone-{number}")).await;
    let mut agent = agent.map_err(|e| e.to_string())?;
    let started = Instant::now();
    agent.register().await?;
    Ok(started.elapsed())
}

async fn storm(bed: &Bed, round: u64) -> Result<Round, String> {
    let mut agents = Vec::new();
    for number in 0..AGENTS {
        let id = format!("storm-{round}-{number}");
        let agent = Agent::connect(bed.gateway.agents, &id).await;
        agents.push(agent.map_err(|e| e.to_string())?);
    }
    bed.server.clear_records();
    let answered = (round + 1) * AGENTS + ALONE;
    let last_answer = bed.server_has("every answer", LIMIT, |state| {
        let counts = state.counts(Rpc::ProxyRegister);
        (counts.received >= answered && counts.in_flight == 0).then(|| {
            let first = state.received(Rpc::ProxyRegister).next();
            first.map(|first| first.at.elapsed())
        })
    });
    let started = Instant::now();
    let mut calls = JoinSet::new();
    for mut agent in agents {
        calls.spawn(async move {
            let good = agent.register().await.is_ok();
            (agent, good)
        });
    }
    let storm = async {
        let ended = calls.join_all().await;
        (started.elapsed(), ended)
    };
    let ((at_agents, ended), at_server) = tokio::join!(storm, last_answer);
    Ok(Round {
        refused: ended.iter().filter(|(_, good)| !good).count() as u64,
        at_server: at_server?.ok_or("the server forgot its first call")?,
        at_agents,
    })
}
