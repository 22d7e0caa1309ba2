//! The scale suite: scenarios on real sockets that print their figures and hold them to bounds.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool"
)]

mod adjacency_million;
mod balance;
mod ballast;
mod bed;
mod breaker;
mod cancelled_register;
mod churn;
mod cluster_kill;
mod cold_wave;
mod curve;
mod flat;
mod floor;
mod forward;
mod frozen_server;
mod heartbeat_cost;
mod heartbeat_rate;
mod hostile_clients;
mod in_memory;
mod kill_nine;
mod memory_loss;
mod owner_kill;
mod planned_stop;
mod progress;
mod refused_notices;
mod register_storm;
mod report;
mod reset_once;
mod rolling_restart;
mod server;
mod server_crash;
mod session_cap;
mod shed;
mod slow_server;
mod soak;
mod stream_limit;
mod tap;
mod trio;
mod unread_answers;
mod watch;

use bed::Binaries;
use clap::{Args, Parser, Subcommand, ValueEnum};
use progress::Progress;
use register_storm::Storm;
use report::{Outcome, Report};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use watch::Watch;

/// Some scenarios hold a gateway, which is to have the allocator that it is deployed with.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measures the gateway with simulated agents and a simulated server. Exits with 1 when a bound is
/// missed, with 2 when a scenario can not be run or a bound can not be judged.
#[derive(Debug, Parser)]
#[command(name = "yuzu-scale", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the scenarios.
    List,
    /// Runs scenarios one after the other.
    Run {
        /// Which; none runs all but `soak` and `in-memory`.
        #[arg(value_name = "NAME")]
        scenarios: Vec<Scenario>,
        #[command(flatten)]
        scope: Scope,
        /// Prints one JSON document instead of tables.
        #[arg(long)]
        json: bool,
        /// The gateway; by default the one beside this program.
        #[arg(long)]
        gateway_binary: Option<PathBuf>,
        /// The server stub; by default the one beside this program.
        #[arg(long)]
        stub_binary: Option<PathBuf>,
    },
    /// Measures the gateway beside servers that do nothing but relay.
    Floor(floor::Options),
    /// Measures the gateway with few and with many agents, and draws what an agent costs.
    Curve(curve::Options),
}

const SOAK_MINUTES: f64 = 30.0;
/// Less says nothing of memory.
const SOAK_LEAST: Duration = Duration::from_secs(30);

/// What long scenarios let one choose.
#[derive(Debug, Clone, Copy, Args)]
struct Scope {
    /// Agents of `soak` (5,000), of `in-memory` (100,000), and of the three nodes of `cluster-kill`
    /// and `rolling-restart` (3,000), and rows of `adjacency-million` (1,000,000).
    #[arg(long)]
    agents: Option<usize>,
    /// Minutes of `soak`, 30 by default.
    #[arg(long)]
    minutes: Option<f64>,
    /// What `soak` chooses by; it prints the one it took.
    #[arg(long)]
    seed: Option<u64>,
}

impl Scope {
    fn trio(self) -> usize {
        self.agents.unwrap_or(3_000)
    }

    fn rows(self) -> u64 {
        self.agents.map_or(1_000_000, |agents| agents as u64)
    }

    /// Refuses what no scenario of these would look at.
    fn check(self, scenarios: &[Scenario]) -> Result<(), String> {
        if self.agents == Some(0) {
            return Err("--agents must be above 0".into());
        }
        let soaks = scenarios.contains(&Scenario::Soak);
        if !soaks && (self.minutes.is_some() || self.seed.is_some()) {
            return Err(
                "--minutes and --seed are of `soak` alone, which is not among these".into(),
            );
        }
        self.soak_time().map(drop)
    }

    fn soak_time(self) -> Result<Duration, String> {
        let minutes = self.minutes.unwrap_or(SOAK_MINUTES);
        match Duration::try_from_secs_f64(minutes * 60.0) {
            Ok(time) if time >= SOAK_LEAST => Ok(time),
            _ => Err(format!(
                "--minutes {minutes}: it is to be a number of minutes, {} or more",
                SOAK_LEAST.as_secs_f64() / 60.0
            )),
        }
    }

    fn soak(self) -> Result<soak::Plan, String> {
        let time = self.soak_time()?;
        Ok(soak::Plan {
            agents: self.agents.unwrap_or(5_000),
            time,
            seed: self.seed,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    RegisterStorm,
    RegisterWave,
    ColdWave,
    FrozenServer,
    Breaker,
    SlowServer,
    Shed,
    RefusedNotices,
    StreamLimit,
    CancelledRegister,
    HeartbeatCost,
    HeartbeatRate,
    HostileClients,
    UnreadAnswers,
    MemoryLoss,
    #[value(name = "memory-loss-20ms")]
    MemoryLoss20Ms,
    #[value(name = "memory-loss-100ms")]
    MemoryLoss100Ms,
    MemoryLossRefusing,
    ServerCrash,
    ResetOnce,
    SessionCap,
    Forward,
    OwnerKill,
    PlannedStop,
    KillNine,
    ClusterKill,
    RollingRestart,
    AdjacencyMillion,
    Churn,
    Soak,
    InMemory,
}

impl Scenario {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Those that take minutes, all together.
    fn short() -> impl Iterator<Item = Self> {
        let all = Self::value_variants().iter().copied();
        all.filter(|scenario| !matches!(scenario, Self::Soak | Self::InMemory))
    }

    fn about(self) -> &'static str {
        match self {
            Self::RegisterStorm => register_storm::ABOUT,
            Self::RegisterWave => register_storm::ABOUT_WAVE,
            Self::ColdWave => cold_wave::ABOUT,
            Self::FrozenServer => frozen_server::ABOUT,
            Self::Breaker => breaker::ABOUT,
            Self::SlowServer => slow_server::ABOUT,
            Self::Shed => shed::ABOUT,
            Self::RefusedNotices => refused_notices::ABOUT,
            Self::StreamLimit => stream_limit::ABOUT,
            Self::CancelledRegister => cancelled_register::ABOUT,
            Self::HeartbeatCost => heartbeat_cost::ABOUT,
            Self::HeartbeatRate => heartbeat_rate::ABOUT,
            Self::HostileClients => hostile_clients::ABOUT,
            Self::UnreadAnswers => unread_answers::ABOUT,
            Self::MemoryLoss => memory_loss::ABOUT,
            Self::MemoryLoss20Ms => memory_loss::ABOUT_20_MS,
            Self::MemoryLoss100Ms => memory_loss::ABOUT_100_MS,
            Self::MemoryLossRefusing => memory_loss::ABOUT_REFUSING,
            Self::ServerCrash => server_crash::ABOUT,
            Self::ResetOnce => reset_once::ABOUT,
            Self::SessionCap => session_cap::ABOUT,
            Self::Forward => forward::ABOUT,
            Self::OwnerKill => owner_kill::ABOUT,
            Self::PlannedStop => planned_stop::ABOUT,
            Self::KillNine => kill_nine::ABOUT,
            Self::ClusterKill => cluster_kill::ABOUT,
            Self::RollingRestart => rolling_restart::ABOUT,
            Self::AdjacencyMillion => adjacency_million::ABOUT,
            Self::Churn => churn::ABOUT,
            Self::Soak => soak::ABOUT,
            Self::InMemory => in_memory::ABOUT,
        }
    }

    async fn run(self, binaries: &Binaries, scope: Scope) -> Result<Report, String> {
        let agents = |default| scope.agents.unwrap_or(default);
        match self {
            Self::RegisterStorm => {
                let storm = Storm::of(agents(Storm::AGENTS));
                register_storm::run(binaries, storm).await
            }
            Self::RegisterWave => {
                let storm = Storm::wave(agents(Storm::AGENTS_OF_WAVE));
                register_storm::run(binaries, storm).await
            }
            Self::ColdWave => cold_wave::run(binaries, agents(cold_wave::AGENTS)).await,
            Self::FrozenServer => frozen_server::run(binaries).await,
            Self::Breaker => breaker::run(binaries, scope.agents.unwrap_or(breaker::AGENTS)).await,
            Self::SlowServer => {
                slow_server::run(binaries, scope.agents.unwrap_or(slow_server::AGENTS)).await
            }
            Self::Shed => shed::run(binaries, scope.agents.unwrap_or(shed::AGENTS)).await,
            Self::RefusedNotices => refused_notices::run(binaries).await,
            Self::StreamLimit => stream_limit::run(binaries).await,
            Self::CancelledRegister => cancelled_register::run().await,
            Self::HeartbeatCost => heartbeat_cost::run(agents(heartbeat_cost::AGENTS)).await,
            Self::HeartbeatRate => {
                heartbeat_rate::run(binaries, agents(heartbeat_rate::AGENTS)).await
            }
            Self::HostileClients => hostile_clients::run(binaries).await,
            Self::UnreadAnswers => unread_answers::run(binaries).await,
            Self::MemoryLoss => {
                memory_loss::run(binaries, agents(memory_loss::AGENTS), 50, false).await
            }
            Self::MemoryLoss20Ms => {
                memory_loss::run(binaries, agents(memory_loss::AGENTS), 20, false).await
            }
            Self::MemoryLoss100Ms => {
                let agents = agents(memory_loss::AGENTS_100_MS);
                memory_loss::run(binaries, agents, 100, false).await
            }
            Self::MemoryLossRefusing => {
                memory_loss::run(binaries, agents(memory_loss::AGENTS), 50, true).await
            }
            Self::ServerCrash => server_crash::run(binaries, agents(server_crash::AGENTS)).await,
            Self::ResetOnce => reset_once::run(binaries, agents(reset_once::AGENTS)).await,
            Self::SessionCap => session_cap::run(binaries).await,
            // It holds the configurations of several nodes.
            Self::Forward => Box::pin(forward::run()).await,
            Self::OwnerKill => owner_kill::run(agents(owner_kill::AGENTS)).await,
            Self::PlannedStop => planned_stop::run(binaries, agents(planned_stop::AGENTS)).await,
            Self::KillNine => kill_nine::run(binaries, agents(kill_nine::AGENTS)).await,
            Self::ClusterKill => cluster_kill::run(binaries, scope.trio()).await,
            Self::RollingRestart => rolling_restart::run(binaries, scope.trio()).await,
            Self::AdjacencyMillion => adjacency_million::run(binaries, scope.rows()).await,
            Self::Churn => churn::run(binaries, agents(churn::AGENTS)).await,
            Self::Soak => soak::run(binaries, scope.soak()?).await,
            Self::InMemory => in_memory::run(scope.agents.unwrap_or(100_000)).await,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::List => {
            for scenario in Scenario::value_variants() {
                println!("{:<20} {}", scenario.name(), scenario.about());
            }
            Ok(Outcome::Met)
        }
        Command::Run {
            scenarios,
            scope,
            json,
            gateway_binary,
            stub_binary,
        } => {
            let binaries = Binaries::find(gateway_binary, stub_binary);
            match binaries {
                Ok(binaries) => run(scenarios, scope, json, &binaries).await,
                Err(problem) => Err(problem),
            }
        }
        Command::Floor(options) => floor::run(options).await,
        Command::Curve(options) => curve::run(options).await,
    };
    match done {
        Ok(Outcome::Met) => ExitCode::SUCCESS,
        Ok(Outcome::Missed) => ExitCode::FAILURE,
        Ok(Outcome::NotJudged(problem)) | Err(problem) => {
            eprintln!("yuzu-scale: {problem}");
            ExitCode::from(2)
        }
    }
}

async fn run(
    scenarios: Vec<Scenario>,
    scope: Scope,
    as_json: bool,
    binaries: &Binaries,
) -> Result<Outcome, String> {
    let scenarios = match scenarios.is_empty() {
        true => Scenario::short().collect(),
        false => scenarios,
    };
    scope.check(&scenarios)?;
    let (mut all, mut missed, mut problems) = (Vec::new(), 0, Vec::new());
    let progress = Progress::of(scenarios.len());
    for scenario in scenarios {
        let name = scenario.name();
        progress.step(&name);
        let watch = Watch::begin();
        match scenario.run(binaries, scope).await {
            Ok(mut report) => {
                watch.end(&mut report);
                missed += usize::from(!report.holds());
                all.push(report.json(&name));
                if !as_json {
                    progress::result(&report.table(&name));
                }
            }
            // The others are run all the same.
            Err(problem) => {
                all.push(json!({ "scenario": name, "problem": problem }));
                progress::say(&format!("{name}: {problem}"));
                problems.push(name);
            }
        }
        progress.done();
    }
    drop(progress);
    match as_json {
        true => println!("{:#}", Value::from(all)),
        false => println!("{} scenarios, {missed} with a missed bound", all.len()),
    }
    Ok(match (missed, problems.as_slice()) {
        (0, []) => Outcome::Met,
        (0, some) => Outcome::NotJudged(format!("could not be run: {}", some.join(", "))),
        _ => Outcome::Missed,
    })
}
