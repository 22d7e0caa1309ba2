use futures_util::FutureExt;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::testing::*;
use super::*;
use crate::upstream::tests::server::Server;
use crate::upstream::tests::{LONG, logged, soon};

#[tokio::test]
async fn replay_5_more_than_100_verdicts_that_wait_drop_the_next() {
    let server = Server::start(|_| accept()).await;
    let node = Node::new(&server, |_| {});
    // The driver has its turn when this task waits.
    for _ in 0..101 {
        node.name(&["s-nobody"]);
    }
    assert_eq!(node.value(&dropped("queue_full")), 0.0);
    node.name(&["s-nobody", "s-else"]);
    assert_eq!(node.value(&dropped("queue_full")), 2.0);
    node.becomes(&dropped("not_local"), 101.0).await;
    node.name(&["s-nobody"]);
    node.becomes(&dropped("not_local"), 102.0).await;
    assert_eq!(node.value(&dropped("queue_full")), 2.0);
}

#[tokio::test]
async fn replay_19_a_planned_stop_waits_for_what_is_on_its_way_and_starts_no_more() {
    let mut server = Server::gated(|_| accept()).await;
    let node = Node::new(&server, |c| c.upstream.replay_concurrency = 1);
    node.agent("a");
    node.agent("b");
    node.name(&["s-a", "s-b"]);
    assert_eq!(replayed(&mut server).await, "s-a");
    node.replayer.stop();
    assert_eq!(node.value(DEPTH), 0.0);
    assert!(node.replayer.landed(soon()).now_or_never().is_none());
    server.gate.add_permits(2);
    timeout(LONG, node.replayer.landed(soon())).await.unwrap();
    node.name(&["s-a", "s-b"]);
    node.quiet().await;
    assert_eq!(node.value(ATTEMPTS), 1.0);
    assert!(server.calls.try_recv().is_err());
}

#[tokio::test]
async fn replay_3_truncated_verdicts_are_counted_and_told_once_a_minute() {
    let server = Server::start(|_| accept()).await;
    let node = Node::new(&server, |_| {});
    let text = logged(|| {
        for _ in 0..3 {
            node.replayer.verdict(&answer(&["s-1"], true), 1);
        }
    });
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    assert_eq!(lines.len(), 1, "{text}");
    assert!(lines[0].starts_with("WARN Heartbeat verdict truncated by the server"));
    assert!(lines[0].ends_with("suppressed 0"));
    assert_eq!(node.value("heartbeat_unknown_truncated_total"), 3.0);
}

#[tokio::test]
async fn replay_20_nothing_unknown_changes_nothing() {
    let mut server = Server::start(|_| accept()).await;
    let node = Node::new(&server, |_| {});
    node.agent("a");
    for answer in [
        Bytes::new(),
        answer(&[], false),
        Bytes::from_static(b"\xff\xff"),
    ] {
        node.replayer.verdict(&answer, 1);
    }
    assert_eq!(node.replayer.backlog(), 0);
    yield_now().await;
    node.quiet().await;
    assert!(server.calls.try_recv().is_err());
    assert_eq!(node.value(ATTEMPTS), 0.0);
}
