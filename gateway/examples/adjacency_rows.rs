//! Prints what a million agents of peers cost in the adjacency table, by the resident memory of this
//! process, and how long peers' snapshots take while agents are looked up (ADJ-4).
//!
//! `cargo run --release -p yuzu-gateway --features bench --example adjacency_rows`

#![expect(clippy::print_stdout, reason = "a command-line tool")]

use std::time::{Duration, Instant};

use yuzu_gateway::bench::Peers;

const AGENTS: usize = 1_000_000;
const PEERS: usize = 10;
/// Goes through the agents in an order that no cache foresees: prime, and no divisor of them.
const STRIDE: usize = 7_919;

/// Resident anonymous memory in bytes.
fn resident() -> std::io::Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok());
    kib.map(|kib| kib * 1024)
        .ok_or_else(|| std::io::Error::other("no RssAnon in /proc/self/status"))
}

/// Applies the snapshots of all peers; how long all took, and the longest step of them.
fn apply_all(peers: &Peers) -> std::io::Result<(usize, Duration, Duration)> {
    let (mut grown, mut all, mut longest) = (0, Duration::ZERO, Duration::ZERO);
    for peer in 0..PEERS {
        // Its frames are there before and after: what grows is the table.
        let snapshot = peers.snapshot(peer);
        let before = resident()?;
        let mut step = Instant::now();
        peers.apply(peer, &snapshot, || {
            longest = longest.max(step.elapsed());
            all += step.elapsed();
            step = Instant::now();
        });
        grown += resident()?.saturating_sub(before);
    }
    Ok((grown, all, longest))
}

fn main() -> std::io::Result<()> {
    let peers = Peers::new(PEERS, AGENTS);
    let (grown, all, longest) = apply_all(&peers)?;
    let rows = peers.rows();
    println!(
        "{rows} rows: {} MiB, {} bytes each",
        grown >> 20,
        grown / rows
    );
    println!(
        "snapshots of {} rows: {:.1?} each, the longest step {longest:.1?}",
        AGENTS / PEERS,
        all / PEERS as u32
    );
    let (_, again, _) = apply_all(&peers)?;
    println!("the same once more: {:.1?} each", again / PEERS as u32);
    let started = Instant::now();
    let found = (0..AGENTS)
        .filter(|n| peers.find(n * STRIDE % AGENTS))
        .count();
    let each = started.elapsed() / AGENTS as u32;
    println!("{found} agents found, {each:.1?} each");
    Ok(())
}
