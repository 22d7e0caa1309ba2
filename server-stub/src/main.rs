//! `yuzu-server-stub`: the control plane for development, and the operator's side of a gateway.
//!
//! Responsible for the command line only. The work is in the library.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line talks to its user"
)]

mod cli;

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    cli::run().await
}
