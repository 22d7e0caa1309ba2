use super::*;

/// Looks once a second for `seconds` at a process that uses `share` of two processors.
fn run(busy: &mut Busy, clock: &mut (Instant, Duration), seconds: u64, share: f64) -> bool {
    let mut is_busy = false;
    for _ in 0..seconds {
        clock.0 += Duration::from_secs(1);
        clock.1 += Duration::from_secs(2).mul_f64(share);
        is_busy = busy.sample(clock.0, clock.1, 2, 0.85);
    }
    is_busy
}

#[test]
fn shift_2_processors_are_busy_after_a_minute_above_the_mark() {
    let (mut busy, mut clock) = (Busy::default(), (Instant::now(), Duration::from_secs(100)));
    assert!(!busy.sample(clock.0, clock.1, 2, 0.85));
    assert!(!run(&mut busy, &mut clock, 59, 0.9));
    assert!(run(&mut busy, &mut clock, 6, 0.9));
    assert!(run(&mut busy, &mut clock, 60, 0.86));
    assert!(!run(&mut busy, &mut clock, 5, 0.5), "a look below it");
    assert!(!run(&mut busy, &mut clock, 55, 1.0));
    assert!(run(&mut busy, &mut clock, 10, 1.0));
    assert!(!run(&mut busy, &mut clock, 600, 0.84));
}

#[test]
fn shift_2_one_busy_second_is_no_look() {
    let (mut busy, mut clock) = (Busy::default(), (Instant::now(), Duration::ZERO));
    busy.sample(clock.0, clock.1, 2, 0.85);
    for _ in 0..100 {
        assert!(!run(&mut busy, &mut clock, 1, 1.0));
        assert!(!run(&mut busy, &mut clock, 4, 0.8));
    }
}

#[test]
fn shift_2_the_time_of_this_process_is_read() {
    let before = used().expect("Linux");
    let start = std::time::Instant::now();
    while used().expect("Linux") == before {
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    let line = "7 (a b) c) R 1 7 7 0 -1 4194560 1 0 0 0 250 150 0 0 20 0 3 0 1";
    let ticks = rustix::param::clock_ticks_per_second();
    assert_eq!(
        parse_used(line),
        Some(Duration::from_secs(400) / ticks as u32)
    );
    for none in [
        "",
        "7 (x",
        "7 (x) R 1",
        "7 (x) R 1 7 7 0 -1 4194560 1 0 0 0 a b",
    ] {
        assert_eq!(parse_used(none), None, "{none}");
    }
}
