//! A server that allows enough streams, then fewer, and then fewer than the gateway reserves.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use std::time::Duration;
use tokio::time::sleep;
use yuzu_server_stub::{Action, Fault, Rpc, State, StubConfig};
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::{self, Fleet, Options, Outcome, Periodic};
use yuzu_tests::metrics::Metrics;

pub(crate) const ABOUT: &str = "the server allows 128 streams, then 100, then 60";

/// What the server announces, one after the other.
const STAGES: [Stage; 3] = [
    Stage {
        limit: 128,
        // 128 - 61 is above 56: what is configured.
        permits: [("register", 48), ("replay", 24), ("inventory", 8)],
        warned: false,
    },
    Stage {
        limit: 100,
        // floor(39 x 48 / 56) of the 39 that the reserved 61 leave, half of it, and the rest.
        permits: [("register", 33), ("replay", 16), ("inventory", 6)],
        warned: true,
    },
    Stage {
        limit: 60,
        permits: [("register", 1), ("replay", 1), ("inventory", 1)],
        warned: true,
    },
];
pub(crate) const AGENTS: usize = 300;
/// Registers in flight when the limit drops: fewer than any stage before the last lets through.
const BUSY: u64 = 20;

struct Stage {
    limit: u32,
    permits: [(&'static str, u64); 3],
    /// It leaves less than is configured.
    warned: bool,
}

const INVENTORY: Periodic = Periodic {
    interval: Duration::from_secs(4),
    bytes: 1_000,
};
const ANSWER: Duration = Duration::from_millis(10);
const LIMIT: Duration = Duration::from_secs(60);
/// Time for two reports of each agent.
const HOLD: Duration = Duration::from_secs(9);

pub(crate) async fn run(binaries: &Binaries, agents: usize) -> Result<Report, String> {
    if (agents as u64) < BUSY {
        return Err(format!("--agents must be at least {BUSY}"));
    }
    check_descriptors(agents)?;
    let config = StubConfig {
        stream_limit: STAGES[0].limit,
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
        let limit = bed::value(metrics, "upstream_server_max_streams", &[]);
        limit == Ok(u64::from(STAGES[0].limit))
    };
    bed::gateway_has(&bed.gateway, "the stream limit", LIMIT, known).await?;
    for (number, stage) in STAGES.iter().enumerate() {
        // In the middle of a storm, with more streams open than it will allow.
        let lower = (number > 0).then_some(stage.limit);
        let wave = wave(&bed, &format!("wave-{number}-"), agents, lower).await?;
        let metrics = bed::scrape(&bed.gateway).await?;
        judge_permits(&mut report, stage, &metrics)?;
        judge_warning(&bed, &mut report, stage);
        judge_load(&bed, &mut report, stage.limit, agents, &wave)?;
    }
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
async fn wave(
    bed: &Bed,
    prefix: &str,
    agents: usize,
    lower: Option<u32>,
) -> Result<fleet::Snapshot, String> {
    let fleet = Fleet::start(Options {
        inventory: Some(INVENTORY),
        ..bed.fleet(prefix, agents)
    });
    if let Some(limit) = lower {
        let storm =
            |state: &State| (state.counts(Rpc::ProxyRegister).in_flight >= BUSY).then_some(());
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

fn judge_permits(report: &mut Report, stage: &Stage, metrics: &Metrics) -> Result<(), String> {
    let limit = stage.limit;
    for (class, wanted) in stage.permits {
        let permits = bed::value(metrics, "upstream_permit_limit", &[("class", class)])?;
        report.exactly(&format!("limit {limit}: {class} permits"), permits, wanted);
    }
    Ok(())
}

/// A warning names the server's figure when permits are lowered to it, and only then.
fn judge_warning(bed: &Bed, report: &mut Report, stage: &Stage) {
    let log = bed.gateway.log();
    let figure = format!("the server allows {} streams", stage.limit);
    let lines = log.lines().filter(|line| line.contains("WARN"));
    let lines = lines.filter(|line| line.contains(&figure)).count() as u64;
    let name = format!("limit {}: warnings that name it", stage.limit);
    report.exactly(&name, lines, stage.warned.into());
}

fn judge_load(
    bed: &Bed,
    report: &mut Report,
    limit: u32,
    agents: usize,
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
        agents as u64,
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
        u64::from(STAGES[0].limit),
    );
    Ok(())
}
