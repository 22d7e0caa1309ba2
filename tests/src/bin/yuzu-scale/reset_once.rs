//! A server that loses one connection and nothing else.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use std::time::Duration;
use tokio::time::sleep;
use yuzu_server_stub::{RouteState, Rpc, State, StubConfig};
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::{Fleet, Options};
use yuzu_tests::metrics::Metrics;

pub(crate) const ABOUT: &str = "the connection to the server is reset once, 5,500 agents";

pub(crate) const AGENTS: usize = 5_500;
const CONNECTS_PER_SECOND: f64 = 1_000.0;
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Two heartbeats of each agent.
const HOLD: Duration = Duration::from_secs(11);
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) async fn run(binaries: &Binaries, agents: usize) -> Result<Report, String> {
    check_descriptors(agents)?;
    let bed = Bed::start(binaries, StubConfig::default()).await?;
    let fleet = Fleet::start(Options {
        connects_per_second: Some(CONNECTS_PER_SECOND),
        heartbeat: Some(HEARTBEAT),
        ..bed.fleet("kept-", agents)
    });
    let all = fleet.all_subscribed(LIMIT).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    let told =
        |state: &State| (state.counts(Rpc::NotifyStreamStatus).ok == agents as u64).then_some(());
    bed.server_has("every CONNECTED", LIMIT, told).await?;
    // A notice whose answer is lost with the connection is rightly sent again.
    let settled = |metrics: &Metrics| {
        ["upstream_notify_pending", "upstream_notify_inflight"]
            .iter()
            .all(|name| bed::value(metrics, name, &[]) == Ok(0))
    };
    bed::gateway_has(&bed.gateway, "settled notices", LIMIT, settled).await?;
    let received = |rpc: Rpc| bed.server.view(|state| state.counts(rpc).received);
    let flushes = received(Rpc::BatchHeartbeat);

    bed.server.drop_connections();
    let again = |state: &State| (state.connections_accepted() == 2).then_some(());
    bed.server_has("a new connection", LIMIT, again).await?;
    sleep(HOLD).await;

    let metrics = bed::scrape(&bed.gateway).await?;
    let of = |name| bed::value(&metrics, name, &[]);
    let known = bed
        .server
        .view(|state| bed::routes(state, RouteState::Connected));
    let seen = fleet.snapshot();
    let mut report = Report::default();
    report.exactly("replays", of("registration_replay_total")?, 0);
    let registers = received(Rpc::ProxyRegister) - agents as u64;
    report.exactly("registrations after the reset", registers, 0);
    let notices = received(Rpc::NotifyStreamStatus) - agents as u64;
    report.exactly("notices after the reset", notices, 0);
    report.exactly("agents still connected", known, agents as u64);
    report.exactly("agents that registered again", seen.reconnects, 0);
    report.count("heartbeats acknowledged", seen.heartbeats_acked);
    let flushed = received(Rpc::BatchHeartbeat) - flushes;
    report.count("batches since", flushed);
    fleet.stop().await;
    Ok(report)
}
