//! The connection: its death, its return, its stream limit.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;

use super::peer::{Peer, Seen};
use super::server::{Reply, Server};
use super::*;

const REFUSED_STREAM: u32 = 7;
const INTERNAL_ERROR: u32 = 2;

pub(super) async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn call(upstream: &Upstream) -> impl Future<Output = Result<Bytes, CallError>> + 'static {
    let upstream = upstream.clone();
    async move {
        upstream
            .register(Bytes::from_static(b"\x12\x01t"), None, soon())
            .await
    }
}

/// The next stream whose request is complete.
pub(super) async fn complete(peer: &mut Peer) -> u32 {
    loop {
        match timeout(LONG, peer.next()).await.expect("a request") {
            Seen::Complete(stream) => return stream,
            Seen::Closed => panic!("the client closed the connection"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn upch_1_the_connection_is_opened_at_start_and_is_one() {
    let (listener, address) = listener().await;
    let upstream = upstream(address, &metrics(), |_| {});
    let mut peer = timeout(LONG, Peer::accept(&listener, Some(128)))
        .await
        .unwrap();
    for _ in 0..3 {
        let answer = tokio::spawn(call(&upstream));
        let stream = complete(&mut peer).await;
        peer.answer(stream, &accepted()).await;
        answer.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn upch_2_without_a_connection_being_made_a_call_fails_at_once_with_the_last_error() {
    let (listener, address) = listener().await;
    drop(listener);
    let metrics = metrics();
    let upstream = upstream(address, &metrics, |_| {});
    // Whichever state the redial is in, the call ends by the refusal of this or the last dial.
    let started = Instant::now();
    let error = call(&upstream).await.unwrap_err();
    assert!(matches!(&error, CallError::NotConnected(_)), "{error:?}");
    assert_eq!(error.code(), Some("econnrefused"));
    assert!(!error.gateway_made());
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "the rpc timeout was not used up"
    );
    let series = r#"upstream_rpc_errors_total{code="econnrefused",rpc_name="register"}"#;
    assert_eq!(metric(&metrics, series), Some(1.0));
}

#[tokio::test]
async fn upch_2_a_call_waits_for_a_connection_that_is_being_made_within_its_own_time() {
    let (listener, address) = listener().await;
    let upstream = upstream(address, &metrics(), |c| {
        c.rpc_timeout = Duration::from_millis(200)
    });
    let mut peer = Peer::accept_silently(&listener).await;
    // No SETTINGS yet: the connection is not made.
    assert_eq!(call(&upstream).await, Err(CallError::Timeout));
    let waiting = tokio::spawn(call(&upstream));
    peer.announce(Some(128)).await;
    let stream = complete(&mut peer).await;
    peer.answer(stream, &accepted()).await;
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_accepts_and_stays_silent_is_given_up_after_the_connect_timeout() {
    let (listener, address) = listener().await;
    let upstream = upstream(address, &metrics(), |c| {
        c.connect_timeout = Duration::from_millis(100);
    });
    let _silent = Peer::accept_silently(&listener).await;
    let error = call(&upstream).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "no connection: the server sent no http/2 settings"
    );
    let mut second = timeout(LONG, Peer::accept(&listener, Some(128)))
        .await
        .expect("redial");
    assert_eq!(second.next().await, Seen::SettingsAcked);
}

#[tokio::test]
async fn a_dead_connection_fails_its_calls_at_once() {
    let (listener, address) = listener().await;
    let metrics = metrics();
    let upstream = upstream(address, &metrics, |c| c.breaker.failure_threshold = 1_000);
    let mut peer = Peer::accept(&listener, Some(128)).await;
    let mut calls: JoinSet<_> = (0..20).map(|_| call(&upstream)).collect();
    for _ in 0..20 {
        complete(&mut peer).await;
    }
    let died = Instant::now();
    drop(peer);
    while let Some(result) = calls.join_next().await {
        let error = result.unwrap().unwrap_err();
        assert!(matches!(error, CallError::Closed(_)), "{error:?}");
    }
    assert!(
        died.elapsed() < Duration::from_secs(2),
        "took {:?}",
        died.elapsed()
    );
    let series = r#"upstream_rpc_errors_total{code="closed",rpc_name="register"}"#;
    assert_eq!(metric(&metrics, series), Some(20.0));
}

#[tokio::test]
async fn the_connection_is_made_again_when_the_server_is_back() {
    let server = Server::start(|_| Reply::Message(accepted())).await;
    let address = server.address;
    let upstream = upstream(address, &metrics(), |c| c.breaker.failure_threshold = 1_000);
    call(&upstream).await.unwrap();
    drop(server);
    until("calls fail", || !upstream.is_connected()).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    let _server = Server::on(socket.listen(16).unwrap(), |_| Reply::Message(accepted()));
    until("connected again", || upstream.is_connected()).await;
    _server.gate.add_permits(1);
    call(&upstream).await.unwrap();
}

#[tokio::test]
async fn a_goaway_ends_no_call_and_the_next_one_goes_to_a_new_connection() {
    let (listener, address) = listener().await;
    let upstream = upstream(address, &metrics(), |_| {});
    let mut old = Peer::accept(&listener, Some(128)).await;
    let running = tokio::spawn(call(&upstream));
    let stream = complete(&mut old).await;
    old.go_away(stream).await;
    let mut new = timeout(LONG, Peer::accept(&listener, Some(128)))
        .await
        .expect("a new one");
    until("connected again", || upstream.is_connected()).await;
    let next = tokio::spawn(call(&upstream));
    let next_stream = complete(&mut new).await;
    new.answer(next_stream, &accepted()).await;
    next.await.unwrap().unwrap();
    old.answer(stream, &accepted()).await;
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn upch_9_what_a_goaway_says_was_not_processed_is_sent_once_more() {
    let (listener, address) = listener().await;
    let metrics = metrics();
    let upstream = upstream(address, &metrics, |c| c.breaker.failure_threshold = 1);
    let mut first = Peer::accept(&listener, Some(128)).await;
    let processed = tokio::spawn(call(&upstream));
    let last = complete(&mut first).await;
    let other = tokio::spawn(call(&upstream));
    assert!(complete(&mut first).await > last);
    first.go_away(last).await;
    let mut second = timeout(LONG, Peer::accept(&listener, Some(128)))
        .await
        .expect("a new one");
    let again = complete(&mut second).await;
    assert_eq!(second.message(again), b"\x12\x01t"[..]);
    second.answer(again, &accepted()).await;
    other.await.unwrap().unwrap();
    first.answer(last, &accepted()).await;
    processed.await.unwrap().unwrap();
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);
}

#[tokio::test]
async fn upch_9_a_server_that_does_nothing_but_leave_fails_the_call() {
    let (listener, address) = listener().await;
    let upstream = upstream(address, &metrics(), |c| c.breaker.failure_threshold = 1);
    let answer = tokio::spawn(call(&upstream));
    for _ in 0..2 {
        let mut peer = timeout(LONG, Peer::accept(&listener, Some(128)))
            .await
            .expect("a connection");
        complete(&mut peer).await;
        peer.go_away(0).await;
    }
    // A third attempt would find a server that stays.
    let third = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener, Some(128)).await;
        let stream = complete(&mut peer).await;
        peer.answer(stream, &accepted()).await;
    });
    let error = answer.await.unwrap().unwrap_err();
    third.abort();
    assert!(matches!(error, CallError::Closed(_)), "{error:?}");
    assert!(matches!(
        upstream.breaker_state(),
        BreakerState::Open { .. }
    ));
}

#[tokio::test]
async fn upch_9_a_replay_that_is_not_wanted_any_more_is_not_sent_again() {
    let (listener, address) = listener().await;
    let upstream = upstream(address, &metrics(), |_| {});
    let mut first = Peer::accept(&listener, Some(128)).await;
    let replay = tokio::spawn({
        let upstream = upstream.clone();
        async move {
            let mut asked = 0;
            let wanted = move || {
                asked += 1;
                asked == 1
            };
            let request = Bytes::from_static(b"\x12\x01t");
            upstream.replay_register(request, "s", soon(), wanted).await
        }
    });
    complete(&mut first).await;
    first.go_away(0).await;
    let _second = Peer::accept(&listener, Some(128)).await;
    assert_eq!(replay.await.unwrap(), Err(CallError::CalledOff));
}

#[tokio::test]
async fn permit_11_a_refused_stream_was_never_sent_and_is_asked_again() {
    let (listener, address) = listener().await;
    let metrics = metrics();
    let upstream = upstream(address, &metrics, |c| c.breaker.failure_threshold = 1);
    let mut peer = Peer::accept(&listener, Some(128)).await;
    let answer = tokio::spawn(call(&upstream));
    for _ in 0..3 {
        let stream = complete(&mut peer).await;
        peer.reset(stream, REFUSED_STREAM).await;
    }
    let stream = complete(&mut peer).await;
    peer.answer(stream, &accepted()).await;
    answer.await.unwrap().unwrap();
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);
    let series = r#"upstream_rpc_errors_total{code="too_many_streams",rpc_name="register"}"#;
    assert_eq!(metric(&metrics, series), Some(3.0));
}

#[tokio::test]
async fn a_reset_stream_is_a_stream_error() {
    let (listener, address) = listener().await;
    let upstream = upstream(address, &metrics(), |_| {});
    let mut peer = Peer::accept(&listener, Some(128)).await;
    let answer = tokio::spawn(call(&upstream));
    let stream = complete(&mut peer).await;
    peer.reset(stream, INTERNAL_ERROR).await;
    let error = answer.await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::Stream(_)), "{error:?}");
}

/// The server lowers its limit while more streams than that are open: they finish, no stream is
/// opened over the new limit, no call is lost, and none waits inside the HTTP/2 stack.
#[tokio::test]
async fn permit_10_the_ledger_keeps_calls_under_a_limit_that_shrinks() {
    const REGISTERS: usize = 8;
    let (listener, address) = listener().await;
    let metrics = metrics();
    let upstream = upstream(address, &metrics, |c| c.breaker.failure_threshold = 1);
    let limit = "upstream_server_max_streams";
    let heartbeat = || {
        let upstream = upstream.clone();
        async move { upstream.batch_heartbeat(Bytes::new()).await }
    };
    let full = async || {
        assert_eq!(
            timeout(Duration::from_secs(1), heartbeat())
                .await
                .expect("refused at once"),
            Err(CallError::TooManyStreams)
        );
    };
    let mut peer = Peer::accept(&listener, Some(40)).await;
    until("40 announced", || metric(&metrics, limit) == Some(40.0)).await;
    // Calls without a permit, so that only the ledger stands between.
    let mut calls: JoinSet<_> = (0..40).map(|_| heartbeat()).collect();
    let mut open = VecDeque::new();
    while open.len() < 40 {
        open.push_back(complete(&mut peer).await);
    }
    full().await;
    for _ in 0..REGISTERS {
        calls.spawn(call(&upstream));
    }

    peer.announce(Some(15)).await;
    until("15 announced", || metric(&metrics, limit) == Some(15.0)).await;
    for _ in 0..25 {
        full().await;
        peer.answer(open.pop_front().unwrap(), &accepted()).await;
    }
    full().await;
    peer.answer(open.pop_front().unwrap(), &accepted()).await;
    for _ in 0..REGISTERS {
        let stream = complete(&mut peer).await;
        assert_eq!(peer.open.len(), 15);
        full().await;
        peer.answer(stream, &accepted()).await;
    }
    for stream in open {
        peer.answer(stream, &accepted()).await;
    }
    while let Some(result) = calls.join_next().await {
        result.unwrap().unwrap();
    }
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);
}

#[tokio::test]
async fn permit_8_an_unlimited_server_is_shown_as_0() {
    let (listener, address) = listener().await;
    let metrics = metrics();
    let upstream = upstream(address, &metrics, |_| {});
    let mut peer = Peer::accept(&listener, None).await;
    until("connected", || upstream.is_connected()).await;
    let limit = "upstream_server_max_streams";
    assert_eq!(metric(&metrics, limit), Some(0.0));
    peer.announce(Some(117)).await;
    until("117 announced", || metric(&metrics, limit) == Some(117.0)).await;
    drop(peer);
    until("unknown again", || metric(&metrics, limit) == Some(0.0)).await;
}

#[tokio::test]
async fn five_thousand_cancelled_calls_leave_the_connection_usable() {
    let (listener, address) = listener().await;
    let metrics = metrics();
    let upstream = upstream(address, &metrics, |_| {});
    let mut peer = Peer::accept(&listener, Some(100)).await;
    let (mut opened, mut reset) = (0, 0);
    while opened < 5_000 {
        let mut calls: JoinSet<_> = (0..25).map(|_| call(&upstream)).collect();
        for _ in 0..25 {
            let stream = complete(&mut peer).await;
            opened += 1;
            // Answers to some of them cross the reset.
            if opened % 3 == 0 {
                peer.answer(stream, &accepted()).await;
            }
        }
        calls.shutdown().await;
    }
    let last = tokio::spawn(call(&upstream));
    let stream = loop {
        match timeout(LONG, peer.next()).await.unwrap() {
            Seen::Reset(_) => reset += 1,
            Seen::Complete(stream) => break stream,
            Seen::Closed => panic!("the connection is gone"),
            _ => {}
        }
    };
    peer.answer(stream, &accepted()).await;
    last.await.unwrap().unwrap();
    assert!(upstream.is_connected());
    assert!(reset > 0, "the last calls were reset");
    let held = r#"upstream_permits_held{class="register"}"#;
    assert_eq!(metric(&metrics, held), Some(0.0));
}

#[tokio::test]
async fn reg_14_a_dropped_call_resets_its_stream_and_frees_its_permit() {
    let server = Server::start(|_| Reply::Hang).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let running = tokio::spawn(call(&upstream));
    until("the call arrived", || {
        server.open.load(Ordering::SeqCst) == 1
    })
    .await;
    let held = r#"upstream_permits_held{class="register"}"#;
    assert_eq!(metric(&metrics, held), Some(1.0));
    running.abort();
    running.await.unwrap_err();
    assert_eq!(metric(&metrics, held), Some(0.0));
    until("the server saw the reset", || {
        server.open.load(Ordering::SeqCst) == 0
    })
    .await;
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);
}

#[tokio::test]
async fn without_an_endpoint_every_call_fails_and_the_breaker_stays_closed() {
    let mut config = Config::default().upstream;
    config.endpoints.clear();
    let upstream = Upstream::start(&config, metrics());
    for _ in 0..10 {
        let error = upstream
            .register(Bytes::new(), None, soon())
            .await
            .unwrap_err();
        assert_eq!(error, CallError::NoUpstream);
        assert!(error.gateway_made());
        assert_eq!(
            upstream.batch_heartbeat(Bytes::new()).await,
            Err(CallError::NoUpstream)
        );
    }
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);
    assert!(upstream.is_running());
}

#[tokio::test]
async fn upch_8_without_a_connection_the_tasks_still_run() {
    let (listener, address) = listener().await;
    drop(listener);
    let upstream = upstream(address, &metrics(), |_| {});
    call(&upstream).await.unwrap_err();
    assert!(!upstream.is_connected());
    assert!(upstream.is_running());
}

#[tokio::test]
async fn a_closed_upstream_ends_its_connection_after_the_last_call() {
    let (listener, address) = listener().await;
    let upstream = upstream(address, &metrics(), |_| {});
    let mut peer = Peer::accept(&listener, Some(128)).await;
    let running = tokio::spawn(call(&upstream));
    let stream = complete(&mut peer).await;
    // A handle that is left does not keep the connection.
    let _handle = upstream.clone();
    upstream.close().await;
    peer.answer(stream, &accepted()).await;
    running.await.unwrap().unwrap();
    while timeout(LONG, peer.next()).await.expect("the end") != Seen::Closed {}
}

#[tokio::test]
async fn a_closed_upstream_refuses_and_says_that_it_does_not_run() {
    let server = Server::start(|_| Reply::Message(accepted())).await;
    let upstream = upstream(server.address, &metrics(), |_| {});
    call(&upstream).await.unwrap();
    assert!(upstream.is_running());
    let other = upstream.clone();
    upstream.close().await;
    assert!(!other.is_running());
    assert_eq!(call(&other).await, Err(CallError::NoUpstream));
}
