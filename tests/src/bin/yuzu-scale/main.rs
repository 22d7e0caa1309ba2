//! The scale suite: scenarios on real sockets that print their figures and hold them to bounds.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool"
)]

mod bed;
mod cancelled_register;
mod churn;
mod cold_wave;
mod floor;
mod frozen_server;
mod heartbeat_cost;
mod hostile_clients;
mod kill_nine;
mod memory_loss;
mod owner_kill;
mod planned_stop;
mod refused_notices;
mod register_storm;
mod report;
mod reset_once;
mod server;
mod session_cap;
mod stream_limit;
mod tap;
mod unread_answers;

use bed::Binaries;
use clap::{Parser, Subcommand, ValueEnum};
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;
use yuzu_tests::process::{beside, gateway_binary};

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
        /// Which; none runs all.
        #[arg(value_name = "NAME")]
        scenarios: Vec<Scenario>,
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    RegisterStorm,
    ColdWave,
    FrozenServer,
    RefusedNotices,
    StreamLimit,
    CancelledRegister,
    HeartbeatCost,
    HostileClients,
    UnreadAnswers,
    MemoryLoss,
    #[value(name = "memory-loss-20ms")]
    MemoryLoss20Ms,
    MemoryLossRefusing,
    ResetOnce,
    SessionCap,
    OwnerKill,
    PlannedStop,
    KillNine,
    Churn,
}

impl Scenario {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn about(self) -> &'static str {
        match self {
            Self::RegisterStorm => register_storm::ABOUT,
            Self::ColdWave => cold_wave::ABOUT,
            Self::FrozenServer => frozen_server::ABOUT,
            Self::RefusedNotices => refused_notices::ABOUT,
            Self::StreamLimit => stream_limit::ABOUT,
            Self::CancelledRegister => cancelled_register::ABOUT,
            Self::HeartbeatCost => heartbeat_cost::ABOUT,
            Self::HostileClients => hostile_clients::ABOUT,
            Self::UnreadAnswers => unread_answers::ABOUT,
            Self::MemoryLoss => memory_loss::ABOUT,
            Self::MemoryLoss20Ms => memory_loss::ABOUT_20_MS,
            Self::MemoryLossRefusing => memory_loss::ABOUT_REFUSING,
            Self::ResetOnce => reset_once::ABOUT,
            Self::SessionCap => session_cap::ABOUT,
            Self::OwnerKill => owner_kill::ABOUT,
            Self::PlannedStop => planned_stop::ABOUT,
            Self::KillNine => kill_nine::ABOUT,
            Self::Churn => churn::ABOUT,
        }
    }

    async fn run(self, binaries: &Binaries) -> Result<Report, String> {
        match self {
            Self::RegisterStorm => register_storm::run(binaries).await,
            Self::ColdWave => cold_wave::run(binaries).await,
            Self::FrozenServer => frozen_server::run(binaries).await,
            Self::RefusedNotices => refused_notices::run(binaries).await,
            Self::StreamLimit => stream_limit::run(binaries).await,
            Self::CancelledRegister => cancelled_register::run().await,
            Self::HeartbeatCost => heartbeat_cost::run(binaries).await,
            Self::HostileClients => hostile_clients::run(binaries).await,
            Self::UnreadAnswers => unread_answers::run(binaries).await,
            Self::MemoryLoss => memory_loss::run(binaries, 50, false).await,
            Self::MemoryLoss20Ms => memory_loss::run(binaries, 20, false).await,
            Self::MemoryLossRefusing => memory_loss::run(binaries, 50, true).await,
            Self::ResetOnce => reset_once::run(binaries).await,
            Self::SessionCap => session_cap::run(binaries).await,
            Self::OwnerKill => owner_kill::run().await,
            Self::PlannedStop => planned_stop::run(binaries).await,
            Self::KillNine => kill_nine::run(binaries).await,
            Self::Churn => churn::run(binaries).await,
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
            json,
            gateway_binary,
            stub_binary,
        } => run(scenarios, json, gateway_binary, stub_binary).await,
        Command::Floor(options) => floor::run(options).await,
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
    json: bool,
    gateway: Option<PathBuf>,
    stub: Option<PathBuf>,
) -> Result<bool, String> {
    let binaries = Binaries {
        gateway: gateway.map_or_else(gateway_binary, Ok)?,
        stub: stub.map_or_else(|| beside("yuzu-server-stub", "--stub-binary"), Ok)?,
    };
    let scenarios = match scenarios.is_empty() {
        true => Scenario::value_variants().to_vec(),
        false => scenarios,
    };
    let mut reports = Vec::new();
    for scenario in scenarios {
        let name = scenario.name();
        let report = scenario.run(&binaries).await;
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
