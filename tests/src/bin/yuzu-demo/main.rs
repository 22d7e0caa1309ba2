//! The demo: a gateway, a server and 200 agents in one process, over real sockets.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool"
)]

mod screen;
mod system;

use clap::Parser;
use screen::{Row, Screen};
use std::process::ExitCode;
use std::time::Duration;
use system::{Farewell, System};
use tokio::time::{Instant, MissedTickBehavior};
use yuzu_tests::cli::{check_descriptors, duration, stop_signal};

/// Starts a real gateway on loopback ports with an embedded control-plane server and simulated
/// agents over real sockets, sends a broadcast every few seconds through the gateway's
/// management listener, and shows what comes back. Ctrl-C ends it and says what it did.
#[derive(Debug, Parser)]
#[command(name = "yuzu-demo", version)]
struct Arguments {
    /// Simulated agents.
    #[arg(long, default_value_t = 200)]
    agents: usize,
    /// Time between broadcasts.
    #[arg(long, default_value = "2s", value_parser = duration)]
    interval: Duration,
    /// Stop after this many broadcasts; the exit code is 1 if an answer is missing.
    #[arg(long, value_name = "N")]
    rounds: Option<u64>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match Box::pin(run(Arguments::parse())).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("yuzu-demo: {problem}");
            ExitCode::from(2)
        }
    }
}

/// Whether every answer came.
async fn run(arguments: Arguments) -> Result<bool, String> {
    if arguments.interval.is_zero() {
        return Err("--interval must be above zero".into());
    }
    // Both ends of each connection are in this process.
    check_descriptors(arguments.agents * 2)?;
    let signal = stop_signal();
    tokio::pin!(signal);
    let mut system = System::start(arguments.agents).await?;
    println!("{}", system.describe());
    tokio::select! {
        attached = system.attach() => println!("{}", attached?),
        () = &mut signal => return finish(system, &Row::default()).await,
    }

    let mut row = Row::default();
    let mut screen = Screen::stdout();
    let mut next = tokio::time::interval_at(Instant::now(), arguments.interval);
    next.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while arguments.rounds.is_none_or(|rounds| row.rounds < rounds) {
        let round = async {
            next.tick().await;
            system.broadcast(&mut row).await
        };
        tokio::select! {
            done = round => done?,
            () = &mut signal => break,
        }
        screen.show(&row);
    }
    finish(system, &row).await
}

async fn finish(system: System, row: &Row) -> Result<bool, String> {
    let agents = system.agents();
    println!("\nstopping the gateway");
    let Farewell {
        sent,
        unsent,
        disconnected,
    } = system.stop().await;
    println!(
        "done: {} broadcasts, {} answers, {} missing; {disconnected} of {agents} sessions were \
         reported to the server as ended ({sent} notices sent while stopping, {unsent} not sent)",
        row.rounds, row.answers, row.missing
    );
    Ok(row.missing == 0 && row.wrong == 0)
}
