use std::sync::atomic::{AtomicU32, Ordering};

use super::super::testing::*;
use super::*;
use crate::upstream::tests::server::{Received, Reply, Server};
use crate::upstream::tests::{logged, soon, until};

#[tokio::test]
async fn replay_11_each_verdicts_ids_go_out_in_their_order_and_so_do_verdicts() {
    let mut server = Server::start(|_| accept()).await;
    let node = Node::new(&server, |c| c.upstream.replay_concurrency = 1);
    for agent in ["a", "b", "c", "d", "e"] {
        node.agent(agent);
    }
    node.name(&["s-d", "s-b", "s-e"]);
    node.name(&["s-c", "s-a", "s-d"]);
    for expected in ["s-b", "s-d", "s-e", "s-a", "s-c"] {
        assert_eq!(replayed(&mut server).await, expected);
    }
    node.quiet().await;
    assert_eq!(node.value(ATTEMPTS), 5.0);
}

#[tokio::test]
async fn replay_11_as_many_at_once_as_configured_each_under_a_permit() {
    let server = Server::gated(|_| accept()).await;
    let node = Node::new(&server, |_| {});
    let sessions: Vec<_> = (0..60).map(|agent| format!("s-{agent}")).collect();
    for agent in 0..60 {
        node.agent(&agent.to_string());
    }
    node.name(&sessions.iter().map(String::as_str).collect::<Vec<_>>());
    let open = || server.open.load(Ordering::SeqCst);
    until("24 at once", || open() == 24).await;
    assert_eq!(node.value("upstream_permits_held{class=\"replay\"}"), 24.0);
    assert_eq!(node.value(DEPTH), 36.0);
    server.gate.add_permits(60);
    node.quiet().await;
    assert_eq!(server.most.load(Ordering::SeqCst), 24);
    assert_eq!(node.value(ATTEMPTS), 60.0);
}

#[tokio::test]
async fn replay_4_a_verdict_that_meets_an_open_breaker_is_dropped() {
    let server = Server::start(|_| Reply::Status(14, "")).await;
    let node = Node::new(&server, |c| {
        c.upstream.breaker.reset_timeout = Duration::from_secs(3_600);
    });
    node.agent("a");
    let opened = node.upstream.register(Bytes::new(), None, soon()).await;
    opened.unwrap_err();
    node.replayer.verdict(&answer(&["s-a", "s-b"], true), 2);
    node.becomes(&dropped("circuit_open"), 2.0).await;
    node.quiet().await;
    assert_eq!(node.value(ATTEMPTS), 0.0);
    assert_eq!(node.triggered("server_lost_state"), 0.0, "no evidence");
}

/// The server fails once, the breaker opens, and is half open a moment later.
async fn half_open(node: &Node) {
    let opened = node.upstream.register(Bytes::new(), None, soon()).await;
    opened.unwrap_err();
    until("half open", || {
        node.upstream.breaker_state() == BreakerState::HalfOpen
    })
    .await;
}

fn fails_first(then: fn(u32) -> Reply) -> impl Fn(&Received) -> Reply + Send + Sync {
    let calls = AtomicU32::new(0);
    move |_| match calls.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::Status(14, ""),
        call => then(call),
    }
}

#[tokio::test]
async fn replay_4_half_open_the_first_replay_is_the_probe_and_the_others_wait_for_it() {
    let mut server = Server::gated(fails_first(|_| accept())).await;
    let node = Node::new(&server, |_| {});
    server.gate.add_permits(1);
    half_open(&node).await;
    next(&mut server).await;
    for agent in ["a", "b", "c"] {
        node.agent(agent);
    }
    node.name(&["s-a", "s-b", "s-c"]);
    assert_eq!(replayed(&mut server).await, "s-a");
    node.becomes(DEPTH, 2.0).await;
    assert_eq!(server.open.load(Ordering::SeqCst), 1);
    server.gate.add_permits(10);
    let mut rest = [replayed(&mut server).await, replayed(&mut server).await];
    rest.sort();
    assert_eq!(rest, ["s-b", "s-c"]);
    node.quiet().await;
    assert_eq!(node.upstream.breaker_state(), BreakerState::Closed);
    assert_eq!(node.value(&dropped("circuit_open")), 0.0);
}

#[tokio::test]
async fn replay_4_half_open_replays_go_on_when_another_calls_probe_said_nothing() {
    let neutral = |call| match call {
        1 => Reply::Status(3, "not this one"),
        _ => accept(),
    };
    let mut server = Server::gated(fails_first(neutral)).await;
    let node = Node::new(&server, |_| {});
    server.gate.add_permits(1);
    half_open(&node).await;
    next(&mut server).await;
    let live = node.upstream.clone();
    let live = tokio::spawn(async move { live.register(Bytes::new(), None, soon()).await });
    next(&mut server).await;
    node.agent("a");
    node.name(&["s-a"]);
    node.becomes(DEPTH, 1.0).await;
    server.gate.add_permits(2);
    assert_eq!(replayed(&mut server).await, "s-a");
    assert_eq!(live.await.unwrap().unwrap_err().status_code(), Some(3));
    node.quiet().await;
    assert_eq!(node.upstream.breaker_state(), BreakerState::Closed);
}

#[tokio::test]
async fn replay_1_a_breaker_that_closes_again_replays_nothing() {
    let server = Server::start(fails_first(|_| accept())).await;
    let node = Node::new(&server, |_| {});
    node.agent("a");
    half_open(&node).await;
    let closed = node.upstream.register(Bytes::new(), None, soon()).await;
    closed.unwrap();
    node.becomes("upstream_circuit_transitions_total{state=\"closed\"}", 1.0)
        .await;
    node.quiet().await;
    assert_eq!(node.value(ATTEMPTS), 0.0);
    for trigger in ["heartbeat", "server_lost_state", "notify_loss"] {
        assert_eq!(node.triggered(trigger), 0.0, "{trigger}");
    }
}

#[tokio::test]
async fn replay_18_an_open_breaker_aborts_the_drip_and_says_what_is_left() {
    let mut server = Server::gated(|_| Reply::Status(14, "")).await;
    let node = Node::new(&server, |c| {
        c.upstream.replay_concurrency = 1;
        c.upstream.breaker.reset_timeout = Duration::from_secs(3_600);
    });
    for agent in 0..1_200 {
        node.agent(&format!("{agent:04}"));
    }
    let shared = &node.replayer.shared;
    assert!(shared.work(|queue| queue.begin_full(Instant::now(), Duration::ZERO)));
    shared.wake.notify_one();
    assert_eq!(replayed(&mut server).await, "s-0000");
    assert_eq!(node.value(DEPTH), 499.0);
    server.gate.add_permits(1);
    let open = || matches!(node.upstream.breaker_state(), BreakerState::Open { .. });
    until("an open breaker", open).await;
    node.quiet().await;
    assert_eq!((node.value(DEPTH), node.value(ATTEMPTS)), (0.0, 1.0));
    assert!(!shared.lock().may_begin_full(Instant::now()));
}

#[tokio::test]
async fn replay_18_the_line_of_an_abort_counts_agents_that_were_not_even_queued() {
    let server = Server::start(|_| Reply::Status(14, "")).await;
    let node = Node::new(&server, |c| {
        c.upstream.breaker.reset_timeout = Duration::from_secs(3_600);
    });
    for agent in 0..1_200 {
        node.agent(&format!("{agent:04}"));
    }
    let opened = node.upstream.register(Bytes::new(), None, soon()).await;
    opened.unwrap_err();
    let shared = &node.replayer.shared;
    shared.work(|queue| queue.begin_full(Instant::now(), Duration::ZERO));
    let text = logged(|| shared.follow_breaker(Instant::now()));
    assert_eq!(
        text.trim(),
        "WARN Registration replay aborted: circuit open (1200 agent(s) not yet re-proxied)"
    );
    assert_eq!(logged(|| shared.follow_breaker(Instant::now())), "");
}

#[tokio::test]
async fn replay_7_and_8_the_lines_of_a_verdict() {
    let mut server = Server::start(|_| accept()).await;
    let node = Node::new(&server, |c| c.replay.queue_max = 4);
    for agent in ["1", "2", "3", "4", "5"] {
        node.agent(agent);
    }
    let shared = Arc::clone(&node.replayer.shared);
    let read = |sessions: &[&str]| Verdict::read(&answer(sessions, false), 1_000).unwrap();
    let first = read(&["s-1", "s-2", "s-3", "s-4", "s-5", "s-nobody"]).verdict;
    let text = logged(|| shared.judge(&first));
    assert_eq!(
        text.trim(),
        "INFO Registration replay: heartbeat verdict named 6 session(s); queued 4, not local 1, \
         already queued 0, within guard 0, queue full 1"
    );
    // At DEBUG, because nothing is queued.
    let again = read(&["s-1", "s-nobody"]).verdict;
    assert_eq!(logged(|| shared.judge(&again)), "");
    let evidence = Verdict {
        heartbeats: 2,
        ..again
    };
    let text = logged(|| shared.judge(&evidence));
    assert_eq!(
        text.trim(),
        "INFO Registration replay: the server does not know 2 of the 2 session(s) of a heartbeat \
         batch; replaying every agent"
    );
    shared.wake.notify_one();
    for _ in 0..5 {
        next(&mut server).await;
    }
    node.quiet().await;
    assert_eq!(node.triggered("heartbeat"), 1.0);
    assert_eq!(node.triggered("server_lost_state"), 1.0);
    assert_eq!(node.value(&dropped("not_local")), 3.0);
    assert_eq!(node.value(&dropped("queue_full")), 1.0);
}
