//! The command line: its grammar, its help and its exit codes.
//!
//! Responsible for choosing the sub-command. Must never print a secret the user did not ask for.

mod agents;
mod send;
mod serve;
mod text;
mod watch;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use rustls::ClientConfig;
use yuzu_server_stub::operator::{ConnectError, Operator};
use yuzu_server_stub::tls::{self, Identity, TlsError};

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
    /// Management listener of the gateway, host:port
    #[arg(long, default_value = "127.0.0.1:50063", value_name = "ADDR")]
    gateway: String,
    /// CA of the gateway's certificate; without it the connection is plaintext
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Certificate that is shown to the gateway
    #[arg(long, value_name = "FILE", requires = "tls_ca", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Name in the gateway's certificate; not given: the host of its address
    #[arg(long, value_name = "NAME", requires = "tls_ca")]
    tls_name: Option<String>,
}

impl Gateway {
    /// Connects, or says why not and returns the exit code.
    async fn connect(&self) -> Result<Operator, u8> {
        let name = self.tls_name.as_deref();
        let connected = match self.tls()? {
            None => Operator::connect(&self.gateway, CONNECT_TIMEOUT).await,
            Some(tls) => Operator::connect_tls(&self.gateway, CONNECT_TIMEOUT, tls, name).await,
        };
        connected.map_err(|error| {
            eprintln!("error: {}", with_causes(&error));
            match error {
                ConnectError::Address(_) => EXIT_USAGE,
                ConnectError::Connection { .. } => EXIT_CALL,
            }
        })
    }

    fn tls(&self) -> Result<Option<Arc<ClientConfig>>, u8> {
        let Some(ca) = &self.tls_ca else {
            return Ok(None);
        };
        let own = self.tls_cert.as_deref().zip(self.tls_key.as_deref());
        let own = own.map(|(certificate, key)| Identity { certificate, key });
        tls::client(ca, own).map(Some).map_err(bad_files)
    }
}

/// Says which TLS file is at fault.
fn bad_files(error: TlsError) -> u8 {
    eprintln!("error: {error}");
    EXIT_USAGE
}

/// An error and what is behind it, each once.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let causes = std::iter::successors(error.source(), |cause: &&dyn Error| (*cause).source());
    for cause in causes.map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
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
