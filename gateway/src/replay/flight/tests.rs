use yuzu_proto::SESSION_HEADER;

use super::super::queue::Target;
use super::super::testing::*;
use super::*;
use crate::upstream::BreakerState;
use crate::upstream::tests::server::{Reply, Server};
use crate::upstream::tests::{logged, soon};

#[tokio::test]
async fn replay_13_the_stored_request_goes_out_under_its_session_and_is_counted() {
    let mut server = Server::start(|_| accept()).await;
    let node = Node::new(&server, |_| {});
    node.agent("a");
    assert_eq!(node.value(ATTEMPTS), 0.0);
    node.name(&["s-a"]);
    let call = next(&mut server).await;
    assert_eq!(call.path, REGISTER);
    assert_eq!(call.headers[SESSION_HEADER], "s-a");
    let timeout = call.headers["grpc-timeout"].to_str().unwrap();
    let timeout: u32 = timeout.trim_end_matches('m').parse().unwrap();
    assert!((4_000..=5_000).contains(&timeout), "{timeout}");
    assert_eq!(call.message, "request");
    node.quiet().await;
    assert_eq!((node.value(ATTEMPTS), node.value(DEPTH)), (1.0, 0.0));
    assert_eq!(node.triggered("heartbeat"), 1.0);
    assert_eq!(node.triggered("server_lost_state"), 0.0);
}

#[tokio::test]
async fn replay_12_an_agent_that_left_while_its_replay_waited_is_skipped_in_silence() {
    let mut server = Server::gated(|_| accept()).await;
    let node = Node::new(&server, |c| {
        c.upstream.register_concurrency = 1;
        c.upstream.replay_concurrency = 1;
    });
    let live = node.upstream.clone();
    let live = tokio::spawn(async move { live.register(Bytes::from("live"), None, soon()).await });
    next(&mut server).await;
    let (gone, moved, stays) = (node.agent("gone"), node.agent("moved"), node.agent("stays"));
    node.name(&["s-gone", "s-moved", "s-stays"]);
    node.becomes("upstream_permits_waiting{class=\"replay\"}", 1.0)
        .await;
    node.registry.end(&gone);
    let newer = node.agent_with("moved", "s-newer");
    server.gate.add_permits(10);
    assert_eq!(replayed(&mut server).await, "s-stays");
    node.quiet().await;
    live.await.unwrap().unwrap();
    assert_eq!(node.value(ATTEMPTS), 1.0);
    for session in [&gone, &moved, &newer, &stays] {
        assert_eq!(asked(session), None);
    }
}

#[tokio::test]
async fn replay_14_an_accepted_replay_asks_the_owner_for_its_connected() {
    let server = Server::start(|_| accept()).await;
    let node = Node::new(&server, |_| {});
    let (named, other) = (node.agent("a"), node.agent("b"));
    node.name(&["s-a"]);
    node.quiet().await;
    assert!(announces(&named) && !announces(&other));
    assert_eq!((asked(&named), asked(&other)), (None, None));
}

#[tokio::test]
async fn replay_14_whoever_was_adopted_is_announced_whatever_becomes_of_the_next_one() {
    let mut server = Server::gated(|_| accept()).await;
    let node = Node::new(&server, |c| c.upstream.replay_concurrency = 1);
    let [first, gone, last] = ["a", "b", "c"].map(|agent| node.agent(agent));
    node.name(&["s-a", "s-b", "s-c"]);
    assert_eq!(replayed(&mut server).await, "s-a");
    node.registry.end(&gone);
    server.gate.add_permits(1);
    assert_eq!(replayed(&mut server).await, "s-c");
    // While the server still has the last one.
    assert!(announces(&first) && !announces(&last));
    server.gate.add_permits(1);
    node.quiet().await;
    assert!(announces(&last) && !announces(&gone));
}

#[tokio::test]
async fn replay_15_and_16_a_refusal_ends_the_session_that_was_replayed_and_no_newer_one() {
    for reply in [refused(), Reply::Status(9, "superseded")] {
        let mut server = Server::gated(move |_| reply.clone()).await;
        let node = Node::new(&server, |_| {});
        let replayed_one = node.agent("a");
        node.name(&["s-a"]);
        assert_eq!(replayed(&mut server).await, "s-a");
        let newer = node.agent_with("a", "s-newer");
        server.gate.add_permits(1);
        node.quiet().await;
        assert_eq!(asked(&replayed_one), Some(Control::End));
        assert_eq!(asked(&newer), None);
        assert!(!announces(&replayed_one) && !announces(&newer));
        // A success, even to a breaker that one failure opens.
        assert_eq!(node.upstream.breaker_state(), BreakerState::Closed);
        assert_eq!(node.value(ATTEMPTS), 1.0);
    }
}

#[tokio::test]
async fn replay_17_another_failure_keeps_the_session_and_counts_against_the_server() {
    let no_message = Reply::Message(Bytes::from_static(b"\xff\xff"));
    for reply in [Reply::Status(14, "down"), no_message, Reply::Http(502)] {
        let server = Server::start(move |_| reply.clone()).await;
        let node = Node::new(&server, |_| {});
        let session = node.agent("a");
        node.name(&["s-a"]);
        node.becomes("upstream_circuit_transitions_total{state=\"open\"}", 1.0)
            .await;
        node.quiet().await;
        assert_eq!(asked(&session), None);
        assert!(!announces(&session));
        assert_eq!(node.value(ATTEMPTS), 1.0);
    }
}

#[tokio::test]
async fn replay_17_what_can_not_be_encoded_is_skipped_and_says_nothing_of_the_server() {
    let mut server = Server::start(|_| accept()).await;
    let node = Node::new(&server, |c| c.upstream.replay_concurrency = 1);
    let session = node.agent_with("a", "no\nheader");
    node.agent("b");
    node.name(&["no\nheader", "s-b"]);
    assert_eq!(replayed(&mut server).await, "s-b");
    node.quiet().await;
    assert_eq!(node.upstream.breaker_state(), BreakerState::Closed);
    assert_eq!(asked(&session), None);
    let encode = "upstream_rpc_errors_total{code=\"encode\",rpc_name=\"register\"}";
    assert_eq!(node.value(encode), 1.0);
}

#[tokio::test]
async fn replay_15_to_17_the_lines_name_the_agent_and_the_reason_and_no_session() {
    let server = Server::start(|_| accept()).await;
    let node = Node::new(&server, |_| {});
    let (session, shared) = (node.agent("a\nb"), &node.replayer.shared);
    let refusal = RegisterResponse {
        reject_reason: format!("not yet\n{}", "x".repeat(200)),
        ..RegisterResponse::default()
    };
    let refusal = Bytes::from(refusal.encode_to_vec());
    let lines = logged(|| {
        assert_eq!(shared.answered(&session, refusal), Landing::Done);
        for error in [
            CallError::status(9, "superseded"),
            CallError::status(14, "store down"),
            CallError::Timeout,
            CallError::Encode,
        ] {
            assert_eq!(shared.not_answered(&session, &error), Landing::Done);
        }
    });
    let lines: Vec<_> = lines.lines().map(str::trim).collect();
    let reason = format!("not yet?{}", "x".repeat(120));
    assert_eq!(
        lines,
        [
            &*format!(
                "WARN Registration replay: a?b was not accepted by the server ({reason}); \
                 disconnecting so the agent follows its own registration path"
            ),
            "WARN Registration replay: a?b's presented session was superseded",
            "WARN Registration replay: a?b failed: UNAVAILABLE store down",
            "WARN Registration replay: a?b failed: no answer in time",
            "WARN Registration replay: a?b failed: request cannot be encoded",
        ]
    );
}

#[tokio::test]
async fn gen_3_a_replay_that_panics_gives_its_place_back() {
    let mut server = Server::start(|_| accept()).await;
    let node = Node::new(&server, |c| c.upstream.replay_concurrency = 1);
    node.agent("a");
    node.agent("b");
    let shared = Arc::clone(&node.replayer.shared);
    // Named and taken here, before the driver has its turn.
    let named = shared.registry.find("s-a").map(|session| Target {
        agent_id: Arc::clone(session.agent_id()),
        session_id: Arc::clone(&session.session_id),
    });
    shared.work(|queue| queue.name([named], Instant::now(), Duration::ZERO));
    let entry = shared.work(|queue| queue.take(1, Instant::now(), |_, _| (Vec::new(), false)));
    let flight = Flight::new(&shared, entry.unwrap());
    let panicked = tokio::spawn(async move {
        let _flight = flight;
        panic!("on purpose");
    });
    assert!(panicked.await.unwrap_err().is_panic());
    node.name(&["s-a", "s-b"]);
    assert_eq!(replayed(&mut server).await, "s-a");
    assert_eq!(replayed(&mut server).await, "s-b");
    node.quiet().await;
    assert!(node.replayer.is_running());
}
