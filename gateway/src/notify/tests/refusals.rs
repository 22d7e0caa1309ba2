//! A server that answers without recording.
#![expect(clippy::print_stderr, reason = "shows figures")]

use std::sync::atomic::AtomicBool;

use super::*;
use crate::notify::desk::End;

/// A notifier whose delays are short, and what it believes is held.
fn impatient(
    upstream: &Upstream,
    metrics: &Arc<Metrics>,
    is_held: impl Fn(&NoticeKey) -> bool + Send + Sync + 'static,
) -> Notifier {
    let mut config = config::Config::default();
    config.notify.unacked_retry_base = Duration::from_millis(10);
    config.notify.unacked_retry_max = Duration::from_millis(200);
    let metrics = Arc::clone(metrics);
    Notifier::start(
        upstream.clone(),
        &config.node,
        &config.notify,
        metrics,
        is_held,
    )
}

fn ended(metrics: &Metrics, outcome: &str) -> f64 {
    value(
        metrics,
        &format!("unacked_ended_total{{outcome=\"{outcome}\"}}"),
    )
}

#[tokio::test]
async fn unack_3_it_is_sent_again_until_it_is_recorded() {
    let refusals = AtomicUsize::new(3);
    let mut server = Server::start(move |_| {
        let left = refusals.try_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        ack(left.is_err())
    })
    .await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let notifier = impatient(&upstream, &metrics, |_| true);
    let begin = Instant::now();
    notifier.send(notice(1, Event::Connected));
    for resend in 0..4 {
        assert_eq!(next(&mut server).await, ("a-1".into(), 0));
        let least = Duration::from_millis(10) * resend;
        assert!(begin.elapsed() >= least, "resend {resend} came too soon");
    }
    until("recorded", || ended(&metrics, "acknowledged") == 1.0).await;
    let refused = "unacknowledged_total{event=\"connected\"}";
    assert_eq!(value(&metrics, refused), 3.0);
    assert_eq!(value(&metrics, "unacked_keys"), 0.0);
    assert!(server.calls.try_recv().is_err());
}

#[tokio::test]
async fn unack_4_resends_leave_five_slots_to_new_notices() {
    let mut server = Server::gated(|call| {
        let session = decoded_ref(call).session_id;
        let number: usize = session["gw-session-".len()..].parse().unwrap();
        ack(number >= 100)
    })
    .await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let notifier = impatient(&upstream, &metrics, |_| true);
    for agent in 0..20 {
        notifier.send(notice(agent, Event::Connected));
    }
    // Resends hold their slots while the gate is closed, so every one of the 20 got its answer.
    server.gate.add_permits(20);
    for _ in 0..25 {
        next(&mut server).await;
    }
    assert_eq!(server.open.load(Ordering::SeqCst), 5);
    assert_eq!(value(&metrics, "unacked_keys"), 20.0);
    for agent in 100..108 {
        notifier.send(notice(agent, Event::Connected));
    }
    for agent in 100..105 {
        assert_eq!(next(&mut server).await.0, format!("a-{agent}"));
    }
    assert_eq!(value(&metrics, "inflight"), 10.0);
    // Five resends are answered, and three of their slots go to new notices first.
    server.gate.add_permits(5);
    for agent in 105..108 {
        assert_eq!(next(&mut server).await.0, format!("a-{agent}"));
    }
    assert!(server.most.load(Ordering::SeqCst) <= 10);
}

/// A call as [`decoded`], without taking it.
fn decoded_ref(call: &Received) -> StreamStatusNotification {
    StreamStatusNotification::decode(call.message.clone()).unwrap()
}

#[tokio::test]
async fn unack_5_a_disconnected_is_sent_at_once_and_ends_the_wait_of_its_connected() {
    let mut server = Server::start(|call| ack(decoded_ref(call).event == 1)).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    // Delays of 1 s and more: nothing is resent within this test.
    let notifier = notifier(&upstream, &metrics, 100);
    notifier.send(notice(1, Event::Connected));
    assert_eq!(next(&mut server).await, ("a-1".into(), 0));
    until("waits", || value(&metrics, "unacked_keys") == 1.0).await;
    notifier.send(notice(1, Event::Disconnected));
    assert_eq!(ended(&metrics, "superseded"), 1.0);
    assert_eq!(next(&mut server).await, ("a-1".into(), 1));
    assert_eq!(value(&metrics, "unacked_keys"), 0.0);
}

#[tokio::test]
async fn unack_6_a_connected_is_not_resent_once_its_session_is_gone() {
    let mut server = Server::start(|_| ack(false)).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let held = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&held);
    let notifier = impatient(&upstream, &metrics, move |key| {
        assert_eq!(&*key.session_id, "gw-session-1");
        asked.load(Ordering::SeqCst)
    });
    notifier.send(notice(1, Event::Connected));
    for _ in 0..3 {
        next(&mut server).await;
    }
    held.store(false, Ordering::SeqCst);
    until("ended", || ended(&metrics, "session_ended") == 1.0).await;
    assert_eq!(value(&metrics, "unacked_keys"), 0.0);
    assert_eq!(lost(&metrics, "connected", "unacknowledged"), 0.0);
}

#[tokio::test]
async fn unack_9_waiting_disconnected_join_the_final_send() {
    let stopping = Arc::new(AtomicBool::new(false));
    let accepts = Arc::clone(&stopping);
    let mut server = Server::start(move |_| ack(accepts.load(Ordering::SeqCst))).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let notifier = notifier(&upstream, &metrics, 100);
    notifier.send(notice(1, Event::Connected));
    notifier.send(notice(2, Event::Disconnected));
    for _ in 0..2 {
        next(&mut server).await;
    }
    until("both wait", || value(&metrics, "unacked_keys") == 2.0).await;
    stopping.store(true, Ordering::SeqCst);
    assert_eq!(notifier.flush(soon()).await, (1, 1));
    assert_eq!(next(&mut server).await, ("a-2".into(), 1));
    assert_eq!(lost(&metrics, "connected", "shutdown"), 1.0);
    assert_eq!(ended(&metrics, "shutdown"), 2.0);
}

#[tokio::test]
async fn unack_11_gauges_follow_and_every_outcome_is_counted_under_its_name() {
    let mut server = Server::start(|call| ack(decoded_ref(call).event == 1)).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let mut config = config::Config::default();
    config.notify.unacked_slow_after = Duration::ZERO;
    let notifier = start(&upstream, &metrics, &config.notify);
    notifier.send(notice(1, Event::Connected));
    next(&mut server).await;
    until("slow", || value(&metrics, "unacked_slow_keys") == 1.0).await;
    assert_eq!(value(&metrics, "unacked_keys"), 1.0);
    notifier.send(notice(1, Event::Disconnected));
    assert_eq!(value(&metrics, "unacked_slow_keys"), 0.0);
    assert_eq!(value(&metrics, "unacked_keys"), 0.0);
    for (end, outcome, before) in [
        (End::Superseded, "superseded", 1.0),
        (End::Acknowledged, "acknowledged", 0.0),
        (End::SessionEnded, "session_ended", 0.0),
        (End::WindowExpired, "window_expired", 0.0),
        (End::Shutdown, "shutdown", 0.0),
        (End::Lost, "lost", 0.0),
    ] {
        assert_eq!(ended(&metrics, outcome), before, "{outcome}");
        notifier.shared.count(Fact::Ended(end));
        assert_eq!(ended(&metrics, outcome), before + 1.0, "{outcome}");
    }
}

#[tokio::test]
async fn owner_5_a_refused_disconnected_is_settled_at_once() {
    let mut server = Server::gated(|_| ack(false)).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let notifier = notifier(&upstream, &metrics, 100);
    let told = notice(1, Event::Disconnected);
    let key = told.key();
    notifier.send(told);
    next(&mut server).await;
    let settled = tokio::spawn({
        let (notifier, key) = (notifier.clone(), key.clone());
        async move { notifier.settled(&key).await }
    });
    tokio::task::yield_now().await;
    assert!(!settled.is_finished(), "the send is out");
    server.gate.add_permits(1);
    timeout(LONG, settled).await.unwrap().unwrap();
    assert_eq!(ended(&metrics, "superseded"), 1.0);
    assert_eq!(value(&metrics, "unacked_keys"), 0.0);
    timeout(LONG, notifier.settled(&key)).await.expect("still");
}

/// A small storm over real sockets; the figures of a large one are those of simulated time.
#[tokio::test]
async fn unack_4_a_storm_of_refusals_ends_and_new_notices_do_not_wait_for_it() {
    let recording = Arc::new(AtomicBool::new(false));
    let records = Arc::clone(&recording);
    let mut server = Server::start(move |call| {
        let fresh = decoded_ref(call).agent_id.len() > "a-999".len();
        ack(fresh || records.load(Ordering::SeqCst))
    })
    .await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |_| {});
    let notifier = impatient(&upstream, &metrics, |_| true);
    for agent in 0..500 {
        notifier.send(notice(agent, Event::Connected));
    }
    let refused = "unacknowledged_total{event=\"connected\"}";
    until("refused a while", || value(&metrics, refused) >= 3_000.0).await;
    while server.calls.try_recv().is_ok() {}
    let mut slowest = Duration::ZERO;
    for agent in 1_000..1_020 {
        for (event, number) in [(Event::Connected, 0), (Event::Disconnected, 1)] {
            let begin = Instant::now();
            notifier.send(notice(agent, event));
            let wanted = (format!("a-{agent}"), number);
            while next(&mut server).await != wanted {}
            slowest = slowest.max(begin.elapsed());
        }
    }
    recording.store(true, Ordering::SeqCst);
    let change = Instant::now();
    until("all recorded", || value(&metrics, "unacked_keys") == 0.0).await;
    eprintln!(
        "500 refused: recorded {:?} after the change (delays of at most 200 ms); new notices \
         arrived within {slowest:?}",
        change.elapsed()
    );
    assert_eq!(ended(&metrics, "acknowledged"), 500.0);
    assert!(server.most.load(Ordering::SeqCst) <= 10);
}
