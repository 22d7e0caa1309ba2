//! Ten kinds of hostile clients at once, and agents that must not notice.

mod attack;
mod kinds;

use crate::bed::{self, Bed, Binaries, Peak};
use crate::report::Report;
use crate::server::Server;
use attack::Tally;
use kinds::{FORGED, Kind, Target};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_server_stub::{Rpc, StubConfig};
use yuzu_tests::broadcast::percentile;
use yuzu_tests::certs::{Authority, Directory};
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::{Fleet, Options, Outcome, Rpc as Call, Snapshot};
use yuzu_tests::metrics::Metrics;
use yuzu_tests::operator::Operator;
use yuzu_tests::process::{GatewayProcess, Lines, free_addresses};
use yuzu_tests::raw::{self, Tls, code};

pub(crate) const ABOUT: &str = "200 hostile clients of ten kinds beside 2,000 working agents";

pub(crate) const AGENTS: usize = 2_000;
/// Of each kind.
const CLIENTS: u8 = 20;
const HOSTILE: usize = 10 * CLIENTS as usize;
const LIMIT: Duration = Duration::from_secs(60);
/// Commands are measured this long before the attack.
const CALM: Duration = Duration::from_secs(40);
const ATTACK: Duration = Duration::from_secs(120);
/// Memory is looked at again after this.
const AFTER: Duration = Duration::from_secs(60);
const UNREGISTERED: Duration = Duration::from_secs(10);
/// Time between two commands.
const PACE: Duration = Duration::from_millis(5);
/// What a closing connection and a busy machine may add to a rule's time.
const SLACK: Duration = Duration::from_secs(5);
/// Growth of anonymous memory: at the peak, and what may be left of it.
const PEAK_MIB: u64 = 96;
const LEFT_MIB: u64 = 8;

/// What ends the connections of a kind, the series that shows it, and how long they may live.
struct Rule {
    series: (&'static str, &'static [(&'static str, &'static str)]),
    life: Duration,
}

impl Rule {
    fn of(kind: Kind) -> Self {
        const CLOSED: &str = "listener_closed_total";
        let (series, life): ((_, &[_]), _) = match kind {
            Kind::SilentAfterTcp => (
                (
                    "listener_tls_handshake_failures_total",
                    &[("kind", "timeout")],
                ),
                Duration::from_secs(10),
            ),
            Kind::SilentAfterTls => (
                (CLOSED, &[("reason", "no_preface")]),
                Duration::from_secs(10),
            ),
            Kind::Resets => ((CLOSED, &[("reason", "resets")]), Duration::from_secs(10)),
            Kind::Continuation => (
                (CLOSED, &[("reason", "http2_flood")]),
                Duration::from_secs(10),
            ),
            Kind::ZeroWindow => (
                (CLOSED, &[("reason", "answer_not_taken")]),
                Duration::from_secs(30),
            ),
            Kind::Pings
            | Kind::HalfHeader
            | Kind::SlowMessage
            | Kind::StalledStreams
            | Kind::ForgedProxy => ((CLOSED, &[("reason", "unregistered")]), UNREGISTERED),
        };
        Self { series, life }
    }
}

pub(crate) async fn run(binaries: &Binaries, agents: usize) -> Result<Report, String> {
    if agents == 0 {
        return Err("--agents must be at least 1".into());
    }
    check_descriptors(agents + HOSTILE)?;
    let install = Install::start(binaries).await?;
    let bed = Arc::new(install.bed);
    let fleet = Fleet::start(Options {
        connection: raw::Options {
            tls: Some(install.target.tls.clone()),
            ..raw::Options::default()
        },
        connects_per_second: Some(500.0),
        ..Options::new(bed.gateway.agents, agents)
    });
    let all = fleet.all_subscribed(LIMIT).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    let mut report = Report::default();

    let calm = Commands::start(&bed, &fleet, "calm").await?;
    let idle = Share::start(&bed)?;
    sleep(CALM).await;
    let idle = idle.end(&bed)?;
    let calm = calm.end().await?;
    let before = bed::scrape(&bed.gateway).await?;
    let memory = bed.gateway.anonymous_memory()?;

    let peak = Peak::watch(&bed);
    let attacked = Commands::start(&bed, &fleet, "attacked").await?;
    let busy = Share::start(&bed)?;
    let tallies = attack(&install.target).await?;
    let busy = busy.end(&bed)?;
    let attacked = attacked.end().await?;
    let peak = peak.end().await?;
    let after = bed::scrape(&bed.gateway).await?;
    sleep(AFTER).await;
    let left = bed.gateway.anonymous_memory()?;

    judge_agents(agents, &fleet.snapshot(), &bed, &mut report);
    judge_commands(calm, attacked, &mut report);
    report.count("gateway's share of a core before, %", idle);
    report.count("gateway's share of a core during, %", busy);
    let mib = |bytes: u64| bytes.saturating_sub(memory) >> 20;
    report.count("memory before, MiB", memory >> 20);
    report.at_most("growth at its peak, MiB", mib(peak), PEAK_MIB);
    report.at_most("growth a minute after, MiB", mib(left), LEFT_MIB);
    for (kind, tally) in &tallies {
        judge_kind(*kind, tally, &mut report);
    }
    judge_rules(&tallies, &before, &after, &mut report);
    judge_forged(&bed, &before, &after, &mut report);
    fleet.stop().await;
    Ok(report)
}

/// A gateway with TLS for agents and a second listener behind an absent proxy.
struct Install {
    bed: Bed,
    target: Target,
    /// The gateway follows the files in it.
    _files: Directory,
}

impl Install {
    async fn start(binaries: &Binaries) -> Result<Self, String> {
        let authority = Authority::new("hostile");
        let files = Directory::new();
        let (certificate, key) = files.write_leaf("gateway", &authority.gateway());
        let ca = files.write("ca.pem", &authority.pem());
        let [proxied] = free_addresses(Ipv4Addr::LOCALHOST).map_err(|e| e.to_string())?;
        let limits = format!(
            "limits = {{ unregistered_timeout_ms = {} }}\n",
            UNREGISTERED.as_millis()
        );
        let agent = format!(
            "tls = {{ cert_file = {certificate:?}, key_file = {key:?}, ca_file = {ca:?} }}\n{limits}"
        );
        // No proxy has this address.
        let more = format!(
            "[[listener]]\nname = \"proxied\"\nservices = [\"agent\"]\naddress = \"{proxied}\"\n\
             {limits}origin = {{ mode = \"proxy_protocol\", sources = [\"192.0.2.1\"] }}\n"
        );
        let server = Server::start(StubConfig::default()).await?;
        let lines = Lines {
            agent: &agent,
            more: &more,
        };
        let gateway =
            GatewayProcess::start_configured(&binaries.gateway, server.addr(), lines, LIMIT);
        let bed = Bed {
            gateway: gateway.await?,
            server,
        };
        let target = Target {
            agents: bed.gateway.agents,
            proxied,
            tls: Tls::trusting(&authority.pem())?,
        };
        Ok(Self {
            bed,
            target,
            _files: files,
        })
    }
}

/// How much of a core the gateway uses.
struct Share {
    since: Instant,
    used: Duration,
}

impl Share {
    fn start(bed: &Bed) -> Result<Self, String> {
        Ok(Self {
            since: Instant::now(),
            used: bed.gateway.processor_time()?,
        })
    }

    /// In hundredths.
    fn end(self, bed: &Bed) -> Result<u64, String> {
        let used = bed.gateway.processor_time()?.saturating_sub(self.used);
        Ok((used.as_secs_f64() / self.since.elapsed().as_secs_f64() * 100.0) as u64)
    }
}

/// All kinds at once.
async fn attack(target: &Target) -> Result<Vec<(Kind, Tally)>, String> {
    let end = Instant::now() + ATTACK;
    let mut running = Vec::new();
    for kind in Kind::ALL {
        running.push((kind, attack::start(kind, CLIENTS, target, end)?));
    }
    tokio::task::spawn_blocking(move || {
        let joined = running.into_iter().map(|(kind, thread)| {
            let tally = thread.join().map_err(|_| "an attacker panicked")??;
            Ok((kind, tally))
        });
        joined.collect()
    })
    .await
    .map_err(|e| e.to_string())?
}

/// An operator that sends one command to one agent every [`PACE`], whatever became of the others.
struct Commands {
    done: Arc<AtomicBool>,
    task: JoinHandle<Result<Vec<Duration>, String>>,
}

impl Commands {
    async fn start(bed: &Bed, fleet: &Fleet, name: &'static str) -> Result<Self, String> {
        let operator = Operator::connect(bed.gateway.management).await;
        let operator = Arc::new(operator.map_err(|e| e.to_string())?);
        let ids: Vec<_> = (0..fleet.options().agents)
            .map(|n| fleet.options().agent_id(n))
            .collect();
        let done = Arc::<AtomicBool>::default();
        let ends = Arc::clone(&done);
        let task = tokio::spawn(async move {
            let mut pace = interval(PACE);
            pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut calls = JoinSet::new();
            for (number, agent) in ids.iter().cycle().enumerate() {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                // What waited for its turn waited for the machine, and counts.
                let due = pace.tick().await;
                let (operator, agent) = (Arc::clone(&operator), agent.clone());
                let id = format!("{name}-{number}");
                calls.spawn(async move { answered(&operator, &agent, id, due).await });
            }
            let times: Result<Vec<_>, String> = calls.join_all().await.into_iter().collect();
            times
        });
        Ok(Self { done, task })
    }

    /// How long each took, ascending.
    async fn end(self) -> Result<Vec<Duration>, String> {
        self.done.store(true, Ordering::Relaxed);
        let mut times = self.task.await.map_err(|e| e.to_string())??;
        times.sort_unstable();
        Ok(times)
    }
}

async fn answered(
    operator: &Operator,
    agent: &str,
    command_id: String,
    due: Instant,
) -> Result<Duration, String> {
    let command = CommandRequest {
        command_id,
        plugin: "shell".into(),
        ..CommandRequest::default()
    };
    let fanout = operator.send(&[agent], command, 60).await;
    let (entries, status) = fanout.map_err(|e| e.to_string())?.rest().await?;
    let served = entries.len() == 1 && entries[0].response.output.starts_with('x');
    match status.is_ok() && served {
        true => Ok(due.elapsed()),
        false => Err(format!("{agent}: {} answers, then {status}", entries.len())),
    }
}

fn judge_agents(agents: usize, now: &Snapshot, bed: &Bed, report: &mut Report) {
    report.exactly("agents that are subscribed", now.subscribed, agents as u64);
    report.exactly("agents that reconnected", now.reconnects, 0);
    let other = |(rpc, outcome)| rpc == Call::Heartbeat && outcome != Outcome::Status(code::OK);
    let failed = now.ends.iter().filter(|(end, _)| other(**end));
    let failed = failed.map(|(_, count)| count).sum();
    report.exactly("heartbeats that failed", failed, 0);
    let log = bed.gateway.log();
    let told = |line: &&str| line.contains("ERROR") || line.contains("panic");
    let told = log.lines().filter(told).count();
    report.exactly("errors in the gateway's log", told as u64, 0);
}

fn judge_commands(calm: Vec<Duration>, attacked: Vec<Duration>, report: &mut Report) {
    report.count("commands before", calm.len() as u64);
    report.count("commands during", attacked.len() as u64);
    let at = |times: &[Duration], share| percentile(times, share).unwrap_or_default();
    report.time("command p50 before", at(&calm, 0.5));
    report.time("command p50 during", at(&attacked, 0.5));
    let p99 = at(&calm, 0.99);
    report.time("command p99 before", p99);
    report.within("command p99 during", at(&attacked, 0.99), p99 * 2);
    report.time("slowest command before", at(&calm, 1.0));
    report.time("slowest command during", at(&attacked, 1.0));
}

fn judge_kind(kind: Kind, tally: &Tally, report: &mut Report) {
    let rule = Rule::of(kind);
    let line = |what: &str| format!("{}: {what}", kind.name());
    // The last client begins a seventh of the time later than the first.
    let least = (ATTACK - ATTACK / 7).as_secs() / (rule.life + SLACK).as_secs();
    report.at_least(&line("connections ended, of each"), tally.fewest, least);
    report.within(&line("longest life"), tally.longest, rule.life + SLACK);
    report.exactly(&line("failed before the attack"), tally.failed, 0);
    if let Some(problem) = &tally.problem {
        crate::progress::say(&format!("{}: {problem}", kind.name()));
    }
    let percent = (tally.share * 100.0).round() as u64;
    let most = (attack::SHARE * 100.0) as u64 + 1;
    report.at_most(&line("attackers' share of a core, %"), percent, most);
}

/// Each series grew by what the kinds saw that it stands for.
fn judge_rules(tallies: &[(Kind, Tally)], before: &Metrics, after: &Metrics, report: &mut Report) {
    let mut told = Vec::new();
    for (kind, _) in tallies {
        let (name, labels) = Rule::of(*kind).series;
        if told.contains(&(name, labels)) {
            continue;
        }
        told.push((name, labels));
        let of_this = tallies
            .iter()
            .filter(|(kind, _)| Rule::of(*kind).series == (name, labels));
        let ended: u64 = of_this.clone().map(|(_, tally)| tally.ended).sum();
        let grown = growth(before, after, name, labels);
        let shown = format!("{name} {}", labels[0].1);
        report.at_least(&shown, grown, ended.max(1));
        // Those that were being closed when the attack ended.
        let open = u64::from(CLIENTS) * of_this.count() as u64;
        report.at_most(&shown, grown, ended + open);
    }
}

/// The header was counted and not believed.
fn judge_forged(bed: &Bed, before: &Metrics, after: &Metrics, report: &mut Report) {
    let labels = [("mode", "proxy_protocol"), ("reason", "untrusted_source")];
    let ignored = growth(before, after, "grpc_origin_ignored_total", &labels);
    report.at_least("forged headers ignored", ignored, u64::from(CLIENTS));
    let believed = bed.server.view(|state| {
        let registers = state.received(Rpc::ProxyRegister);
        let peers = registers.filter_map(|received| received.register());
        peers
            .filter(|register| register.gateway_observed_peer == FORGED)
            .count()
    });
    report.exactly("forged headers believed", believed as u64, 0);
}

fn growth(before: &Metrics, after: &Metrics, name: &str, labels: &[(&str, &str)]) -> u64 {
    bed::value_or_zero(after, name, labels) - bed::value_or_zero(before, name, labels)
}
