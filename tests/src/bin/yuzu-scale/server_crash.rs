//! A server that is killed, and a new one without any session at its address: when it is there
//! soon after the breaker opened, and when the breaker is open for as long as it ever is.

use crate::bed::{self, Bed, Binaries};
use crate::memory_loss::{self, Places};
use crate::report::Report;
use crate::server::Server;
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use yuzu_server_stub::{RouteState, Rpc, State, StubConfig};
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::{Fleet, Options};
use yuzu_tests::metrics::Metrics;
use yuzu_tests::process::GatewayProcess;
use yuzu_tests::stub_process::StubProcess;

pub(crate) const ABOUT: &str = "the server is killed and replaced, 5,000 agents, breaker just open";
pub(crate) const ABOUT_CAPPED: &str = "the same, breaker open for 30 s, its cap";

pub(crate) const AGENTS: usize = 5_000;
/// One agent for so many leaves meanwhile: its notice is what fails, and what probes.
const STAY_FOR_ONE_THAT_LEAVES: usize = 10;
/// More than open the breaker.
const LEAVE_AT_LEAST: usize = 10;
const HEARTBEAT: Duration = Duration::from_secs(30);
const CONNECTS_PER_SECOND: f64 = 1_000.0;
/// The gateway dials from 127.0.0.1: at a free port of that address it could meet itself.
const SERVER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// After the open time: the probe, the first flush, the replays and the notices. With 10 s of
/// open time it is the 13.2 s of F-REP-4.
const REST: Duration = Duration::from_millis(3_200);
/// What two scrapes may take from an open time.
const TOLERANCE: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);
const RPC: Rpc = Rpc::ProxyRegister;

/// How long the server is away: the new one comes when the breaker has opened so many times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outage {
    openings: u64,
    /// What the openings before the last one lasted, if there were any.
    past: Option<Duration>,
    /// What the last one lasts: the new server waits for its end.
    open: Duration,
}

pub(crate) const SHORT: Outage = Outage {
    openings: 1,
    past: None,
    open: Duration::from_secs(10),
};
pub(crate) const CAPPED: Outage = Outage {
    openings: 3,
    past: Some(Duration::from_secs(10 + 20)),
    open: Duration::from_secs(30),
};

fn leavers(agents: usize) -> usize {
    (agents / STAY_FOR_ONE_THAT_LEAVES).max(LEAVE_AT_LEAST)
}

pub(crate) async fn run(
    binaries: &Binaries,
    agents: usize,
    outage: Outage,
) -> Result<Report, String> {
    check_descriptors(agents + leavers(agents))?;
    let limit = bed::scaled(LIMIT, agents, AGENTS);
    let old = StubProcess::start_at(&binaries.stub, SERVER).await?;
    let gateway = bed::gateway(binaries, old.address, "").await?;
    let stay = fleet(&gateway, "stay-", agents, Some(HEARTBEAT));
    let leave = fleet(&gateway, "leave-", leavers(agents), None);
    for fleet in [&stay, &leave] {
        let all = fleet.all_subscribed(limit).await;
        all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    }
    let before = recorded(&old, agents + leavers(agents), limit).await?;

    let address = old.address;
    old.kill().await?;
    let opened = |times| {
        let gateway = &gateway;
        let reached = move |metrics: &Metrics| openings(metrics) == Ok(times);
        async move {
            bed::gateway_has(gateway, "an open breaker", limit, reached).await?;
            Ok::<_, String>(Instant::now())
        }
    };
    let (_, first) = tokio::join!(leave.stop(), opened(1));
    let last = opened(outage.openings).await?;
    let started = Instant::now();
    let server = Server::start(StubConfig {
        listen: address,
        ..StubConfig::default()
    });
    let bed = Bed {
        server: server.await?,
        gateway,
    };
    let replayed = |state: &State| (state.counts(RPC).ok >= agents as u64).then(Instant::now);
    let replayed = bed.server_has("every replay", limit, replayed).await?;
    let taken_in = taken_in(&bed, agents as u64, limit).await?;

    let mut report = Report::default();
    if let Some(past) = outage.past {
        let least = past.saturating_sub(TOLERANCE);
        report.no_less("first opening to the last", last - first?, least);
    }
    let bound = outage.open + bed::scaled(REST, agents, AGENTS);
    judge_times(&mut report, &bed, started, bound, [replayed, taken_in])?;
    judge(&mut report, &bed, &before, outage).await?;
    let round = memory_loss::everybody(&bed).await?;
    memory_loss::judge_agents(&mut report, &stay.snapshot(), agents as u64, &round);
    stay.stop().await;
    Ok(report)
}

fn fleet(gateway: &GatewayProcess, prefix: &str, agents: usize, beat: Option<Duration>) -> Fleet {
    Fleet::start(Options {
        prefix: prefix.into(),
        heartbeat: beat,
        connects_per_second: Some(CONNECTS_PER_SECOND),
        ..Options::new(gateway.agents, agents)
    })
}

fn openings(metrics: &Metrics) -> Result<u64, String> {
    let open = [("state", "open")];
    bed::value(metrics, "upstream_circuit_transitions_total", &open)
}

/// Where the server has those that stay, once it has recorded the streams of all.
async fn recorded(server: &StubProcess, all: usize, limit: Duration) -> Result<Places, String> {
    let deadline = Instant::now() + limit;
    loop {
        let connected = server.read("/state").await?["agents"]["connected"].as_u64();
        if connected == Some(all as u64) {
            break;
        }
        if Instant::now() >= deadline {
            return Err(format!("{connected:?} of {all} streams are recorded"));
        }
        sleep(POLL).await;
    }
    let mut places = Places::new();
    let mut page = server.read("/routes?limit=1000").await?;
    loop {
        for route in page["routes"].as_array().into_iter().flatten() {
            let text = |name: &str| route[name].as_str().unwrap_or_default().to_owned();
            if text("agent_id").starts_with("stay-") {
                let place = (text("session_id"), text("stream_home_id"));
                places.insert(text("agent_id"), place);
            }
        }
        let Some(next) = page["next"].as_str() else {
            return Ok(places);
        };
        let path = format!("/routes?limit=1000&after={next}");
        page = server.read(&path).await?;
    }
}

/// When the new server has recorded the streams of all that stayed.
async fn taken_in(bed: &Bed, agents: u64, limit: Duration) -> Result<Instant, String> {
    let deadline = Instant::now() + limit;
    loop {
        let connected = |state: &State| bed::routes(state, RouteState::Connected);
        let connected = bed.server.view(connected);
        if connected >= agents {
            return Ok(Instant::now());
        }
        if Instant::now() >= deadline {
            let log = bed.gateway.log_end();
            return Err(format!("only {connected} streams are recorded\n{log}"));
        }
        sleep(POLL).await;
    }
}

fn judge_times(
    report: &mut Report,
    bed: &Bed,
    started: Instant,
    bound: Duration,
    [replayed, taken_in]: [Instant; 2],
) -> Result<(), String> {
    let first = |rpc| {
        bed.server
            .view(|state| state.received(rpc).next().map(|first| first.at))
    };
    let healthy = Rpc::ALL.into_iter().filter_map(first).min();
    let healthy = healthy.ok_or("the new server has had no call")?;
    let probe = first(Rpc::NotifyStreamStatus).ok_or("there was no probe")?;
    let replay = first(RPC).ok_or("there was no replay")?;
    report.time("new server to its first call", healthy - started);
    report.time("new server to the probe", probe - started);
    report.time("new server to the first replay", replay - started);
    report.within(
        "new server to the last replay answered",
        replayed - started,
        bound,
    );
    report.within(
        "new server to the last CONNECTED recorded",
        taken_in - started,
        bound,
    );
    report.time(
        "first call to the last CONNECTED recorded",
        taken_in - healthy,
    );
    Ok(())
}

async fn judge(
    report: &mut Report,
    bed: &Bed,
    before: &Places,
    outage: Outage,
) -> Result<(), String> {
    let (counts, places, registers) = bed.server.view(|state| {
        let own = |received: &&yuzu_server_stub::Received| received.presented_session.is_none();
        let registers = state.received(RPC).filter(own).count() as u64;
        (*state.counts(RPC), memory_loss::places(state), registers)
    });
    report.exactly(
        "replays the server had",
        counts.received,
        before.len() as u64,
    );
    report.exactly("registrations the server had", registers, 0);
    memory_loss::judge_places(report, before, &places);
    let metrics = bed::scrape(&bed.gateway).await?;
    report.exactly(
        "times the breaker opened",
        openings(&metrics)?,
        outage.openings,
    );
    let open = [("reason", "circuit_open")];
    let dropped = bed::value(&metrics, "heartbeat_verdict_dropped_total", &open)?;
    report.count("sessions named while it was open", dropped);
    let depth = bed::value(&metrics, "registration_replay_queue_depth", &[])?;
    report.exactly("left in the queue", depth, 0);
    Ok(())
}
