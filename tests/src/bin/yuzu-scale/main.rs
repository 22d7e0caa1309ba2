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
mod held_heartbeats;
mod held_notices;
mod hostile_clients;
mod in_memory;
mod kill_nine;
mod memory_loss;
mod owner_kill;
mod planned_stop;
mod refused_notices;
mod register_storm;
mod report;
mod reset_once;
mod rolling_restart;
mod server;
mod session_cap;
mod shed;
mod slow_server;
mod soak;
mod stream_limit;
mod tap;
mod trio;
mod unread_answers;

use bed::Binaries;
use clap::{Args, Parser, Subcommand, ValueEnum};
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Some scenarios hold a gateway, which is to have the allocator that it is deployed with.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measures the gateway with simulated agents and a simulated server. Exits with 1 when a bound is
/// missed, with 2 when a scenario can not be run.
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

/// What long scenarios let one choose.
#[derive(Debug, Clone, Copy, Args)]
struct Scope {
    /// Agents of `soak` (5,000), of `in-memory` (100,000), and of the three nodes of `cluster-kill`
    /// and `rolling-restart` (3,000), and rows of `adjacency-million` (1,000,000).
    #[arg(long)]
    agents: Option<usize>,
    /// Minutes of `soak`.
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
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

    fn soak(self) -> Result<soak::Plan, String> {
        let time = Duration::try_from_secs_f64(self.minutes * 60.0).map_err(|e| e.to_string())?;
        Ok(soak::Plan {
            agents: self.agents.unwrap_or(5_000),
            time,
            seed: self.seed,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    HeldNotices,
    HeldHeartbeats,
    RegisterStorm,
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
    MemoryLossRefusing,
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
            Self::HeldHeartbeats => held_heartbeats::ABOUT,
            Self::HeldNotices => held_notices::ABOUT,
            Self::HostileClients => hostile_clients::ABOUT,
            Self::UnreadAnswers => unread_answers::ABOUT,
            Self::MemoryLoss => memory_loss::ABOUT,
            Self::MemoryLoss20Ms => memory_loss::ABOUT_20_MS,
            Self::MemoryLossRefusing => memory_loss::ABOUT_REFUSING,
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
        match self {
            Self::RegisterStorm => register_storm::run(binaries).await,
            Self::ColdWave => cold_wave::run(binaries).await,
            Self::FrozenServer => frozen_server::run(binaries).await,
            Self::Breaker => breaker::run(binaries, scope.agents.unwrap_or(breaker::AGENTS)).await,
            Self::SlowServer => {
                slow_server::run(binaries, scope.agents.unwrap_or(slow_server::AGENTS)).await
            }
            Self::Shed => shed::run(binaries, scope.agents.unwrap_or(shed::AGENTS)).await,
            Self::RefusedNotices => {
                refused_notices::run(binaries, scope.agents.unwrap_or(refused_notices::AGENTS))
                    .await
            }
            Self::StreamLimit => {
                stream_limit::run(binaries, scope.agents.unwrap_or(stream_limit::AGENTS)).await
            }
            Self::CancelledRegister => {
                cancelled_register::run(scope.agents.unwrap_or(cancelled_register::AGENTS)).await
            }
            Self::HeartbeatCost => heartbeat_cost::run().await,
            Self::HeartbeatRate => heartbeat_rate::run(binaries).await,
            Self::HeldHeartbeats => {
                held_heartbeats::run(scope.agents.unwrap_or(held_heartbeats::AGENTS)).await
            }
            Self::HeldNotices => {
                held_notices::run(scope.agents.unwrap_or(held_notices::AGENTS)).await
            }
            Self::HostileClients => {
                hostile_clients::run(binaries, scope.agents.unwrap_or(hostile_clients::AGENTS))
                    .await
            }
            Self::UnreadAnswers => unread_answers::run(binaries).await,
            Self::MemoryLoss => memory_loss::run(binaries, 50, false).await,
            Self::MemoryLoss20Ms => memory_loss::run(binaries, 20, false).await,
            Self::MemoryLossRefusing => memory_loss::run(binaries, 50, true).await,
            Self::ResetOnce => reset_once::run(binaries).await,
            Self::SessionCap => session_cap::run(binaries).await,
            // It holds the configurations of several nodes.
            Self::Forward => Box::pin(forward::run(scope.agents.unwrap_or(forward::AGENTS))).await,
            Self::OwnerKill => owner_kill::run(scope.agents.unwrap_or(owner_kill::AGENTS)).await,
            Self::PlannedStop => {
                planned_stop::run(binaries, scope.agents.unwrap_or(planned_stop::AGENTS)).await
            }
            Self::KillNine => kill_nine::run(binaries).await,
            Self::ClusterKill => cluster_kill::run(binaries, scope.trio()).await,
            Self::RollingRestart => rolling_restart::run(binaries, scope.trio()).await,
            Self::AdjacencyMillion => adjacency_million::run(binaries, scope.rows()).await,
            Self::Churn => churn::run(binaries).await,
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
            Ok(true)
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
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("yuzu-scale: {problem}");
            ExitCode::from(2)
        }
    }
}

/// Whether every bound was met.
async fn run(
    scenarios: Vec<Scenario>,
    scope: Scope,
    json: bool,
    binaries: &Binaries,
) -> Result<bool, String> {
    let scenarios = match scenarios.is_empty() {
        true => Scenario::short().collect(),
        false => scenarios,
    };
    let mut reports = Vec::new();
    for scenario in scenarios {
        let name = scenario.name();
        let report = scenario.run(binaries, scope).await;
        let report = report.map_err(|problem| format!("{name}: {problem}"))?;
        if !json {
            println!("{}", report.table(&name));
        }
        reports.push((name, report));
    }
    let missed = reports.iter().filter(|(_, report)| !report.holds()).count();
    if json {
        let all: Vec<_> = reports.iter().map(|(n, report)| report.json(n)).collect();
        println!("{:#}", serde_json::Value::from(all));
    } else {
        println!("{} scenarios, {missed} with a missed bound", reports.len());
    }
    Ok(missed == 0)
}
