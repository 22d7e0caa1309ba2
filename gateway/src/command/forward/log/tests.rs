use super::*;

fn frame(len: usize) -> Bytes {
    Bytes::from(vec![len as u8; len])
}

fn rest(log: &Log) -> Vec<usize> {
    log.rest().map(Bytes::len).collect()
}

#[test]
fn fwd_8_what_was_not_confirmed_is_said_again_in_its_order() {
    let all = Arc::default();
    let mut log = Log::new(&all);
    for len in [1, 2, 3] {
        log.push(frame(len));
    }
    log.handed();
    log.confirm(1).unwrap();
    assert_eq!(rest(&log), [2, 3]);
    // An older count says nothing new.
    log.confirm(0).unwrap();
    assert_eq!(rest(&log), [2, 3]);
    assert_eq!(log.confirm(4), Err(Foreign));
    log.confirm(3).unwrap();
    assert!(rest(&log).is_empty());
    assert_eq!(all.load(Ordering::Relaxed), 0);
}

#[test]
fn fwd_2_a_session_that_is_not_confirmed_stops_by_itself() {
    let all = Arc::default();
    let (mut slow, mut other) = (Log::new(&all), Log::new(&all));
    slow.push(frame(WINDOW - 1));
    assert!(slow.has_room(usize::MAX));
    slow.push(frame(1));
    assert!(!slow.has_room(usize::MAX));
    assert!(other.has_room(WINDOW));
    // At the bound of the node each may still say what the other side confirms at once.
    other.push(frame(TELL - 1));
    assert!(other.has_room(WINDOW));
    other.push(frame(1));
    assert!(!other.has_room(WINDOW));
    assert!(other.has_room(WINDOW + TELL + 1));
    drop(slow);
    assert!(other.has_room(WINDOW));
}

#[test]
fn fwd_8_what_no_stream_was_given_is_not_confirmed() {
    let mut log = Log::new(&Arc::default());
    log.push(frame(1));
    log.handed();
    log.push(frame(2));
    assert_eq!(log.confirm(2), Err(Foreign));
    log.confirm(1).unwrap();
    assert_eq!(rest(&log), [2]);
    log.handed();
    log.confirm(2).unwrap();
}

#[test]
fn fwd_2_dispatches_are_counted_until_their_answers_are_confirmed() {
    let mut log = Log::new(&Arc::default());
    log.push(frame(1));
    for _ in 0..2 {
        log.written();
        log.push(frame(1));
    }
    log.handed();
    assert_eq!(log.unconfirmed(), 2);
    for (count, left) in [(1, 2), (2, 1), (2, 1), (3, 0)] {
        log.confirm(count).unwrap();
        assert_eq!(log.unconfirmed(), left, "after {count}");
    }
}

#[test]
fn fwd_5_what_a_stream_still_holds_counts_when_the_session_is_over() {
    let all = Arc::default();
    let mut log = Log::new(&all);
    let held = log.push(frame(10));
    log.push(frame(5));
    assert_eq!(all.load(Ordering::Relaxed), 15);
    drop(log);
    assert_eq!(all.load(Ordering::Relaxed), 10);
    drop(held);
    assert_eq!(all.load(Ordering::Relaxed), 0);
}
