//! Flushes against a scripted server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::time::timeout;
use yuzu_proto::agent::v1::HeartbeatRequest;
use yuzu_proto::gateway::v1::BatchHeartbeatRequest;
use yuzu_proto::wire::put_bytes_field;

mod outage;

use super::*;
use crate::upstream::BreakerState;
use crate::upstream::tests::server::{Received, Reply, Server};
use crate::upstream::tests::{LONG, logged, metric, metrics, soon, until, upstream};

fn heartbeat(session: usize, snapshot: usize) -> Vec<u8> {
    let heartbeat = HeartbeatRequest {
        session_id: session.to_string(),
        fleet_snapshot_json: vec![b'x'; snapshot].into(),
        ..HeartbeatRequest::default()
    };
    heartbeat.encode_to_vec()
}

fn push(batcher: &Batcher, session: usize, snapshot: usize) {
    batcher.push(&session.to_string(), &heartbeat(session, snapshot));
}

fn batcher(server: &Server, metrics: &Arc<Metrics>, every: Duration) -> (Batcher, Upstream) {
    let upstream = upstream(server.address, metrics, |c| c.breaker.failure_threshold = 1);
    let config = config::Heartbeat {
        batch_interval: every,
        ..config::Config::default().heartbeat
    };
    let batcher = Batcher::start(
        upstream.clone(),
        "yuzu_gw@gw1",
        &config,
        Arc::clone(metrics),
        |_, _| {},
    );
    (batcher, upstream)
}

fn sessions(call: &Received) -> Vec<usize> {
    assert_eq!(call.path, "/yuzu.gateway.v1.GatewayUpstream/BatchHeartbeat");
    let batch = BatchHeartbeatRequest::decode(call.message.clone()).unwrap();
    assert_eq!(batch.gateway_node, "yuzu_gw@gw1");
    batch
        .heartbeats
        .iter()
        .map(|heartbeat| heartbeat.session_id.parse().unwrap())
        .collect()
}

async fn next(server: &mut Server) -> Vec<usize> {
    sessions(
        &timeout(LONG, server.calls.recv())
            .await
            .expect("a batch")
            .unwrap(),
    )
}

fn dropped(metrics: &Metrics, reason: &str) -> f64 {
    metric(
        metrics,
        &format!("heartbeat_buffer_dropped_total{{reason=\"{reason}\"}}"),
    )
    .unwrap()
}

fn ok() -> Reply {
    Reply::Message(Bytes::new())
}

const MIB: usize = 1 << 20;
const NEVER: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn hb_3_a_flush_every_interval_sends_the_newest_of_each_session_as_it_came() {
    let mut server = Server::start(|_| ok()).await;
    let metrics = metrics();
    let (batcher, _upstream) = batcher(&server, &metrics, Duration::from_millis(20));
    let mut newest = heartbeat(7, 3);
    put_bytes_field(&mut newest, 99, b"a field of tomorrow");
    batcher.push("7", &heartbeat(7, 1));
    batcher.push("7", &newest);
    let call = timeout(LONG, server.calls.recv()).await.unwrap().unwrap();
    let mut expected = Vec::new();
    put_bytes_field(&mut expected, 1, &newest);
    put_bytes_field(&mut expected, 2, b"yuzu_gw@gw1");
    assert_eq!(call.message, expected);
    assert_eq!(metric(&metrics, "heartbeat_coalesced_total"), Some(1.0));

    push(&batcher, 8, 0);
    assert_eq!(
        next(&mut server).await,
        [8],
        "what was taken is not sent again"
    );
}

#[tokio::test]
async fn hb_3_chunks_of_3_mib_oldest_first_at_most_8_in_a_flush() {
    let mut server = Server::start(|_| ok()).await;
    let metrics = metrics();
    let (batcher, _upstream) = batcher(&server, &metrics, NEVER);
    for session in 0..18 {
        push(&batcher, session, 5 * MIB / 4);
    }
    assert_eq!(batcher.flush(soon()).await, (16, 2));
    for chunk in 0..8 {
        assert_eq!(next(&mut server).await, [2 * chunk, 2 * chunk + 1]);
    }
    assert!(server.calls.try_recv().is_err());
    assert_eq!(batcher.flush(soon()).await, (2, 0));
    assert_eq!(next(&mut server).await, [16, 17]);
}

#[tokio::test]
async fn hb_4_a_failed_chunk_stays_with_all_later_ones_and_feeds_no_breaker() {
    let calls = AtomicUsize::new(0);
    let mut server = Server::start(move |_| match calls.fetch_add(1, Ordering::SeqCst) {
        1 => Reply::Status(14, ""),
        _ => ok(),
    })
    .await;
    let metrics = metrics();
    let (batcher, upstream) = batcher(&server, &metrics, NEVER);
    for session in 0..3 {
        push(&batcher, session, 2 * MIB);
    }
    assert_eq!(batcher.flush(soon()).await, (1, 2));
    assert_eq!(next(&mut server).await, [0]);
    assert_eq!(next(&mut server).await, [1]);
    assert!(server.calls.try_recv().is_err(), "the flush stopped");
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);
    assert_eq!(batcher.flush(soon()).await, (2, 0));
    assert_eq!(next(&mut server).await, [1]);
    assert_eq!(next(&mut server).await, [2]);
    let failed = r#"upstream_rpc_errors_total{code="14",rpc_name="batch_heartbeat"}"#;
    assert_eq!(metric(&metrics, failed), Some(1.0));
}

#[tokio::test]
async fn hb_5_a_refused_chunk_is_halved_until_the_heartbeat_at_fault_is_alone() {
    let mut server = Server::start(|call| match sessions(call).contains(&5) {
        true => Reply::Status(3, "cannot take it"),
        false => ok(),
    })
    .await;
    let metrics = metrics();
    let (batcher, _upstream) = batcher(&server, &metrics, NEVER);
    for session in 0..8 {
        push(&batcher, session, 0);
    }
    assert_eq!(batcher.flush(soon()).await, (7, 0));
    assert_eq!(dropped(&metrics, "chunk_rejected"), 1.0);
    let expected: [&[usize]; 7] = [
        &[0, 1, 2, 3, 4, 5, 6, 7],
        &[0, 1, 2, 3],
        &[4, 5, 6, 7],
        &[4, 5],
        &[4],
        &[5],
        &[6, 7],
    ];
    for batch in expected {
        assert_eq!(next(&mut server).await, batch);
    }
}

#[tokio::test]
async fn hb_5_a_flush_makes_at_most_64_calls() {
    let mut server = Server::start(|_| Reply::Status(8, "")).await;
    let metrics = metrics();
    let (batcher, _upstream) = batcher(&server, &metrics, NEVER);
    for session in 0..200 {
        push(&batcher, session, 0);
    }
    let (sent, held) = batcher.flush(soon()).await;
    let mut calls = 0;
    while server.calls.try_recv().is_ok() {
        calls += 1;
    }
    assert_eq!(calls, 64);
    assert_eq!(sent, 0);
    assert_eq!(held as f64, 200.0 - dropped(&metrics, "chunk_rejected"));
}

#[tokio::test]
async fn hb_9_and_hb_10_drops_are_counted() {
    let server = Server::start(|_| ok()).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let config = config::Heartbeat {
        batch_interval: NEVER,
        max_sessions: 3,
        max_bytes: 5 * MIB,
    };
    let batcher = Batcher::start(upstream, "gw1", &config, Arc::clone(&metrics), |_, _| {});
    for session in 0..5 {
        push(&batcher, session, 0);
    }
    assert_eq!(dropped(&metrics, "buffer_full"), 2.0);
    for session in 0..3 {
        push(&batcher, session, 2 * MIB);
    }
    assert_eq!(dropped(&metrics, "snapshot_evicted"), 1.0);
    let mut large = heartbeat(0, 0);
    put_bytes_field(&mut large, 99, &vec![0; 3 * MIB - 100]);
    batcher.push("0", &large);
    assert_eq!(dropped(&metrics, "snapshot_evicted"), 3.0);
    batcher.push("1", &large);
    // The sessions 2 and 0 made room.
    assert_eq!(dropped(&metrics, "buffer_full"), 4.0);
    assert_eq!(batcher.flush(soon()).await, (1, 0));
    assert_eq!(metric(&metrics, "heartbeat_coalesced_total"), Some(5.0));
}

#[tokio::test]
async fn hb_6_to_hb_8_drops_are_counted() {
    let server = Server::start(|_| ok()).await;
    let metrics = metrics();
    let (batcher, _upstream) = batcher(&server, &metrics, NEVER);
    push(&batcher, 1, 3 * MIB);
    assert_eq!(dropped(&metrics, "snapshot_oversize"), 1.0);
    // The snapshot fits its own heartbeat, and not the next one.
    push(&batcher, 2, 2 * MIB);
    let mut next = heartbeat(2, 0);
    put_bytes_field(&mut next, 99, &vec![0; MIB]);
    batcher.push("2", &next);
    assert_eq!(dropped(&metrics, "snapshot_oversize"), 2.0);
    let tagged = |value: usize| {
        let mut message = heartbeat(3, 0);
        let mut tag = Vec::new();
        put_bytes_field(&mut tag, 2, &vec![0xff; value]);
        put_bytes_field(&mut message, 3, &tag);
        message
    };
    batcher.push("3", &tagged(70_000));
    assert_eq!(dropped(&metrics, "heartbeat_oversize"), 1.0);
    batcher.push("3", &tagged(7));
    batcher.push("3", b"\xff");
    assert_eq!(dropped(&metrics, "heartbeat_invalid"), 2.0);
    assert_eq!(batcher.flush(soon()).await, (3, 0));
}

#[tokio::test]
async fn hb_12_a_dead_server_loses_nothing_and_the_flush_goes_on() {
    let metrics = metrics();
    let mut config = config::Config::default();
    config.heartbeat.batch_interval = Duration::from_millis(10);
    // A port that nobody listens on for now.
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let dead = upstream(address, &metrics, |_| {});
    let batcher = Batcher::start(
        dead,
        "yuzu_gw@gw1",
        &config.heartbeat,
        Arc::clone(&metrics),
        |_, _| {},
    );
    push(&batcher, 1, 0);
    let refused = r#"upstream_rpc_errors_total{code="econnrefused",rpc_name="batch_heartbeat"}"#;
    until("several failed flushes", || {
        metric(&metrics, refused) >= Some(3.0)
    })
    .await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    let mut server = Server::on(socket.listen(16).unwrap(), |_| ok());
    assert_eq!(next(&mut server).await, [1]);
}

#[tokio::test]
async fn hb_12_a_flush_that_panics_with_the_lock_held_ends_nothing() {
    let mut server = Server::start(|_| ok()).await;
    let metrics = metrics();
    let (batcher, _upstream) = batcher(&server, &metrics, NEVER);
    push(&batcher, 1, 0);
    let shared = Arc::clone(&batcher.shared);
    let flush = tokio::spawn(async move {
        let _flushing = shared.flushing.lock().await;
        let _held = shared.held.lock().unwrap();
        panic!("a fault in a flush");
    });
    assert!(flush.await.unwrap_err().is_panic());
    push(&batcher, 2, 0);
    assert_eq!(batcher.flush(soon()).await, (2, 0));
    assert_eq!(next(&mut server).await, [1, 2]);
}

#[tokio::test]
async fn hb_4_a_heartbeat_that_comes_while_its_elder_is_sent_goes_with_the_next_flush() {
    let mut server = Server::gated(|_| ok()).await;
    let metrics = metrics();
    let (batcher, _upstream) = batcher(&server, &metrics, NEVER);
    push(&batcher, 1, 9);
    push(&batcher, 2, 0);
    let flush = tokio::spawn({
        let batcher = batcher.clone();
        async move { batcher.flush(soon()).await }
    });
    assert_eq!(next(&mut server).await, [1, 2]);
    let mut newer = heartbeat(1, 0);
    put_bytes_field(&mut newer, 99, b"newer");
    batcher.push("1", &newer);
    server.gate.add_permits(2);
    assert_eq!(flush.await.unwrap(), (2, 1));
    assert_eq!(batcher.flush(soon()).await, (1, 0));
    let call = timeout(LONG, server.calls.recv()).await.unwrap().unwrap();
    let mut expected = Vec::new();
    put_bytes_field(&mut expected, 1, &newer);
    put_bytes_field(&mut expected, 2, b"yuzu_gw@gw1");
    assert_eq!(call.message, expected, "without the snapshot that was sent");
}

#[tokio::test]
async fn hb_11_one_flush_at_a_time() {
    let server = Server::start(|_| Reply::Late(Duration::from_millis(20), Bytes::new())).await;
    let metrics = metrics();
    let (batcher, _upstream) = batcher(&server, &metrics, NEVER);
    for session in 0..6 {
        push(&batcher, session, 2 * MIB);
    }
    let (first, second) = tokio::join!(batcher.flush(soon()), batcher.flush(soon()));
    // What one of them sent while the other waited counts for both.
    assert_eq!((first.0, second), (6, (6, 0)));
    assert_eq!(server.most.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn hb_14_a_fault_on_this_side_is_an_exception_and_a_status_is_itself() {
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let compressed = Bytes::from_static(b"\x01\x00\x00\x00\x00");
    let replies = [
        Reply::Raw(compressed, Some(trailers.clone())),
        Reply::Status(13, ""),
        Reply::Raw(Bytes::new(), Some(trailers)),
    ];
    let calls = AtomicUsize::new(0);
    let script = move |_: &Received| replies[calls.fetch_add(1, Ordering::SeqCst)].clone();
    let server = Server::start(script).await;
    let metrics = metrics();
    let (batcher, _upstream) = batcher(&server, &metrics, NEVER);
    push(&batcher, 1, 0);
    for _ in 0..3 {
        assert_eq!(batcher.flush(soon()).await, (0, 1));
    }
    let failed = |code: &str| {
        let labels = format!("{{code=\"{code}\",rpc_name=\"batch_heartbeat\"}}");
        metric(&metrics, &format!("upstream_rpc_errors_total{labels}"))
    };
    assert_eq!((failed("exception"), failed("13")), (Some(2.0), Some(1.0)));
}

#[test]
fn hb_13_a_flush_says_what_it_sent_at_info_only_if_it_took_several_chunks() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    // Lines at INFO and above.
    let lines = logged(|| {
        runtime().block_on(async {
            let server = Server::start(|_| ok()).await;
            let metrics = metrics();
            let (batcher, _upstream) = batcher(&server, &metrics, NEVER);
            push(&batcher, 1, 0);
            assert_eq!(batcher.flush(soon()).await, (1, 0));
            assert_eq!(batcher.flush(soon()).await, (0, 0));
            for session in 0..3 {
                push(&batcher, session, 5 * MIB / 4);
            }
            assert_eq!(batcher.flush(soon()).await, (3, 0));
        });
    });
    let flushed: Vec<_> = lines.lines().filter(|l| l.contains("Flushed")).collect();
    assert_eq!(flushed, [" INFO Flushed 3 heartbeats in 2 chunk(s)"]);
}

#[tokio::test]
async fn stop_5_the_last_flush_ends_at_its_deadline() {
    let server = Server::start(|_| Reply::Hang).await;
    let metrics = metrics();
    let (batcher, _upstream) = batcher(&server, &metrics, NEVER);
    push(&batcher, 1, 0);
    let deadline = Instant::now() + Duration::from_millis(50);
    assert_eq!(batcher.flush(deadline).await, (0, 1));
    assert!(deadline.elapsed() < Duration::from_secs(2));
}
