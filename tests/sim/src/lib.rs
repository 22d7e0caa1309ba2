//! Several gateways on a simulated network, with faults that a seed decides.
//!
//! Responsible for real nodes ([`yuzu_gateway`], built with `--cfg yuzu_simulation`) among simulated
//! agents, callers and a server, all on one thread with a clock of its own, and for judging what
//! happened. Must never wait for the time of this world.

pub mod agent;
pub mod caller;
pub mod judge;
pub mod ledger;
pub mod node;
pub mod pipe;
pub mod plan;
pub mod randomness;
pub mod server;
pub mod verdict;
pub mod world;

use std::hash::{DefaultHasher, Hash, Hasher};

use ledger::{Book, Ledger};
use plan::Plan;

/// How a seed ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What is wrong.
    pub wrong: Vec<String>,
    /// Of all that happened, in order.
    pub digest: u64,
    /// How much there was of everything, for people.
    pub counts: String,
}

/// Lives a seed through on a thread of its own; with `print` it tells what happens.
pub fn run(seed: u64, print: bool) -> Outcome {
    let one = move || {
        randomness::seed_this_thread(seed);
        let plan = Plan::of(seed);
        let ledger = Ledger::new(print);
        let lived = world::live(seed, &plan, &ledger, judge::run);
        let book = ledger.read();
        let mut wrong = verdict::judge(&plan, &book);
        wrong.extend(lived.err());
        let mut digest = DefaultHasher::new();
        book.log.hash(&mut digest);
        Outcome {
            seed,
            wrong,
            digest: digest.finish(),
            counts: counts(&book),
        }
    };
    let thread = std::thread::Builder::new().stack_size(16 << 20).spawn(one);
    thread
        .expect("a thread")
        .join()
        .unwrap_or_else(|_| Outcome {
            seed,
            wrong: vec!["it panicked".into()],
            digest: 0,
            counts: String::new(),
        })
}

fn counts(book: &Book) -> String {
    let said = |what: &str| {
        let entries = book.calls.iter().flat_map(|call| &call.entries);
        entries.filter(|entry| entry.output == what).count()
    };
    let resumed = book.log.lines().filter_map(|line| {
        let (_, rest) = line.split_once(" counts ")?;
        rest.strip_suffix(" sessions resumed")?
            .parse::<usize>()
            .ok()
    });
    format!(
        "{} calls, {} deliveries, {} streams, {} not connected, {} unknown, {} disconnected, {} resumed",
        book.calls.len(),
        book.deliveries.len(),
        book.attached.len(),
        said("not_connected"),
        said("outcome_unknown"),
        said("agent_disconnected"),
        resumed.sum::<usize>(),
    )
}
