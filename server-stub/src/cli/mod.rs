//! The command line: its grammar, its help and its exit codes.
//!
//! Responsible for choosing the sub-command. Must never print a secret the user did not ask for.

mod agents;
mod send;
mod serve;
mod text;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use yuzu_server_stub::operator::{ConnectError, Operator};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Everything went well.
const EXIT_OK: u8 = 0;
/// The call worked, the result is not what was asked for.
const EXIT_RESULT: u8 = 1;
/// The command line is wrong.
const EXIT_USAGE: u8 = 2;
/// The gateway can't be reached, ended the call with a status, or the stub can't start.
const EXIT_CALL: u8 = 3;

const EXIT_HELP: &str = "\
Exit codes: 0 all well; 1 the call worked but an agent failed, stayed silent or none answered; \
2 wrong command line; 3 no connection, the call ended with a status, or the stub can't listen.";

/// Control plane for developing and testing a yuzu gateway
#[derive(Parser)]
#[command(name = "yuzu-server-stub", version, after_help = EXIT_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve GatewayUpstream for gateways, with scriptable faults
    Serve(serve::Args),
    /// Dispatch a command through a gateway and print the answers as they arrive
    Send(send::Args),
    /// List the agents that a gateway holds
    Agents(agents::Args),
    /// Print agents as they connect and disconnect
    Watch(watch::Args),
}

pub(crate) async fn run() -> ExitCode {
    let code = match Cli::parse().command {
        Command::Serve(args) => serve::run(args).await,
        Command::Send(args) => send::run(args).await,
        Command::Agents(args) => agents::run(args).await,
        Command::Watch(args) => watch::run(args).await,
    };
    ExitCode::from(code)
}

/// Where the gateway is.
#[derive(clap::Args)]
struct Gateway {
    /// Management listener of the gateway, host:port, plaintext
    #[arg(long, default_value = "127.0.0.1:50063", value_name = "ADDR")]
    gateway: String,
}

impl Gateway {
    /// Connects, or says why not and returns the exit code.
    async fn connect(&self) -> Result<Operator, u8> {
        Operator::connect(&self.gateway, CONNECT_TIMEOUT)
            .await
            .map_err(|error| {
                eprintln!("error: {error}");
                match error {
                    ConnectError::Address(_) => EXIT_USAGE,
                    ConnectError::Connection { .. } => EXIT_CALL,
                }
            })
    }
}

/// Says how the gateway refused.
fn refused(status: &tonic::Status) -> u8 {
    let message = text::printable(status.message(), 300);
    eprintln!(
        "error: the gateway ended the call with {:?}: {message}",
        status.code()
    );
    EXIT_CALL
}
