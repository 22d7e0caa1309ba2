//! A server whose stream limit is below what the lanes use (PERMIT-11).

use super::*;

/// Of HTTP/2.
const INTERNAL_ERROR: u32 = 2;
const FULL: &str = r#"upstream_rpc_errors_total{code="too_many_streams",rpc_name="notify_stream"}"#;

fn transitions(metrics: &Metrics, state: &str) -> Option<f64> {
    let series = format!("upstream_circuit_transitions_total{{state=\"{state}\"}}");
    metric(metrics, &series)
}

/// One that takes a few milliseconds for a notice, so that sends overlap.
async fn server(limit: u32) -> Server {
    let answer = Bytes::from(StreamStatusAck { acknowledged: true }.encode_to_vec());
    Server::limited(limit, move |call| {
        match call.path.ends_with("ProxyRegister") {
            true => Reply::Status(14, ""),
            false => Reply::Late(Duration::from_millis(5), answer.clone()),
        }
    })
    .await
}

async fn knows_the_limit(metrics: &Metrics, limit: u32) {
    until("the limit", || {
        metric(metrics, "upstream_server_max_streams") == Some(f64::from(limit))
    })
    .await;
}

#[tokio::test]
async fn permit_11_on_this_lane_a_full_connection_says_nothing_to_the_breaker() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let metrics = metrics();
    let upstream = upstream(listener.local_addr().unwrap(), &metrics, |_| {});
    let mut peer = timeout(LONG, Peer::accept(&listener, Some(0)))
        .await
        .unwrap();
    let notifier = notifier(&upstream, &metrics, 100);
    let started = Instant::now();
    notifier.send(notice(1, Event::Connected));
    until("seven sends", || value(&metrics, "requeued_total") >= 7.0).await;
    let least = Duration::from_millis(10 + 20 + 40 + 80 + 100 + 100);
    assert!(started.elapsed() >= least, "{:?}", started.elapsed());
    assert!(metric(&metrics, FULL) >= Some(7.0));
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);
    peer.announce(Some(1)).await;
    called(&mut peer).await;
}

#[tokio::test]
async fn permit_11_every_connected_arrives_whatever_the_limit_and_the_breaker_stays_closed() {
    for limit in [1, 8] {
        let mut server = server(limit).await;
        let metrics = metrics();
        let upstream = upstream(server.address, &metrics, |_| {});
        knows_the_limit(&metrics, limit).await;
        let notifier = notifier(&upstream, &metrics, 100);
        for agent in 0..60 {
            notifier.send(notice(agent, Event::Connected));
        }
        let mut heard = std::collections::BTreeSet::new();
        for _ in 0..60 {
            heard.insert(next(&mut server).await);
        }
        assert_eq!(heard.len(), 60);
        until("all landed", || value(&metrics, "inflight") == 0.0).await;
        assert_eq!(value(&metrics, "pending"), 0.0);
        assert!(server.most.load(Ordering::SeqCst) <= limit as usize);
        assert!(metric(&metrics, FULL) > Some(0.0), "limit {limit}");
        assert_eq!(
            metric(&metrics, FULL).unwrap(),
            value(&metrics, "requeued_total")
        );
        assert_eq!(upstream.breaker_state(), BreakerState::Closed);
        assert_eq!(transitions(&metrics, "open"), Some(0.0), "limit {limit}");
    }
}

#[tokio::test]
async fn permit_11_a_probe_that_finds_no_stream_leaves_half_open_and_is_sent_again() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let metrics = metrics();
    let upstream = upstream(listener.local_addr().unwrap(), &metrics, |c| {
        c.breaker.failure_threshold = 1;
        c.breaker.reset_timeout = Duration::from_millis(20);
    });
    let mut peer = timeout(LONG, Peer::accept(&listener, Some(1)))
        .await
        .unwrap();
    let failing = tokio::spawn({
        let upstream = upstream.clone();
        async move { upstream.register(Bytes::new(), None, soon()).await }
    });
    let register = called(&mut peer).await;
    peer.reset(register, INTERNAL_ERROR).await;
    failing.await.unwrap().unwrap_err();
    peer.announce(Some(0)).await;
    until("half open", || {
        upstream.breaker_state() == BreakerState::HalfOpen
    })
    .await;
    knows_the_limit(&metrics, 0).await;
    let notifier = notifier(&upstream, &metrics, 100);
    for agent in 1..=3 {
        notifier.send(notice(agent, Event::Connected));
    }
    until("probed", || value(&metrics, "requeued_total") >= 3.0).await;
    assert_eq!(upstream.breaker_state(), BreakerState::HalfOpen);
    peer.announce(Some(1)).await;
    let probe = called(&mut peer).await;
    let answer = StreamStatusAck { acknowledged: true };
    peer.answer(probe, &answer.encode_to_vec()).await;
    until("closed", || {
        upstream.breaker_state() == BreakerState::Closed
    })
    .await;
    assert_eq!(transitions(&metrics, "open"), Some(1.0));
}

#[tokio::test]
async fn stop_6_a_small_limit_loses_nothing_while_there_is_time() {
    let server = server(1).await;
    let metrics = metrics();
    // Open, so that all are held when the stop begins.
    let upstream = upstream(server.address, &metrics, |c| {
        c.breaker.failure_threshold = 1;
        c.breaker.reset_timeout = LONG;
    });
    knows_the_limit(&metrics, 1).await;
    upstream
        .register(Bytes::new(), None, soon())
        .await
        .unwrap_err();
    let notifier = notifier(&upstream, &metrics, 100);
    for agent in 0..20 {
        notifier.send(notice(agent, Event::Disconnected));
    }
    assert_eq!(value(&metrics, "pending"), 20.0);
    assert_eq!(notifier.flush(soon()).await, (20, 0));
    assert_eq!(lost(&metrics, "disconnected", "shutdown"), 0.0);
    assert!(metric(&metrics, FULL) >= Some(19.0));
    assert_eq!(server.most.load(Ordering::SeqCst), 1);
}
