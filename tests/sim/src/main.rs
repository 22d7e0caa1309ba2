//! `yuzu-sim --seeds FROM..TO`: lives seeds through and says which of them went wrong.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use tracing_subscriber::EnvFilter;

#[derive(Parser)]
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
    let started = Instant::now();
    let next = AtomicU64::new(from);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let stop = !arguments.keep_going && !failed.lock().expect("no panic").is_empty();
                    if seed >= to || stop {
                        return;
                    }
                    if !one(seed, &arguments) {
                        failed.lock().expect("no panic").push(seed);
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().expect("no panic");
    failed.sort_unstable();
    let took = started.elapsed().as_secs_f64();
    if failed.is_empty() {
        println!("{} seeds held, in {took:.1} s", to - from);
        return ExitCode::SUCCESS;
    }
    println!("{} seeds failed: {failed:?}, in {took:.1} s", failed.len());
    println!("again with: tests/sim/run {}", failed[0]);
    ExitCode::FAILURE
}

fn one(seed: u64, arguments: &Arguments) -> bool {
    let (from, to) = arguments.seeds;
    let started = Instant::now();
    let mut outcome = yuzu_sim::run(seed, to - from == 1);
    if arguments.twice {
        let again = yuzu_sim::run(seed, false);
        if again.digest != outcome.digest {
            outcome.wrong.push("something else happened the second time".into());
        }
    }
    let [calls, deliveries, streams] = outcome.counts;
    println!(
        "seed {seed}: {} ({calls} calls, {deliveries} deliveries, {streams} streams, {:016x}, {:.1} s)",
        if outcome.wrong.is_empty() { "held" } else { "FAILED" },
        outcome.digest,
        started.elapsed().as_secs_f64(),
    );
    outcome.wrong.iter().for_each(|wrong| println!("    {wrong}"));
    outcome.wrong.is_empty()
}
