//! REPLAY and NOTIFY-14: sessions that the server lost.

mod answers;
mod drip;
mod restart;
mod verdicts;

use crate::support::soon;
use std::collections::HashMap;
use std::time::Duration;
use yuzu_gateway::config::Config;
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_server_stub::{Restart, Route, RouteState, Rpc, State};
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::testbed::{Setup, TestBed};

/// A bed whose drips begin at once.
async fn bed() -> TestBed {
    bed_with(|_| {}).await
}

async fn bed_with(change: impl FnOnce(&mut Config)) -> TestBed {
    let setup = Setup::default().gateway(|config| {
        config.replay.start_jitter = Duration::ZERO;
        change(config);
    });
    setup.start().await
}

/// The sessions of all replays so far, in the order of their arrival.
fn replays(state: &State) -> Vec<String> {
    let registers = state.received(Rpc::ProxyRegister);
    registers
        .filter_map(|r| r.presented_session.clone())
        .collect()
}

fn routes(state: &State) -> HashMap<String, Route> {
    state
        .routes()
        .map(|route| (route.agent_id.to_string(), route.clone()))
        .collect()
}

/// Waits until this many agents are where they were, CONNECTED and all.
async fn all_connected(bed: &TestBed, agents: usize) {
    let connected = |state: &State| {
        let known = |route: &&Route| {
            route.state == RouteState::Connected && state.knows_session(&route.session_id)
        };
        (state.routes().filter(known).count() == agents).then_some(())
    };
    let wait = bed.server.wait_for("every agent", PATIENCE, connected);
    wait.await.unwrap();
}

/// The server forgets everything, and the agent's next heartbeat tells.
async fn forget_and_beat(bed: &TestBed, agent: &Agent) {
    bed.server.simulate_restart(Restart::default());
    agent.heartbeat().await.unwrap();
}

/// Waits until the server had this many replays.
async fn replayed(bed: &TestBed, count: usize) -> Vec<String> {
    let look = |state: &State| {
        let all = replays(state);
        (all.len() >= count).then_some(all)
    };
    let wait = bed.server.wait_for("replays", PATIENCE, look);
    wait.await.unwrap()
}

/// Events of the notices about this session, in their order.
fn events(bed: &TestBed, session: &str) -> Vec<Event> {
    let notices = bed.notices_of(session);
    notices.iter().map(|notice| notice.event()).collect()
}

/// Waits until the notice store is empty.
async fn notices_settled(bed: &TestBed) {
    soon("settled notices", async {
        bed.metric_becomes("upstream_notify_pending", &[], 0.0)
            .await;
        bed.metric_becomes("upstream_notify_inflight", &[], 0.0)
            .await;
    })
    .await;
}

async fn triggered(bed: &TestBed, trigger: &str) -> f64 {
    bed.metric(
        "registration_replay_triggered_total",
        &[("trigger", trigger)],
    )
    .await
}

async fn attempts(bed: &TestBed) -> f64 {
    bed.metric("registration_replay_total", &[]).await
}
