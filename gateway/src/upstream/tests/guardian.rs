//! Guardian frames: forwarded as they are, dropped before they could block.

use std::sync::atomic::Ordering;

use yuzu_proto::gateway::v1::ForwardGuardianRequest;

use super::server::{Reply, Server};
use super::*;

fn counter(metrics: &Metrics, name: &str) -> f64 {
    metric(metrics, &format!("guardian_forward_{name}")).unwrap()
}

#[tokio::test]
async fn guard_3_the_frame_is_forwarded_unchanged_under_the_gateways_identity() {
    let mut server = Server::start(|_| Reply::Message(Bytes::from_static(b"\x08\x01"))).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    // Plugin `__guard__`, a payload, and a field of tomorrow.
    let frame = b"\x3a\x09__guard__\x4a\x02\x00\xff\x9a\x06\x03new";
    upstream.forward_guardian("a-1", frame);
    let call = timeout(LONG, server.calls.recv()).await.unwrap().unwrap();
    assert_eq!(
        call.path,
        "/yuzu.gateway.v1.GatewayUpstream/ForwardGuardianMessage"
    );
    let mut expected = b"\x0a\x03a-1\x12\x15".to_vec();
    expected.extend_from_slice(frame);
    assert_eq!(call.message, expected);
    assert_eq!(
        ForwardGuardianRequest::decode(call.message)
            .unwrap()
            .agent_id,
        "a-1"
    );
    let sent = r#"upstream_rpc_duration_ms_count{rpc_name="guardian"}"#;
    until("answered", || metric(&metrics, sent) == Some(1.0)).await;
    assert_eq!(counter(&metrics, "accepted_total"), 1.0);
}

#[tokio::test]
async fn guard_4_over_50_in_flight_frames_are_dropped_and_counted() {
    let server = Server::gated(|_| Reply::Message(Bytes::new())).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    for _ in 0..60 {
        upstream.forward_guardian("a-1", b"");
    }
    until("50 arrived", || server.open.load(Ordering::SeqCst) == 50).await;
    assert_eq!(counter(&metrics, "accepted_total"), 50.0);
    assert_eq!(
        counter(&metrics, "dropped_total{reason=\"at_capacity\"}"),
        10.0
    );
    server.gate.add_permits(50);
    let sent = r#"upstream_rpc_duration_ms_count{rpc_name="guardian"}"#;
    until("all answered", || metric(&metrics, sent) == Some(50.0)).await;
    server.gate.add_permits(1);
    upstream.forward_guardian("a-1", b"");
    until("the lane is free again", || {
        metric(&metrics, sent) == Some(51.0)
    })
    .await;
}

#[tokio::test]
async fn guard_5_a_failed_forward_feeds_no_breaker() {
    let server = Server::start(|_| Reply::Status(14, "")).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| {
        c.breaker.failure_threshold = 1
    });
    for _ in 0..20 {
        upstream.forward_guardian("a-1", b"");
    }
    let failed = r#"upstream_rpc_errors_total{code="14",rpc_name="guardian"}"#;
    until("all failed", || metric(&metrics, failed) == Some(20.0)).await;
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);
}

#[tokio::test]
async fn guard_4_an_open_breaker_drops_frames() {
    let mut server = Server::start(|_| Reply::Status(14, "")).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| {
        c.breaker.failure_threshold = 1
    });
    upstream
        .register(Bytes::new(), None, soon())
        .await
        .unwrap_err();
    server.calls.recv().await.unwrap();
    upstream.forward_guardian("a-1", b"");
    assert_eq!(
        counter(&metrics, "dropped_total{reason=\"circuit_open\"}"),
        1.0
    );
    assert_eq!(counter(&metrics, "accepted_total"), 0.0);
}

#[tokio::test]
async fn guard_6_a_frame_never_waits_for_the_server_or_its_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let metrics = metrics();
    // It accepts and says nothing, so no connection is ever made.
    let upstream = upstream(listener.local_addr().unwrap(), &metrics, |_| {});
    let started = std::time::Instant::now();
    for _ in 0..10_000 {
        upstream.forward_guardian("a-1", b"");
    }
    // Nothing else ran meanwhile: this runtime has one thread and there was no await.
    assert_eq!(counter(&metrics, "accepted_total"), 50.0);
    assert_eq!(
        counter(&metrics, "dropped_total{reason=\"at_capacity\"}"),
        9_950.0
    );
    assert!(started.elapsed() < LONG);
}
