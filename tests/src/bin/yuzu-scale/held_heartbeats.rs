//! How many snapshots the heartbeats hold that wait for a server, and what they cost.
//!
//! Their memory counts from before the first of them: later ones are where those before were, and
//! what a scenario before this one gave back is used again.

use crate::report::Report;
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use yuzu_gateway::config::Config;
use yuzu_gateway::heartbeat::Batcher;
use yuzu_gateway::observe::metrics::Metrics;
use yuzu_gateway::upstream::Upstream;
use yuzu_proto::agent::v1::HeartbeatRequest;
use yuzu_tests::process::anonymous_memory_of;

pub(crate) const ABOUT: &str =
    "snapshots of 200 KB and of 800 KB that no server takes, in 64 MiB: how many, and memory";

/// More than there is room for.
pub(crate) const AGENTS: usize = 1_000;
/// Of a snapshot in bytes, and how many of them fit at least.
const SIZES: [(usize, u64); 2] = [(200_000, 330), (800_000, 80)];
/// `heartbeat.max_bytes` by default.
const ROOM: usize = 64 << 20;
/// A size class of the allocator is at most a quarter larger than what is in it.
const CLASS: f64 = 1.25;
/// What a heartbeat holds without its snapshot (HB-10), at most, in bytes.
const REST: usize = 600;

pub(crate) async fn run(agents: usize) -> Result<Report, String> {
    let most = ROOM / SIZES[0].0;
    if agents <= most {
        return Err(format!("--agents must be above {most}: that many fit"));
    }
    let mut report = Report::default();
    let before = memory()?;
    for (bytes, least) in SIZES {
        hold(&mut report, agents, bytes, least, before)?;
    }
    Ok(report)
}

/// One heartbeat of each agent, with a snapshot.
fn hold(
    report: &mut Report,
    agents: usize,
    bytes: usize,
    least: u64,
    before: u64,
) -> Result<(), String> {
    let mut config = Config::default();
    // Nowhere to send them, and no attempt to.
    config.upstream.endpoints.clear();
    config.heartbeat.batch_interval = Duration::from_secs(3_600);
    config.heartbeat.max_sessions = agents;
    let room = config.heartbeat.max_bytes;
    let metrics = Arc::new(Metrics::new("gw1").map_err(|e| e.to_string())?);
    let upstream = Upstream::start(&config.upstream, Arc::clone(&metrics));
    let counts = Arc::clone(&metrics);
    let batcher = Batcher::start(upstream, "gw1", &config.heartbeat, metrics, |_, _| {});
    for agent in 0..agents {
        let session_id = format!("gw-session-{agent:032x}");
        let heartbeat = HeartbeatRequest {
            session_id: session_id.clone(),
            fleet_snapshot_json: vec![b'{'; bytes].into(),
            ..HeartbeatRequest::default()
        };
        batcher.push(&session_id, &heartbeat.encode_to_vec());
    }
    let grown = memory()?.saturating_sub(before);
    let lost = |reason| {
        let lost = &counts.heartbeat_buffer_dropped_total;
        lost.with_label_values(&[reason]).get()
    };
    let held = agents as u64 - lost("snapshot_evicted");
    let name = |what: &str| format!("{} KB: {what}", bytes / 1_000);
    report.exactly(&name("room, bytes"), room as u64, ROOM as u64);
    report.at_least(&name("snapshots held"), held, least);
    report.at_most(&name("the same"), held, (ROOM / bytes) as u64);
    report.exactly(&name("heartbeats dropped"), lost("buffer_full"), 0);
    let most = ((ROOM + REST * agents) as f64 * CLASS) as u64;
    report.at_most(&name("memory, MiB"), grown >> 20, most >> 20);
    Ok(())
}

/// Of this process.
fn memory() -> Result<u64, String> {
    anonymous_memory_of(std::process::id())
}
