use super::*;
use Event::{Connected, Disconnected};

fn notice(session: usize, event: Event) -> Notice {
    Notice {
        agent_id: "a".into(),
        session_id: format!("s{session}").into(),
        stream_home_id: "h".into(),
        event,
        peer: None,
    }
}

fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

fn set() -> Unacked {
    Unacked::new(&config::Config::default().notify)
}

/// Refused: the delay in ms, or why there is none.
fn refuse(
    set: &mut Unacked,
    session: usize,
    event: Event,
    now: Instant,
    chance: f64,
) -> Result<u64, Refused> {
    match set.refuse(notice(session, event), now, chance) {
        Refused::Again(wait) => Ok(wait.delay.as_millis() as u64),
        other => Err(other),
    }
}

fn take(set: &mut Unacked, now: Instant) -> Option<String> {
    let (taken, ended) = set.take(now, |_| true);
    assert_eq!(ended, 0);
    taken.map(|notice| notice.session_id.to_string())
}

/// Refuses one notice over and over, each resend at the moment it is due: the delays in ms.
fn delays(event: Event, chance: f64, times: usize) -> Vec<u64> {
    let (mut set, mut now) = (set(), Instant::now());
    let mut delays = Vec::new();
    while delays.len() < times {
        let Ok(delay) = refuse(&mut set, 1, event, now, chance) else {
            break;
        };
        delays.push(delay);
        now += ms(delay - 1);
        assert_eq!(take(&mut set, now), None, "not due yet");
        now += ms(1);
        assert_eq!(take(&mut set, now), Some("s1".into()));
    }
    delays
}

#[test]
fn unack_3_the_first_resend_comes_after_1_to_3_s() {
    for (chance, delay) in [(0.0, 1_000), (0.5, 2_000), (1.0, 3_000)] {
        assert_eq!(delays(Connected, chance, 1), [delay]);
    }
}

#[test]
fn unack_3_each_delay_is_random_up_to_three_times_the_previous_and_60_s() {
    assert_eq!(
        delays(Connected, 1.0, 6),
        [3_000, 9_000, 27_000, 60_000, 60_000, 60_000]
    );
    assert_eq!(delays(Connected, 0.0, 4), [1_000; 4]);
    // 1 + (3 x previous - 1) / 2
    assert_eq!(delays(Connected, 0.5, 4), [2_000, 3_500, 5_750, 9_125]);
}

#[test]
fn unack_3_one_that_was_recorded_brings_the_next_forward_but_never_under_1_s() {
    let (mut set, start) = (set(), Instant::now());
    let at = |millis| start + ms(millis);
    refuse(&mut set, 1, Connected, start, 0.0).unwrap();
    refuse(&mut set, 2, Connected, start, 1.0).unwrap();
    refuse(&mut set, 3, Connected, at(700), 1.0).unwrap();
    assert_eq!(take(&mut set, at(1_000)), Some("s1".into()));
    set.end(&notice(1, Connected).key());
    set.hasten(at(1_010));
    assert_eq!(set.next_time(at(1_009)), Some(at(1_010)), "not in 3 s");
    assert_eq!(take(&mut set, at(1_010)), Some("s2".into()));
    set.hasten(at(1_020));
    assert_eq!(
        set.next_time(at(1_020)),
        Some(at(1_700)),
        "1 s after its refusal"
    );
    // What it waited is the previous delay.
    assert_eq!(refuse(&mut set, 2, Connected, at(1_030), 1.0), Ok(3_030));
    assert_eq!(take(&mut set, at(1_700)), Some("s3".into()));
    assert_eq!(refuse(&mut set, 3, Connected, at(1_700), 1.0), Ok(3_000));
}

#[test]
fn unack_7_one_that_was_recorded_hastens_no_slow_one() {
    let (mut set, start) = (set(), Instant::now());
    refuse(&mut set, 1, Connected, start, 0.0).unwrap();
    let later = start + ms(900_000);
    assert_eq!(take(&mut set, later), Some("s1".into()));
    assert_eq!(refuse(&mut set, 1, Connected, later, 0.0), Ok(480_000));
    set.hasten(later + ms(5_000));
    assert_eq!(set.next_time(later), Some(later + ms(480_000)));
}

#[test]
fn unack_2_one_entry_per_key_and_at_most_the_cap() {
    let mut config = config::Config::default().notify;
    config.pending_max = 2;
    let (mut set, now) = (Unacked::new(&config), Instant::now());
    refuse(&mut set, 1, Connected, now, 0.0).unwrap();
    refuse(&mut set, 2, Connected, now, 0.0).unwrap();
    assert_eq!(refuse(&mut set, 3, Connected, now, 0.0), Err(Refused::Full));
    assert_eq!(set.len(), 2);
    let later = now + ms(1_000);
    assert_eq!(take(&mut set, later), Some("s1".into()));
    refuse(&mut set, 1, Connected, later, 0.0).expect("its place is its own");
    assert_eq!(set.len(), 2);
}

#[test]
fn unack_6_a_connected_is_resent_only_while_its_session_is_held() {
    let (mut set, now) = (set(), Instant::now());
    for session in 1..=3 {
        refuse(&mut set, session, Connected, now, 0.0).unwrap();
    }
    refuse(&mut set, 4, Disconnected, now, 0.0).unwrap();
    let due = now + ms(1_000);
    let (taken, ended) = set.take(due, |key| &*key.session_id == "s3");
    assert_eq!(taken.map(|n| n.session_id), Some("s3".into()));
    assert_eq!((ended, set.len(), set.out()), (2, 2, 1));
    let (taken, ended) = set.take(due, |_| false);
    assert_eq!(taken.map(|n| n.session_id), Some("s4".into()));
    assert_eq!((ended, set.out()), (0, 2));
}

#[test]
fn unack_7_after_15_minutes_it_slows_down_to_8_to_10_minutes() {
    for (chance, slow) in [(0.0, 480_000), (0.5, 540_000), (1.0, 600_000)] {
        let (mut set, start) = (set(), Instant::now());
        refuse(&mut set, 1, Connected, start, 0.0).unwrap();
        // Held back by an open breaker for most of the time: that counts.
        let before = start + ms(899_999);
        assert_eq!(take(&mut set, before), Some("s1".into()));
        assert!(refuse(&mut set, 1, Connected, before, chance).unwrap() <= 3_000);
        assert_eq!(set.slow(), 0);
        let after = start + ms(910_000);
        assert_eq!(take(&mut set, after), Some("s1".into()));
        assert_eq!(refuse(&mut set, 1, Connected, after, chance), Ok(slow));
        assert_eq!(set.slow(), 1);
        assert!(set.end(&notice(1, Connected).key()));
        assert_eq!(set.slow(), 0);
        assert_eq!(refuse(&mut set, 1, Connected, after, 1.0), Ok(3_000));
    }
}

#[test]
fn unack_8_a_disconnected_is_resent_for_120_s() {
    // The last of them as the window ends.
    assert_eq!(
        delays(Disconnected, 1.0, 100),
        [3_000, 9_000, 27_000, 60_000, 21_000]
    );
    assert_eq!(delays(Disconnected, 0.0, 1_000), [1_000; 120]);
    let (mut set, start) = (set(), Instant::now());
    refuse(&mut set, 1, Disconnected, start, 0.0).unwrap();
    let late = start + ms(119_001);
    assert_eq!(take(&mut set, late), Some("s1".into()));
    assert_eq!(
        refuse(&mut set, 1, Disconnected, late, 0.0),
        Err(Refused::Expired)
    );
    assert_eq!((set.len(), set.out()), (0, 0));
}

#[test]
fn unack_8_a_disconnected_that_is_not_even_sent_is_given_up_after_120_s() {
    let (mut set, start) = (set(), Instant::now());
    refuse(&mut set, 1, Disconnected, start, 0.0).unwrap();
    refuse(&mut set, 2, Connected, start, 0.0).unwrap();
    assert_eq!(set.expire(start + ms(119_999)), 0);
    assert_eq!(set.expire(start + ms(120_000)), 1);
    assert_eq!(set.len(), 1);
}

#[test]
fn unack_8_never_slowed() {
    let mut config = config::Config::default().notify;
    config.unacked_slow_after = ms(0);
    let (mut set, now) = (Unacked::new(&config), Instant::now());
    assert_eq!(refuse(&mut set, 1, Disconnected, now, 1.0), Ok(3_000));
    assert_eq!(refuse(&mut set, 2, Connected, now, 1.0), Ok(600_000));
    assert_eq!(set.slow(), 1);
}

#[test]
fn unack_10_says_how_often_and_for_how_long() {
    let (mut set, start) = (set(), Instant::now());
    refuse(&mut set, 1, Connected, start, 0.0).unwrap();
    let later = start + ms(2_500);
    take(&mut set, later).unwrap();
    let expected = Wait {
        refusals: 2,
        over: ms(2_500),
        delay: ms(3_000),
    };
    assert_eq!(
        set.refuse(notice(1, Connected), later, 1.0),
        Refused::Again(expected)
    );
}

#[test]
fn a_resend_that_failed_is_due_again_before_the_later_ones() {
    let (mut set, start) = (set(), Instant::now());
    refuse(&mut set, 1, Connected, start, 0.0).unwrap();
    refuse(&mut set, 2, Connected, start + ms(5), 0.0).unwrap();
    let now = start + ms(2_000);
    assert_eq!(take(&mut set, now), Some("s1".into()));
    assert_eq!(set.out(), 1);
    set.put_back(&notice(1, Connected).key());
    assert_eq!((set.len(), set.out()), (2, 0));
    assert_eq!(take(&mut set, now), Some("s1".into()));
    assert_eq!(take(&mut set, now), Some("s2".into()));
    assert_eq!(take(&mut set, now), None);
}

#[test]
fn the_next_time_is_the_next_resend_not_yet_due_or_the_end_of_a_window() {
    let (mut set, start) = (set(), Instant::now());
    assert_eq!(set.next_time(start), None);
    refuse(&mut set, 1, Connected, start, 0.5).unwrap();
    refuse(&mut set, 2, Disconnected, start, 0.0).unwrap();
    assert_eq!(set.next_time(start), Some(start + ms(1_000)));
    assert_eq!(set.next_time(start + ms(1_000)), Some(start + ms(2_000)));
    let window = start + ms(120_000);
    assert_eq!(set.next_time(start + ms(5_000)), Some(window));
    assert_eq!(take(&mut set, start + ms(5_000)), Some("s2".into()));
    assert_eq!(set.next_time(start + ms(5_000)), None);
}

#[test]
fn unack_9_what_waits_comes_out_in_its_order() {
    let (mut set, start) = (set(), Instant::now());
    for (session, chance) in [(1, 1.0), (2, 0.0), (3, 0.5)] {
        refuse(&mut set, session, Connected, start, chance).unwrap();
    }
    assert_eq!(take(&mut set, start + ms(1_000)), Some("s2".into()));
    let waiting = set.end_all_waiting();
    let sessions: Vec<_> = waiting.iter().map(|n| n.session_id.to_string()).collect();
    assert_eq!(sessions, ["s3", "s1"]);
    assert_eq!((set.len(), set.out()), (1, 1));
    assert_eq!(set.end_all(), 1);
    assert_eq!((set.len(), set.out(), set.next_time(start)), (0, 0, None));
}

#[test]
fn reload_8_other_rules_hold_for_the_next_refusal_and_for_all_windows() {
    let (mut set, start) = (set(), Instant::now());
    refuse(&mut set, 1, Disconnected, start, 0.0).unwrap();
    refuse(&mut set, 2, Connected, start, 0.0).unwrap();
    let config = config::Notify {
        pending_max: 1,
        unacked_retry_base: ms(20_000),
        unacked_retry_max: ms(60_000),
        unacked_disconnected_window: ms(30_000),
        ..config::Config::default().notify
    };
    set.limit(&config);
    assert_eq!(set.len(), 2, "nothing leaves because of the cap");
    assert_eq!(
        refuse(&mut set, 3, Connected, start, 0.0),
        Err(Refused::Full)
    );
    let later = start + ms(1_000);
    assert_eq!(take(&mut set, later), Some("s1".into()));
    assert_eq!(take(&mut set, later), Some("s2".into()));
    // Three times the delay before is less than the base now.
    assert_eq!(refuse(&mut set, 2, Connected, later, 1.0), Ok(20_000));
    assert_eq!(refuse(&mut set, 1, Disconnected, later, 0.0), Ok(20_000));
    assert_eq!(set.expire(start + ms(29_999)), 0);
    assert_eq!(set.expire(start + ms(30_000)), 1, "its window is shorter");
}

#[test]
fn unack_3_recorded_twice_in_a_row_brings_two_forward() {
    let (mut set, start) = (set(), Instant::now());
    let at = |millis| start + ms(millis);
    for session in 1..=9 {
        refuse(&mut set, session, Connected, start, 1.0).unwrap();
    }
    let due = |set: &mut Unacked, now| std::iter::from_fn(|| take(set, now)).count();
    for (now, recorded, more) in [
        (1_500, true, 1),
        (1_510, true, 2),
        (1_520, false, 0),
        (1_530, true, 1),
    ] {
        match recorded {
            true => set.hasten(at(now)),
            false => {
                refuse(&mut set, 1, Connected, at(now), 1.0).unwrap();
            }
        }
        assert_eq!(due(&mut set, at(now)), more, "{now}");
    }
}
