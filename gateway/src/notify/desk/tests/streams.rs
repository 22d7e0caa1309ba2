//! A connection without a free stream (PERMIT-11).

use super::*;

#[test]
fn permit_11_a_notice_that_found_no_stream_is_held_at_the_head_and_the_lane_pauses() {
    let mut rig = Rig::new(100);
    rig.offer(1, Connected);
    rig.start();
    rig.offer(2, Connected);
    assert_eq!(rig.land(1, Sent::NoStream), [Fact::Requeued]);
    assert_eq!((rig.desk.held(), rig.desk.in_flight()), (2, 0));
    rig.wait_ms(9);
    assert!(!rig.desk.may_start(rig.now));
    assert_eq!(rig.start(), Vec::<String>::new());
    let ends = rig.now + Duration::from_millis(1);
    assert_eq!(rig.desk.next_time(rig.now), Some(ends));
    rig.wait_ms(1);
    assert_eq!(rig.start(), ["s1 connected", "s2 connected"]);
}

#[test]
fn permit_11_ten_that_find_no_stream_cause_one_pause_and_a_stream_makes_it_short_again() {
    let mut rig = Rig::new(100);
    for session in 0..10 {
        rig.offer(session, Connected);
    }
    for pause in [10, 20, 40, 80, 100, 100] {
        assert_eq!(rig.start().len(), 10, "before {pause}");
        for session in 0..10 {
            rig.land(session, Sent::NoStream);
        }
        rig.wait_ms(pause - 1);
        assert_eq!(rig.start().len(), 0, "{pause}");
        rig.wait_ms(1);
    }
    assert_eq!(rig.start().len(), 10);
    rig.land(0, Sent::NoStream);
    rig.land(1, Sent::Acknowledged);
    rig.wait_ms(99);
    assert_eq!(rig.start().len(), 0, "a pause that is on stays on");
    rig.wait_ms(1);
    assert_eq!(rig.start().len(), 1);
    rig.land(0, Sent::NoStream);
    rig.wait_ms(10);
    assert_eq!(rig.start(), ["s0 connected"]);
}

#[test]
fn permit_11_a_notice_that_found_no_stream_gives_way_to_a_newer_one() {
    let mut rig = Rig::new(100);
    rig.offer(1, Connected);
    rig.start();
    rig.offer(1, Disconnected);
    assert_eq!(rig.land(1, Sent::NoStream), [Fact::Coalesced]);
    rig.wait_ms(10);
    assert_eq!(rig.start(), ["s1 disconnected"]);
}

#[test]
fn permit_11_a_resend_that_found_no_stream_keeps_its_place_and_its_age() {
    let mut rig = Rig::new(100);
    rig.refused(1..2, Connected);
    rig.wait(1);
    assert_eq!(rig.start(), ["s1 connected"]);
    assert_eq!(rig.land(1, Sent::NoStream), [Fact::Requeued]);
    assert_eq!((rig.desk.held(), rig.desk.unacked()), (0, 1));
    let ends = rig.now + Duration::from_millis(10);
    assert_eq!(rig.desk.next_time(rig.now), Some(ends));
    rig.wait_ms(10);
    assert_eq!(rig.start(), ["s1 connected"]);
    let facts = rig.land(1, Sent::Unacknowledged);
    assert!(matches!(facts[..], [Fact::Again(Wait { refusals: 2, .. })]));
}

#[test]
fn stop_6_a_notice_that_found_no_stream_is_sent_again_within_the_deadline() {
    let mut rig = Rig::new(100);
    for session in 0..20 {
        rig.offer(session, Disconnected);
    }
    rig.desk.begin_final_send(rig.now);
    let mut rounds = 0;
    while !rig.desk.is_drained() {
        let started = rig.start().len();
        assert_eq!(started, 20 - rounds);
        let last = rig.out[started - 1].key();
        for session in 0..20 {
            let found = rig
                .out
                .iter()
                .find(|n| *n.session_id == *format!("s{session}"));
            let Some(key) = found.map(Notice::key) else {
                continue;
            };
            // One stream for all of them.
            match key == last {
                true => assert_eq!(rig.land(session, Sent::Acknowledged), []),
                false => assert_eq!(rig.land(session, Sent::NoStream), [Fact::Requeued]),
            }
        }
        rounds += 1;
        rig.wait_ms(100);
    }
    assert_eq!((rounds, rig.desk.report()), (20, (20, 0)));
    assert_eq!(rig.desk.give_up(rig.now), []);
}

#[test]
fn stop_6_a_resend_that_found_no_stream_is_sent_again_as_a_held_notice() {
    for event in [Connected, Disconnected] {
        let mut rig = Rig::new(100);
        rig.refused(1..2, event);
        rig.wait(1);
        assert_eq!(rig.start().len(), 1);
        assert_eq!(rig.desk.begin_final_send(rig.now), []);
        let facts = rig.land(1, Sent::NoStream);
        assert_eq!(facts, [Fact::Ended(End::Shutdown), Fact::Requeued]);
        assert_eq!((rig.desk.held(), rig.desk.unacked()), (1, 0));
        assert!(!rig.desk.is_drained());
        rig.wait_ms(10);
        assert_eq!(rig.start().len(), 1);
        assert_eq!(rig.land(1, Sent::Acknowledged), []);
        assert!(rig.desk.is_drained());
        assert_eq!(rig.desk.report(), (1, 0));
    }
}

#[test]
fn stop_6_what_found_no_stream_by_the_deadline_is_lost() {
    let mut rig = Rig::new(100);
    rig.offer(1, Disconnected);
    rig.desk.begin_final_send(rig.now);
    rig.start();
    rig.land(1, Sent::NoStream);
    let lost = Fact::Lost(Disconnected, Loss::Shutdown);
    assert_eq!(rig.desk.give_up(rig.now), [lost]);
    assert_eq!(rig.desk.report(), (0, 1));
}
