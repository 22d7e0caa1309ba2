//! `yuzu-sim --seeds FROM..TO`: lives seeds through and says which of them went wrong.
//!
//! Each seed has a process of its own: numbers that are counted over the life of a process would
//! otherwise differ from run to run. Must never decide what is wrong.

use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use tracing_subscriber::EnvFilter;

#[derive(Parser)]
#[command(about)]
struct Arguments {
    /// FROM..TO, TO excluded; or one seed, whose events are told.
    #[arg(long, default_value = "0..20", value_parser = seeds)]
    seeds: (u64, u64),
    /// Seeds at once.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Lives each seed twice and fails if anything differs.
    #[arg(long)]
    twice: bool,
    /// Goes on after a seed that failed.
    #[arg(long)]
    keep_going: bool,
    /// Lives this seed alone and tells nothing but how it ended.
    #[arg(long, hide = true)]
    only: Option<u64>,
}

fn seeds(text: &str) -> Result<(u64, u64), String> {
    let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
    match text.split_once("..") {
        Some((from, to)) => Ok((number(from)?, number(to)?)),
        None => number(text).map(|seed| (seed, seed + 1)),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // RUST_LOG=yuzu_gateway=debug: what the nodes say.
    if std::env::var_os("RUST_LOG").is_some() {
        tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::from_default_env())
            .with_writer(std::io::stderr)
            .without_time()
            .init();
    }
    let (from, to) = arguments.seeds;
    match arguments.only {
        Some(seed) => here(seed, false),
        None if to == from + 1 && !arguments.twice => here(from, true),
        None => many(&arguments),
    }
}

/// Lives a seed through in this process.
fn here(seed: u64, print: bool) -> ExitCode {
    let outcome = yuzu_sim::run(seed, print);
    let held = outcome.wrong.is_empty();
    println!(
        "seed {seed}: {} ({}, {:016x})",
        if held { "held" } else { "FAILED" },
        outcome.counts,
        outcome.digest,
    );
    outcome
        .wrong
        .iter()
        .for_each(|wrong| println!("    {wrong}"));
    match held {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn many(arguments: &Arguments) -> ExitCode {
    let (from, to) = arguments.seeds;
    let started = Instant::now();
    let next = AtomicU64::new(from);
    let failed = Mutex::new(Vec::new());
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        let stop = !arguments.keep_going && !failed.lock().expect("no panic").is_empty();
        if seed >= to || stop {
            return;
        }
        let (held, text) = elsewhere(seed, arguments.twice);
        print!("{text}");
        if !held {
            failed.lock().expect("no panic").push(seed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            scope.spawn(work);
        }
    });
    let mut failed = failed.into_inner().expect("no panic");
    failed.sort_unstable();
    let took = started.elapsed().as_secs_f64();
    let Some(first) = failed.first() else {
        println!("{} seeds held, in {took:.1} s", to - from);
        return ExitCode::SUCCESS;
    };
    println!("{} seeds failed: {failed:?}, in {took:.1} s", failed.len());
    println!("again with: tests/sim/run {first}");
    ExitCode::FAILURE
}

/// Lives a seed through in a process of its own, or in two. Whether it held, and what it says.
fn elsewhere(seed: u64, twice: bool) -> (bool, String) {
    let program = std::env::current_exe().expect("this program");
    let run = || {
        let mut command = Command::new(&program);
        let output = command.args(["--only", &seed.to_string()]).output();
        let output = output.expect("this program runs");
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        // Where a panic was.
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        (output.status.success(), said)
    };
    let (mut held, mut said) = run();
    if twice && run().1 != said {
        held = false;
        said.push_str(&format!(
            "seed {seed}: FAILED, something else happened the second time\n"
        ));
    }
    (held, said)
}
