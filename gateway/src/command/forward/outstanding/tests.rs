use std::time::Duration;

use super::*;
use crate::session::Epoch;

const CONNECT: Duration = Duration::from_secs(5);
const FORWARD: Duration = Duration::from_secs(30);
const IDLE: Duration = Duration::from_secs(20);
const GRACE: Duration = Duration::from_secs(3);

pub(super) fn times() -> Times {
    Times {
        connect: CONNECT,
        forward: FORWARD,
        idle: IDLE,
        grace: GRACE,
    }
}

pub(super) fn place(node: &str, epoch: u64) -> Place {
    Place {
        node: node.into(),
        epoch: Epoch::from_number(epoch).unwrap(),
    }
}

/// A call with one target for each of these nodes; the agent of the first is `0`.
struct Bench {
    core: Outstanding,
    now: Instant,
}

impl Bench {
    fn new(nodes: &[&str]) -> Self {
        let now = Instant::now();
        let targets = nodes.iter().enumerate();
        let targets = targets.map(|(n, node)| (Arc::from(n.to_string()), place(node, 1)));
        let mut core = Outstanding::new(times());
        core.add(targets, now);
        Self { core, now }
    }

    /// One target, sent over session 0.
    fn sent() -> Self {
        let mut bench = Self::new(&["b"]);
        bench.core.opened(0, bench.now);
        bench.actions();
        bench
    }

    fn actions(&mut self) -> Vec<Action> {
        self.core.take_actions()
    }

    fn pass(&mut self, time: Duration) -> Vec<Action> {
        self.now += time;
        self.core.tick(self.now);
        self.actions()
    }

    fn answer(&mut self, agent: &str, is_last: bool) -> Result<(), Foreign> {
        let answer = Answer {
            agent_id: agent,
            is_last,
        };
        self.core.answered(0, &[answer], self.now)
    }

    fn written(&mut self, session: SessionId, moved: &[u32], found: Found) {
        let told = self
            .core
            .written(session, moved, |_| found.clone(), self.now);
        told.unwrap();
    }
}

fn closed(slot: Slot, ended: Ended) -> Vec<Action> {
    vec![Action::Close(0), Action::Settle(slot, ended)]
}

#[test]
fn fwd_2_there_is_one_session_for_each_owner() {
    let mut b = Bench::new(&["b", "c", "b"]);
    let open = |id, node: &str| Action::Open(id, node.into());
    assert_eq!(b.actions(), [open(0, "b"), open(1, "c")]);
    b.core.opened(0, b.now);
    assert_eq!(b.actions(), [Action::Dispatch(0, vec![0, 2])]);
    b.core.opened(1, b.now);
    assert_eq!(b.actions(), [Action::Dispatch(1, vec![1])]);
}

#[test]
fn fwd_6_nothing_was_sent_to_an_owner_that_is_not_reached() {
    let mut b = Bench::new(&["b"]);
    b.actions();
    assert_eq!(b.core.due(), Some(b.now + LOOK));
    assert!(b.pass(CONNECT - Duration::from_millis(1)).is_empty());
    let mut wanted = vec![Action::Unreachable(0)];
    wanted.extend(closed(0, Ended::NotConnected));
    assert_eq!(b.pass(Duration::from_millis(1)), wanted);
    assert!(b.core.is_done());
}

#[test]
fn shift_4_what_waits_for_a_dead_node_goes_where_its_agent_came_back() {
    let mut b = Bench::new(&["dead", "dead", "dead", "d"]);
    b.core.opened(1, b.now);
    b.actions();
    let found = |agent: &str| match agent {
        "0" => Found::At(place("d", 2)),
        "1" => Found::Here,
        _ => Found::Nowhere,
    };
    b.core.seek(found, b.now);
    assert!(b.actions().is_empty(), "not yet");
    b.now += LOOK;
    b.core.seek(found, b.now);
    let wanted = [Action::Here(1), Action::Dispatch(1, vec![0])];
    assert_eq!(b.actions(), wanted);
    // The one that is nowhere still waits for its node, and for no longer than it may.
    let left = b.pass(CONNECT - LOOK);
    let ended = Action::Settle(2, Ended::NotConnected);
    assert_eq!(left, [Action::Unreachable(0), Action::Close(0), ended]);
}

#[test]
fn shift_4_what_was_sent_is_not_looked_for() {
    let mut b = Bench::sent();
    b.now += LOOK;
    b.core.seek(|_| Found::At(place("d", 2)), b.now);
    assert!(b.actions().is_empty());
    assert_eq!(b.core.due(), Some(b.now - LOOK + FORWARD));
}

#[test]
fn fwd_6_nothing_was_sent_to_an_owner_that_refuses() {
    for unsent in [Ended::NotConnected, Ended::Rejected] {
        let mut b = Bench::sent();
        b.core.refused(0, unsent);
        assert_eq!(b.actions(), closed(0, unsent));
    }
}

#[test]
fn fwd_6_what_the_owner_wrote_before_it_refused_may_be_carried_out() {
    let mut b = Bench::sent();
    b.written(0, &[], Found::Nowhere);
    b.core.refused(0, Ended::NotConnected);
    assert_eq!(b.actions(), closed(0, Ended::OutcomeUnknown));
}

#[test]
fn fwd_5_a_command_that_finds_no_room_was_not_sent() {
    for ended in [Ended::Rejected, Ended::NotConnected] {
        let mut b = Bench::sent();
        b.core.not_dispatched(0, &[0], ended, b.now);
        assert_eq!(b.actions(), [Action::Settle(0, ended)]);
        assert!(b.core.is_done());
    }
}

#[test]
fn fwd_6_a_lost_owner_leaves_the_outcome_unknown_before_the_first_answer() {
    let mut b = Bench::sent();
    b.core.lost(0);
    assert_eq!(b.actions(), closed(0, Ended::OutcomeUnknown));
    let mut b = Bench::sent();
    b.written(0, &[], Found::Nowhere);
    b.core.lost(0);
    assert_eq!(b.actions(), closed(0, Ended::OutcomeUnknown));
}

#[test]
fn fwd_6_a_lost_owner_disconnects_the_agent_after_an_answer() {
    let mut b = Bench::sent();
    b.answer("0", false).unwrap();
    b.core.lost(0);
    assert_eq!(b.actions(), closed(0, Ended::AgentDisconnected));
}

#[test]
fn fwd_6_an_owner_that_has_not_said_how_a_call_ended_when_its_time_is_over_is_lost() {
    let mut never_linked = Bench::new(&["b"]);
    let mut answered = Bench::sent();
    answered.answer("0", false).unwrap();
    let mut broken = Bench::sent();
    broken.core.broken(0, broken.now);
    let not_resumed = vec![Action::NotResumed(0)];
    for (bench, first, ended) in [
        (&mut never_linked, vec![], Ended::NotConnected),
        (&mut Bench::sent(), vec![], Ended::OutcomeUnknown),
        (&mut answered, vec![], Ended::AgentDisconnected),
        (&mut broken, not_resumed, Ended::OutcomeUnknown),
    ] {
        bench.actions();
        bench.core.give_up();
        assert_eq!(bench.actions(), [first, closed(0, ended)].concat());
        bench.core.give_up();
        assert!(bench.actions().is_empty(), "each ends once");
    }
}

#[test]
fn fwd_6_an_owner_without_targets_is_not_lost_when_the_time_is_over() {
    let mut answered = Bench::sent();
    answered.answer("0", true).unwrap();
    // The only target that a broken session had left has come here meanwhile.
    let mut resuming = Bench::sent();
    resuming.answer("0", true).unwrap();
    resuming.core.hold_back(0, true, resuming.now);
    let late = [(Arc::from("late"), place("b", 1))];
    resuming.core.add(late, resuming.now);
    resuming.core.broken(0, resuming.now);
    resuming.core.seek(|_| Found::Here, resuming.now + LOOK);
    assert!(resuming.core.is_resuming(0));
    for bench in [&mut answered, &mut resuming] {
        bench.actions();
        assert!(bench.core.is_done());
        bench.core.give_up();
        assert_eq!(bench.actions(), []);
    }
}

#[test]
fn fwd_5_an_owner_that_does_not_say_that_it_wrote_is_lost() {
    let mut b = Bench::sent();
    assert_eq!(b.core.due(), Some(b.now + FORWARD));
    assert!(b.pass(FORWARD - Duration::from_millis(1)).is_empty());
    let actions = b.pass(Duration::from_millis(1));
    assert_eq!(actions, closed(0, Ended::OutcomeUnknown));
    let mut b = Bench::sent();
    b.written(0, &[], Found::Nowhere);
    assert_eq!(b.core.due(), None, "an agent may take its time");
}

#[test]
fn fwd_7_a_target_that_moved_is_tried_once_more_where_it_is_now() {
    let mut b = Bench::sent();
    b.written(0, &[0], Found::At(place("c", 2)));
    assert_eq!(b.actions(), [Action::Open(1, "c".into())]);
    b.core.opened(1, b.now);
    assert_eq!(b.actions(), [Action::Dispatch(1, vec![0])]);
    // It moved again: two attempts are all.
    b.written(1, &[0], Found::At(place("d", 3)));
    assert_eq!(b.actions(), [Action::Settle(0, Ended::Moved)]);
}

#[test]
fn fwd_7_without_another_view_a_target_that_moved_is_not_connected() {
    for found in [Found::Nowhere, Found::At(place("b", 1))] {
        let mut b = Bench::sent();
        b.written(0, &[0], found);
        assert_eq!(b.actions(), [Action::Settle(0, Ended::Moved)]);
    }
}

#[test]
fn fwd_7_a_target_that_came_here_is_this_node_s() {
    let mut b = Bench::sent();
    b.written(0, &[0], Found::Here);
    assert_eq!(b.actions(), [Action::Here(0)]);
    assert!(b.core.is_done());
}

#[test]
fn fwd_7_a_new_session_on_the_same_node_goes_over_the_session_that_is_open() {
    let mut b = Bench::sent();
    b.written(0, &[0], Found::At(place("b", 2)));
    assert_eq!(b.actions(), [Action::Dispatch(0, vec![0])]);
    b.answer("0", true).unwrap();
    assert_eq!(b.actions(), [Action::Settle(0, Ended::Answered)]);
}

#[test]
fn fwd_8_a_broken_session_is_resumed_within_its_grace() {
    let mut b = Bench::sent();
    b.answer("0", false).unwrap();
    b.core.broken(0, b.now);
    assert_eq!(b.actions(), [Action::Resume(0)]);
    assert!(b.core.is_resuming(0));
    assert_eq!(b.core.resumed(0, 1, b.now), Ok(0));
    assert!(!b.core.is_resuming(0));
    b.answer("0", true).unwrap();
    assert_eq!(b.actions(), [Action::Settle(0, Ended::Answered)]);
}

#[test]
fn fwd_8_after_its_grace_a_broken_session_is_lost() {
    let mut b = Bench::sent();
    b.core.broken(0, b.now);
    b.actions();
    assert_eq!(b.core.due(), Some(b.now + GRACE));
    assert!(b.pass(GRACE - Duration::from_millis(1)).is_empty());
    let mut wanted = vec![Action::NotResumed(0)];
    wanted.extend(closed(0, Ended::OutcomeUnknown));
    assert_eq!(b.pass(Duration::from_millis(1)), wanted);
}

#[test]
fn fwd_8_the_grace_is_not_prolonged_by_streams_that_break_again() {
    let mut b = Bench::sent();
    b.core.broken(0, b.now);
    b.now += GRACE / 2;
    b.core.broken(0, b.now);
    assert_eq!(b.actions(), [Action::Resume(0), Action::Resume(0)]);
    b.now += GRACE / 2;
    b.core.broken(0, b.now);
    assert_eq!(b.actions()[0], Action::NotResumed(0));
    assert!(b.core.is_done());
}

#[test]
fn fwd_8_a_dispatch_that_the_owner_says_it_never_had_was_not_sent() {
    let mut b = Bench::sent();
    b.core.broken(0, b.now);
    b.actions();
    assert_eq!(b.core.resumed(0, 0, b.now), Ok(1));
    assert_eq!(b.actions(), [Action::Settle(0, Ended::NotConnected)]);
    assert_eq!(b.core.resumed(0, 9, b.now), Err(Foreign));
}

#[test]
fn fwd_5_a_session_that_waits_for_nothing_is_closed_and_another_opened_if_need_be() {
    let mut b = Bench::new(&["b", "c"]);
    b.core.opened(0, b.now);
    b.core.opened(1, b.now);
    b.actions();
    b.written(0, &[], Found::Nowhere);
    b.answer("0", true).unwrap();
    b.actions();
    assert_eq!(b.pass(IDLE), [Action::Close(0)]);
    // The agent of c moves to b.
    b.written(1, &[0], Found::At(place("b", 2)));
    assert_eq!(b.actions(), [Action::Open(2, "b".into())]);
}

#[test]
fn fwd_4_an_answer_that_nobody_waits_for_changes_nothing() {
    let mut b = Bench::sent();
    assert_eq!(b.answer("1", true), Err(Foreign));
    let last = Answer {
        agent_id: "0",
        is_last: true,
    };
    // The second one makes no sense, so the first does not count either.
    assert_eq!(b.core.answered(0, &[last, last], b.now), Err(Foreign));
    assert!(b.actions().is_empty());
    b.core.lost(0);
    assert_eq!(b.actions(), closed(0, Ended::OutcomeUnknown));
}

#[test]
fn fwd_4_the_owner_s_timeout_ends_its_targets_without_a_word() {
    let mut b = Bench::sent();
    b.core.ended(0);
    assert_eq!(b.actions(), closed(0, Ended::Answered));
}

/// A call with very many targets on one node.
fn many(count: usize) -> Bench {
    let mut b = Bench::new(&[]);
    let targets = (0..count).map(|n| (Arc::from(n.to_string()), place("b", 1)));
    b.core.add(targets, b.now);
    b.actions();
    b.core.opened(0, b.now);
    b
}

/// How many targets each Dispatch has.
fn dispatched(actions: &[Action]) -> Vec<usize> {
    let sizes = actions.iter().map(|action| match action {
        Action::Dispatch(0, slots) => slots.len(),
        other => panic!("{other:?}"),
    });
    sizes.collect()
}

#[test]
fn fwd_2_very_many_targets_are_sent_in_parts_as_the_owner_writes_them() {
    let mut b = many(40 * MAX_TARGETS + 7);
    let mut sent = dispatched(&b.actions());
    assert_eq!(sent, [MAX_TARGETS; MAX_UNWRITTEN]);
    for _ in 0..10 {
        b.written(0, &[], Found::Nowhere);
        sent.extend(dispatched(&b.actions()));
    }
    assert_eq!(sent.len(), 41);
    assert_eq!(sent.iter().sum::<usize>(), 40 * MAX_TARGETS + 7);
    // Those that come later are behind them.
    b.core.add([(Arc::from("late"), place("b", 1))], b.now);
    assert_eq!(
        b.actions(),
        [Action::Dispatch(0, vec![40 * MAX_TARGETS + 7])]
    );
}

#[test]
fn fwd_6_very_many_targets_end_in_parts_each_once() {
    let mut b = many(40 * MAX_TARGETS);
    b.actions();
    b.written(0, &[], Found::Nowhere);
    b.actions();
    b.core.lost(0);
    let mut ended = Vec::new();
    loop {
        let actions = b.actions();
        if actions.is_empty() {
            break;
        }
        assert!(actions.len() <= 2 * MAX_TARGETS + 1, "{}", actions.len());
        ended.extend(actions.into_iter().filter_map(|action| match action {
            Action::Settle(slot, ended) => Some((slot, ended)),
            _ => None,
        }));
    }
    let unknown = (0..33 * MAX_TARGETS).map(|slot| (slot, Ended::OutcomeUnknown));
    let unsent = (33 * MAX_TARGETS..40 * MAX_TARGETS).map(|slot| (slot, Ended::NotConnected));
    assert!(ended.into_iter().eq(unknown.chain(unsent)));
    assert!(b.core.is_done());
}

#[test]
fn fwd_5_of_two_dispatches_the_one_that_found_no_room_was_not_sent() {
    let mut b = many(2 * MAX_TARGETS);
    let actions = b.actions();
    assert_eq!(dispatched(&actions), [MAX_TARGETS; 2]);
    let first: Vec<_> = (0..MAX_TARGETS).collect();
    b.core.not_dispatched(0, &first, Ended::Rejected, b.now);
    assert_eq!(b.actions().len(), MAX_TARGETS);
    // Of the other one an answer is waited for.
    b.written(0, &[0], Found::Nowhere);
    assert_eq!(b.actions(), [Action::Settle(MAX_TARGETS, Ended::Moved)]);
}

#[test]
fn fwd_2_nothing_more_is_sent_while_the_caller_is_behind() {
    let mut b = many(40 * MAX_TARGETS);
    assert_eq!(b.actions().len(), MAX_UNWRITTEN);
    b.core.hold_back(0, true, b.now);
    for _ in 0..MAX_UNWRITTEN {
        b.written(0, &[], Found::Nowhere);
    }
    assert!(b.core.is_held_back(0) && b.actions().is_empty());
    b.core.hold_back(0, false, b.now);
    assert_eq!(dispatched(&b.actions()), [MAX_TARGETS; 8]);
}

#[test]
fn fwd_5_a_session_that_is_held_back_with_a_target_is_not_idle() {
    let mut b = Bench::sent();
    b.written(0, &[], Found::Nowhere);
    b.answer("0", true).unwrap();
    b.core.hold_back(0, true, b.now);
    b.actions();
    b.pass(IDLE / 2);
    b.core.add([(Arc::from("late"), place("b", 1))], b.now);
    assert_eq!(b.core.due(), None);
    assert!(b.pass(IDLE).is_empty());
    b.core.hold_back(0, false, b.now);
    assert_eq!(b.actions(), [Action::Dispatch(0, vec![1])]);
}

#[test]
fn fwd_7_positions_that_make_no_sense_change_nothing() {
    for moved in [&[1, 2][..], &[1, 1], &[1, 0]] {
        let mut b = Bench::new(&["b", "b"]);
        b.core.opened(0, b.now);
        b.actions();
        b.answer("0", false).unwrap();
        let told = b.core.written(0, moved, |_| Found::Nowhere, b.now);
        assert_eq!((told, b.actions()), (Err(Foreign), vec![]), "{moved:?}");
        b.written(0, &[1], Found::Nowhere);
        assert_eq!(b.actions(), [Action::Settle(1, Ended::Moved)]);
    }
}
