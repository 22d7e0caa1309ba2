//! Prints what buffering a heartbeat costs, for few sessions and for many: processor time, and the
//! resident memory of this process beside what the buffer accounts for.
//!
//! `cargo run --release -p yuzu-gateway --example held_heartbeats`

#![expect(clippy::print_stdout, reason = "a command-line tool")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use yuzu_gateway::config::Config;
use yuzu_gateway::heartbeat::Batcher;
use yuzu_gateway::observe::metrics::Metrics;
use yuzu_gateway::upstream::Upstream;
use yuzu_proto::agent::v1::HeartbeatRequest;

const HEARTBEATS: usize = 1_000_000;

/// Resident anonymous memory in KiB.
fn resident() -> std::io::Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    kib.ok_or_else(|| std::io::Error::other("no RssAnon in /proc/self/status"))
}

fn batcher(sessions: usize) -> Result<Batcher, Box<dyn std::error::Error>> {
    let mut config = Config::default();
    // Nowhere to send them, and no attempt to.
    config.upstream.endpoints.clear();
    config.heartbeat.batch_interval = Duration::from_secs(3_600);
    config.heartbeat.max_sessions = sessions;
    let metrics = Arc::new(Metrics::new("gw1")?);
    let upstream = Upstream::start(&config.upstream, Arc::clone(&metrics));
    Ok(Batcher::start(
        upstream,
        "gw1",
        &config.heartbeat,
        metrics,
        |_, _| {},
    ))
}

/// A heartbeat of a usual size, whose session is set in place: what agents send is in the cache
/// when it is buffered, so it must be here.
struct Sample {
    heartbeat: Vec<u8>,
    session: std::ops::Range<usize>,
}

impl Sample {
    fn new() -> Self {
        let tag = |n: usize| (format!("status.tag.{n}"), format!("value of {n}"));
        let heartbeat = HeartbeatRequest {
            session_id: format!("gw-session-{:032x}", 0),
            status_tags: (0..5).map(tag).collect(),
            ..HeartbeatRequest::default()
        };
        Self {
            // The session id is the first field: a byte of tag, and one of length.
            session: 2..45,
            heartbeat: heartbeat.encode_to_vec(),
        }
    }

    fn push(&mut self, batcher: &Batcher, session: usize) {
        let digits = &mut self.heartbeat[self.session.end - 8..self.session.end];
        for (place, digit) in digits.iter_mut().rev().enumerate() {
            *digit = b"0123456789abcdef"[session >> (4 * place) & 15];
        }
        let id = std::str::from_utf8(&self.heartbeat[self.session.clone()]).unwrap_or_default();
        batcher.push(id, &self.heartbeat);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut sample = Sample::new();
    let size = sample.heartbeat.len();
    for sessions in [1_000, 10_000, 50_000] {
        let before = resident()?;
        let batcher = batcher(sessions)?;
        let mut all = |count: usize| {
            let began = Instant::now();
            for n in 0..count {
                // In no order that a cache could foresee: 7,919 is prime.
                sample.push(&batcher, n * 7_919 % sessions);
            }
            began.elapsed()
        };
        all(sessions);
        let held = (resident()? - before) * 1024;
        let fastest = (0..5).map(|_| all(HEARTBEATS)).min().unwrap_or_default();
        println!(
            "{sessions} sessions: {} ns a heartbeat of {} bytes, which holds {} bytes",
            fastest.as_nanos() / HEARTBEATS as u128,
            size,
            held / sessions,
        );
    }
    Ok(())
}
