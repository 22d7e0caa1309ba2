//! A server that comes back without the sessions of 5,000 agents.

use crate::bed::{self, Bed, Binaries};
use crate::register_storm;
use crate::report::Report;
use crate::server::Server;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Code;
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_server_stub::{Action, Fault, Restart, RouteState, Rpc, State, StubConfig};
use yuzu_tests::broadcast::{Round, broadcast};
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::{self, Fleet, Options, Outcome};
use yuzu_tests::operator::Operator;
use yuzu_tests::raw::{self, Connection};

pub(crate) const ABOUT: &str = "the server forgets 5,000 sessions, 24 replays, server 50 ms";
pub(crate) const ABOUT_20_MS: &str = "the same, server 20 ms";
pub(crate) const ABOUT_100_MS: &str = "the same, 10,000 sessions, server 100 ms";
pub(crate) const ABOUT_REFUSING: &str = "the same, server 50 ms and refuses every other for 5 s";

pub(crate) const AGENTS: usize = 5_000;
/// Of the variant with 100 ms.
pub(crate) const AGENTS_100_MS: usize = 10_000;
const AT_ONCE: u64 = 24;
const CONNECTS_PER_SECOND: f64 = 1_000.0;
/// Of which the floor is reckoned.
const TURNS: u64 = 20;
/// The gateway by the floor of the same run.
const BY_FLOOR: f64 = 1.02;
const HEARTBEAT: Duration = Duration::from_secs(30);
const REFUSED_FOR: Duration = Duration::from_secs(5);
/// A refused replay is named again by the agent's next heartbeat after the guard window.
const NAMED_AGAIN: Duration = Duration::from_secs(42);
const LIMIT: Duration = Duration::from_secs(90);
const COMMAND_TIMEOUT_SECONDS: i32 = 60;
const RPC: Rpc = Rpc::ProxyRegister;

/// Who is where: session and stream of each agent.
pub(crate) type Places = HashMap<String, (String, String)>;

/// `delay_ms`: what the server takes for a replay. `refusing`: every other one for a while.
pub(crate) async fn run(
    binaries: &Binaries,
    agents: usize,
    delay_ms: u64,
    refusing: bool,
) -> Result<Report, String> {
    check_descriptors(agents)?;
    let limit = bed::scaled(LIMIT, agents, AGENTS);
    let agents = agents as u64;
    let delay = Duration::from_millis(delay_ms);
    let turn = turn(delay).await?;
    let bed = Bed::start(binaries, StubConfig::default()).await?;
    let fleet = Fleet::start(Options {
        connects_per_second: Some(CONNECTS_PER_SECOND),
        heartbeat: Some(HEARTBEAT),
        ..bed.fleet("lost-", agents as usize)
    });
    let all = fleet.all_subscribed(limit).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    notices(&bed, agents, limit).await?;
    let before = bed.server.view(places);
    if before.len() as u64 != agents {
        return Err(format!(
            "the server holds {} of {agents} agents",
            before.len()
        ));
    }
    let rule = |action| Fault::new(RPC, action).replay(true);
    let add = |fault: Fault| bed.server.fault(fault).map_err(|e| e.to_string());
    add(rule(Action::Delay(delay)))?;
    let refusal = match refusing {
        true => {
            let down = Action::Status(Code::Unavailable, "store down".into());
            Some(add(rule(down).every(2))?)
        }
        false => None,
    };
    bed.server.clear_records();
    let forgot = Instant::now();
    bed.server.simulate_restart(Restart::default());

    let first = |state: &State| state.received(RPC).next().map(|first| first.at);
    let first = bed.server_has("the first replay", limit, first).await?;
    let relented = async {
        if let Some(refusal) = refusal {
            sleep_until(first + REFUSED_FOR).await;
            bed.server.remove_fault(refusal);
        }
    };
    let turns = u32::try_from(agents.div_ceil(AT_ONCE)).unwrap_or(u32::MAX);
    let (ideal, floor) = (delay * turns, turn * turns);
    let replayed = replayed(&bed, agents, first + ideal, limit);
    let (round, replayed, ()) = tokio::join!(everybody(&bed), replayed, relented);
    let (round, replayed) = (round?, replayed? - first);
    notices(&bed, 2 * agents, limit).await?;
    let told = first.elapsed();

    let mut report = Report::default();
    let bound = match refusing {
        true => REFUSED_FOR + NAMED_AGAIN,
        false => bound(agents, delay, ideal, floor),
    };
    report.time("floor: as many straight to such a server", floor);
    report.time("loss to the first replay", first - forgot);
    report.within("first replay to the last answer", replayed, bound);
    report.time("first replay to the last CONNECTED recorded", told);
    judge_server(&mut report, &bed, &before, delay);
    judge_agents(&mut report, &fleet.snapshot(), agents, &round);
    judge_gateway(&mut report, &bed, agents, refusing).await?;
    fleet.stop().await;
    Ok(report)
}

/// What the server takes for a turn of replays without a gateway, in the middle: a little more than
/// its delay.
async fn turn(delay: Duration) -> Result<Duration, String> {
    let server = Server::start(StubConfig::default()).await?;
    let slow = Fault::new(RPC, Action::Delay(delay));
    server.fault(slow).map_err(|e| e.to_string())?;
    let connection = Connection::open(server.addr(), &raw::Options::default()).await;
    let connection = Arc::new(connection.map_err(|e| e.to_string())?);
    let callers = (0..AT_ONCE).map(|caller| {
        let connection = Arc::clone(&connection);
        async move {
            let mut times = Vec::new();
            // Spread over the turn, as replays are: calls at once wait for each other.
            sleep(delay.mul_f64(caller as f64 / AT_ONCE as f64)).await;
            for turn in 0..TURNS {
                let started = Instant::now();
                if register_storm::call(&connection, &format!("floor-{caller}-{turn}")).await {
                    times.push(started.elapsed());
                }
            }
            times
        }
    });
    let callers: JoinSet<Vec<Duration>> = callers.collect();
    let times = callers.join_all().await.concat();
    if times.len() as u64 != AT_ONCE * TURNS {
        return Err("the server refuses".into());
    }
    Ok(bed::median_and_most(times).0)
}

/// What the replays may take: little more than their rounds, and no more for an agent than the old
/// gateway took with the same server. What is only reckoned for 100 ms knows nothing of the
/// server's clock, which the floor does.
fn bound(agents: u64, delay: Duration, ideal: Duration, floor: Duration) -> Duration {
    let figure =
        |seconds: f64, of: u64| Duration::from_secs_f64(seconds * agents as f64 / of as f64);
    let little_more = ideal.mul_f64(1.05);
    match delay.as_millis() {
        // F-REP-1, F-REP-2, F-REP-3.
        50 => little_more.min(figure(10.7, 5_000)),
        20 => little_more.min(figure(4.5, 5_000)),
        100 => little_more.min(figure(42.0, 10_000).max(floor.mul_f64(BY_FLOOR))),
        _ => little_more,
    }
}

/// Waits until so many notices were recorded since the start.
async fn notices(bed: &Bed, count: u64, limit: Duration) -> Result<(), String> {
    let recorded = |state: &State| {
        let counts = state.counts(Rpc::NotifyStreamStatus);
        (counts.ok >= count && counts.in_flight == 0).then_some(())
    };
    bed.server_has("every CONNECTED", limit, recorded).await
}

/// When the last agent had been taken in again. Nobody looks before it can have happened: each
/// look holds the server up.
async fn replayed(
    bed: &Bed,
    agents: u64,
    earliest: Instant,
    limit: Duration,
) -> Result<Instant, String> {
    sleep_until(earliest).await;
    // Each agent's own registration was answered before.
    let all = |state: &State| (state.counts(RPC).ok >= 2 * agents).then(Instant::now);
    bed.server_has("every replay", limit, all).await
}

/// A broadcast.
pub(crate) async fn everybody(bed: &Bed) -> Result<Round, String> {
    let operator = Operator::connect(bed.gateway.management).await;
    let operator = operator.map_err(|e| e.to_string())?;
    let command = CommandRequest {
        command_id: "everybody".into(),
        plugin: "scale".into(),
        ..Default::default()
    };
    broadcast(&operator, command, COMMAND_TIMEOUT_SECONDS).await
}

pub(crate) fn places(state: &State) -> Places {
    state
        .routes()
        .filter(|r| r.state == RouteState::Connected && state.knows_session(&r.session_id))
        .map(|r| {
            let place = (r.session_id.to_string(), r.stream_home_id.clone());
            (r.agent_id.to_string(), place)
        })
        .collect()
}

/// Each replay lasts `least` at least.
fn judge_server(report: &mut Report, bed: &Bed, before: &Places, least: Duration) {
    let agents = before.len() as u64;
    let (counts, places, repeated, times) = bed.server.view(|state| {
        let mut seen: HashMap<&str, u64> = HashMap::new();
        for received in state.received(RPC) {
            let session = received.presented_session.as_deref();
            *seen.entry(session.unwrap_or_default()).or_default() += 1;
        }
        let repeated = seen.values().filter(|count| **count > 1).count() as u64;
        let times: Vec<_> = state.received(RPC).map(|received| received.at).collect();
        (*state.counts(RPC), places(state), repeated, times)
    });
    report.exactly("replays accepted", counts.ok - agents, agents);
    report.count("replays refused", counts.failed);
    report.at_most("agents replayed more than once", repeated, counts.failed);
    let replays = counts.received - agents;
    report.exactly("replays in all", replays, agents + counts.failed);
    report.at_most("most at once", bed::most_at_once(&times, least), AT_ONCE);
    judge_places(report, before, &places);
}

pub(crate) fn judge_places(report: &mut Report, before: &Places, after: &Places) {
    let kept = |(agent, place): &(&String, &(String, String))| before.get(*agent) == Some(*place);
    let kept = after.iter().filter(kept).count() as u64;
    report.exactly(
        "agents with their session and stream as before",
        kept,
        before.len() as u64,
    );
}

pub(crate) fn judge_agents(
    report: &mut Report,
    seen: &fleet::Snapshot,
    agents: u64,
    round: &Round,
) {
    let bad = seen
        .ends
        .iter()
        .filter(|((_, end), _)| *end != Outcome::Status(0));
    report.exactly("calls of agents that failed", bad.map(|(_, n)| n).sum(), 0);
    let subscribes = |((rpc, _), _): &(&(fleet::Rpc, Outcome), &u64)| *rpc == fleet::Rpc::Subscribe;
    let ended = seen.ends.iter().filter(subscribes).map(|(_, n)| n).sum();
    report.exactly("streams that ended", ended, 0);
    report.exactly(
        "agents that registered again",
        seen.registrations - agents,
        0,
    );
    let answered = round.tally.answered() as u64;
    report.exactly("agents that answered a broadcast", answered, agents);
    report.time("the broadcast took", round.elapsed);
}

/// A server that refuses may open the breaker, whatever is named is dropped then.
async fn judge_gateway(
    report: &mut Report,
    bed: &Bed,
    agents: u64,
    refusing: bool,
) -> Result<(), String> {
    let metrics = bed::scrape(&bed.gateway).await?;
    let of = |name, labels: &[_]| bed::value(&metrics, name, labels);
    let attempts = of("registration_replay_total", &[])?;
    let received = bed.server.view(|state| state.counts(RPC).received);
    report.exactly("replays counted", attempts, received - agents);
    let triggered = |trigger| {
        let labels = [("trigger", trigger)];
        of("registration_replay_triggered_total", &labels)
    };
    report.exactly("full replays", triggered("server_lost_state")?, 1);
    report.count("verdicts that queued somebody", triggered("heartbeat")?);
    let dropped = of("heartbeat_verdict_dropped_total", &[])?;
    let open = [("reason", "circuit_open")];
    let at_open = of("heartbeat_verdict_dropped_total", &open)?;
    report.exactly("named and not queued otherwise", dropped - at_open, 0);
    let depth = of("registration_replay_queue_depth", &[])?;
    report.exactly("left in the queue", depth, 0);
    let opened = [("state", "open")];
    let opened = of("upstream_circuit_transitions_total", &opened)?;
    if refusing {
        report.count("times the breaker opened", opened);
        report.count("named while it was open", at_open);
    } else {
        report.exactly("times the breaker opened", opened, 0);
        report.exactly("named while it was open", at_open, 0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_figure_is_kept_and_a_reckoned_one_knows_the_floor() {
        let of = |agents: u64, ms: u64, floor_ms| {
            let delay = Duration::from_millis(ms);
            let ideal = delay * agents.div_ceil(AT_ONCE) as u32;
            bound(agents, delay, ideal, Duration::from_millis(floor_ms)).as_millis()
        };
        assert_eq!(of(5_000, 50, 20_000), 10_700);
        assert_eq!(of(5_000, 20, 20_000), 4_389);
        assert_eq!(of(500, 50, 0), 1_070);
        assert_eq!(of(10_000, 100, 0), 42_000);
        assert_eq!(of(10_000, 100, 42_000), 42_840);
        // A machine that is far too busy says nothing.
        assert_eq!(of(10_000, 100, 60_000), 43_785);
    }
}
