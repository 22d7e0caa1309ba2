//! Permits over a real connection: who is sent, and who never is.

use std::sync::atomic::Ordering;

use tokio::task::JoinSet;

use super::server::{Reply, Server};
use super::*;

fn gauge(metrics: &Metrics, name: &str, class: &str) -> f64 {
    metric(
        metrics,
        &format!("upstream_permits_{name}{{class=\"{class}\"}}"),
    )
    .unwrap()
}

fn register(upstream: &Upstream) -> impl Future<Output = Result<Bytes, CallError>> + 'static {
    let upstream = upstream.clone();
    async move { upstream.register(Bytes::new(), None, soon()).await }
}

#[tokio::test]
async fn permit_1_never_more_than_48_registers_are_in_flight() {
    let server = Server::gated(|_| Reply::Message(accepted())).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let mut calls: JoinSet<_> = (0..200).map(|_| register(&upstream)).collect();
    until("48 arrived", || server.open.load(Ordering::SeqCst) == 48).await;
    until("the rest waits", || {
        gauge(&metrics, "waiting", "register") == 152.0
    })
    .await;
    assert_eq!(gauge(&metrics, "held", "register"), 48.0);
    server.gate.add_permits(200);
    while let Some(result) = calls.join_next().await {
        result.unwrap().unwrap();
    }
    assert_eq!(server.most.load(Ordering::SeqCst), 48);
    assert_eq!(gauge(&metrics, "held", "register"), 0.0);
    assert_eq!(gauge(&metrics, "waiting", "register"), 0.0);
    let waits = r#"upstream_permit_wait_seconds_count{class="register"}"#;
    assert_eq!(metric(&metrics, waits), Some(200.0));
}

/// F-REG-1. Thirteen rounds of 50 ms are the least that 48 permits allow.
#[tokio::test]
async fn permit_1_a_storm_of_600_registers_is_served_in_13_rounds() {
    let late = Reply::Late(Duration::from_millis(50), accepted());
    let server = Server::start(move |_| late.clone()).await;
    let upstream = upstream(server.address, &metrics(), |_| {});
    until("connected", || upstream.is_connected()).await;
    let started = Instant::now();
    let mut calls: JoinSet<_> = (0..600).map(|_| register(&upstream)).collect();
    while let Some(result) = calls.join_next().await {
        result.unwrap().unwrap();
    }
    let took = started.elapsed();
    assert_eq!(server.most.load(Ordering::SeqCst), 48);
    assert!(took >= Duration::from_millis(13 * 50), "{took:?}");
    assert!(took < Duration::from_millis(13 * 50 * 3), "{took:?}");
}

#[tokio::test]
async fn inv_4_inventory_has_8_permits_of_its_own() {
    let server = Server::gated(|_| Reply::Message(Bytes::new())).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let mut calls: JoinSet<_> = (0..20)
        .map(|_| {
            let upstream = upstream.clone();
            async move { upstream.inventory(Bytes::new(), soon()).await }
        })
        .collect();
    until("8 arrived", || server.open.load(Ordering::SeqCst) == 8).await;
    until("the rest waits", || {
        gauge(&metrics, "waiting", "inventory") == 12.0
    })
    .await;
    server.gate.add_permits(20);
    while let Some(result) = calls.join_next().await {
        result.unwrap().unwrap();
    }
    assert_eq!(server.most.load(Ordering::SeqCst), 8);
}

#[tokio::test]
async fn reg_15_a_request_whose_time_ran_out_while_it_waited_is_never_sent() {
    let mut server = Server::gated(|_| Reply::Message(accepted())).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| c.register_concurrency = 1);
    let first = tokio::spawn(register(&upstream));
    server.calls.recv().await.unwrap();
    let late = upstream
        .register(
            Bytes::from_static(b"\x12\x01t"),
            None,
            Instant::now() + Duration::from_millis(50),
        )
        .await;
    assert_eq!(late, Err(CallError::Deadline));
    assert!(CallError::Deadline.gateway_made());
    let dropped = r#"upstream_calls_dropped_total{class="register"}"#;
    assert_eq!(metric(&metrics, dropped), Some(1.0));
    let refused = r#"upstream_permit_refused_total{class="register",reason="deadline"}"#;
    assert_eq!(metric(&metrics, refused), Some(1.0));

    server.gate.add_permits(10);
    first.await.unwrap().unwrap();
    register(&upstream).await.unwrap();
    assert!(server.calls.recv().await.unwrap().message.is_empty());
    assert!(
        server.calls.try_recv().is_err(),
        "the late one came after all"
    );
}

#[tokio::test]
async fn permit_7_a_caller_that_leaves_the_queue_frees_its_place_and_is_never_sent() {
    let mut server = Server::gated(|_| Reply::Message(accepted())).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| {
        c.register_concurrency = 1;
        c.register_queue = 1;
    });
    let first = tokio::spawn(register(&upstream));
    server.calls.recv().await.unwrap();
    let leaver = tokio::spawn({
        let upstream = upstream.clone();
        async move {
            upstream
                .register(Bytes::from_static(b"\x12\x01t"), None, soon())
                .await
        }
    });
    until("it waits", || gauge(&metrics, "waiting", "register") == 1.0).await;
    assert_eq!(register(&upstream).await, Err(CallError::QueueFull));
    leaver.abort();
    leaver.await.unwrap_err();
    assert_eq!(gauge(&metrics, "waiting", "register"), 0.0);
    let next = tokio::spawn(register(&upstream));
    until("the place was free", || {
        gauge(&metrics, "waiting", "register") == 1.0
    })
    .await;
    server.gate.add_permits(2);
    first.await.unwrap().unwrap();
    next.await.unwrap().unwrap();
    assert!(server.calls.recv().await.unwrap().message.is_empty());
    assert!(server.calls.try_recv().is_err(), "the leaver was sent");
}

#[tokio::test]
async fn permit_13_after_the_stop_nothing_is_admitted_and_what_runs_may_end() {
    let mut server = Server::gated(|_| Reply::Message(accepted())).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| c.register_concurrency = 1);
    let running = tokio::spawn(register(&upstream));
    server.calls.recv().await.unwrap();
    let waiting = tokio::spawn(register(&upstream));
    until("it waits", || gauge(&metrics, "waiting", "register") == 1.0).await;
    upstream.stop_accepting();
    assert_eq!(waiting.await.unwrap(), Err(CallError::Stopping));
    assert_eq!(register(&upstream).await, Err(CallError::Stopping));
    assert_eq!(
        upstream.inventory(Bytes::new(), soon()).await,
        Err(CallError::Stopping)
    );
    assert!(CallError::Stopping.gateway_made());
    server.gate.add_permits(1);
    running.await.unwrap().unwrap();
    let refused = r#"upstream_permit_refused_total{class="register",reason="stopping"}"#;
    assert_eq!(metric(&metrics, refused), Some(2.0));
}

#[tokio::test]
async fn breaker_7_an_open_breaker_refuses_before_a_caller_queues() {
    let mut server = Server::gated(|call| match call.path.ends_with("ProxyInventory") {
        true => Reply::Status(14, ""),
        false => Reply::Hang,
    })
    .await;
    let upstream = upstream(server.address, &metrics(), |c| {
        c.register_concurrency = 1;
        c.breaker.failure_threshold = 1;
    });
    let running = tokio::spawn(register(&upstream));
    server.calls.recv().await.unwrap();
    server.gate.add_permits(2);
    upstream.inventory(Bytes::new(), soon()).await.unwrap_err();
    let refused = timeout(Duration::from_secs(2), register(&upstream));
    assert_eq!(
        refused.await.expect("refused at once"),
        Err(CallError::CircuitOpen)
    );
    running.abort();
}

#[tokio::test]
async fn breaker_8_half_open_lets_one_call_through_and_refuses_the_others() {
    let mut server = Server::gated(|_| Reply::Status(14, "")).await;
    let upstream = upstream(server.address, &metrics(), |c| {
        c.breaker.failure_threshold = 1;
        c.breaker.reset_timeout = Duration::from_millis(20);
    });
    let mut states = upstream.watch_breaker();
    server.gate.add_permits(1);
    register(&upstream).await.unwrap_err();
    server.calls.recv().await.unwrap();
    timeout(
        LONG,
        states.wait_for(|state| *state == BreakerState::HalfOpen),
    )
    .await
    .unwrap()
    .unwrap();
    let probe = tokio::spawn(register(&upstream));
    server.calls.recv().await.unwrap();
    assert_eq!(register(&upstream).await, Err(CallError::CircuitOpen));
    probe.abort();
    probe.await.unwrap_err();
    let second = tokio::spawn(register(&upstream));
    server
        .calls
        .recv()
        .await
        .expect("a dropped probe frees its place");
    server.gate.add_permits(2);
    assert_eq!(second.await.unwrap().unwrap_err().status_code(), Some(14));
    assert!(matches!(
        upstream.breaker_state(),
        BreakerState::Open { .. }
    ));
}
