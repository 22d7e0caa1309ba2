//! A floor: a server that does the work of a gateway and nothing else.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool"
)]

use clap::Parser;
use std::net::SocketAddr;
use std::process::ExitCode;
use yuzu_tests::floor::{Kind, Listeners, serve};

/// A server that relays between agents, operators and a control plane, without limits, timeouts
/// or metrics: what a gateway is held against. `yuzu-scale floor` starts it.
#[derive(Debug, Parser)]
#[command(name = "yuzu-floor", version)]
struct Arguments {
    /// What it stands on.
    #[arg(long, value_enum)]
    kind: Kind,
    /// Where agents connect.
    #[arg(long)]
    agents_address: SocketAddr,
    /// Where operators connect.
    #[arg(long)]
    management_address: SocketAddr,
    /// Where Registers go.
    #[arg(long)]
    server: SocketAddr,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("yuzu-floor: {problem}");
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), String> {
    let listeners = Listeners::bind(arguments.agents_address, arguments.management_address);
    let listeners = listeners.map_err(|e| e.to_string())?;
    let (agents, management) = listeners.addresses().map_err(|e| e.to_string())?;
    println!("agents connect to {agents}");
    println!("operators connect to {management}");
    serve(arguments.kind, listeners, arguments.server).await
}
