//! A server that dies, is away until the breaker is open, and comes back without its sessions.
//!
//! What opens the breaker are the notices of agents that leave meanwhile: heartbeats never do.

use crate::bed::{self, Bed, Binaries};
use crate::memory_loss::{self, Places, places};
use crate::report::Report;
use std::time::Duration;
use tokio::time::Instant;
use yuzu_server_stub::{Restart, Rpc, State, StubConfig};
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::{self, Fleet, Options};
use yuzu_tests::metrics::Metrics;

pub(crate) const ABOUT: &str =
    "the server is killed under 5,000 agents, and replaced when the breaker is open";

pub(crate) const AGENTS: usize = 5_000;
const CONNECTS_PER_SECOND: f64 = 1_000.0;
const STAYING: &str = "stays-";
/// That leave while the server is away for longer.
const LATER: usize = 10;
const HEARTBEAT: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(180);
const RPC: Rpc = Rpc::ProxyRegister;
/// The start of the new server to the last agent that is taken in again (F-REP-4, with 4,500 of them and
/// a breaker that had opened for 10 s).
const JUST_OPENED: Duration = Duration::from_millis(13_200);
/// The fourth time that the breaker opens is the first that is followed by one as long: 10, 20, 30, 30 s.
const AT_THE_CAP: u64 = 4;
/// The same once it opens for 30 s (F-REP-12).
const LONG_OPEN: Duration = JUST_OPENED.saturating_add(Duration::from_secs(20));

pub(crate) async fn run(binaries: &Binaries, agents: usize) -> Result<Report, String> {
    check_descriptors(agents + LATER)?;
    let leaving = agents / 10;
    if leaving == 0 {
        return Err("--agents must be 10 or more: one in ten leaves".into());
    }
    let bed = Bed::start(binaries, StubConfig::default()).await?;
    let fleet = Fleet::start(Options {
        heartbeat: Some(HEARTBEAT),
        ..calmly(&bed, STAYING, agents - leaving)
    });
    let first = Fleet::start(calmly(&bed, "first-", leaving));
    let later = Fleet::start(calmly(&bed, "later-", LATER));
    for fleet in [&fleet, &first, &later] {
        let all = fleet.all_subscribed(LIMIT).await;
        all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    }
    let everybody = agents + LATER;
    let known = |state: &State| (places(state).len() == everybody).then_some(());
    bed.server_has("every CONNECTED", LIMIT, known).await?;
    let before = bed.server.view(staying);

    let mut report = Report::default();
    let mut crash = Crash {
        bed: &bed,
        registers: everybody as u64,
        before,
        others: LATER as u64,
    };
    let once = "breaker open once";
    crash
        .while_leaving(first, 1, (once, JUST_OPENED), &mut report)
        .await?;
    let at_the_cap = "breaker at its cap";
    crash.others = 0;
    crash
        .while_leaving(later, AT_THE_CAP, (at_the_cap, LONG_OPEN), &mut report)
        .await?;
    let stayed = (agents - leaving) as u64;
    judge_agents(&mut report, &fleet.snapshot(), stayed);
    let round = memory_loss::everybody(&bed).await?;
    let answered = round.tally.answered() as u64;
    report.exactly("answers to a broadcast at the end", answered, stayed);
    fleet.stop().await;
    Ok(report)
}

fn calmly(bed: &Bed, prefix: &str, agents: usize) -> Options {
    Options {
        connects_per_second: Some(CONNECTS_PER_SECOND),
        ..bed.fleet(prefix, agents)
    }
}

/// Those that stay, as the server knows them.
fn staying(state: &State) -> Places {
    let mut all = places(state);
    all.retain(|id, _| id.starts_with(STAYING));
    all
}

struct Crash<'a> {
    bed: &'a Bed,
    /// Registers and replays that were accepted before.
    registers: u64,
    before: Places,
    /// That are still there beside them.
    others: u64,
}

impl Crash<'_> {
    /// The server is away until the breaker has opened `times` times, while some agents leave.
    async fn while_leaving(
        &mut self,
        leaving: Fleet,
        times: u64,
        (name, bound): (&str, Duration),
        report: &mut Report,
    ) -> Result<(), String> {
        let Bed { server, gateway } = self.bed;
        let agents = self.before.len() as u64;
        let opened_before = opened(&bed::scrape(gateway).await?);
        server.kill().await;
        let killed = Instant::now();
        leaving.stop().await;
        let open = |metrics: &Metrics| opened(metrics) >= opened_before + times;
        bed::gateway_has(gateway, "an open breaker", LIMIT, open).await?;
        server.simulate_restart(Restart {
            lose_directory: true,
            ..Restart::default()
        });
        let away = killed.elapsed();
        let started = Instant::now();
        server.start_again().await.map_err(|e| e.to_string())?;
        self.registers += agents + self.others;
        let healthy = |state: &State| {
            let times = state.received(Rpc::BatchHeartbeat).map(|r| r.at);
            times.filter(|at| *at > started).min()
        };
        let healthy = self.bed.server_has("heartbeats", LIMIT, healthy).await?;
        let registers = self.registers;
        let all = |state: &State| (state.counts(RPC).ok >= registers).then(Instant::now);
        let replayed = self.bed.server_has("every replay", LIMIT, all).await?;
        let known = |state: &State| (staying(state).len() as u64 == agents).then_some(());
        self.bed.server_has("every CONNECTED", LIMIT, known).await?;

        let name = |what: &str| format!("{name}: {what}");
        report.time(&name("the server was away"), away);
        report.time(
            &name("its start to the first heartbeats"),
            healthy - started,
        );
        report.time(
            &name("first heartbeats to the last replay"),
            replayed - healthy,
        );
        report.within(
            &name("its start to the last replay"),
            replayed - started,
            bound,
        );
        report.time(&name("its start to the last CONNECTED"), started.elapsed());
        let now = server.view(staying);
        let kept = now
            .iter()
            .filter(|(id, place)| self.before.get(*id) == Some(*place));
        let kept = kept.count() as u64;
        report.exactly(
            &name("agents with session and stream as before"),
            kept,
            agents,
        );
        let taken = server.view(|state| state.counts(RPC).ok);
        report.exactly(
            &name("replays accepted more than once"),
            taken - registers,
            0,
        );
        Ok(())
    }
}

fn opened(metrics: &Metrics) -> u64 {
    let open = [("state", "open")];
    bed::value_or_zero(metrics, "upstream_circuit_transitions_total", &open)
}

fn judge_agents(report: &mut Report, seen: &fleet::Snapshot, agents: u64) {
    let ended = |wanted: fleet::Rpc| {
        let of = seen.ends.iter().filter(|((rpc, _), _)| *rpc == wanted);
        of.map(|(_, count)| count).sum::<u64>()
    };
    report.exactly("streams that ended", ended(fleet::Rpc::Subscribe), 0);
    let again = seen.registrations - agents;
    report.exactly("agents that registered again", again, 0);
    report.count("heartbeats acknowledged", seen.heartbeats_acked);
}
