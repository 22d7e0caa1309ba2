//! 5,000 sessions whose CONNECTED the server does not record for minutes.
//!
//! Whoever is refused for 15 minutes is sent again more slowly: about 9 a second of 5,000. That is
//! too long for a scenario; `unack_7_5000_refused_for_hours_cost_150_resends_a_second_and_then_9`
//! has it with the clock of a test.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use prost::Message;
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use yuzu_proto::gateway::v1::StreamStatusAck;
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_server_stub::{Action, Fault, RouteState, Rpc, State, StubConfig};
use yuzu_tests::agent::Agent;
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::{Fleet, Options};

pub(crate) const ABOUT: &str = "5,000 sessions refused with acknowledged=false for 220 s";

pub(crate) const AGENTS: usize = 5_000;
const CONNECTS_PER_SECOND: f64 = 1_000.0;
const REFUSED: Duration = Duration::from_secs(220);
/// The end of it. The delays begin at 1 s and have grown to their mean after some 150 s; resends of
/// the second minute are half as many again.
const STEADY: Duration = Duration::from_secs(60);
const RECORDED: Duration = Duration::from_secs(60);
const FRESH: u32 = 20;
const FRESH_BOUND: Duration = Duration::from_millis(12);
/// What a refused notice waits in the mean before it is sent again, and how far the rate of a minute may
/// be from what follows of it.
const MEAN_DELAY: Duration = Duration::from_secs(34);
const RATE_OFF: f64 = 0.1;
/// Resends that answers of 5 ms let through, 5 at once, in a second: most of them at the most.
const MOST_RATE: u64 = 800;
const RESENDS: u64 = 5;
const ANSWER: Duration = Duration::from_millis(5);
const LIMIT: Duration = Duration::from_secs(120);
const PREFIX: &str = "refused-";
const RPC: Rpc = Rpc::NotifyStreamStatus;

pub(crate) async fn run(binaries: &Binaries, agents: usize) -> Result<Report, String> {
    if agents == 0 {
        return Err("--agents must be at least 1".into());
    }
    let most = MOST_RATE * MEAN_DELAY.as_secs();
    if agents as u64 > most {
        return Err(format!(
            "--agents must be at most {most}: more wait for each other"
        ));
    }
    check_descriptors(agents)?;
    // Every notice is looked at in the end.
    let config = StubConfig {
        record_entries: agents * 30 + 1_000,
        record_bytes: (agents * 30 + 1_000) << 10,
        ..StubConfig::default()
    };
    let bed = Bed::start(binaries, config).await?;
    let refuse = rules(&bed)?;
    let fleet = Fleet::start(Options {
        connects_per_second: Some(CONNECTS_PER_SECOND),
        ..bed.fleet(PREFIX, agents)
    });
    let all = fleet.all_subscribed(LIMIT).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    let refused = |state: &State| (state.counts(RPC).refused >= agents as u64).then_some(());
    bed.server_has("every refusal", LIMIT, refused).await?;

    let started = Instant::now();
    let (mut connected, mut disconnected) = (Vec::new(), Vec::new());
    for number in 0..FRESH {
        sleep_until(started + REFUSED * number / FRESH).await;
        let (came, went) = fresh(&bed, number).await?;
        connected.push(came);
        disconnected.push(went);
    }
    sleep_until(started + REFUSED).await;
    let accepted = bed.server.view(|state| state.counts(RPC).ok);
    bed.server.remove_fault(refuse);
    let changed = Instant::now();
    let wanted = accepted + agents as u64;
    let ended = started + REFUSED;
    let recorded = |state: &State| (state.counts(RPC).ok >= wanted).then_some(());
    bed.server_has("every CONNECTED", LIMIT, recorded).await?;
    let recorded = changed.elapsed();

    let metrics = bed::scrape(&bed.gateway).await?;
    let lost = bed::value(&metrics, "upstream_notify_lost_total", &[])?;
    let (resends, steady, in_flight, known) = bed.server.view(|state| {
        let resends = resends(state);
        let known = bed::routes(state, RouteState::Connected);
        (
            resends.len() as u64,
            resends
                .iter()
                .filter(|at| (ended - STEADY..ended).contains(*at))
                .count(),
            bed::most_at_once(&resends, ANSWER),
            known,
        )
    });
    let (came, came_most) = bed::median_and_most(connected);
    let (went, went_most) = bed::median_and_most(disconnected);
    let mut report = Report::default();
    report.exactly("recorded as connected", known, agents as u64);
    report.within(
        "change of mind to the last one recorded",
        recorded,
        RECORDED,
    );
    report.exactly("lost", lost, 0);
    report.time("fresh CONNECTED, median of 20", came);
    report.within("the same, slowest", came_most, FRESH_BOUND);
    report.time("fresh DISCONNECTED, median of 20", went);
    report.within("the same, slowest", went_most, FRESH_BOUND);
    report.count("resends", resends);
    let rate = steady as f64 / STEADY.as_secs_f64();
    report.number("resends a second, last minute", rate);
    let ratio = rate * MEAN_DELAY.as_secs_f64() / agents as f64;
    report.times("by sessions / 34 s", ratio, 1.0 + RATE_OFF);
    report.no_less_than("the same", ratio, 1.0 - RATE_OFF);
    report.at_most("most resends in flight", in_flight, RESENDS);
    fleet.stop().await;
    Ok(report)
}

/// Every notice takes a while, those of fresh agents are recorded, other CONNECTED are not.
fn rules(bed: &Bed) -> Result<yuzu_server_stub::FaultId, String> {
    let add = |fault: Fault| bed.server.fault(fault).map_err(|e| e.to_string());
    add(Fault::new(RPC, Action::Delay(ANSWER)))?;
    let yes = StreamStatusAck { acknowledged: true }.encode_to_vec();
    for number in 0..FRESH {
        let answer = Action::Answer(yes.clone().into());
        add(Fault::new(RPC, answer)
            .agent(&fresh_id(number))
            .with_effect())?;
    }
    add(Fault::new(RPC, Action::Refuse).event(Event::Connected))
}

/// An agent comes and goes: from its call to the server's acknowledgement of the notice.
async fn fresh(bed: &Bed, number: u32) -> Result<(Duration, Duration), String> {
    let agent = Agent::connect(bed.gateway.agents, &fresh_id(number)).await;
    let mut agent = agent.map_err(|e| e.to_string())?;
    agent.register().await?;
    let before = bed.server.view(|state| state.counts(RPC).ok);
    let acknowledged = |count: u64| {
        let more = move |state: &State| (state.counts(RPC).ok == before + count).then_some(());
        bed.server_has("a fresh notice", LIMIT, more)
    };
    let started = Instant::now();
    agent.subscribe().await?;
    acknowledged(1).await?;
    let came = started.elapsed();
    let started = Instant::now();
    agent.half_close().await?;
    acknowledged(2).await?;
    Ok((came, started.elapsed()))
}

/// When the server had each notice of the fleet that was not the first of its session.
fn resends(state: &State) -> Vec<Instant> {
    let mut sessions = HashSet::new();
    bed::notices(state)
        .filter(|(_, notice)| notice.agent_id.starts_with(PREFIX))
        .filter(|(_, notice)| !sessions.insert(notice.session_id.clone()))
        .map(|(at, _)| at)
        .collect()
}

fn fresh_id(number: u32) -> String {
    format!("fresh-{number}")
}
