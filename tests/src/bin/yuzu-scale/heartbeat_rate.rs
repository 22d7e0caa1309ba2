//! 5,000 heartbeats a second from as many sockets.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use std::time::Duration;
use tokio::time::sleep;
use yuzu_server_stub::{Message, Rpc, StubConfig};
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::{self, Fleet, Options, Outcome};

pub(crate) const ABOUT: &str = "5,000 heartbeats a second from 5,000 sockets for half a minute";

pub(crate) const AGENTS: usize = 5_000;
/// An agent waits so long after an answer: there is room for answers that take 50 ms.
const EVERY: Duration = Duration::from_millis(950);
const TIME: Duration = Duration::from_secs(30);
const CONNECTS_PER_SECOND: f64 = 2_500.0;
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) async fn run(binaries: &Binaries, agents: usize) -> Result<Report, String> {
    check_descriptors(agents)?;
    let bed = Bed::start(binaries, StubConfig::default()).await?;
    let fleet = Fleet::start(Options {
        connects_per_second: Some(CONNECTS_PER_SECOND),
        heartbeat: Some(EVERY),
        ..bed.fleet("beat-", agents)
    });
    let all = fleet.all_subscribed(LIMIT).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    sleep(EVERY * 2).await;
    let (first, time) = (fleet.snapshot(), bed.gateway.processor_time()?);
    sleep(TIME).await;
    let (last, spent) = (fleet.snapshot(), bed.gateway.processor_time()? - time);

    let answered = |seen: &fleet::Snapshot| {
        let ok = (fleet::Rpc::Heartbeat, Outcome::Status(0));
        seen.ends.get(&ok).copied().unwrap_or_default()
    };
    let heartbeats = answered(&last) - answered(&first);
    let end = fleet.stop().await;
    sleep(EVERY * 3).await;

    let mut report = Report::default();
    let rate = heartbeats / TIME.as_secs();
    report.at_least("heartbeats acknowledged a second", rate, agents as u64);
    let bad = end.ends.iter().filter(|((rpc, end), _)| {
        *rpc == fleet::Rpc::Heartbeat && !matches!(end, Outcome::Status(0))
    });
    report.exactly("heartbeats refused", bad.map(|(_, n)| n).sum(), 0);
    let metrics = bed::scrape(&bed.gateway).await?;
    let of = |name| bed::value(&metrics, name, &[]);
    report.exactly("given up", of("heartbeat_buffer_dropped_total")?, 0);
    let coalesced = of("heartbeat_coalesced_total")?;
    report.count("replaced by a newer one before they were sent", coalesced);
    let (batches, arrived) = bed.server.view(|state| {
        let batches = state.received(Rpc::BatchHeartbeat);
        let arrived = batches.map(|batch| match batch.message() {
            Ok(Message::Heartbeats(batch)) => batch.heartbeats.len() as u64,
            _ => 0,
        });
        (*state.counts(Rpc::BatchHeartbeat), arrived.sum::<u64>())
    });
    report.count("batches", batches.received);
    report.exactly("batches that failed", batches.received - batches.ok, 0);
    // Some arrive whose agent was stopped before it had its answer.
    let sent = arrived + coalesced;
    report.at_least("at the server, or replaced", sent, answered(&end));
    let each = spent.div_f64(heartbeats.max(1) as f64);
    report.time("processor time of one", each);
    Ok(report)
}
