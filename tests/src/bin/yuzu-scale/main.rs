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
mod figures;
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
mod progress;
mod refused_notices;
mod register_storm;
mod report;
mod reset_once;
mod rolling_restart;
mod scenario;
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
use clap::{Parser, Subcommand, ValueEnum};
use progress::Progress;
use report::Outcome;
use scenario::{Scenario, Scope};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use watch::Watch;
use yuzu_tests::cli::stop_signal;

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

#[tokio::main]
async fn main() -> ExitCode {
    let done = tokio::select! {
        done = carry_out(Arguments::parse().command) => done,
        // What was started ends with it, so that nothing is left that disturbs the next run.
        () = stop_signal() => Err("stopped by a signal; what it had started is stopped as well".into()),
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

async fn carry_out(command: Command) -> Result<Outcome, String> {
    match command {
        Command::List => {
            for scenario in Scenario::value_variants() {
                let name = scenario.name();
                println!("{name:<20} {}", scenario.about());
                let agents = scenario.agents_by_default();
                let agents = agents.map(|agents| format!("--agents {agents}"));
                let figures = figures::of(&name).join(" ");
                println!("{:<20} {} {figures}", "", agents.unwrap_or_default());
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
