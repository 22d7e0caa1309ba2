//! A server that dies, is away until the breaker is open, and comes back without its sessions.

use crate::bed::{self, Bed, Binaries};
use crate::memory_loss::{Places, meanwhile, notices, places};
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
    check_descriptors(agents)?;
    let bed = Bed::start(binaries, StubConfig::default()).await?;
    let fleet = Fleet::start(Options {
        connects_per_second: Some(CONNECTS_PER_SECOND),
        heartbeat: Some(HEARTBEAT),
        ..bed.fleet("crash-", agents)
    });
    let all = fleet.all_subscribed(LIMIT).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    let agents = agents as u64;
    notices(&bed, agents).await?;
    let before = bed.server.view(places);

    let mut report = Report::default();
    let mut crash = Crash {
        bed: &bed,
        before,
        lived: 1,
    };
    crash
        .once(1, "breaker open once", JUST_OPENED, &mut report)
        .await?;
    let at_the_cap = "breaker at its cap";
    crash
        .once(AT_THE_CAP, at_the_cap, LONG_OPEN, &mut report)
        .await?;
    judge_agents(&mut report, &fleet.snapshot(), agents);
    let round = meanwhile(&bed).await?;
    let answered = round.tally.answered() as u64;
    report.exactly("answers to a broadcast at the end", answered, agents);
    fleet.stop().await;
    Ok(report)
}

struct Crash<'a> {
    bed: &'a Bed,
    before: Places,
    /// Servers so far, each of which has taken in every agent.
    lived: u64,
}

impl Crash<'_> {
    /// The server is away until the breaker has opened `times` times, counted from here.
    async fn once(
        &mut self,
        times: u64,
        name: &str,
        bound: Duration,
        report: &mut Report,
    ) -> Result<(), String> {
        let Bed { server, gateway } = self.bed;
        let agents = self.before.len() as u64;
        let opened_before = opened(&bed::scrape(gateway).await?);
        server.kill().await;
        let killed = Instant::now();
        let open = |metrics: &Metrics| opened(metrics) >= opened_before + times;
        bed::gateway_has(gateway, "an open breaker", LIMIT, open).await?;
        server.simulate_restart(Restart {
            lose_directory: true,
            ..Restart::default()
        });
        let away = killed.elapsed();
        let started = Instant::now();
        server.start_again().await.map_err(|e| e.to_string())?;
        self.lived += 1;
        let healthy = |state: &State| {
            let first = state.received(Rpc::BatchHeartbeat).map(|r| r.at);
            first.filter(|at| *at > started).min()
        };
        let healthy = self.bed.server_has("a heartbeat", LIMIT, healthy).await?;
        let lived = self.lived;
        let all = |state: &State| (state.counts(RPC).ok >= lived * agents).then(Instant::now);
        let replayed = self.bed.server_has("every replay", LIMIT, all).await?;
        notices(self.bed, lived * agents).await?;

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
        let now = server.view(places);
        let kept = now
            .iter()
            .filter(|(id, place)| self.before.get(*id) == Some(*place));
        let kept = kept.count() as u64;
        report.exactly(
            &name("agents with session and stream as before"),
            kept,
            agents,
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
