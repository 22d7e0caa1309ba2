//! What a notice costs that waits for a server.
//!
//! It is the first of all scenarios: in memory that one before it gave back, notices would cost
//! nothing.

use crate::report::Report;
use std::sync::Arc;
use yuzu_gateway::config::Config;
use yuzu_gateway::notify::{Event, Notice, Notifier};
use yuzu_gateway::observe::metrics::Metrics;
use yuzu_gateway::upstream::Upstream;
use yuzu_tests::process::anonymous_memory_of;

pub(crate) const ABOUT: &str = "memory of 100,000 notices that no server takes, and of 180,000";

pub(crate) const AGENTS: usize = 100_000;
/// As many as the gateway holds by default, for as many agents.
const MORE: (usize, usize) = (9, 5);
/// The old gateway's.
const EACH: u64 = 855;
/// What is in one: less would say that memory was not measured.
const IDS: u64 = 36 + 43 + 32;
/// Of 180,000, in bytes.
const ALL: u64 = 160_000_000;
const OF: u64 = 180_000;

pub(crate) async fn run(agents: usize) -> Result<Report, String> {
    if agents == 0 {
        return Err("--agents must be at least 1".into());
    }
    let more = agents * MORE.0 / MORE.1;
    let mut config = Config::default();
    // Nowhere to send them.
    config.upstream.endpoints.clear();
    config.notify.pending_max = more;
    let metrics = Arc::new(Metrics::new("gw1").map_err(|e| e.to_string())?);
    let upstream = Upstream::start(&config.upstream, Arc::clone(&metrics));
    let (node, notify) = (&config.node, &config.notify);
    let notifier = Notifier::start(upstream, node, notify, Arc::clone(&metrics), |_| true);
    let held = || u64::try_from(metrics.upstream_notify_pending.get()).unwrap_or_default();
    let mut report = Report::default();
    let before = memory()?;
    for agent in 0..agents {
        notifier.send(notice(agent));
    }
    let grown = memory()?.saturating_sub(before);
    report.exactly("held notices", held(), agents as u64);
    report.at_most("bytes of each", grown / agents as u64, EACH);
    report.at_least("the same, more than its ids", grown / agents as u64, IDS);
    for agent in agents..more {
        notifier.send(notice(agent));
    }
    let grown = memory()?.saturating_sub(before);
    report.exactly("held notices, the most by default", held(), more as u64);
    report.at_most("bytes of all of them", grown, ALL * more as u64 / OF);
    notifier.send(notice(more));
    report.exactly("held after one more", held(), more as u64);
    Ok(report)
}

/// Of this process: what lives in it beside the notices was there before.
fn memory() -> Result<u64, String> {
    anonymous_memory_of(std::process::id())
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
