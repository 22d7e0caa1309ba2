//! Notices against a scripted server.

mod order;
mod outages;
mod refusals;
mod streams;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::time::timeout;
use yuzu_proto::gateway::v1::{StreamStatusAck, StreamStatusNotification};

use super::*;
use crate::upstream::BreakerState;
use crate::upstream::tests::peer::{Peer, Seen};
use crate::upstream::tests::server::{Received, Reply, Server};
use crate::upstream::tests::{LONG, metric, metrics, soon, until, upstream};

fn ack(acknowledged: bool) -> Reply {
    Reply::Message(StreamStatusAck { acknowledged }.encode_to_vec().into())
}

fn notice(agent: usize, event: Event) -> Notice {
    Notice {
        agent_id: format!("a-{agent}").into(),
        session_id: format!("gw-session-{agent}").into(),
        stream_home_id: "00ff".into(),
        event,
        peer: None,
    }
}

fn notifier(upstream: &Upstream, metrics: &Arc<Metrics>, pending_max: usize) -> Notifier {
    let config = config::Config::default();
    let notify = config::Notify {
        pending_max,
        ..config.notify
    };
    start(upstream, metrics, &notify)
}

fn start(upstream: &Upstream, metrics: &Arc<Metrics>, notify: &config::Notify) -> Notifier {
    let node = config::Config::default().node;
    let metrics = Arc::clone(metrics);
    Notifier::start(upstream.clone(), &node, notify, metrics, |_| true)
}

fn decoded(call: Received) -> StreamStatusNotification {
    assert_eq!(
        call.path,
        "/yuzu.gateway.v1.GatewayUpstream/NotifyStreamStatus"
    );
    StreamStatusNotification::decode(call.message).unwrap()
}

async fn next(server: &mut Server) -> (String, i32) {
    let call = timeout(LONG, server.calls.recv())
        .await
        .expect("a notice")
        .unwrap();
    let notice = decoded(call);
    (notice.agent_id, notice.event)
}

/// The next call that arrived in full.
async fn called(peer: &mut Peer) -> u32 {
    let complete = async {
        loop {
            if let Seen::Complete(stream) = peer.next().await {
                return stream;
            }
        }
    };
    timeout(LONG, complete).await.expect("a call")
}

fn value(metrics: &Metrics, name: &str) -> f64 {
    metric(metrics, &format!("upstream_notify_{name}")).unwrap_or_else(|| panic!("no {name}"))
}

fn lost(metrics: &Metrics, event: &str, reason: &str) -> f64 {
    value(
        metrics,
        &format!("lost_total{{event=\"{event}\",reason=\"{reason}\"}}"),
    )
}

#[tokio::test]
async fn notify_2_ten_are_in_flight_and_a_thousand_arrive_none_lost() {
    let mut server = Server::gated(|_| ack(true)).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let notifier = notifier(&upstream, &metrics, 15_000);
    for agent in 0..1_000 {
        notifier.send(notice(agent, Event::Connected));
    }
    until("ten arrived", || server.open.load(Ordering::SeqCst) == 10).await;
    assert_eq!(value(&metrics, "inflight"), 10.0);
    assert_eq!(value(&metrics, "pending"), 990.0);
    server.gate.add_permits(1_000);
    let mut heard = std::collections::BTreeSet::new();
    for _ in 0..1_000 {
        heard.insert(next(&mut server).await);
    }
    assert_eq!(heard.len(), 1_000);
    assert_eq!(server.most.load(Ordering::SeqCst), 10);
    until("all landed", || value(&metrics, "inflight") == 0.0).await;
    assert_eq!(value(&metrics, "pending"), 0.0);
}

#[tokio::test]
async fn notify_4_a_disconnected_follows_its_connected_and_never_passes_it() {
    let mut server = Server::gated(|_| ack(true)).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let notifier = notifier(&upstream, &metrics, 100);
    notifier.send(notice(1, Event::Connected));
    assert_eq!(next(&mut server).await, ("a-1".into(), 0));
    notifier.send(notice(1, Event::Disconnected));
    notifier.send(notice(2, Event::Connected));
    assert_eq!(next(&mut server).await, ("a-2".into(), 0));
    assert!(server.calls.try_recv().is_err());
    server.gate.add_permits(3);
    assert_eq!(next(&mut server).await, ("a-1".into(), 1));
}

#[tokio::test]
async fn notify_6_an_open_breaker_holds_them_and_one_probe_at_a_time_asks() {
    let failures = Arc::new(AtomicUsize::new(0));
    let left = Arc::clone(&failures);
    let mut server = Server::start(move |_| {
        let fails = left.try_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if fails.is_ok() {
            Reply::Status(14, "down")
        } else {
            ack(true)
        }
    })
    .await;
    // One failure trips it, the first two probes fail.
    failures.store(3, Ordering::SeqCst);
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| {
        c.breaker.failure_threshold = 1;
        c.breaker.reset_timeout = Duration::from_millis(20);
    });
    let mut states = upstream.watch_breaker();
    upstream
        .register(Bytes::new(), None, soon())
        .await
        .unwrap_err();
    assert!(matches!(
        *states.borrow_and_update(),
        BreakerState::Open { .. }
    ));
    server.calls.recv().await.unwrap();
    let notifier = notifier(&upstream, &metrics, 100);
    for agent in 1..=5 {
        notifier.send(notice(agent, Event::Connected));
    }
    for _ in 0..3 {
        assert_eq!(
            next(&mut server).await.0,
            "a-1",
            "probes are the head of the queue"
        );
    }
    timeout(
        LONG,
        states.wait_for(|state| *state == BreakerState::Closed),
    )
    .await
    .unwrap()
    .unwrap();
    let mut rest = Vec::new();
    for _ in 2..=5 {
        rest.push(next(&mut server).await.0);
    }
    rest.sort();
    assert_eq!(rest, ["a-2", "a-3", "a-4", "a-5"]);
    assert_eq!(value(&metrics, "requeued_total"), 2.0);
}

#[tokio::test]
async fn breaker_3_a_failed_notice_feeds_it() {
    let mut server = Server::start(|_| Reply::Status(14, "")).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| {
        c.breaker.failure_threshold = 1;
    });
    let notifier = notifier(&upstream, &metrics, 100);
    notifier.send(notice(1, Event::Connected));
    next(&mut server).await;
    until("open", || {
        matches!(upstream.breaker_state(), BreakerState::Open { .. })
    })
    .await;
}

#[tokio::test]
async fn notify_7_a_probe_that_does_not_answer_is_a_failure_after_its_deadline() {
    let server = Server::start(|call| match call.path.ends_with("ProxyRegister") {
        true => Reply::Status(14, ""),
        false => Reply::Hang,
    })
    .await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| {
        c.breaker.failure_threshold = 1;
        c.breaker.reset_timeout = Duration::from_millis(20);
        c.rpc_timeout = LONG;
    });
    upstream
        .register(Bytes::new(), None, soon())
        .await
        .unwrap_err();
    let mut config = config::Config::default();
    config.notify.probe_timeout = Duration::from_millis(50);
    let notifier = start(&upstream, &metrics, &config.notify);
    let started = Instant::now();
    notifier.send(notice(1, Event::Connected));
    until("held again", || value(&metrics, "requeued_total") >= 1.0).await;
    assert!(started.elapsed() < LONG / 2, "took {:?}", started.elapsed());
    let reopened = r#"upstream_circuit_transitions_total{state="open"}"#;
    assert!(metric(&metrics, reopened) >= Some(2.0));
}

#[tokio::test]
async fn notify_8_a_probe_that_is_refused_itself_is_retired_and_the_next_is_probed() {
    let calls = AtomicUsize::new(0);
    let mut server = Server::start(move |_| match calls.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::Status(14, ""),
        1 | 2 => Reply::Status(3, "no such thing"),
        _ => ack(true),
    })
    .await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| {
        c.breaker.failure_threshold = 1;
        c.breaker.reset_timeout = Duration::from_millis(20);
    });
    upstream
        .register(Bytes::new(), None, soon())
        .await
        .unwrap_err();
    server.calls.recv().await.unwrap();
    let notifier = notifier(&upstream, &metrics, 100);
    for agent in 1..=3 {
        notifier.send(notice(agent, Event::Disconnected));
    }
    for expected in ["a-1", "a-2", "a-3"] {
        assert_eq!(next(&mut server).await.0, expected);
    }
    until("closed", || {
        upstream.breaker_state() == BreakerState::Closed
    })
    .await;
    assert_eq!(lost(&metrics, "disconnected", "rejected"), 2.0);
    let opened = r#"upstream_circuit_transitions_total{state="open"}"#;
    assert_eq!(metric(&metrics, opened), Some(1.0));
}

#[tokio::test]
async fn notify_10_a_failed_send_is_sent_again_until_the_breaker_opens() {
    let mut server = Server::start(|_| Reply::Status(14, "")).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let notifier = notifier(&upstream, &metrics, 100);
    notifier.send(notice(1, Event::Connected));
    let open = || matches!(upstream.breaker_state(), BreakerState::Open { .. });
    until("open", open).await;
    until("held again", || value(&metrics, "requeued_total") == 5.0).await;
    for _ in 0..5 {
        assert_eq!(next(&mut server).await, ("a-1".into(), 0));
    }
    assert!(
        server.calls.try_recv().is_err(),
        "five sends, then it is open"
    );
    assert_eq!(value(&metrics, "pending"), 1.0);
}

#[tokio::test]
async fn notify_11_a_request_fault_is_lost_as_rejected_and_not_sent_again() {
    let mut server = Server::start(|_| Reply::Status(9, "")).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let notifier = notifier(&upstream, &metrics, 100);
    notifier.send(notice(1, Event::Connected));
    next(&mut server).await;
    until("lost", || lost(&metrics, "connected", "rejected") == 1.0).await;
    assert_eq!(
        value(&metrics, "pending") + value(&metrics, "inflight"),
        0.0
    );
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);
}

#[tokio::test]
async fn unack_1_an_answer_that_does_not_acknowledge_is_counted_and_moves_no_breaker() {
    let mut server = Server::start(|_| ack(false)).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| {
        c.breaker.failure_threshold = 1
    });
    let notifier = notifier(&upstream, &metrics, 100);
    notifier.send(notice(1, Event::Disconnected));
    next(&mut server).await;
    let refused = "unacknowledged_total{event=\"disconnected\"}";
    until("counted", || value(&metrics, refused) == 1.0).await;
    until("waits", || value(&metrics, "inflight") == 0.0).await;
    assert_eq!(value(&metrics, "unacked_keys"), 1.0);
    assert_eq!(value(&metrics, "pending"), 0.0);
    assert_eq!(lost(&metrics, "disconnected", "unacknowledged"), 0.0);
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);
}

#[tokio::test]
async fn unack_1_a_probe_that_is_not_acknowledged_leaves_half_open_and_the_next_is_probed() {
    let mut server = Server::gated(|call| match call.path.ends_with("ProxyRegister") {
        true => Reply::Status(14, ""),
        false => ack(false),
    })
    .await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| {
        c.breaker.failure_threshold = 1;
        c.breaker.reset_timeout = Duration::from_millis(20);
    });
    server.gate.add_permits(1);
    upstream
        .register(Bytes::new(), None, soon())
        .await
        .unwrap_err();
    server.calls.recv().await.unwrap();
    let notifier = notifier(&upstream, &metrics, 100);
    for agent in 1..=2 {
        notifier.send(notice(agent, Event::Connected));
    }
    assert_eq!(next(&mut server).await.0, "a-1");
    assert!(server.calls.try_recv().is_err(), "one probe at a time");
    server.gate.add_permits(1);
    assert_eq!(next(&mut server).await.0, "a-2");
    assert_eq!(upstream.breaker_state(), BreakerState::HalfOpen);
}

#[tokio::test]
async fn notify_13_the_cap_refuses_and_evicts_and_counts_each() {
    let server = Server::gated(|_| ack(true)).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let notifier = notifier(&upstream, &metrics, 12);
    assert_eq!(value(&metrics, "pending_max"), 12.0);
    for agent in 0..12 {
        notifier.send(notice(agent, Event::Connected));
    }
    until("ten are out", || value(&metrics, "inflight") == 10.0).await;
    notifier.send(notice(20, Event::Connected));
    assert_eq!(lost(&metrics, "connected", "at_capacity"), 1.0);
    assert_eq!(
        value(&metrics, "dropped_total{reason=\"at_capacity\"}"),
        1.0
    );
    notifier.send(notice(21, Event::Disconnected));
    assert_eq!(lost(&metrics, "connected", "evicted"), 1.0);
    notifier.send(notice(21, Event::Disconnected));
    assert_eq!(value(&metrics, "coalesced_total"), 1.0);
    assert_eq!(value(&metrics, "pending"), 2.0);
}

#[tokio::test]
async fn without_an_endpoint_notices_stay_held() {
    let metrics = metrics();
    let mut config = config::Config::default();
    config.upstream.endpoints.clear();
    let upstream = Upstream::start(&config.upstream, Arc::clone(&metrics));
    let notifier = notifier(&upstream, &metrics, 2);
    for agent in 0..3 {
        notifier.send(notice(agent, Event::Connected));
    }
    assert_eq!(value(&metrics, "pending"), 2.0);
    assert_eq!(
        notifier
            .flush(Instant::now() + Duration::from_secs(5))
            .await,
        (0, 2)
    );
    assert_eq!(lost(&metrics, "connected", "shutdown"), 2.0);
}

#[tokio::test]
async fn stop_6_the_final_send_ignores_the_breaker_and_goes_64_wide() {
    let mut server = Server::gated(|call| match call.path.ends_with("ProxyRegister") {
        true => Reply::Status(14, ""),
        false => ack(true),
    })
    .await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| {
        c.breaker.failure_threshold = 1
    });
    server.gate.add_permits(1);
    upstream
        .register(Bytes::new(), None, soon())
        .await
        .unwrap_err();
    server.calls.recv().await.unwrap();
    let notifier = notifier(&upstream, &metrics, 1_000);
    for agent in 0..200 {
        notifier.send(notice(agent, Event::Disconnected));
    }
    let flush = tokio::spawn({
        let notifier = notifier.clone();
        async move { notifier.flush(soon()).await }
    });
    until("64 arrived", || server.open.load(Ordering::SeqCst) == 64).await;
    server.gate.add_permits(200);
    assert_eq!(flush.await.unwrap(), (200, 0));
    assert_eq!(server.most.load(Ordering::SeqCst), 64);
    notifier.send(notice(999, Event::Disconnected));
    assert_eq!(lost(&metrics, "disconnected", "shutdown"), 1.0);
}

#[tokio::test]
async fn stop_7_what_the_stop_cuts_is_no_failure_of_the_server() {
    let server = Server::gated(|_| ack(true)).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| {
        c.breaker.failure_threshold = 1
    });
    let notifier = notifier(&upstream, &metrics, 1_000);
    for agent in 0..10 {
        notifier.send(notice(agent, Event::Connected));
    }
    until("10 arrived", || server.open.load(Ordering::SeqCst) == 10).await;
    assert_eq!(notifier.flush(Instant::now()).await, (0, 10));
    upstream.close().await;
    until("all are cut", || server.open.load(Ordering::SeqCst) == 0).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let opened = metrics
        .upstream_circuit_transitions_total
        .with_label_values(&["open"]);
    assert_eq!(opened.get(), 0);
}

#[tokio::test]
async fn stop_6_what_the_deadline_leaves_is_counted_lost() {
    let server = Server::gated(|_| ack(true)).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let notifier = notifier(&upstream, &metrics, 1_000);
    for agent in 0..100 {
        notifier.send(notice(agent, Event::Connected));
    }
    let flush = tokio::spawn({
        let notifier = notifier.clone();
        async move {
            notifier
                .flush(Instant::now() + Duration::from_millis(200))
                .await
        }
    });
    until("64 arrived", || server.open.load(Ordering::SeqCst) == 64).await;
    server.gate.add_permits(30);
    assert_eq!(flush.await.unwrap(), (30, 70));
    assert_eq!(lost(&metrics, "connected", "shutdown"), 70.0);
    assert_eq!(
        value(&metrics, "pending") + value(&metrics, "inflight"),
        0.0
    );
}
