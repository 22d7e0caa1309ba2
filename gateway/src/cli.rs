//! The command line: arguments, and the sub-commands that only look at the configuration.
//!
//! Responsible for what is printed where, and for exit codes. Must never know a key.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use yuzu_gateway::config::{self, Loaded, Refused, Source};

/// Command-plane gateway between fleets of endpoint agents and their control-plane server.
#[derive(Debug, Parser)]
#[command(name = "yuzu-gateway", version, about, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve until SIGTERM or Ctrl-C; a second one stops at once. SIGHUP reads the configuration
    /// again.
    Run(FileArgument),
    /// Print every problem of the configuration.
    Check(FileArgument),
    /// Print the configuration in force as TOML, each value with where it came from.
    Config(FileArgument),
    /// Ask a running node about the other gateways.
    #[command(subcommand)]
    Cluster(ClusterCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Print the nodes that it has a proven connection with, and itself.
    Members(MembersArguments),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct MembersArguments {
    /// Where its health endpoint is; the default is `observe.health_address` of the configuration.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) health: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) file: FileArgument,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct FileArgument {
    /// The configuration file; without one the defaults are in force. YUZU_GW_* variables win over
    /// either.
    #[arg(long = "config", value_name = "FILE")]
    pub(crate) path: Option<PathBuf>,
}

const EXIT_CODES: &str = "\
Exit codes:
  run     0 everything was delivered before the stop
          1 something was left unsent, or a second signal came
          2 the configuration was refused
          3 the start failed: an address is taken, say
          4 its tasks kept panicking: a new process may do better
  check   0 nothing to say
          1 warnings only: it would start
          2 it would refuse to start
  config  0 printed
          2 it would refuse to start
  cluster 0 printed
          1 the node is not clustered
          2 the configuration, read for the address, was refused
          3 the node did not answer
  Wrong arguments and output that can not be written end with 2 too.";

/// Stopped with something unsent; warnings in a check.
pub(crate) const INCOMPLETE: u8 = 1;
/// Refused to start.
pub(crate) const REFUSED: u8 = 2;
/// Nothing is wrong with the configuration; another attempt may succeed.
pub(crate) const FAILED: u8 = 3;
/// Top-level tasks panicked more than 10 times within 60 s (GEN-3).
pub(crate) const GAVE_UP: u8 = 4;

impl FileArgument {
    pub(crate) fn load(&self) -> Result<Loaded, Refused> {
        config::load(&Source::read(self.path.as_deref())?)
    }
}

/// `check`: one line per problem on standard output.
pub(crate) fn check(file: &FileArgument) -> ExitCode {
    let (problems, starts) = match file.load() {
        Ok(loaded) => (loaded.warnings, true),
        Err(refused) => (refused.problems, false),
    };
    let mut text = String::new();
    for problem in &problems {
        let level = if problem.is_refusal() {
            "refused"
        } else {
            "warning"
        };
        text.push_str(&format!("{level}: {problem}\n"));
    }
    let plural = if problems.len() == 1 { "" } else { "s" };
    let (summary, code) = match (problems.len(), starts) {
        (0, _) => ("no problems".into(), ExitCode::SUCCESS),
        (count, true) => (
            format!("{count} warning{plural}: it would start"),
            INCOMPLETE.into(),
        ),
        (count, false) => (
            format!("{count} problem{plural}: it would refuse to start"),
            REFUSED.into(),
        ),
    };
    print(&format!("{text}{summary}\n"), code)
}

/// `config`: TOML on standard output, warnings on standard error.
pub(crate) fn config(file: &FileArgument) -> ExitCode {
    match file.load() {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                complain(&format!("warning: {warning}"));
            }
            print(&loaded.to_toml(), ExitCode::SUCCESS)
        }
        Err(refused) => refuse(&refused),
    }
}

/// One CRITICAL line per refusal, warnings too, on standard error: what is logged elsewhere is
/// configured by what was just refused (BOOT-19).
pub(crate) fn refuse(refused: &Refused) -> ExitCode {
    for problem in &refused.problems {
        match problem.critical_line() {
            Some(line) => complain(&format!("CRITICAL {line}")),
            None => complain(&format!("WARN {problem}")),
        }
    }
    REFUSED.into()
}

/// A reader that has seen enough is no failure, and never a panic as with `println!`.
pub(crate) fn print(text: &str, code: ExitCode) -> ExitCode {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain(&format!("the output could not be written: {error}"));
            REFUSED.into()
        }
        _ => code,
    }
}

pub(crate) fn complain(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
