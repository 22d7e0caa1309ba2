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

impl Backlog {
    fn offer(&mut self, target: u32, frame: &Bytes) -> Result<(), NoRoom> {
        let room = self.room(target, frame.len())?;
        self.put(room, frame.clone());
        Ok(())
    }
}

fn frame(fill: u8, len: usize) -> Bytes {
    Bytes::from(vec![fill; len])
}

/// One that the other callers leave all the room it wants.
fn bounded(bound: usize) -> Backlog {
    Backlog::new(bound, Arc::new(Pool::new(usize::MAX)))
}

/// Takes one piece and wakes whom it says.
fn take(backlog: &mut Backlog) -> Bytes {
    let (piece, owners) = backlog.take("c-1");
    owners.into_iter().for_each(Waker::wake);
    piece
}

#[test]
fn cmd_22_within_the_bound_one_agent_may_have_everything() {
    let mut backlog = bounded(BOUND);
    for n in 0..100 {
        assert!(backlog.offer(7, &frame(n, 1 << 10)).is_ok(), "answer {n}");
        assert!(!backlog.is_full());
    }
    assert!(backlog.offer(7, &frame(100, 1)).is_ok(), "its allowance");
    assert!(backlog.is_full());
}

#[test]
fn cmd_22_beyond_the_bound_each_agent_has_8_kib() {
    let mut backlog = bounded(BOUND);
    assert!(backlog.offer(0, &frame(0, BOUND)).is_ok());
    for agent in [1, 2] {
        assert!(backlog.offer(agent, &frame(1, 5 << 10)).is_ok());
        assert!(backlog.offer(agent, &frame(2, 3 << 10)).is_ok());
        assert!(
            backlog.offer(agent, &frame(3, 1)).is_err(),
            "8 KiB are waiting"
        );
    }
    assert!(
        backlog.offer(3, &frame(1, 1 << 20)).is_ok(),
        "one of any size"
    );
    assert_eq!(backlog.offer(3, &frame(2, 1)), Err(NoRoom::Agent));
}

#[test]
fn cmd_22_beyond_the_bound_all_agents_together_have_8_mib() {
    let mut backlog = bounded(BOUND);
    assert!(backlog.offer(0, &frame(0, BOUND)).is_ok());
    assert!(backlog.offer(1, &frame(1, (8 << 20) - 1)).is_ok());
    assert_eq!(backlog.offer(2, &frame(2, 2)), Err(NoRoom::Caller));
    assert!(backlog.offer(2, &frame(2, 1)).is_ok());
    assert_eq!(backlog.offer(3, &frame(3, 5)), Err(NoRoom::Caller));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    backlog.wait(3, 5, NoRoom::Caller, &waker);
    take(&mut backlog);
    assert_eq!(woken.0.load(Ordering::SeqCst), 1, "the first has left");
    assert!(backlog.offer(3, &frame(3, 5)).is_ok(), "there is room now");
}

#[test]
fn one_answer_of_any_size_may_wait_beyond_the_bound() {
    let mut backlog = bounded(BOUND);
    assert!(backlog.offer(0, &frame(0, BOUND)).is_ok());
    assert!(backlog.offer(1, &frame(1, 9 << 20)).is_ok());
    assert_eq!(backlog.offer(2, &frame(2, 1)), Err(NoRoom::Caller));
    while !take(&mut backlog).is_empty() {}
    assert_eq!(backlog.bytes, 0);
}

#[test]
fn a_reply_larger_than_the_bound_passes_alone() {
    let mut backlog = bounded(10);
    assert!(backlog.offer(0, &frame(0, 1000)).is_ok());
    assert!(!backlog.is_full());
    assert!(backlog.offer(1, &frame(1, 1)).is_ok());
    assert!(backlog.is_full());
    assert_eq!(take(&mut backlog).len(), 1001);
    assert!(backlog.is_empty() && !backlog.is_full());
    assert_eq!(backlog.bytes, 0);
}

#[test]
fn a_waiting_agent_is_woken_when_its_own_answer_has_left() {
    let mut backlog = bounded(BOUND);
    let (first, second) = (Arc::new(Woken::default()), Arc::new(Woken::default()));
    assert!(backlog.offer(0, &frame(0, BOUND)).is_ok());
    for (agent, woken) in [(1, &first), (2, &second)] {
        assert!(backlog.offer(agent, &frame(1, 40 << 10)).is_ok());
        assert!(backlog.offer(agent, &frame(2, 1 << 10)).is_err());
        backlog.wait(
            agent,
            1 << 10,
            NoRoom::Agent,
            &Waker::from(Arc::clone(woken)),
        );
    }
    let woken = |of: &Woken| of.0.load(Ordering::Relaxed);
    take(&mut backlog);
    assert_eq!((woken(&first), woken(&second)), (0, 0));
    take(&mut backlog);
    assert_eq!((woken(&first), woken(&second)), (1, 0));
    assert!(
        backlog.offer(1, &frame(2, 1 << 10)).is_ok(),
        "now there is room"
    );
    take(&mut backlog);
    assert_eq!((woken(&first), woken(&second)), (1, 1));
}

#[test]
fn owners_gives_everyone_who_waits() {
    let mut backlog = bounded(1);
    let woken = Arc::new(Woken::default());
    assert!(backlog.offer(0, &frame(0, 1)).is_ok());
    for agent in 1..5 {
        assert!(backlog.offer(agent, &frame(0, 9 << 10)).is_ok());
        backlog.wait(
            agent,
            1 << 10,
            NoRoom::Agent,
            &Waker::from(Arc::clone(&woken)),
        );
    }
    assert_eq!(backlog.owners().len(), 4);
    assert!(backlog.owners().is_empty());
}

#[test]
fn small_answers_leave_together_and_large_ones_alone() {
    let mut backlog = bounded(1 << 20);
    for len in [1 << 10, 2 << 10, 29 << 10, 1, 40 << 10, 3] {
        assert!(backlog.offer(0, &frame(1, len)).is_ok());
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
    let mut backlog = bounded(BOUND);
    let answer = frame(1, 100);
    backlog.offer(0, &answer).unwrap();
    assert_eq!(take(&mut backlog).as_ptr(), answer.as_ptr());
}

#[test]
fn cmd_3_entries_stand_in_line_and_take_no_room() {
    let mut backlog = bounded(10);
    backlog.offer(0, &frame(b'x', 10)).unwrap();
    backlog.note("b".into(), NoAnswer::NotConnected);
    assert!(!backlog.is_full());
    let mut expected = BytesMut::from(&b"xxxxxxxxxx"[..]);
    NoAnswer::NotConnected.put(&mut expected, "b", "c-1");
    assert_eq!(backlog.take("c-1").0, expected);
}

#[test]
fn memory_of_a_burst_is_given_back() {
    let mut backlog = bounded(10);
    for agent in 0..10_000 {
        backlog.offer(agent, &frame(0, 10)).unwrap();
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

fn pair(pool: usize) -> (Arc<Pool>, Backlog, Backlog) {
    let pool = Arc::new(Pool::new(pool));
    let one = || Backlog::new(BOUND, Arc::clone(&pool));
    (Arc::clone(&pool), one(), one())
}

#[test]
fn cmd_22_the_pool_is_taken_by_all_and_given_back_by_each() {
    let (pool, mut first, mut second) = pair(100);
    assert_eq!(first.offer(0, &frame(0, 60)), Ok(()));
    assert_eq!(second.offer(0, &frame(0, 30)), Ok(()));
    assert_eq!(second.offer(1, &frame(0, 11)), Err(NoRoom::Pool));
    assert_eq!(second.offer(1, &frame(0, 10)), Ok(()));
    assert_eq!(pool.held(), 100);
    take(&mut first);
    assert_eq!(pool.held(), 40);
    let (_, waited) = second.clear();
    assert_eq!(pool.held(), 0, "before what waited is dropped");
    drop(waited);
    assert_eq!(first.offer(0, &frame(0, 60)), Ok(()));
    drop(first);
    assert_eq!(pool.held(), 0);
}

#[test]
fn cmd_22_a_caller_that_has_nothing_waiting_is_not_held_by_the_others() {
    let (pool, mut first, mut second) = pair(100);
    assert_eq!(first.offer(0, &frame(0, 100)), Ok(()));
    assert_eq!(second.offer(0, &frame(0, 50)), Ok(()));
    assert_eq!(second.offer(1, &frame(0, 1)), Err(NoRoom::Pool));
    assert_eq!(take(&mut second).len(), 50);
    assert_eq!(second.offer(1, &frame(0, 1)), Ok(()));
    assert_eq!(pool.held(), 101);
}

#[test]
fn an_agent_in_line_for_the_pool_is_woken_once_as_room_comes() {
    let (_pool, mut backlog, _) = pair(100 << 10);
    let woken: Vec<_> = (0..3).map(|_| Arc::new(Woken::default())).collect();
    for fill in 0..2 {
        assert_eq!(backlog.offer(9, &frame(fill, 50 << 10)), Ok(()));
    }
    for (agent, woken) in woken.iter().enumerate() {
        let len = 40 << 10;
        // Asked twice, in line once.
        for _ in 0..2 {
            let refused = backlog.offer(agent as u32, &frame(1, len)).unwrap_err();
            assert_eq!(refused, NoRoom::Pool);
            backlog.wait(agent as u32, len, refused, &Waker::from(Arc::clone(woken)));
        }
    }
    assert!(backlog.is_full());
    assert_eq!(backlog.line.len(), 3);
    let counts = || -> Vec<usize> {
        let of = |woken: &Arc<Woken>| woken.0.load(Ordering::Relaxed);
        woken.iter().map(of).collect()
    };
    // 50 KiB have left: room for one and for a part of the next, which may fit by then.
    assert_eq!(take(&mut backlog).len(), 50 << 10);
    assert_eq!(counts(), [1, 1, 0]);
    // Nothing is left that would wake the third later.
    assert_eq!(take(&mut backlog).len(), 50 << 10);
    assert_eq!(counts(), [1, 1, 1]);
    assert!(!backlog.is_full());
}

#[test]
fn the_agents_in_line_are_woken_when_others_made_room() {
    let (_pool, mut backlog, mut other) = pair(10);
    let woken = Arc::new(Woken::default());
    assert_eq!(other.offer(0, &frame(0, 9)), Ok(()));
    assert_eq!(backlog.offer(0, &frame(0, 1)), Ok(()));
    for agent in 0..4 {
        let refused = backlog.offer(agent, &frame(0, 1)).unwrap_err();
        backlog.wait(agent, 1, refused, &Waker::from(Arc::clone(&woken)));
    }
    assert_eq!(backlog.waiting_in_line().len(), 4);
    assert!(backlog.waiting_in_line().is_empty());
    assert!(!backlog.is_full());
}
