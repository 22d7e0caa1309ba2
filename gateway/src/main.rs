//! The binary: arguments in, exit code out.

#[cfg(feature = "jemalloc")]
mod caches;
mod cli;
mod members;
mod run;
mod systemd;

use std::process::ExitCode;

use clap::Parser;

use cli::{Arguments, ClusterCommand, Command};

/// A thread of its own gives back what has been free for a second (SHED-12).
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(file) => run::run(&file),
        Command::Check(file) => cli::check(&file),
        Command::Config(file) => cli::config(&file),
        Command::Cluster(ClusterCommand::Members(arguments)) => members::print(&arguments),
    }
}
