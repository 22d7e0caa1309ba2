//! The binary: arguments in, exit code out.

mod cli;
mod run;

use std::process::ExitCode;

use clap::Parser;

use cli::{Arguments, Command};

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(file) => run::run(&file),
        Command::Check(file) => cli::check(&file),
        Command::Config(file) => cli::config(&file),
    }
}
