//! The desk, driven by hand.

use std::time::Duration;

use super::*;
use Event::{Connected, Disconnected};
use Loss::{AtCapacity, Crashed, Evicted, Rejected};

mod storm;
mod streams;

fn notice(session: usize, event: Event) -> Notice {
    Notice {
        agent_id: "a".into(),
        session_id: format!("s{session}").into(),
        stream_home_id: "h".into(),
        event,
        peer: None,
    }
}

/// A desk, its clock, and what is in flight.
struct Rig {
    desk: Desk,
    now: Instant,
    out: Vec<Notice>,
}

impl Rig {
    fn new(pending_max: usize) -> Self {
        let mut config = config::Config::default().notify;
        config.pending_max = pending_max;
        let now = Instant::now();
        Self {
            desk: Desk::new(&config, now),
            now,
            out: Vec::new(),
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn wait_ms(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
    }

    fn offer(&mut self, session: usize, event: Event) -> Vec<Fact> {
        self.desk.offer(notice(session, event), self.now)
    }

    /// Starts all that may start: their sessions.
    fn start(&mut self) -> Vec<String> {
        let mut started = Vec::new();
        while let (Some(notice), _) = self.desk.start(self.now, |_| true) {
            started.push(format!("{} {}", notice.session_id, notice.event.label()));
            self.out.push(notice);
        }
        started
    }

    /// Ends the flight of a session.
    fn land(&mut self, session: usize, sent: Sent) -> Vec<Fact> {
        let name = format!("s{session}");
        let found = self.out.iter().position(|n| *n.session_id == *name);
        let notice = self.out.remove(found.expect("in flight"));
        self.desk.land(notice, sent, self.now, 0.0)
    }

    /// Offers, sends and has refused a notice of each session.
    fn refused(&mut self, sessions: std::ops::Range<usize>, event: Event) {
        for session in sessions {
            self.offer(session, event);
            self.start();
            let facts = self.land(session, Sent::Unacknowledged);
            assert!(matches!(facts[..], [Fact::Again(_)]), "{facts:?}");
        }
    }
}

#[test]
fn unack_4_resends_use_5_of_the_10_slots_and_new_notices_go_first() {
    let mut rig = Rig::new(100);
    rig.refused(0..8, Connected);
    assert_eq!(rig.start(), Vec::<String>::new(), "not due yet");
    rig.wait(1);
    let resent: Vec<_> = (0..5).map(|n| format!("s{n} connected")).collect();
    assert_eq!(rig.start(), resent);
    assert_eq!((rig.desk.in_flight(), rig.desk.unacked()), (5, 8));
    for session in 20..27 {
        rig.offer(session, Connected);
    }
    assert_eq!(rig.start().len(), 5, "the other five slots");
    assert_eq!(rig.desk.held(), 2);
    rig.land(0, Sent::Acknowledged);
    assert_eq!(rig.start(), ["s25 connected"], "a new one before a resend");
    rig.land(1, Sent::Acknowledged);
    assert_eq!(rig.start(), ["s26 connected"]);
    rig.land(2, Sent::Acknowledged);
    assert_eq!(rig.start(), ["s5 connected"]);
}

#[test]
fn unack_5_a_newer_notice_cancels_the_waiting_resend_and_is_sent() {
    let mut rig = Rig::new(100);
    rig.refused(1..2, Connected);
    assert_eq!(rig.offer(1, Disconnected), [Fact::Ended(End::Superseded)]);
    assert_eq!(rig.desk.unacked(), 0);
    assert_eq!(rig.start(), ["s1 disconnected"]);
    rig.wait(10);
    assert_eq!(rig.start(), Vec::<String>::new());
}

#[test]
fn unack_5_a_resend_that_is_out_is_awaited_first() {
    for (sent, fact) in [
        (Sent::Acknowledged, Fact::Ended(End::Acknowledged)),
        (Sent::Unacknowledged, Fact::Ended(End::Superseded)),
        (Sent::Failed, Fact::Ended(End::Superseded)),
    ] {
        let mut rig = Rig::new(100);
        rig.refused(1..2, Connected);
        rig.wait(1);
        assert_eq!(rig.start(), ["s1 connected"]);
        assert_eq!(rig.offer(1, Disconnected), []);
        assert_eq!(rig.start(), Vec::<String>::new());
        assert_eq!(rig.land(1, sent), [fact]);
        assert_eq!(rig.start(), ["s1 disconnected"]);
        assert_eq!(rig.desk.unacked(), 0);
    }
}

#[test]
fn unack_5_a_refused_notice_gives_way_to_a_newer_one_that_is_held() {
    let mut rig = Rig::new(100);
    rig.offer(1, Connected);
    rig.start();
    rig.offer(1, Disconnected);
    assert_eq!(
        rig.land(1, Sent::Unacknowledged),
        [Fact::Ended(End::Superseded)]
    );
    assert_eq!(rig.start(), ["s1 disconnected"]);
}

#[test]
fn unack_6_a_session_that_is_gone_ends_the_wait_of_its_connected() {
    let mut rig = Rig::new(100);
    rig.refused(1..3, Connected);
    rig.wait(1);
    let (started, facts) = rig.desk.start(rig.now, |_| false);
    assert!(started.is_none());
    assert_eq!(facts, [Fact::Ended(End::SessionEnded); 2]);
    assert_eq!((rig.desk.unacked(), rig.desk.in_flight()), (0, 0));
}

#[test]
fn unack_8_the_end_of_the_window_is_a_loss_that_arms_nothing() {
    let mut rig = Rig::new(100);
    rig.refused(1..3, Disconnected);
    rig.wait(119);
    assert_eq!(rig.desk.tick(rig.now), []);
    rig.wait(1);
    let lost = Fact::Lost(Disconnected, Loss::Unacknowledged);
    let ended = Fact::Ended(End::WindowExpired);
    assert_eq!(rig.desk.tick(rig.now), [lost, ended, lost, ended]);
    assert!(!rig.desk.take_due_replay(true));
}

#[test]
fn unack_8_the_last_resend_leaves_before_its_window_ends() {
    let mut rig = Rig::new(100);
    rig.refused(1..2, Disconnected);
    rig.wait(100);
    rig.start();
    let notice = rig.out.remove(0);
    // 20 s are left, and this one would be due in 3 s; the next in 9 s, then as the window ends.
    for seconds in [3, 9, 8] {
        let facts = rig
            .desk
            .land(notice.clone(), Sent::Unacknowledged, rig.now, 1.0);
        assert!(matches!(facts[..], [Fact::Again(wait)] if wait.delay.as_secs() == seconds));
        rig.wait(seconds);
        assert_eq!(rig.start(), ["s1 disconnected"]);
        assert_eq!(rig.desk.tick(rig.now), []);
        rig.out.clear();
    }
    let lost = Fact::Lost(Disconnected, Loss::Unacknowledged);
    assert_eq!(
        rig.desk.land(notice, Sent::Unacknowledged, rig.now, 1.0),
        [lost, Fact::Ended(End::WindowExpired)]
    );
}

#[test]
fn unack_2_past_the_bound_it_is_lost() {
    let mut rig = Rig::new(2);
    rig.refused(1..3, Connected);
    rig.offer(3, Connected);
    rig.start();
    assert_eq!(
        rig.land(3, Sent::Unacknowledged),
        [
            Fact::Lost(Connected, Loss::Unacknowledged),
            Fact::Ended(End::Lost)
        ]
    );
    assert_eq!(rig.desk.unacked(), 2);
}

#[test]
fn unack_9_a_planned_stop_drops_waiting_connected_and_sends_waiting_disconnected() {
    let mut rig = Rig::new(3);
    rig.refused(1..2, Connected);
    rig.refused(2..4, Disconnected);
    for session in 10..13 {
        rig.offer(session, Disconnected);
    }
    let ended = Fact::Ended(End::Shutdown);
    let facts = rig.desk.begin_final_send(rig.now);
    assert_eq!(
        facts,
        [ended, Fact::Lost(Connected, Loss::Shutdown), ended, ended]
    );
    let all = [10, 11, 12, 2, 3].map(|n| format!("s{n} disconnected"));
    assert_eq!(rig.start(), all, "beyond the cap too");
    for session in [10, 11, 12] {
        assert_eq!(rig.land(session, Sent::Acknowledged), []);
    }
    assert_eq!(
        rig.land(2, Sent::Unacknowledged),
        [
            Fact::Lost(Disconnected, Loss::Unacknowledged),
            Fact::Ended(End::Lost)
        ]
    );
    assert!(!rig.desk.is_drained());
    assert_eq!(
        rig.land(3, Sent::Failed),
        [Fact::Lost(Disconnected, Loss::Shutdown)]
    );
    assert!(rig.desk.is_drained());
    assert_eq!(rig.desk.give_up(rig.now), []);
    assert_eq!(rig.desk.report(), (3, 3));
}

#[test]
fn unack_9_a_resend_that_is_out_at_the_stop_is_not_sent_again() {
    for (sent, lost) in [
        (Sent::Unacknowledged, Loss::Unacknowledged),
        (Sent::Failed, Loss::Shutdown),
    ] {
        let mut rig = Rig::new(10);
        rig.refused(1..2, Connected);
        rig.wait(1);
        rig.start();
        assert_eq!(rig.desk.begin_final_send(rig.now), []);
        assert!(!rig.desk.is_drained());
        assert_eq!(rig.land(1, sent)[0], Fact::Lost(Connected, lost));
        assert_eq!((rig.desk.unacked(), rig.desk.report()), (0, (0, 1)));
    }
}

#[test]
fn stop_6_what_lands_after_the_deadline_is_counted_once() {
    let mut rig = Rig::new(10);
    rig.refused(1..2, Connected);
    rig.wait(1);
    rig.offer(2, Disconnected);
    rig.start();
    let mut facts = rig.desk.give_up(rig.now);
    facts.sort_by_key(|fact| format!("{fact:?}"));
    assert_eq!(
        facts,
        [
            Fact::Ended(End::Shutdown),
            Fact::Lost(Connected, Loss::Shutdown),
            Fact::Lost(Disconnected, Loss::Shutdown)
        ]
    );
    assert_eq!(rig.land(1, Sent::Unacknowledged), []);
    assert_eq!(rig.land(2, Sent::Failed), []);
    assert_eq!(rig.desk.report(), (0, 2));
    assert_eq!(
        rig.offer(3, Connected),
        [Fact::Lost(Connected, Loss::Shutdown)]
    );
    assert_eq!(rig.start(), Vec::<String>::new());
}

#[test]
fn owner_5_a_refused_disconnected_is_settled_and_not_resent() {
    let mut rig = Rig::new(10);
    rig.offer(1, Disconnected);
    let key = notice(1, Disconnected).key();
    assert_eq!(rig.desk.settle(&key), (false, vec![]), "held");
    rig.start();
    assert_eq!(rig.desk.settle(&key), (false, vec![]), "in flight");
    rig.land(1, Sent::Unacknowledged);
    assert_eq!(
        rig.desk.settle(&key),
        (true, vec![Fact::Ended(End::Superseded)])
    );
    rig.wait(10);
    assert_eq!(rig.start(), Vec::<String>::new());
    rig.refused(1..2, Disconnected);
    rig.wait(1);
    rig.start();
    assert_eq!(rig.desk.settle(&key), (false, vec![]), "a resend is out");
}

#[test]
fn notify_10_a_failed_send_is_requeued_and_gives_way_to_a_newer_one() {
    let mut rig = Rig::new(10);
    rig.offer(1, Connected);
    rig.offer(2, Connected);
    rig.start();
    rig.offer(3, Connected);
    assert_eq!(rig.land(1, Sent::Failed), [Fact::Requeued]);
    rig.offer(2, Disconnected);
    assert_eq!(rig.land(2, Sent::Failed), [Fact::Coalesced]);
    assert_eq!(
        rig.start(),
        ["s1 connected", "s3 connected", "s2 disconnected"]
    );
}

#[test]
fn notify_10_a_failed_resend_keeps_its_place_and_its_age() {
    let mut rig = Rig::new(10);
    rig.refused(1..3, Connected);
    rig.wait(1);
    rig.start();
    assert_eq!(rig.land(1, Sent::Failed), [Fact::Requeued]);
    assert_eq!((rig.desk.unacked(), rig.desk.held()), (2, 0));
    rig.wait(900);
    assert_eq!(rig.start(), ["s1 connected"]);
    rig.land(1, Sent::Unacknowledged);
    assert_eq!(rig.desk.unacked_slow(), 1, "15 minutes after the first");
}

#[test]
fn notify_11_what_is_not_retried_is_lost() {
    for loss in [Rejected, Crashed] {
        let mut rig = Rig::new(10);
        rig.offer(1, Disconnected);
        rig.start();
        assert_eq!(
            rig.land(1, Sent::Lost(loss)),
            [Fact::Lost(Disconnected, loss)]
        );
        rig.refused(2..3, Connected);
        rig.wait(1);
        rig.start();
        let lost = Fact::Lost(Connected, loss);
        assert_eq!(
            rig.land(2, Sent::Lost(loss)),
            [lost, Fact::Ended(End::Lost)]
        );
        assert_eq!(rig.desk.held() + rig.desk.in_flight(), 0);
        assert_eq!(rig.desk.unacked(), 0);
    }
}

#[test]
fn notify_13_a_full_store_says_who_was_lost() {
    let mut rig = Rig::new(1);
    rig.offer(1, Connected);
    assert_eq!(
        rig.offer(2, Connected),
        [Fact::Dropped, Fact::Lost(Connected, AtCapacity)]
    );
    assert_eq!(rig.offer(3, Disconnected), [Fact::Lost(Connected, Evicted)]);
    assert_eq!(
        rig.offer(4, Disconnected),
        [Fact::Dropped, Fact::Lost(Disconnected, AtCapacity)]
    );
}

#[test]
fn notify_14_a_lost_connected_asks_for_one_full_replay_when_there_is_room() {
    let mut rig = Rig::new(4);
    assert!(!rig.desk.take_due_replay(true), "nothing was lost");
    for session in 1..=5 {
        rig.offer(session, Connected);
    }
    assert!(!rig.desk.take_due_replay(true), "full");
    rig.start();
    rig.land(1, Sent::Acknowledged);
    rig.land(2, Sent::Acknowledged);
    assert!(!rig.desk.take_due_replay(true), "half full");
    rig.land(3, Sent::Acknowledged);
    assert!(!rig.desk.take_due_replay(false), "the breaker is open");
    assert!(rig.desk.take_due_replay(true));
    assert!(!rig.desk.take_due_replay(true), "once");
}

#[test]
fn notify_14_every_loss_of_a_connected_counts_and_none_of_a_disconnected() {
    for (event, loss, due) in [
        (Connected, Rejected, true),
        (Connected, Crashed, true),
        (Disconnected, Rejected, false),
        (Disconnected, Crashed, false),
    ] {
        let mut rig = Rig::new(10);
        rig.offer(1, event);
        rig.start();
        rig.land(1, Sent::Lost(loss));
        assert_eq!(rig.desk.take_due_replay(true), due, "{event:?} {loss:?}");
    }
}

#[test]
fn notify_14_a_planned_stop_asks_for_no_replay() {
    let mut rig = Rig::new(10);
    rig.offer(1, Connected);
    rig.start();
    rig.land(1, Sent::Lost(Rejected));
    rig.desk.begin_final_send(rig.now);
    assert!(!rig.desk.take_due_replay(true));
}

#[test]
fn notify_15_the_mark_is_of_held_notices() {
    let mut rig = Rig::new(100);
    for session in 0..30 {
        rig.offer(session, Connected);
    }
    while !rig.start().is_empty() {
        while let Some(out) = rig.out.pop() {
            rig.desk.land(out, Sent::Acknowledged, rig.now, 0.0);
        }
    }
    assert_eq!((rig.desk.held(), rig.desk.high_water()), (0, 30));
    while let Some(next) = rig.desk.next_time(rig.now) {
        rig.now = next;
        rig.desk.tick(next);
    }
    assert_eq!(rig.desk.high_water(), 0);
}

#[test]
fn stop_6_notices_of_a_stop_leave_64_at_a_time_from_its_beginning() {
    let mut rig = Rig::new(100);
    for session in 0..100 {
        rig.offer(session, Disconnected);
    }
    assert_eq!(rig.start().len(), 10);
    rig.desk.prepare_stop(200);
    assert_eq!(rig.start().len(), 54);
    assert_eq!(rig.desk.stage(), Stage::Normal, "what fails is sent again");
}
