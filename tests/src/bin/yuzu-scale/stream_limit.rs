//! A server that allows few streams, and then fewer.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use std::time::Duration;
use tokio::time::sleep;
use yuzu_server_stub::{Action, Fault, Rpc, State, StubConfig};
use yuzu_tests::fleet::{self, Fleet, Options, Outcome, Periodic};
use yuzu_tests::metrics::Metrics;

pub(crate) const ABOUT: &str = "the server allows 100 streams, then 40";

const FIRST: u32 = 100;
const SECOND: u32 = 40;
/// floor(39 x 48 / 56) of the 39 that the reserved 61 leave, half of it, and the rest.
const PERMITS_OF_FIRST: [(&str, u64); 3] = [("register", 33), ("replay", 16), ("inventory", 6)];
const PERMITS_OF_SECOND: [(&str, u64); 3] = [("register", 1), ("replay", 1), ("inventory", 1)];
const AGENTS: usize = 300;
const INVENTORY: Periodic = Periodic {
    interval: Duration::from_secs(4),
    bytes: 1_000,
};
const ANSWER: Duration = Duration::from_millis(10);
const LIMIT: Duration = Duration::from_secs(60);
/// Time for two reports of each agent.
const HOLD: Duration = Duration::from_secs(9);

pub(crate) async fn run(binaries: &Binaries) -> Result<Report, String> {
    let config = StubConfig {
        stream_limit: FIRST,
        ..StubConfig::default()
    };
    let bed = Bed::start(binaries, config).await?;
    for rpc in [
        Rpc::ProxyRegister,
        Rpc::ProxyInventory,
        Rpc::NotifyStreamStatus,
    ] {
        let slow = Fault::new(rpc, Action::Delay(ANSWER));
        bed.server.fault(slow).map_err(|e| e.to_string())?;
    }
    let mut report = Report::default();
    let known = |metrics: &Metrics| {
        bed::value(metrics, "upstream_server_max_streams", &[]) == Ok(u64::from(FIRST))
    };
    let metrics = bed::gateway_has(&bed.gateway, "the stream limit", LIMIT, known).await?;
    judge_permits(&mut report, FIRST, &metrics, &PERMITS_OF_FIRST)?;
    let first = wave(&bed, "first-", None).await?;
    judge_load(&bed, &mut report, FIRST, &first)?;

    // In the middle of a storm, with more streams open than it will allow.
    let second = wave(&bed, "second-", Some(SECOND)).await?;
    let metrics = bed::scrape(&bed.gateway).await?;
    judge_permits(&mut report, SECOND, &metrics, &PERMITS_OF_SECOND)?;
    judge_load(&bed, &mut report, SECOND, &second)?;
    let metrics = bed::scrape(&bed.gateway).await?;
    let of = |labels| bed::value_or_zero(&metrics, "upstream_rpc_errors_total", labels);
    let waited = of(&[("code", "too_many_streams")]);
    report.count("calls that found no stream, unsent and tried again", waited);
    report.exactly("calls that failed otherwise", of(&[]) - waited, 0);
    let accepted = bed.server.view(State::connections_accepted);
    report.exactly("connections to the server", accepted, 1);
    Ok(report)
}

/// Registers, inventory reports and notices of one fleet: how it went while it was there.
/// With a limit, the server announces it in the middle of the Registers.
async fn wave(bed: &Bed, prefix: &str, lower: Option<u32>) -> Result<fleet::Snapshot, String> {
    let fleet = Fleet::start(Options {
        inventory: Some(INVENTORY),
        ..bed.fleet(prefix, AGENTS)
    });
    if let Some(limit) = lower {
        let busy = u64::from(SECOND) / 2;
        let storm =
            |state: &State| (state.counts(Rpc::ProxyRegister).in_flight >= busy).then_some(());
        bed.server_has("the storm", LIMIT, storm).await?;
        bed.server.set_stream_limit(limit);
        let acknowledged = |state: &State| {
            let all = state.connections();
            all.iter().all(|c| c.stream_limit == limit).then_some(())
        };
        bed.server_has("the acknowledged limit", LIMIT, acknowledged)
            .await?;
    }
    let all = fleet.all_subscribed(LIMIT).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    sleep(HOLD).await;
    let snapshot = fleet.snapshot();
    fleet.stop().await;
    let idle = |state: &State| (state.in_flight() == 0).then_some(());
    bed.server_has("the end of all calls", LIMIT, idle).await?;
    Ok(snapshot)
}

fn judge_permits(
    report: &mut Report,
    limit: u32,
    metrics: &Metrics,
    wanted: &[(&str, u64)],
) -> Result<(), String> {
    for (class, wanted) in wanted {
        let permits = bed::value(metrics, "upstream_permit_limit", &[("class", class)])?;
        report.exactly(&format!("limit {limit}: {class} permits"), permits, *wanted);
    }
    Ok(())
}

fn judge_load(
    bed: &Bed,
    report: &mut Report,
    limit: u32,
    wave: &fleet::Snapshot,
) -> Result<(), String> {
    let ok = |rpc| wave.ends_of(rpc, Outcome::Status(0));
    let ended: u64 = wave.ends.values().sum();
    let good: u64 = [fleet::Rpc::Register, fleet::Rpc::Inventory]
        .map(ok)
        .iter()
        .sum();
    let connections = bed.server.view(State::connections);
    let refused: u64 = connections.iter().map(|c| c.refused_streams).sum();
    let most = connections.iter().map(|c| c.max_streams).max();
    let name = |what: &str| format!("limit {limit}: {what}");
    report.exactly(
        &name("Registers that succeeded"),
        ok(fleet::Rpc::Register),
        AGENTS as u64,
    );
    report.count(
        &name("inventory reports that succeeded"),
        ok(fleet::Rpc::Inventory),
    );
    report.exactly(&name("calls of agents that failed"), ended - good, 0);
    report.exactly(&name("streams the server refused so far"), refused, 0);
    let most = most.ok_or("the server has no connection")?;
    report.at_most(
        &name("most streams at once so far"),
        u64::from(most),
        u64::from(FIRST),
    );
    Ok(())
}
