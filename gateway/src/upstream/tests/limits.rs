//! Permits that follow the server's stream limit, and replays among them.

use std::collections::VecDeque;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::peer::{Peer, Seen};
use super::server::{Reply, Server};
use super::*;

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn gauge(metrics: &Metrics, name: &str, class: &str) -> f64 {
    metric(
        metrics,
        &format!("upstream_permit{name}{{class=\"{class}\"}}"),
    )
    .unwrap()
}

fn limits(metrics: &Metrics) -> [f64; 3] {
    ["register", "inventory", "replay"].map(|class| gauge(metrics, "_limit", class))
}

type Answer = Result<Bytes, CallError>;

fn register(upstream: &Upstream) -> impl Future<Output = Answer> + Send + 'static {
    let upstream = upstream.clone();
    async move { upstream.register(Bytes::new(), None, soon()).await }
}

fn replay(upstream: &Upstream) -> impl Future<Output = Answer> + Send + 'static {
    let upstream = upstream.clone();
    async move {
        let call = upstream.replay_register(Bytes::new(), "s-1", soon(), || true);
        call.await
    }
}

fn inventory(upstream: &Upstream) -> impl Future<Output = Answer> + Send + 'static {
    let upstream = upstream.clone();
    async move { upstream.inventory(Bytes::new(), soon()).await }
}

async fn complete(peer: &mut Peer) -> u32 {
    loop {
        match timeout(LONG, peer.next()).await.expect("a request") {
            Seen::Complete(stream) => return stream,
            Seen::Closed => panic!("the client closed the connection"),
            Seen::Reset(stream) => panic!("the client reset {stream}"),
            _ => {}
        }
    }
}

#[test]
fn permit_9_a_server_that_allows_less_than_is_reserved_is_named_in_a_warning() {
    let start = logged(|| drop(lanes()));
    assert_eq!(
        start.trim(),
        "INFO Upstream permits in force: register 48 (replay 24), inventory 8, 61 streams reserved"
    );
    let lanes = lanes();
    let lowered = logged(|| lanes.follow(Some(60)));
    assert_eq!(
        lowered.trim(),
        "WARN Upstream permits lowered to the server's stream limit: register 1 (replay 1), \
         inventory 1; the server allows 60 streams, 61 are reserved"
    );
    assert_eq!(logged(|| lanes.follow(Some(59))), "", "nothing changed");
    let back = logged(|| lanes.follow(None));
    assert!(back.starts_with(" INFO Upstream permits in force: register 48"));
}

/// The server allows 100 streams, then 40: what is in force follows, what is in flight ends, and
/// no call is refused or reset for being one too many.
#[tokio::test]
async fn permit_9_permits_keep_every_lane_within_what_the_server_allows() {
    let (listener, address) = listener().await;
    let metrics = metrics();
    let upstream = upstream(address, &metrics, |c| c.breaker.failure_threshold = 1);
    assert_eq!(limits(&metrics), [48.0, 8.0, 24.0]);
    let mut peer = Peer::accept(&listener, Some(100)).await;
    until("100 announced", || limits(&metrics) == [33.0, 6.0, 16.0]).await;

    let mut calls: JoinSet<_> = (0..60).map(|_| register(&upstream)).collect();
    (0..10).for_each(|_| drop(calls.spawn(inventory(&upstream))));
    let mut open = VecDeque::new();
    while open.len() < 33 + 6 {
        open.push_back(complete(&mut peer).await);
    }
    until("the rest waits", || {
        gauge(&metrics, "s_waiting", "register") == 27.0
            && gauge(&metrics, "s_waiting", "inventory") == 4.0
    })
    .await;

    peer.announce(Some(40)).await;
    until("40 announced", || limits(&metrics) == [1.0, 1.0, 1.0]).await;
    assert_eq!(gauge(&metrics, "s_held", "register"), 33.0);
    // 39 are in flight; the first 37 to end let no other start, then one of each kind runs.
    for _ in 0..37 {
        peer.answer(open.pop_front().unwrap(), b"").await;
    }
    while !calls.is_empty() {
        while let Some(stream) = open.pop_front() {
            peer.answer(stream, b"").await;
        }
        tokio::select! {
            result = calls.join_next() => drop(result.unwrap().unwrap().unwrap()),
            stream = complete(&mut peer) => {
                open.push_back(stream);
                assert!(peer.open.len() <= 2, "{} streams open", peer.open.len());
            }
        }
    }
    let errors = r#"upstream_rpc_errors_total{code="too_many_streams",rpc_name="register"}"#;
    assert_eq!(metric(&metrics, errors), None);
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);
}

#[tokio::test]
async fn permit_12_without_a_connection_the_configured_sizes_apply() {
    let (listener, address) = listener().await;
    let metrics = metrics();
    let _upstream = upstream(address, &metrics, |_| {});
    let peer = Peer::accept(&listener, Some(100)).await;
    until("100 announced", || limits(&metrics) == [33.0, 6.0, 16.0]).await;
    drop(peer);
    until("lost", || limits(&metrics) == [48.0, 8.0, 24.0]).await;
    let _again = Peer::accept(&listener, Some(81)).await;
    until("81 announced", || limits(&metrics) == [17.0, 3.0, 8.0]).await;
}

#[tokio::test]
async fn permit_2_notices_heartbeats_and_guardian_frames_need_no_permit() {
    let server = Server::gated(|_| Reply::Message(Bytes::new())).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| {
        (c.register_concurrency, c.inventory_concurrency) = (1, 1);
        c.replay_concurrency = 1;
    });
    let mut calls: JoinSet<_> = [register(&upstream)].into_iter().collect();
    calls.spawn(inventory(&upstream));
    let arrived = |count| {
        let open = Arc::clone(&server.open);
        until("arrived", move || {
            open.load(std::sync::atomic::Ordering::SeqCst) == count
        })
    };
    arrived(2).await;
    for _ in 0..NOTICES_IN_FLIGHT {
        let upstream = upstream.clone();
        calls.spawn(async move {
            let begun = upstream.begin_notice(&[], soon()).await;
            upstream.finish_notice(begun).await
        });
    }
    let beat = upstream.clone();
    calls.spawn(async move { beat.batch_heartbeat(Bytes::new()).await });
    for _ in 0..50 {
        upstream.forward_guardian("a-1", b"");
    }
    arrived(2 + 61).await;
    server.gate.add_permits(100);
    while let Some(result) = calls.join_next().await {
        result.unwrap().unwrap();
    }
}

#[tokio::test]
async fn permit_6_replays_take_half_of_the_pool_and_go_behind_live_registers() {
    let mut server = Server::gated(|_| Reply::Message(accepted())).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| {
        (c.register_concurrency, c.replay_concurrency) = (4, 2);
    });
    let mut replays: JoinSet<_> = (0..6).map(|_| replay(&upstream)).collect();
    for _ in 0..2 {
        let call = server.calls.recv().await.unwrap();
        assert_eq!(call.headers["x-yuzu-session-id"], "s-1");
    }
    until("four wait", || {
        gauge(&metrics, "s_waiting", "replay") == 4.0
    })
    .await;
    assert_eq!(gauge(&metrics, "s_held", "replay"), 2.0);
    assert!(!upstream.inner.lanes.saturated(), "replays do not count");
    assert_eq!(replay(&upstream).await, Err(CallError::QueueFull));

    let mut live: JoinSet<_> = (0..4).map(|_| register(&upstream)).collect();
    for _ in 0..2 {
        let call = server.calls.recv().await.unwrap();
        assert!(!call.headers.contains_key("x-yuzu-session-id"));
    }
    until("two wait", || {
        gauge(&metrics, "s_waiting", "register") == 2.0
    })
    .await;
    assert!(upstream.inner.lanes.saturated());
    // Whichever call ends, a live register is next while one waits.
    server.gate.add_permits(2);
    for _ in 0..2 {
        let call = server.calls.recv().await.unwrap();
        assert!(!call.headers.contains_key("x-yuzu-session-id"));
    }
    server.gate.add_permits(8);
    while let Some(result) = live.join_next().await {
        result.unwrap().unwrap();
    }
    while let Some(result) = replays.join_next().await {
        result.unwrap().unwrap();
    }
    assert_eq!(
        server.most.load(std::sync::atomic::Ordering::SeqCst),
        4,
        "replays and registers together"
    );
}

#[tokio::test]
async fn breaker_6_status_9_and_a_refusal_are_good_answers_to_a_replay_only() {
    let mut answers = VecDeque::from([14, 14, 9, 14, 14, 0, 14, 14, 14]);
    let server = {
        let answers = Mutex::new(std::mem::take(&mut answers));
        Server::start(move |_| match answers.lock().unwrap().pop_front() {
            Some(0) | None => Reply::Message(Bytes::new()),
            Some(status) => Reply::Status(status, ""),
        })
        .await
    };
    let upstream = upstream(server.address, &metrics(), |c| {
        c.breaker.failure_threshold = 3;
    });
    for expected in [14, 14, 9, 14, 14] {
        let error = replay(&upstream).await.unwrap_err();
        assert_eq!(error.status_code(), Some(expected));
    }
    // An empty answer is accepted=false.
    replay(&upstream).await.unwrap();
    for _ in 0..2 {
        replay(&upstream).await.unwrap_err();
    }
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);
    replay(&upstream).await.unwrap_err();
    assert!(matches!(
        upstream.breaker_state(),
        BreakerState::Open { .. }
    ));
}

#[tokio::test]
async fn breaker_5_status_9_is_neutral_to_a_live_register() {
    let answers = Mutex::new(VecDeque::from([14, 14, 9, 14]));
    let server =
        Server::start(move |_| Reply::Status(answers.lock().unwrap().pop_front().unwrap(), ""))
            .await;
    let upstream = upstream(server.address, &metrics(), |c| {
        c.breaker.failure_threshold = 3;
    });
    for _ in 0..3 {
        register(&upstream).await.unwrap_err();
    }
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);
    register(&upstream).await.unwrap_err();
    assert!(matches!(
        upstream.breaker_state(),
        BreakerState::Open { .. }
    ));
}
