//! The binary: arguments in, exit code out.

mod cli;

use std::process::ExitCode;

use clap::Parser;

use cli::{Arguments, Command};

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(_) => ExitCode::from(cli::REFUSED),
        Command::Check(file) => cli::check(&file),
        Command::Config(file) => cli::config(&file),
    }
}
