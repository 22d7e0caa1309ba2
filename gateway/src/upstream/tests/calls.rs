//! One call at a time: what is sent, and how each answer is classed.

use std::sync::atomic::Ordering;

use http::{HeaderMap, HeaderValue};
use yuzu_proto::agent::v1::RegisterRequest;

use super::server::{Reply, Server};
use super::*;

async fn outcome(reply: Reply) -> (Result<Bytes, CallError>, Arc<Metrics>) {
    let server = Server::start(move |_| reply.clone()).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    (
        upstream
            .register(Bytes::from_static(b"\x12\x01t"), None, soon())
            .await,
        metrics,
    )
}

fn errors(metrics: &Metrics, code: &str) -> f64 {
    let series = format!("upstream_rpc_errors_total{{code=\"{code}\",rpc_name=\"register\"}}");
    metric(metrics, &series).unwrap_or(0.0)
}

#[tokio::test]
async fn w_2_request_and_answer_are_the_bytes_that_came_in() {
    // Field 99 and a field out of order: nothing that a re-encoding would keep.
    let request = Bytes::from_static(b"\x9a\x06\x03new\x12\x05token\x0a\x05\x0a\x03a-1");
    let answer = Bytes::from_static(b"\x10\x01\x9a\x06\x03new\x0a\x01s");
    let reply = Reply::Message(answer.clone());
    let mut server = Server::start(move |_| reply.clone()).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    assert_eq!(
        upstream.register(request.clone(), None, soon()).await,
        Ok(answer)
    );
    let call = server.calls.recv().await.unwrap();
    assert_eq!(call.message, request);
    assert_eq!(call.path, "/yuzu.gateway.v1.GatewayUpstream/ProxyRegister");
    let observed = r#"upstream_rpc_duration_ms_count{rpc_name="register"}"#;
    assert_eq!(metric(&metrics, observed), Some(1.0));
}

#[tokio::test]
async fn permit_5_the_call_carries_what_is_left_and_grpc_headers_only() {
    let mut server = Server::start(|_| Reply::Message(accepted())).await;
    let upstream = upstream(server.address, &metrics(), |_| {});
    let timeout_of = |headers: &HeaderMap| -> u64 {
        let value = headers["grpc-timeout"].to_str().unwrap();
        value.strip_suffix('m').unwrap().parse().unwrap()
    };

    upstream.register(Bytes::new(), None, soon()).await.unwrap();
    let call = server.calls.recv().await.unwrap();
    let left = timeout_of(&call.headers);
    assert!(
        (4_000..=5_000).contains(&left),
        "at most rpc_timeout: {left}"
    );
    let mut names: Vec<_> = call.headers.keys().map(|name| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["content-type", "grpc-timeout", "te", "user-agent"]);
    assert_eq!(call.headers["content-type"], "application/grpc");
    assert_eq!(call.headers["te"], "trailers");

    let deadline = Instant::now() + Duration::from_secs(3);
    upstream
        .register(Bytes::new(), Some("gw-session-7"), deadline)
        .await
        .unwrap();
    let call = server.calls.recv().await.unwrap();
    let left = timeout_of(&call.headers);
    assert!(
        (2_000..=3_000).contains(&left),
        "what is left of the caller's: {left}"
    );
    assert_eq!(call.headers["x-yuzu-session-id"], "gw-session-7");
}

#[tokio::test]
async fn statuses_are_classed_counted_and_cleaned() {
    let (result, metrics) = outcome(Reply::Status(14, "store%0adown")).await;
    let error = result.unwrap_err();
    assert_eq!(error, CallError::Status(14, "store?down".into()));
    assert_eq!(error.to_string(), "UNAVAILABLE store?down");
    assert!(!error.gateway_made());
    assert_eq!(errors(&metrics, "14"), 1.0);
    assert_eq!(
        metric(
            &metrics,
            r#"upstream_rpc_duration_ms_count{rpc_name="register"}"#
        ),
        None
    );
}

#[tokio::test]
async fn reg_13_an_answer_without_a_decodable_message_is_a_failure() {
    let mut ok = HeaderMap::new();
    ok.insert("grpc-status", HeaderValue::from_static("0"));
    let answers = [
        (Bytes::new(), "ok without a message"),
        (
            Bytes::from_static(b"\0\0\0\0\x02\x0a\x05"),
            "not a message of this call",
        ),
        (Bytes::from_static(b"\x01\0\0\0\x02\x10\x01"), "compressed"),
        (
            Bytes::from_static(b"\0\0\0\0\x01\x10\x01"),
            "more than one message",
        ),
    ];
    for (data, reason) in answers {
        let (result, metrics) = outcome(Reply::Raw(data, Some(ok.clone()))).await;
        assert_eq!(result, Err(CallError::Answer(reason)));
        assert_eq!(errors(&metrics, "exception"), 1.0);
    }
}

#[tokio::test]
async fn an_answer_that_is_not_grpc_is_an_http_error() {
    let (result, metrics) = outcome(Reply::Http(502)).await;
    assert_eq!(result, Err(CallError::Http(502)));
    assert_eq!(errors(&metrics, "http_error"), 1.0);
}

#[tokio::test]
async fn a_stream_that_ends_without_a_status_is_a_stream_error() {
    let (result, metrics) = outcome(Reply::Raw(Bytes::new(), None)).await;
    assert_eq!(
        result,
        Err(CallError::Stream("no grpc status at its end".into()))
    );
    assert_eq!(errors(&metrics, "stream_error"), 1.0);
}

#[tokio::test]
async fn an_answer_over_the_receive_limit_is_refused() {
    let answer = RegisterResponse {
        reject_reason: "x".repeat(2_000),
        ..RegisterResponse::default()
    };
    let answer = Reply::Message(answer.encode_to_vec().into());
    let server = Server::start(move |_| answer.clone()).await;
    let upstream = upstream(server.address, &metrics(), |c| {
        c.max_receive_message_bytes = 1_999
    });
    let result = upstream.register(Bytes::new(), None, soon()).await;
    assert_eq!(result, Err(CallError::Answer("over the size limit")));
}

#[tokio::test]
async fn reg_11_a_request_over_4_mib_is_refused_here_and_never_moves_the_breaker() {
    let mut server = Server::start(|_| Reply::Message(accepted())).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    for _ in 0..10 {
        let result = upstream
            .register(vec![0; 4_194_305].into(), None, soon())
            .await;
        assert_eq!(result, Err(CallError::Encode));
        assert!(!CallError::Encode.gateway_made());
    }
    assert_eq!(errors(&metrics, "encode"), 10.0);
    upstream.record_encode_failure(Rpc::Register);
    assert_eq!(errors(&metrics, "encode"), 11.0);
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);

    let largest = RegisterRequest {
        enrollment_token: "t".repeat(4_194_299),
        ..Default::default()
    };
    let largest = Bytes::from(largest.encode_to_vec());
    assert_eq!(largest.len(), 4_194_304);
    upstream
        .register(largest.clone(), None, soon())
        .await
        .unwrap();
    assert_eq!(
        server.calls.recv().await.unwrap().message,
        largest,
        "the only call sent"
    );
}

#[tokio::test]
async fn a_server_that_does_not_answer_ends_in_a_timeout_and_the_stream_is_reset() {
    let server = Server::start(|_| Reply::Hang).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| {
        c.rpc_timeout = Duration::from_millis(150)
    });
    let started = Instant::now();
    let result = upstream.register(Bytes::new(), None, soon()).await;
    assert_eq!(result, Err(CallError::Timeout));
    assert!(started.elapsed() >= Duration::from_millis(150));
    assert_eq!(errors(&metrics, "timeout"), 1.0);
    until("reset seen by the server", || {
        server.open.load(Ordering::SeqCst) == 0
    })
    .await;
}

#[tokio::test]
async fn breaker_7_five_failures_open_it_and_calls_are_refused_without_a_call() {
    let mut server = Server::start(|_| Reply::Status(14, "")).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    for _ in 0..5 {
        upstream
            .register(Bytes::new(), None, soon())
            .await
            .unwrap_err();
        server.calls.recv().await.unwrap();
    }
    assert!(matches!(
        upstream.breaker_state(),
        BreakerState::Open { .. }
    ));
    let refused = upstream.inventory(Bytes::new(), soon()).await.unwrap_err();
    assert_eq!(refused, CallError::CircuitOpen);
    assert!(refused.gateway_made());
    assert!(server.calls.try_recv().is_err(), "nothing was sent");
    assert_eq!(
        metric(
            &metrics,
            r#"upstream_circuit_transitions_total{state="open"}"#
        ),
        Some(1.0)
    );

    upstream.batch_heartbeat(Bytes::new()).await.unwrap_err();
    assert!(server.calls.try_recv().is_ok(), "heartbeats go on");
}

#[tokio::test]
async fn breaker_1_opens_for_its_time_then_one_call_may_probe() {
    let failing = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let fails = Arc::clone(&failing);
    let server = Server::start(move |_| match fails.load(Ordering::SeqCst) {
        true => Reply::Status(14, ""),
        false => Reply::Message(accepted()),
    })
    .await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| {
        c.breaker.reset_timeout = Duration::from_millis(50);
        c.breaker.failure_threshold = 2;
    });
    let mut states = upstream.watch_breaker();
    for _ in 0..2 {
        upstream
            .register(Bytes::new(), None, soon())
            .await
            .unwrap_err();
    }
    timeout(
        LONG,
        states.wait_for(|state| *state == BreakerState::HalfOpen),
    )
    .await
    .unwrap()
    .unwrap();
    failing.store(false, Ordering::SeqCst);
    upstream.register(Bytes::new(), None, soon()).await.unwrap();
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);
    for state in ["open", "half_open", "closed"] {
        let series = format!("upstream_circuit_transitions_total{{state=\"{state}\"}}");
        assert_eq!(metric(&metrics, &series), Some(1.0), "{state}");
    }
}

#[tokio::test]
async fn breaker_5_a_request_fault_is_neutral() {
    let server = Server::start(|_| Reply::Status(3, "agent id")).await;
    let upstream = upstream(server.address, &metrics(), |_| {});
    for _ in 0..20 {
        let error = upstream
            .register(Bytes::new(), None, soon())
            .await
            .unwrap_err();
        assert_eq!(error.status_code(), Some(3));
        assert!(!error.gateway_made(), "the agent sees 13 (REG-3)");
    }
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);
}

/// Notices feed it too: see the tests of the notices.
#[tokio::test]
async fn breaker_3_registers_inventories_and_replays_feed_it_heartbeats_and_guardians_do_not() {
    let server = Server::start(|_| Reply::Status(14, "")).await;
    let metrics = metrics();
    let fresh = || {
        upstream(server.address, &metrics, |c| {
            c.breaker.failure_threshold = 1;
        })
    };
    let opened =
        |upstream: &Upstream| matches!(upstream.breaker_state(), BreakerState::Open { .. });
    let (register, inventory, replay, other) = (fresh(), fresh(), fresh(), fresh());
    let empty = Bytes::new;
    let failed = [
        register.register(empty(), None, soon()).await,
        inventory.inventory(empty(), soon()).await,
        replay
            .replay_register(empty(), "s-1", soon(), || true)
            .await,
        other.batch_heartbeat(empty()).await,
    ];
    assert!(failed.iter().all(Result::is_err), "{failed:?}");
    other.forward_guardian("a-1", b"");
    let forwarded = r#"upstream_rpc_errors_total{code="14",rpc_name="guardian"}"#;
    until("forwarded", || metric(&metrics, forwarded) == Some(1.0)).await;
    assert!([register, inventory, replay].iter().all(opened));
    assert!(!opened(&other));
}
