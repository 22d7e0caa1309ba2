use super::*;

fn ledger() -> (Arc<Ledger>, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::new("test").unwrap());
    (Ledger::new(Arc::clone(&metrics), true), metrics)
}

fn bounds(sessions: usize, per_owner: usize, bytes: usize) -> Routing {
    Routing {
        max_sessions: sessions,
        max_sessions_per_owner: per_owner,
        max_inflight_bytes: bytes,
        ..Routing::default()
    }
}

fn rejected(metrics: &Metrics, limit: &str) -> u64 {
    let family = &metrics.forward_rejected_total;
    family.with_label_values(&[limit]).get()
}

#[test]
fn fwd_5_sessions_are_bounded_for_the_node_and_for_each_owner() {
    let (ledger, metrics) = ledger();
    let (b, c): (Arc<str>, Arc<str>) = ("b".into(), "c".into());
    let bounds = bounds(3, 2, 1);
    let _first = ledger.seat(&b, &bounds).unwrap();
    let second = ledger.seat(&b, &bounds).unwrap();
    assert_eq!(
        ledger.seat(&b, &bounds).unwrap_err(),
        Limit::SessionsPerOwner
    );
    let _third = ledger.seat(&c, &bounds).unwrap();
    assert_eq!(ledger.seat(&c, &bounds).unwrap_err(), Limit::Sessions);
    assert_eq!(rejected(&metrics, "max_sessions"), 1);
    assert_eq!(rejected(&metrics, "max_sessions_per_owner"), 1);
    assert_eq!(metrics.forward_sessions.get(), 3);
    let of_b = metrics.forward_owner_sessions.with_label_values(&["b"]);
    assert_eq!(of_b.get(), 2);
    drop(second);
    assert_eq!(of_b.get(), 1);
    assert!(ledger.seat(&b, &bounds).is_ok());
    // Other bounds are in force at once.
    assert!(ledger.seat(&c, &self::bounds(9, 9, 1)).is_ok());
    assert_eq!(ledger.state().by_owner.len(), 2);
}

#[test]
fn fwd_5_bytes_on_their_way_are_bounded_and_one_command_passes_alone() {
    let (ledger, metrics) = ledger();
    let bounds = bounds(1, 1, 100);
    let large = ledger.load(500, &bounds).unwrap();
    assert_eq!(ledger.load(1, &bounds).unwrap_err(), Limit::InflightBytes);
    drop(large);
    let first = ledger.load(60, &bounds).unwrap();
    let held = ledger.hold(30);
    assert_eq!(metrics.forward_inflight_bytes.get(), 90);
    assert!(ledger.load(11, &bounds).is_err());
    let _second = ledger.load(10, &bounds).unwrap();
    drop((first, held));
    assert_eq!(metrics.forward_inflight_bytes.get(), 10);
    assert_eq!(rejected(&metrics, "max_inflight_bytes"), 2);
}

#[test]
fn fwd_9_an_owner_that_refused_is_left_alone_for_a_second() {
    let (ledger, _) = ledger();
    let (b, c): (Arc<str>, Arc<str>) = ("b".into(), "c".into());
    let now = Instant::now();
    ledger.refused(&b, now);
    let later = |ms| now + Duration::from_millis(ms);
    assert!(ledger.fails_fast("b", later(999)));
    assert!(!ledger.fails_fast("b", later(1_000)));
    assert!(!ledger.fails_fast("c", later(0)));
    // Those whose second is over are forgotten.
    ledger.refused(&c, later(1_000));
    assert_eq!(ledger.state().refused.len(), 1);
}
