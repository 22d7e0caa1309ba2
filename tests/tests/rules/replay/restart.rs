//! Servers that come back without their sessions, and servers that lost nothing.

use super::*;
use crate::support::{command, serve_one};
use yuzu_server_stub::{Action, Fault};
use yuzu_tests::broadcast::broadcast;
use yuzu_tests::fleet::{self, Fleet, Options};

const AGENTS: usize = 60;

fn beating(bed: &TestBed) -> Options {
    Options {
        heartbeat: Some(Duration::from_millis(300)),
        ..bed.fleet(AGENTS)
    }
}

/// No stream ended, no call failed, nobody registered again.
fn noticed_nothing(seen: &fleet::Snapshot) {
    let agents = AGENTS as u64;
    assert_eq!((seen.registrations, seen.subscribed), (agents, agents));
    assert_eq!((seen.reconnects, seen.connects), (0, agents));
    let ok = fleet::Outcome::Status(0);
    assert!(seen.ends.keys().all(|(_, end)| *end == ok), "{seen:?}");
    assert_eq!(seen.ends_of(fleet::Rpc::Subscribe, ok), 0);
}

#[tokio::test]
async fn replay_8_a_server_that_forgot_all_gets_each_agent_back_once_and_none_notices() {
    let bed = bed().await;
    let fleet = Fleet::start(beating(&bed));
    fleet.all_subscribed(PATIENCE).await.unwrap();
    all_connected(&bed, AGENTS).await;
    let before = bed.server.view(routes);

    let slow = Fault::new(Rpc::ProxyRegister, Action::Delay(Duration::from_millis(20)));
    bed.server.fault(slow).unwrap();
    bed.server.simulate_restart(Restart::default());
    replayed(&bed, 1).await;
    let operator = bed.operator().await;
    let round = broadcast(&operator, command("meanwhile"), 20)
        .await
        .unwrap();
    assert_eq!((round.tally.answered(), round.tally.failures), (AGENTS, 0));
    all_connected(&bed, AGENTS).await;
    notices_settled(&bed).await;

    assert!(bed.server.view(routes) == before, "the same streams");
    let mut replays = bed.server.view(replays);
    replays.sort();
    let mut sessions: Vec<_> = before.values().map(|r| r.session_id.to_string()).collect();
    sessions.sort();
    assert!(replays == sessions, "each session once");
    for session in &sessions {
        let expected = [Event::Connected, Event::Connected];
        assert_eq!(events(&bed, session), expected, "told again, once");
    }
    noticed_nothing(&fleet.snapshot());
    assert_eq!(triggered(&bed, "server_lost_state").await, 1.0);
    assert_eq!(attempts(&bed).await, AGENTS as f64);
    let depth = bed.metric("registration_replay_queue_depth", &[]).await;
    assert_eq!(depth, 0.0);
    fleet.stop().await;
}

#[tokio::test]
async fn replay_1_a_connection_that_is_reset_replays_nothing_and_repeats_no_connected() {
    let bed = bed().await;
    let fleet = Fleet::start(beating(&bed));
    fleet.all_subscribed(PATIENCE).await.unwrap();
    all_connected(&bed, AGENTS).await;
    notices_settled(&bed).await;
    let counts = |rpc: Rpc| bed.server.view(|state| state.counts(rpc).received);
    let notices = counts(Rpc::NotifyStreamStatus);

    assert_eq!(bed.server.drop_connections(), 1);
    let flushed = counts(Rpc::BatchHeartbeat) + 10;
    let wait = bed
        .server
        .wait_received(Rpc::BatchHeartbeat, flushed, PATIENCE);
    wait.await.unwrap();
    assert_eq!(bed.server.view(State::connections_accepted), 2);
    assert_eq!(counts(Rpc::ProxyRegister), AGENTS as u64);
    assert_eq!(counts(Rpc::NotifyStreamStatus), notices);
    assert_eq!(attempts(&bed).await, 0.0);
    noticed_nothing(&fleet.snapshot());
    fleet.stop().await;
}

#[tokio::test]
async fn replay_1_a_breaker_that_opens_and_closes_again_replays_nothing() {
    let bed = bed_with(|config| {
        config.upstream.breaker.failure_threshold = 1;
        config.upstream.breaker.reset_timeout = Duration::from_millis(100);
    })
    .await;
    let agent = bed.agent("a").await;
    let down = Action::Status(tonic::Code::Unavailable, String::new());
    bed.server
        .fault(Fault::new(Rpc::ProxyRegister, down).times(1))
        .unwrap();
    let mut other = bed.bare_agent("b").await;
    other.register().await.unwrap_err();
    soon("a closed breaker", async {
        while other.register().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let closed = [("state", "closed")];
    bed.metric_becomes("upstream_circuit_transitions_total", &closed, 1.0)
        .await;
    agent.heartbeat().await.unwrap();
    let flushed = |state: &State| (state.counts(Rpc::BatchHeartbeat).ok >= 1).then_some(());
    let wait = bed.server.wait_for("a flush", PATIENCE, flushed);
    wait.await.unwrap();
    assert!(bed.server.view(replays).is_empty());
    assert_eq!(events(&bed, &agent.session_id), [Event::Connected]);
}

#[tokio::test]
async fn replay_13_and_14_the_stored_request_under_its_session_then_connected_as_before() {
    let bed = bed().await;
    let mut agent = bed.agent("a").await;
    let first = bed.server.received(Rpc::ProxyRegister).remove(0);
    forget_and_beat(&bed, &agent).await;
    all_connected(&bed, 1).await;
    let replay = bed.server.received(Rpc::ProxyRegister).remove(1);
    assert_eq!(replay.raw, first.raw, "byte for byte");
    assert_eq!(first.presented_session, None);
    assert!(replay.presented_session.as_ref() == Some(&agent.session_id));
    assert!(replay.other_metadata.is_empty());
    let timeout = replay.grpc_timeout.unwrap();
    let timeout: u32 = timeout.trim_end_matches('m').parse().unwrap();
    assert!((4_000..=5_000).contains(&timeout), "{timeout} ms");

    notices_settled(&bed).await;
    let notices = bed.notices_of(&agent.session_id);
    assert_eq!(notices.len(), 2);
    assert!(notices[0] == notices[1], "stream home, node and all");
    // The same stream goes on.
    let operator = bed.operator().await;
    let mut fanout = operator.send(&["a"], command("c"), 20).await.unwrap();
    serve_one(&mut agent).await;
    assert_eq!(fanout.rest().await.unwrap().0.len(), 1);
}

#[tokio::test]
async fn replay_9_a_second_loss_within_a_minute_replays_only_who_is_named() {
    let bed = bed_with(|config| config.replay.session_guard = Duration::ZERO).await;
    let (first, second) = (bed.agent("a").await, bed.agent("b").await);
    forget_and_beat(&bed, &first).await;
    replayed(&bed, 2).await;
    all_connected(&bed, 2).await;
    notices_settled(&bed).await;

    forget_and_beat(&bed, &second).await;
    let all = replayed(&bed, 3).await;
    assert!(all[2] == second.session_id);
    let connected = |state: &State| state.knows_session(&second.session_id).then_some(());
    let wait = bed.server.wait_for("the second", PATIENCE, connected);
    wait.await.unwrap();
    assert_eq!(triggered(&bed, "server_lost_state").await, 1.0);
    assert_eq!(triggered(&bed, "heartbeat").await, 2.0);
    let forgotten = bed.server.view(|s| !s.knows_session(&first.session_id));
    assert!(forgotten, "nobody named it");
    assert_eq!(attempts(&bed).await, 3.0);
}

#[tokio::test]
async fn notify_14_a_lost_connected_registers_every_agent_anew() {
    let bed = bed().await;
    let agent = bed.agent("a").await;
    let not_this = Action::Status(tonic::Code::InvalidArgument, String::new());
    bed.server
        .fault(Fault::new(Rpc::NotifyStreamStatus, not_this).times(1))
        .unwrap();
    let lost = bed.agent("lost").await;
    let all = replayed(&bed, 2).await;
    assert!(all == [agent.session_id.clone(), lost.session_id.clone()]);
    all_connected(&bed, 2).await;
    assert_eq!(triggered(&bed, "notify_loss").await, 1.0);
    assert_eq!(attempts(&bed).await, 2.0);
    let labels = [("event", "connected"), ("reason", "rejected")];
    let losses = bed.metric("upstream_notify_lost_total", &labels).await;
    assert_eq!(losses, 1.0);
}
