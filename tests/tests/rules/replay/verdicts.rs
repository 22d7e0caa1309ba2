//! Verdicts that a server would not give, and those that it gives at a bad time.

use super::*;
use bytes::Bytes;
use yuzu_proto::wire::put_bytes_field;
use yuzu_server_stub::{Action, Fault, Garbage};

/// An answer that lists these ids, text or not.
fn verdict<T: AsRef<[u8]>>(ids: impl IntoIterator<Item = T>, truncated: bool) -> Bytes {
    let mut answer = Vec::new();
    for id in ids {
        put_bytes_field(&mut answer, 2, id.as_ref());
    }
    if truncated {
        answer.extend([3 << 3, 1]);
    }
    answer.into()
}

/// The answer to the next batch, and to no other.
async fn answer_once(bed: &TestBed, agent: &Agent, answer: Bytes) {
    let once = Fault::new(Rpc::BatchHeartbeat, Action::Answer(answer)).times(1);
    bed.server.fault(once).unwrap();
    agent.heartbeat().await.unwrap();
}

async fn dropped(bed: &TestBed, reason: &str, wanted: f64) {
    let labels = [("reason", reason)];
    let name = "heartbeat_verdict_dropped_total";
    bed.metric_becomes(name, &labels, wanted).await;
}

#[tokio::test]
async fn replay_2_each_id_is_counted_where_it_belongs() {
    let bed = bed().await;
    let agent = bed.agent("a").await;
    let (long, longer, edge) = ("x".repeat(65), "x".repeat(100), "x".repeat(64));
    let ids: [&[u8]; 9] = [
        long.as_bytes(),
        longer.as_bytes(),
        b"",
        edge.as_bytes(),
        b"not held",
        b"not held",
        b"\xff\xfe not text",
        agent.session_id.as_bytes(),
        agent.session_id.as_bytes(),
    ];
    answer_once(&bed, &agent, verdict(ids, false)).await;
    dropped(&bed, "not_local", 3.0).await;
    dropped(&bed, "malformed", 3.0).await;
    let all = replayed(&bed, 1).await;
    assert!(all == [agent.session_id.clone()], "once");
    dropped(&bed, "circuit_open", 0.0).await;
    dropped(&bed, "queue_full", 0.0).await;
    assert_eq!(triggered(&bed, "heartbeat").await, 1.0);
}

#[tokio::test]
async fn replay_2_and_3_of_4100_ids_4096_are_used_and_the_flag_is_counted() {
    let bed = bed().await;
    let agent = bed.agent("a").await;
    let ids = (0..4_100).map(|id| format!("gw-session-{id:032x}"));
    answer_once(&bed, &agent, verdict(ids, true)).await;
    dropped(&bed, "not_local", 4_096.0).await;
    dropped(&bed, "malformed", 0.0).await;
    bed.metric_becomes("heartbeat_unknown_truncated_total", &[], 1.0)
        .await;
    // Evidence of a lost state, although nobody here was named.
    let all = replayed(&bed, 1).await;
    assert!(all == [agent.session_id.clone()]);
    assert_eq!(triggered(&bed, "server_lost_state").await, 1.0);
    assert_eq!(triggered(&bed, "heartbeat").await, 0.0);
}

#[tokio::test]
async fn replay_6_what_the_queue_has_no_place_for_is_counted() {
    let bed = bed_with(|config| {
        config.replay.queue_max = 5;
        // One after the other, so that the order of the queue is that of the wire.
        config.upstream.replay_concurrency = 1;
    })
    .await;
    let mut agents = Vec::new();
    for number in 0..30 {
        agents.push(bed.agent(&format!("agent-{number:02}")).await);
    }
    let ids: Vec<_> = agents.iter().map(|a| a.session_id.clone()).collect();
    answer_once(&bed, &agents[0], verdict(&ids, false)).await;
    dropped(&bed, "queue_full", 25.0).await;
    // The full replay that follows is not bounded by the cap: REPLAY-10.
    let mut all = replayed(&bed, 30).await;
    let mut expected = ids;
    expected.sort();
    assert!(all[..5] == expected[..5], "in the order of their ids");
    all.sort();
    assert!(all == expected, "each once");
}

#[tokio::test]
async fn replay_7_one_of_many_is_replayed_alone() {
    let setup = |config: &mut Config| config.heartbeat.batch_interval = Duration::from_secs(1);
    let bed = bed_with(setup).await;
    let mut agents = Vec::new();
    for number in 0..10 {
        agents.push(bed.agent(&format!("agent-{number}")).await);
    }
    let forgotten = agents[3].session_id.clone();
    assert!(bed.server.forget_session(&forgotten));
    // Just after a flush, so that one batch holds them all.
    agents[0].heartbeat().await.unwrap();
    let wait = bed.server.wait_received(Rpc::BatchHeartbeat, 1, PATIENCE);
    wait.await.unwrap();
    for agent in &agents {
        agent.heartbeat().await.unwrap();
    }
    let all = replayed(&bed, 1).await;
    assert!(all == [forgotten]);
    all_connected(&bed, 10).await;
    assert_eq!(triggered(&bed, "heartbeat").await, 1.0);
    assert_eq!(triggered(&bed, "server_lost_state").await, 0.0);
    assert_eq!(attempts(&bed).await, 1.0);
}

#[tokio::test]
async fn replay_20_an_answer_that_is_no_message_is_no_verdict_and_the_flush_succeeded() {
    let bed = bed().await;
    let agent = bed.agent("a").await;
    let garbage = Action::Garbage(Garbage::Message);
    bed.server
        .fault(Fault::new(Rpc::BatchHeartbeat, garbage).times(1))
        .unwrap();
    agent.heartbeat().await.unwrap();
    let broken = |state: &State| (state.counts(Rpc::BatchHeartbeat).broken == 1).then_some(());
    let wait = bed.server.wait_for("the garbage", PATIENCE, broken);
    wait.await.unwrap();
    let other = bed.agent("b").await;
    other.heartbeat().await.unwrap();
    let batch = |state: &State| {
        let received = state.received(Rpc::BatchHeartbeat).nth(1)?;
        received.heartbeats()
    };
    let wait = bed.server.wait_for("the next batch", PATIENCE, batch);
    let heartbeats = wait.await.unwrap().heartbeats;
    assert_eq!(heartbeats.len(), 1, "the first one was taken");
    assert!(heartbeats[0].session_id == other.session_id);
    let errors = bed.metrics().await;
    let labels = [("rpc_name", "batch_heartbeat")];
    let errors = errors.value("yuzu_gw_upstream_rpc_errors_total", &labels);
    assert_eq!(errors, Some(0.0));
    assert_eq!(attempts(&bed).await, 0.0);
}

#[tokio::test]
async fn replay_20_a_server_that_lists_nobody_changes_nothing() {
    let bed = bed().await;
    let agent = bed.agent("a").await;
    answer_once(&bed, &agent, Bytes::new()).await;
    agent.heartbeat().await.unwrap();
    let flushed = |state: &State| (state.counts(Rpc::BatchHeartbeat).ok >= 1).then_some(());
    let wait = bed.server.wait_for("a flush", PATIENCE, flushed);
    wait.await.unwrap();
    for reason in ["malformed", "not_local", "circuit_open", "queue_full"] {
        dropped(&bed, reason, 0.0).await;
    }
    assert!(bed.server.view(replays).is_empty());
}
