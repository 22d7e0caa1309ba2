//! A floor: a server that does the work of a gateway and nothing else.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool"
)]

use clap::Parser;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use yuzu_tests::floor::{Kind, Listeners, serve, server_config};

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
    /// The certificate that agents are served TLS with; plaintext without.
    #[arg(long, requires = "key_file")]
    cert_file: Option<PathBuf>,
    /// Its key.
    #[arg(long, requires = "cert_file")]
    key_file: Option<PathBuf>,
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
    let files = arguments.cert_file.zip(arguments.key_file);
    let tls = files.map(|(certificate, key)| server_config(&certificate, &key));
    let (agents, management) = (arguments.agents_address, arguments.management_address);
    let listeners = Listeners::bind(agents, management, tls.transpose()?);
    let listeners = listeners.map_err(|e| e.to_string())?;
    let (agents, management) = listeners.addresses().map_err(|e| e.to_string())?;
    println!("agents connect to {agents}");
    println!("operators connect to {management}");
    serve(arguments.kind, listeners, arguments.server).await
}
