//! 1,000 agents that come at once to a gateway that has none.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use std::time::Duration;
use tokio::time::Instant;
use yuzu_server_stub::{Action, Fault, RouteState, Rpc, State, StubConfig};
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::Fleet;

pub(crate) const ABOUT: &str = "1,000 agents come at once, every CONNECTED is delivered";

pub(crate) const AGENTS: usize = 1_000;
const ANSWER: Duration = Duration::from_millis(1);
const IN_FLIGHT: u64 = 10;
const LIMIT: Duration = Duration::from_secs(60);
/// After the last agent has subscribed.
const TAIL: Duration = Duration::from_millis(300);

pub(crate) async fn run(binaries: &Binaries, agents: usize) -> Result<Report, String> {
    check_descriptors(agents)?;
    let bed = Bed::start(binaries, StubConfig::default()).await?;
    // So that more notices wait than may be in flight.
    let slow = Fault::new(Rpc::NotifyStreamStatus, Action::Delay(ANSWER));
    bed.server.fault(slow).map_err(|e| e.to_string())?;
    let started = Instant::now();
    let fleet = Fleet::start(bed.fleet("cold-", agents));
    let subscribed = async {
        let all = fleet.all_subscribed(LIMIT).await;
        all.map(|_| started.elapsed())
            .map_err(|now| format!("only {} agents are subscribed", now.subscribed))
    };
    let told = async {
        let all = |state: &State| {
            (state.counts(Rpc::NotifyStreamStatus).ok == agents as u64).then_some(())
        };
        bed.server_has("every CONNECTED", LIMIT, all).await?;
        Ok(started.elapsed())
    };
    let (subscribed, told) = tokio::try_join!(subscribed, told)?;
    let metrics = bed::scrape(&bed.gateway).await?;
    let (counts, known) = bed.server.view(|state| {
        let known = bed::routes(state, RouteState::Connected);
        (*state.counts(Rpc::NotifyStreamStatus), known)
    });
    let mut report = Report::default();
    let of = |name| bed::value(&metrics, name, &[]);
    report.exactly("dropped", of("upstream_notify_dropped_total")?, 0);
    report.exactly("lost", of("upstream_notify_lost_total")?, 0);
    report.exactly("recorded as connected", known, agents as u64);
    report.exactly(
        "notices the server received",
        counts.received,
        agents as u64,
    );
    report.at_most(
        "most in flight at the server",
        counts.max_in_flight,
        IN_FLIGHT,
    );
    report.count("most held", of("upstream_notify_pending_hwm")?);
    report.time("first connect to last subscription", subscribed);
    report.time("first connect to last CONNECTED recorded", told);
    report.within(
        "last subscription to last CONNECTED recorded",
        told.saturating_sub(subscribed),
        TAIL,
    );
    fleet.stop().await;
    Ok(report)
}
