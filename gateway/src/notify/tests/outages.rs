//! A server that is away: what is held, what probes, and in which order all of it arrives.
#![expect(clippy::print_stderr, reason = "shows figures")]

use super::*;

/// The breaker is opened by one failed Register, for `open_for`.
async fn opened(
    server: &mut Server,
    metrics: &Arc<Metrics>,
    open_for: Duration,
    max: Duration,
) -> Upstream {
    let upstream = upstream(server.address, metrics, |c| {
        c.breaker.failure_threshold = 1;
        c.breaker.reset_timeout = open_for;
        c.breaker.max_reset_timeout = max;
        c.rpc_timeout = LONG;
    });
    upstream
        .register(Bytes::new(), None, soon())
        .await
        .unwrap_err();
    server.calls.recv().await.unwrap();
    upstream
}

fn entered(metrics: &Metrics, state: &str) -> f64 {
    let series = format!("upstream_circuit_transitions_total{{state=\"{state}\"}}");
    metric(metrics, &series).unwrap()
}

/// F-NOT-4.
#[tokio::test]
async fn notify_6_ten_held_disconnected_arrive_in_order_after_one_probe() {
    let mut server = Server::gated(|call| match call.path.ends_with("ProxyRegister") {
        true => Reply::Status(14, ""),
        false => ack(true),
    })
    .await;
    server.gate.add_permits(1);
    let metrics = metrics();
    let pause = Duration::from_millis(50);
    let upstream = opened(&mut server, &metrics, pause, pause).await;
    let notifier = notifier(&upstream, &metrics, 100);
    for agent in 0..10 {
        notifier.send(notice(agent, Event::Disconnected));
    }
    assert_eq!(value(&metrics, "pending"), 10.0);
    assert!(server.calls.try_recv().is_err(), "none while it is open");
    assert_eq!(next(&mut server).await, ("a-0".into(), 1));
    assert_eq!(upstream.breaker_state(), BreakerState::HalfOpen);
    assert_eq!(
        (value(&metrics, "pending"), value(&metrics, "inflight")),
        (9.0, 1.0)
    );
    server.gate.add_permits(1);
    for agent in 1..10 {
        assert_eq!(next(&mut server).await, (format!("a-{agent}"), 1));
    }
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);
    server.gate.add_permits(9);
    until("landed", || value(&metrics, "inflight") == 0.0).await;
    assert_eq!(entered(&metrics, "half_open"), 1.0);
    assert_eq!(value(&metrics, "pending_hwm"), 10.0);
}

/// F-NOT-5, with shorter times.
#[tokio::test]
async fn notify_7_a_frozen_server_sees_one_probe_per_half_open_period_and_all_in_order() {
    let probes = AtomicUsize::new(0);
    let mut server = Server::start(move |call| match call.path.ends_with("ProxyRegister") {
        true => Reply::Status(14, ""),
        false if probes.fetch_add(1, Ordering::SeqCst) < 2 => Reply::Hang,
        false => ack(true),
    })
    .await;
    let metrics = metrics();
    let (first, max) = (Duration::from_millis(40), Duration::from_millis(100));
    let upstream = opened(&mut server, &metrics, first, max).await;
    let mut config = config::Config::default();
    config.notify.probe_timeout = Duration::from_millis(60);
    let notifier = start(&upstream, &metrics, &config.notify);
    let opened_at = Instant::now();
    for agent in 0..10 {
        notifier.send(notice(agent, Event::Disconnected));
    }
    let mut probed_at = Vec::new();
    for probe in 0..3 {
        assert_eq!(next(&mut server).await, ("a-0".into(), 1), "probe {probe}");
        probed_at.push(opened_at.elapsed().as_millis());
    }
    for agent in 1..10 {
        assert_eq!(next(&mut server).await, (format!("a-{agent}"), 1));
    }
    until("landed", || value(&metrics, "inflight") == 0.0).await;
    eprintln!("probes {probed_at:?} ms after the breaker opened");
    // Open for 40, 80, then 100 ms, with the deadline of a probe between them.
    for (probe, least) in probed_at.iter().zip([30, 40 + 60 + 80, 180 + 60 + 100]) {
        assert!(*probe >= least, "{probed_at:?}");
    }
    assert_eq!(entered(&metrics, "open"), 3.0);
    assert_eq!(entered(&metrics, "half_open"), 3.0);
    assert_eq!(value(&metrics, "requeued_total"), 2.0);
    assert!(
        server.calls.try_recv().is_err(),
        "none twice except the probe"
    );
}

#[tokio::test]
async fn notify_8_a_probe_that_cannot_be_encoded_is_evicted_and_the_next_is_probed() {
    let mut server = Server::start(|call| match call.path.ends_with("ProxyRegister") {
        true => Reply::Status(14, ""),
        false => ack(true),
    })
    .await;
    let metrics = metrics();
    let pause = Duration::from_millis(20);
    let upstream = opened(&mut server, &metrics, pause, pause).await;
    let notifier = notifier(&upstream, &metrics, 100);
    let huge = Notice {
        session_id: "x".repeat(5 << 20).into(),
        ..notice(1, Event::Connected)
    };
    notifier.send(huge);
    notifier.send(notice(2, Event::Connected));
    assert_eq!(next(&mut server).await.0, "a-2");
    until("closed", || {
        upstream.breaker_state() == BreakerState::Closed
    })
    .await;
    assert_eq!(lost(&metrics, "connected", "rejected"), 1.0);
    let encode = r#"upstream_rpc_errors_total{code="encode",rpc_name="notify_stream"}"#;
    assert_eq!(metric(&metrics, encode), Some(1.0));
    assert_eq!(
        (entered(&metrics, "open"), entered(&metrics, "half_open")),
        (1.0, 1.0)
    );
}

#[tokio::test]
async fn notify_9_a_call_that_closes_the_breaker_resumes_the_drain_while_the_probe_is_out() {
    let (registers, notices) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let mut server = Server::start(move |call| {
        let before = match call.path.ends_with("ProxyRegister") {
            true => registers.fetch_add(1, Ordering::SeqCst),
            false => notices.fetch_add(1, Ordering::SeqCst) + 10,
        };
        match before {
            0 => Reply::Status(14, ""),
            10 => Reply::Hang,
            1..10 => Reply::Message(crate::upstream::tests::accepted()),
            _ => ack(true),
        }
    })
    .await;
    let metrics = metrics();
    let pause = Duration::from_millis(20);
    let upstream = opened(&mut server, &metrics, pause, pause).await;
    let notifier = notifier(&upstream, &metrics, 100);
    for agent in 0..5 {
        notifier.send(notice(agent, Event::Connected));
    }
    assert_eq!(next(&mut server).await.0, "a-0");
    upstream.register(Bytes::new(), None, soon()).await.unwrap();
    let path = server.calls.recv().await.unwrap().path;
    assert!(path.ends_with("ProxyRegister"));
    for agent in 1..5 {
        assert_eq!(next(&mut server).await.0, format!("a-{agent}"));
    }
    until("the probe alone is left", || {
        value(&metrics, "inflight") == 1.0
    })
    .await;
    assert_eq!(value(&metrics, "pending"), 0.0);
}

#[tokio::test]
async fn notify_14_the_replay_is_due_when_the_breaker_is_closed_and_half_the_store_is_free() {
    let refusals = AtomicUsize::new(0);
    let mut server = Server::gated(move |call| match call.path.ends_with("ProxyRegister") {
        true => Reply::Status(14, ""),
        // The first probe is refused for itself, and so a CONNECTED is lost.
        false if refusals.fetch_add(1, Ordering::SeqCst) == 0 => Reply::Status(3, ""),
        false => ack(true),
    })
    .await;
    server.gate.add_permits(1);
    let metrics = metrics();
    let pause = Duration::from_millis(20);
    let upstream = opened(&mut server, &metrics, pause, pause).await;
    let notifier = notifier(&upstream, &metrics, 100);
    for agent in 0..3 {
        notifier.send(notice(agent, Event::Connected));
    }
    let due = tokio::spawn({
        let notifier = notifier.clone();
        async move { notifier.replay_due().await }
    });
    server.gate.add_permits(1);
    for agent in 0..2 {
        assert_eq!(next(&mut server).await.0, format!("a-{agent}"));
    }
    assert_eq!(lost(&metrics, "connected", "rejected"), 1.0);
    assert_eq!(upstream.breaker_state(), BreakerState::HalfOpen);
    assert!(!due.is_finished());
    server.gate.add_permits(2);
    timeout(LONG, due).await.unwrap().unwrap();
    assert_eq!(upstream.breaker_state(), BreakerState::Closed);
}

#[tokio::test]
async fn the_detector_of_a_slow_server_is_told_how_many_are_held_and_in_flight() {
    let server = Server::gated(|_| ack(true)).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let notifier = notifier(&upstream, &metrics, 100);
    let counts = upstream.notice_counts();
    let seen = || {
        let (held, out) = (&counts.held, &counts.in_flight);
        (held.load(Ordering::Relaxed), out.load(Ordering::Relaxed))
    };
    for agent in 0..13 {
        notifier.send(notice(agent, Event::Connected));
    }
    until("ten are out", || seen() == (3, 10)).await;
    server.gate.add_permits(13);
    until("none", || seen() == (0, 0)).await;
}
