use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::*;

const BOUND: usize = 100 << 10;

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn frame(fill: u8, len: usize) -> Bytes {
    Bytes::from(vec![fill; len])
}

/// Takes one piece and wakes whom it says.
fn take(backlog: &mut Backlog) -> Bytes {
    let (piece, owners) = backlog.take(&Names::default());
    owners.into_iter().for_each(Waker::wake);
    piece
}

#[test]
fn cmd_22_within_the_bound_one_agent_may_have_everything() {
    let mut backlog = Backlog::new(BOUND);
    for n in 0..100 {
        assert!(backlog.offer(7, &frame(n, 1 << 10)), "answer {n}");
        assert!(!backlog.is_full());
    }
    assert!(backlog.offer(7, &frame(100, 1)), "its allowance");
    assert!(backlog.is_full());
}

#[test]
fn cmd_22_beyond_the_bound_each_agent_has_8_kib() {
    let mut backlog = Backlog::new(BOUND);
    assert!(backlog.offer(0, &frame(0, BOUND)));
    for agent in [1, 2] {
        assert!(backlog.offer(agent, &frame(1, 5 << 10)));
        assert!(backlog.offer(agent, &frame(2, 3 << 10)));
        assert!(!backlog.offer(agent, &frame(3, 1)), "8 KiB are waiting");
    }
    assert!(backlog.offer(3, &frame(1, 1 << 20)), "one of any size");
    assert!(!backlog.offer(3, &frame(2, 1)));
}

#[test]
fn a_reply_larger_than_the_bound_passes_alone() {
    let mut backlog = Backlog::new(10);
    assert!(backlog.offer(0, &frame(0, 1000)));
    assert!(!backlog.is_full());
    assert!(backlog.offer(1, &frame(1, 1)));
    assert!(backlog.is_full());
    assert_eq!(take(&mut backlog).len(), 1001);
    assert!(backlog.is_empty() && !backlog.is_full());
    assert_eq!(backlog.bytes, 0);
}

#[test]
fn a_waiting_agent_is_woken_when_its_own_answer_has_left() {
    let mut backlog = Backlog::new(BOUND);
    let (first, second) = (Arc::new(Woken::default()), Arc::new(Woken::default()));
    assert!(backlog.offer(0, &frame(0, BOUND)));
    for (agent, woken) in [(1, &first), (2, &second)] {
        assert!(backlog.offer(agent, &frame(1, 40 << 10)));
        assert!(!backlog.offer(agent, &frame(2, 1 << 10)));
        backlog.wait(agent, &Waker::from(Arc::clone(woken)));
    }
    let woken = |of: &Woken| of.0.load(Ordering::Relaxed);
    take(&mut backlog);
    assert_eq!((woken(&first), woken(&second)), (0, 0));
    take(&mut backlog);
    assert_eq!((woken(&first), woken(&second)), (1, 0));
    assert!(backlog.offer(1, &frame(2, 1 << 10)), "now there is room");
    take(&mut backlog);
    assert_eq!((woken(&first), woken(&second)), (1, 1));
}

#[test]
fn owners_gives_everyone_who_waits() {
    let mut backlog = Backlog::new(1);
    let woken = Arc::new(Woken::default());
    for agent in 0..5 {
        assert!(backlog.offer(agent, &frame(0, 9 << 10)));
        backlog.wait(agent, &Waker::from(Arc::clone(&woken)));
    }
    // The first was alone, not beyond the bound: it has nothing to wait for.
    assert_eq!(backlog.owners().len(), 4);
    assert!(backlog.owners().is_empty());
}

#[test]
fn small_answers_leave_together_and_large_ones_alone() {
    let mut backlog = Backlog::new(1 << 20);
    for len in [1 << 10, 2 << 10, 29 << 10, 1, 40 << 10, 3] {
        assert!(backlog.offer(0, &frame(1, len)));
    }
    let sizes: Vec<usize> = std::iter::from_fn(|| {
        let piece = take(&mut backlog);
        (!piece.is_empty()).then_some(piece.len())
    })
    .collect();
    assert_eq!(sizes, [32 << 10, 1, 40 << 10, 3]);
}

#[test]
fn a_single_answer_is_not_copied() {
    let mut backlog = Backlog::new(BOUND);
    let answer = frame(1, 100);
    backlog.offer(0, &answer);
    assert_eq!(take(&mut backlog).as_ptr(), answer.as_ptr());
}

#[test]
fn cmd_3_entries_stand_in_line_and_take_no_room() {
    let names = Names {
        targets: vec![Arc::from("a"), Arc::from("b")],
        command_id: "c-1".to_owned(),
    };
    let mut backlog = Backlog::new(10);
    backlog.offer(0, &frame(b'x', 10));
    backlog.note(1, NoAnswer::NotConnected);
    assert!(!backlog.is_full());
    let mut expected = BytesMut::from(&b"xxxxxxxxxx"[..]);
    NoAnswer::NotConnected.put(&mut expected, "b", "c-1");
    assert_eq!(backlog.take(&names).0, expected);
}

#[test]
fn memory_of_a_burst_is_given_back() {
    let mut backlog = Backlog::new(10);
    for agent in 0..10_000 {
        backlog.offer(agent, &frame(0, 10));
    }
    while !backlog.is_empty() {
        take(&mut backlog);
    }
    assert_eq!(backlog.queue.capacity(), 0);
    assert!(
        backlog.beyond.capacity() < 64,
        "{}",
        backlog.beyond.capacity()
    );
}
