//! Calls to the server stay under its stream limit, whatever it announces.

use std::collections::HashSet;
use std::time::Duration;

use yuzu_server_stub::{Action, Fault, Rpc, State, StubConfig};
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::testbed::{Setup, TestBed};

/// Registers so many agents at once, each on a connection of its own.
async fn register(
    bed: &TestBed,
    prefix: &str,
    count: usize,
) -> Vec<tokio::task::JoinHandle<Result<String, String>>> {
    let mut calls = Vec::new();
    for n in 0..count {
        let mut agent = bed.bare_agent(&format!("{prefix}-{n}")).await;
        calls.push(tokio::spawn(async move {
            agent.register().await?;
            Ok(agent.session_id.clone())
        }));
    }
    calls
}

async fn all_accepted(calls: Vec<tokio::task::JoinHandle<Result<String, String>>>) -> usize {
    let mut sessions = HashSet::new();
    for call in calls {
        let session = tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap();
        sessions.insert(session.unwrap());
    }
    sessions.len()
}

/// Most streams open at once, and streams refused, over all connections the stub has now.
fn seen(state: &State) -> (u32, u64) {
    let views = state.connections();
    (
        views.iter().map(|view| view.max_streams).max().unwrap_or(0),
        views.iter().map(|view| view.refused_streams).sum(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permit_11_calls_stay_under_a_small_limit_and_none_fails() {
    let server = StubConfig {
        stream_limit: 5,
        ..StubConfig::default()
    };
    let setup = Setup {
        server,
        ..Setup::default()
    };
    let bed = setup.start().await;
    // Overlap: without it each call would be over before the next begins.
    let slow = Fault::new(Rpc::ProxyRegister, Action::Delay(Duration::from_millis(10)));
    bed.server.fault(slow).unwrap();
    let calls = register(&bed, "agent", 100).await;
    assert_eq!(all_accepted(calls).await, 100);
    let (most, refused) = bed.server.view(seen);
    assert!((1..=5).contains(&most), "{most} streams at once");
    assert_eq!(refused, 0);
    assert_eq!(bed.server.view(State::connections_accepted), 1);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permit_10_a_shrinking_limit_refuses_no_stream_and_loses_no_call() {
    let bed = TestBed::start().await;
    bed.server
        .fault(Fault::new(Rpc::ProxyRegister, Action::Hang))
        .unwrap();
    let first = register(&bed, "first", 40).await;
    let hung = |state: &State| (state.counts(Rpc::ProxyRegister).hung == 40).then_some(());
    bed.server
        .wait_for("40 open calls", PATIENCE, hung)
        .await
        .unwrap();

    bed.server.set_stream_limit(4);
    bed.metric_becomes("upstream_server_max_streams", &[], 4.0)
        .await;
    // From here on the stub refuses every stream over four; forty are open.
    let enforced = |state: &State| {
        let views = state.connections();
        views
            .iter()
            .all(|view| view.stream_limit == 4)
            .then_some(())
    };
    bed.server
        .wait_for("the acknowledgement", PATIENCE, enforced)
        .await
        .unwrap();
    let second = register(&bed, "second", 60).await;
    let register = [("class", "register")];
    bed.metric_becomes("upstream_permits_waiting", &register, 60.0)
        .await;
    bed.server.clear_faults(None);
    let slow = Fault::new(Rpc::ProxyRegister, Action::Delay(Duration::from_millis(10)));
    bed.server.fault(slow).unwrap();
    bed.server.release(Some(Rpc::ProxyRegister));

    assert_eq!(all_accepted(first).await, 40);
    assert_eq!(all_accepted(second).await, 60);
    let (most, refused) = bed.server.view(seen);
    assert_eq!((most, refused), (40, 0));
    assert_eq!(bed.server.view(State::connections_accepted), 1);
    let opened = [("state", "open")];
    assert_eq!(
        bed.metric("upstream_circuit_transitions_total", &opened)
            .await,
        0.0
    );
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permit_10_notices_and_heartbeats_share_the_shrunken_connection() {
    let bed = TestBed::start().await;
    let mut agents = Vec::new();
    for n in 0..20 {
        agents.push(bed.agent(&format!("agent-{n}")).await);
    }
    // Far below the ten notices and the flush of heartbeats that may be out at once.
    bed.server.set_stream_limit(2);
    bed.metric_becomes("upstream_server_max_streams", &[], 2.0)
        .await;
    let beats = agents.iter().map(Agent::heartbeat);
    for beat in futures_util::future::join_all(beats).await {
        assert!(beat.unwrap().status.is_ok());
    }
    let sessions: Vec<_> = agents
        .iter()
        .map(|agent| agent.session_id.clone())
        .collect();
    drop(agents);
    for session in &sessions {
        bed.notice(
            yuzu_proto::gateway::v1::stream_status_notification::Event::Disconnected,
            session,
        )
        .await;
    }
    let beaten = |state: &State| {
        let batches = state
            .received(Rpc::BatchHeartbeat)
            .filter_map(|r| r.heartbeats());
        let beats: HashSet<_> = batches
            .flat_map(|batch| batch.heartbeats)
            .map(|beat| beat.session_id)
            .collect();
        sessions
            .iter()
            .all(|session| beats.contains(session))
            .then_some(())
    };
    bed.server
        .wait_for("every heartbeat", PATIENCE, beaten)
        .await
        .unwrap();
    let (_, refused) = bed.server.view(seen);
    assert_eq!(refused, 0);
    bed.stop().await;
}
