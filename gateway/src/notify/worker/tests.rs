//! Flights that end without a result, and the words of the log.

use std::time::Duration;

use bytes::Bytes;

use super::super::{Event, Notifier};
use super::*;
use crate::config;
use crate::observe::metrics::Metrics;
use crate::upstream::tests::server::{Reply, Server};
use crate::upstream::tests::{metric, metrics, soon, until, upstream};
use crate::upstream::{BreakerState, Upstream};

fn start(upstream: &Upstream, metrics: &Arc<Metrics>) -> Notifier {
    let config = config::Config::default();
    let metrics = Arc::clone(metrics);
    Notifier::start(
        upstream.clone(),
        &config.node,
        &config.notify,
        metrics,
        |_| true,
    )
}

fn notice() -> Notice {
    Notice {
        agent_id: "a-1".into(),
        session_id: "s-1".into(),
        stream_home_id: "h".into(),
        event: Event::Connected,
        peer: None,
    }
}

fn take(shared: &Arc<Shared>) -> Notice {
    let taken = shared.work(|desk| desk.start(Instant::now(), |_| true));
    taken.expect("a held notice")
}

#[tokio::test]
async fn notify_11_a_send_that_dies_without_a_result_is_lost_as_crashed() {
    let metrics = metrics();
    let mut config = config::Config::default();
    config.upstream.endpoints.clear();
    // Without an endpoint the worker takes nothing.
    let upstream = Upstream::start(&config.upstream, Arc::clone(&metrics));
    let notifier = start(&upstream, &metrics);
    notifier.send(notice());
    let taken = take(&notifier.shared);
    drop(Flight::new(&notifier.shared, taken, None, Instant::now()));
    let crashed = r#"upstream_notify_lost_total{event="connected",reason="crashed"}"#;
    assert_eq!(metric(&metrics, crashed), Some(1.0));
    assert_eq!(metric(&metrics, "upstream_notify_pending"), Some(0.0));
    assert_eq!(metric(&metrics, "upstream_notify_inflight"), Some(0.0));
}

/// F-NOT-9.
#[tokio::test]
async fn notify_6_a_probe_that_dies_reopens_the_breaker_and_is_held_again() {
    let server = Server::start(|_| Reply::Status(14, "")).await;
    let metrics = metrics();
    let upstream = upstream(server.address, &metrics, |c| {
        c.breaker.failure_threshold = 1;
        c.breaker.reset_timeout = Duration::from_millis(20);
        c.breaker.max_reset_timeout = Duration::from_secs(3_600);
    });
    upstream
        .register(Bytes::new(), None, soon())
        .await
        .unwrap_err();
    until("half open", || {
        upstream.breaker_state() == BreakerState::HalfOpen
    })
    .await;
    // The place of the probe is taken before there is a notice, so that the worker cannot.
    let admission = upstream.admit_notice();
    let notifier = start(&upstream, &metrics);
    notifier.send(notice());
    let taken = take(&notifier.shared);
    drop(Flight::new(
        &notifier.shared,
        taken,
        admission,
        Instant::now(),
    ));
    let opened = r#"upstream_circuit_transitions_total{state="open"}"#;
    assert_eq!(metric(&metrics, opened), Some(2.0));
    let requeued = "upstream_notify_requeued_total";
    assert_eq!(metric(&metrics, requeued), Some(1.0));
    assert_eq!(metric(&metrics, "upstream_notify_pending"), Some(1.0));
}

#[test]
fn unack_10_the_line_says_who_how_often_for_how_long_and_when_again() {
    let wait = Wait {
        refusals: 3,
        over: Duration::from_millis(6_500),
        delay: Duration::from_micros(7_250_900),
    };
    assert_eq!(
        not_recorded("connected", "agent\n7", wait),
        "Server did not record the connected stream status notice for agent?7 \
         (acknowledged=false; refused 3 time(s) over 6500 ms); sending it again in 7250 ms"
    );
}
