use proptest::prelude::*;

use super::*;

const BASE: Duration = Duration::from_secs(10);

fn breaker() -> Breaker {
    Breaker::new(&config::Breaker {
        failure_threshold: 5,
        reset_timeout: BASE,
        max_reset_timeout: Duration::from_secs(30),
    })
}

fn call(breaker: &mut Breaker, rpc: Rpc, verdict: Verdict, now: Instant) -> Option<Transition> {
    let ticket = breaker.admit(rpc, Kind::Call).expect("admitted");
    breaker.settle(ticket, verdict, now)
}

fn trip(breaker: &mut Breaker, rpc: Rpc, now: Instant) -> Duration {
    for _ in 0..4 {
        assert_eq!(call(breaker, rpc, Verdict::Failure, now), None);
    }
    match call(breaker, rpc, Verdict::Failure, now) {
        Some(Transition::Tripped { probe_in }) => probe_in,
        other => panic!("not tripped: {other:?}"),
    }
}

#[test]
fn breaker_1_five_failures_in_a_row_open_it_for_ten_seconds() {
    let (mut breaker, start) = (breaker(), Instant::now());
    assert_eq!(trip(&mut breaker, Rpc::Register, start), BASE);
    assert_eq!(
        breaker.state(),
        BreakerState::Open {
            until: start + BASE
        }
    );
    assert_eq!(breaker.tick(start + BASE - Duration::from_millis(1)), None);
    assert_eq!(breaker.tick(start + BASE), Some(Transition::HalfOpened));
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
}

#[test]
fn breaker_1_a_success_between_failures_starts_the_count_over() {
    let (mut breaker, now) = (breaker(), Instant::now());
    for _ in 0..10 {
        for _ in 0..4 {
            call(&mut breaker, Rpc::Register, Verdict::Failure, now);
        }
        call(&mut breaker, Rpc::Inventory, Verdict::Success, now);
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn breaker_2_failed_probes_double_the_open_time_up_to_the_cap() {
    let (mut breaker, mut now) = (breaker(), Instant::now());
    now += trip(&mut breaker, Rpc::Register, now);
    for expected in [20, 30, 30] {
        breaker.tick(now);
        let again = call(&mut breaker, Rpc::Register, Verdict::Failure, now);
        let probe_in = Duration::from_secs(expected);
        assert_eq!(again, Some(Transition::Reopened { probe_in }));
        now += probe_in;
    }
}

#[test]
fn breaker_2_only_the_lane_that_opened_it_brings_the_base_time_back() {
    let (mut breaker, mut now) = (breaker(), Instant::now());
    for expected in [10, 20, 30] {
        let open_for = trip(&mut breaker, Rpc::Register, now);
        assert_eq!(open_for, Duration::from_secs(expected));
        now += open_for;
        breaker.tick(now);
        let notice = breaker.admit(Rpc::Notify, Kind::Notice).unwrap();
        assert_eq!(
            breaker.settle(notice, Verdict::Success, now),
            Some(Transition::Closed)
        );
    }
    call(&mut breaker, Rpc::Register, Verdict::Success, now);
    assert_eq!(trip(&mut breaker, Rpc::Register, now), BASE);
}

/// A dead server fails calls of every lane; one that only records notices is not well.
#[test]
fn breaker_2_every_lane_that_helped_to_open_it_has_to_succeed() {
    let (mut breaker, mut now) = (breaker(), Instant::now());
    for rpc in [Rpc::Register, Rpc::Register, Rpc::Inventory, Rpc::Inventory] {
        call(&mut breaker, rpc, Verdict::Failure, now);
    }
    call(&mut breaker, Rpc::Notify, Verdict::Failure, now);
    now += BASE;
    breaker.tick(now);
    for rpc in [Rpc::Notify, Rpc::Inventory] {
        call(&mut breaker, rpc, Verdict::Success, now);
    }
    let open_for = trip(&mut breaker, Rpc::Register, now);
    assert_eq!(open_for, BASE * 2);
    now += open_for;
    breaker.tick(now);
    call(&mut breaker, Rpc::Register, Verdict::Success, now);
    assert_eq!(trip(&mut breaker, Rpc::Register, now), BASE);
}

/// A failed probe doubles the time and blames nobody: its lane did not open the breaker.
#[test]
fn breaker_2_a_failed_probe_of_another_lane_is_not_waited_for() {
    let (mut breaker, mut now) = (breaker(), Instant::now());
    now += trip(&mut breaker, Rpc::Register, now);
    breaker.tick(now);
    let notice = breaker.admit(Rpc::Notify, Kind::Notice).unwrap();
    let again = breaker.settle(notice, Verdict::Failure, now);
    let probe_in = BASE * 2;
    assert_eq!(again, Some(Transition::Reopened { probe_in }));
    now += probe_in;
    breaker.tick(now);
    call(&mut breaker, Rpc::Register, Verdict::Success, now);
    assert_eq!(trip(&mut breaker, Rpc::Register, now), BASE);
}

#[test]
fn breaker_5_neutral_answers_move_nothing() {
    let (mut breaker, mut now) = (breaker(), Instant::now());
    for _ in 0..4 {
        call(&mut breaker, Rpc::Register, Verdict::Failure, now);
    }
    for _ in 0..100 {
        assert_eq!(
            call(&mut breaker, Rpc::Register, Verdict::Neutral, now),
            None
        );
    }
    let tripped = call(&mut breaker, Rpc::Register, Verdict::Failure, now);
    assert!(matches!(tripped, Some(Transition::Tripped { .. })));
    now += BASE;
    breaker.tick(now);
    for _ in 0..100 {
        assert_eq!(
            call(&mut breaker, Rpc::Register, Verdict::Neutral, now),
            None
        );
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
    }
}

#[test]
fn breaker_7_open_admits_nothing() {
    let (mut breaker, now) = (breaker(), Instant::now());
    trip(&mut breaker, Rpc::Register, now);
    assert!(breaker.admit(Rpc::Register, Kind::Call).is_err());
    assert!(breaker.admit(Rpc::Notify, Kind::Notice).is_err());
}

#[test]
fn breaker_8_half_open_admits_one_call_and_one_notice() {
    let (mut breaker, now) = (breaker(), Instant::now());
    trip(&mut breaker, Rpc::Register, now);
    breaker.tick(now + BASE);
    let first = breaker.admit(Rpc::Register, Kind::Call).unwrap();
    assert!(first.is_probe());
    assert!(breaker.admit(Rpc::Inventory, Kind::Call).is_err());
    let notice = breaker.admit(Rpc::Notify, Kind::Notice).unwrap();
    assert!(breaker.admit(Rpc::Notify, Kind::Notice).is_err());
    breaker.settle(first, Verdict::Neutral, now);
    assert!(breaker.admit(Rpc::Inventory, Kind::Call).is_ok());
    breaker.settle(notice, Verdict::Success, now);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn breaker_9_a_probe_of_an_earlier_half_open_period_changes_nothing() {
    let (mut breaker, mut now) = (breaker(), Instant::now());
    now += trip(&mut breaker, Rpc::Register, now);
    breaker.tick(now);
    let late = breaker.admit(Rpc::Notify, Kind::Notice).unwrap();
    call(&mut breaker, Rpc::Register, Verdict::Failure, now);
    now += Duration::from_secs(20);
    breaker.tick(now);
    let current = breaker.admit(Rpc::Notify, Kind::Notice).unwrap();
    assert_eq!(breaker.settle(late, Verdict::Success, now), None);
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    assert!(
        !breaker.admits(Kind::Notice),
        "the late result freed the new probe's place"
    );
    assert_eq!(
        breaker.settle(current, Verdict::Success, now),
        Some(Transition::Closed)
    );
}

#[test]
fn breaker_9_failures_admitted_before_it_opened_do_not_fail_the_probe() {
    let (mut breaker, now) = (breaker(), Instant::now());
    let slow = breaker.admit(Rpc::Register, Kind::Call).unwrap();
    trip(&mut breaker, Rpc::Register, now);
    breaker.tick(now + BASE);
    assert_eq!(breaker.settle(slow, Verdict::Failure, now + BASE), None);
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
}

#[test]
fn a_cap_below_the_base_is_raised_to_it() {
    let mut breaker = Breaker::new(&config::Breaker {
        failure_threshold: 1,
        reset_timeout: BASE,
        max_reset_timeout: Duration::from_secs(1),
    });
    let now = Instant::now();
    let tripped = call(&mut breaker, Rpc::Register, Verdict::Failure, now);
    assert_eq!(tripped, Some(Transition::Tripped { probe_in: BASE }));
}

#[derive(Debug, Clone)]
enum Step {
    Admit(Rpc, bool),
    Settle(prop::sample::Index, u8),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let rpc = prop::sample::select(vec![Rpc::Register, Rpc::Inventory, Rpc::Notify]);
    prop_oneof![
        3 => (rpc, any::<bool>()).prop_map(|(rpc, notice)| Step::Admit(rpc, notice)),
        3 => (any::<prop::sample::Index>(), 0u8..8).prop_map(|(i, v)| Step::Settle(i, v)),
        1 => (0u64..15_000).prop_map(Step::Wait),
    ]
}

proptest! {
    /// Whatever the schedule: at most one probe of each kind is out in the current half-open
    /// period, open times stay between base and cap, and open never admits.
    #[test]
    fn keeps_its_bounds(steps in prop::collection::vec(step(), 1..300)) {
        let mut breaker = breaker();
        let mut now = Instant::now();
        let mut out: Vec<Ticket> = Vec::new();
        for step in steps {
            match step {
                Step::Admit(rpc, notice) => {
                    let kind = if notice { Kind::Notice } else { Kind::Call };
                    let admitted = breaker.admit(rpc, kind);
                    match breaker.state() {
                        BreakerState::Closed => prop_assert!(admitted.is_ok()),
                        BreakerState::Open { .. } => prop_assert!(admitted.is_err()),
                        BreakerState::HalfOpen => {
                            let probes = out
                                .iter()
                                .filter(|t| t.period == breaker.period && t.kind == kind)
                                .count();
                            prop_assert_eq!(admitted.is_ok(), probes == 0);
                        }
                    }
                    out.extend(admitted);
                }
                Step::Settle(index, verdict) if !out.is_empty() => {
                    let ticket = out.swap_remove(index.index(out.len()));
                    let verdict = match verdict {
                        0 => Verdict::Success,
                        1 => Verdict::Neutral,
                        _ => Verdict::Failure,
                    };
                    let stale = ticket.period != breaker.period;
                    let before = breaker.state();
                    let transition = breaker.settle(ticket, verdict, now);
                    if stale || verdict == Verdict::Neutral {
                        prop_assert_eq!(breaker.state(), before);
                    }
                    if let Some(
                        Transition::Tripped { probe_in } | Transition::Reopened { probe_in },
                    ) = transition
                    {
                        prop_assert!((BASE..=Duration::from_secs(30)).contains(&probe_in));
                    }
                }
                Step::Settle(..) => {}
                Step::Wait(ms) => {
                    now += Duration::from_millis(ms);
                    breaker.tick(now);
                    if let BreakerState::Open { until } = breaker.state() {
                        prop_assert!(now < until);
                    }
                }
            }
        }
    }
}

#[test]
fn reload_3_other_times_hold_from_the_next_open_state_on() {
    let other = |threshold: u32, base: u64, max: u64| config::Breaker {
        failure_threshold: threshold,
        reset_timeout: Duration::from_secs(base),
        max_reset_timeout: Duration::from_secs(max),
    };
    let (mut breaker, start) = (breaker(), Instant::now());
    breaker.retune(&other(1, 20, 100));
    let probe_in = |transition| match transition {
        Some(Transition::Tripped { probe_in } | Transition::Reopened { probe_in }) => {
            probe_in.as_secs()
        }
        other => panic!("{other:?}"),
    };
    let tripped = call(&mut breaker, Rpc::Register, Verdict::Failure, start);
    assert_eq!(probe_in(tripped), 20);
    breaker.retune(&other(1, 5, 25));
    assert_eq!(
        breaker.tick(start + Duration::from_secs(19)),
        None,
        "as it said"
    );
    breaker.tick(start + Duration::from_secs(20)).unwrap();
    let reopened = call(&mut breaker, Rpc::Register, Verdict::Failure, start);
    assert_eq!(probe_in(reopened), 25, "doubled, and under the new maximum");
}
