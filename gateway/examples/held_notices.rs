//! Prints what a held stream-status notice costs, by the resident memory of this process.
//!
//! `cargo run --release -p yuzu-gateway --example held_notices`

#![expect(clippy::print_stdout, reason = "a command-line tool")]

use std::sync::Arc;

use yuzu_gateway::config::Config;
use yuzu_gateway::notify::{Event, Notice, Notifier};
use yuzu_gateway::observe::metrics::Metrics;
use yuzu_gateway::upstream::Upstream;

const NOTICES: usize = 100_000;

/// Resident anonymous memory in KiB.
fn resident() -> std::io::Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    kib.ok_or_else(|| std::io::Error::other("no RssAnon in /proc/self/status"))
}

/// With ids as long as those of a fleet, none of them shared with a session.
fn notice(agent: usize) -> Notice {
    Notice {
        agent_id: format!("{agent:08x}-0000-4000-8000-000000000000").into(),
        session_id: format!("gw-session-{agent:032x}").into(),
        stream_home_id: format!("{agent:032x}").into(),
        event: Event::Connected,
        peer: Some([192, 0, 2, 7].into()),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::default();
    // Nowhere to send them.
    config.upstream.endpoints.clear();
    let metrics = Arc::new(Metrics::new("gw1")?);
    let upstream = Upstream::start(&config.upstream, Arc::clone(&metrics));
    let (node, notify) = (&config.node, &config.notify);
    let notifier = Notifier::start(upstream, node, notify, Arc::clone(&metrics), |_| true);
    let before = resident()?;
    for agent in 0..NOTICES {
        notifier.send(notice(agent));
    }
    let grown = (resident()? - before) * 1024;
    let held = metrics.upstream_notify_pending.get();
    println!("{held} held notices: {} bytes each", grown / NOTICES);
    Ok(())
}
