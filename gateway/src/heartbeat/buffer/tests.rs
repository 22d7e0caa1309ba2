use super::*;
use crate::heartbeat::chunk::{Part, Tail};

const LIMITS: Limits = Limits {
    sessions: 10,
    bytes: 1 << 20,
    heartbeat: 1 << 20,
};

const ALL: Step = Step {
    entries: usize::MAX,
    bytes: usize::MAX / 2,
};

/// A cap on bytes that holds `sessions` with one-letter ids, and `bytes` of heartbeats.
fn cap(sessions: usize, bytes: usize) -> Limits {
    Limits {
        bytes: sessions * (OVERHEAD + 1) + bytes,
        ..LIMITS
    }
}

fn offer(buffer: &mut Buffer, session: &str, rest: &str, snapshot: &str) -> Offered {
    let heartbeat = Heartbeat::sample(rest.as_bytes(), snapshot.as_bytes());
    buffer.offer(session, heartbeat)
}

fn outcome(buffer: &mut Buffer, session: &str, rest: &str) -> Outcome {
    offer(buffer, session, rest, "").outcome
}

/// Snapshots and heartbeats that gave way.
fn evicted(offered: &Offered) -> (usize, usize) {
    let evicted = &offered.evicted;
    (evicted.snapshots.len(), evicted.heartbeats.len())
}

fn held(buffer: &Buffer) -> Vec<String> {
    let slots = std::iter::successors(buffer.order.first(), |slot| buffer.order.after(*slot));
    let encoded = |slot: u32| buffer.entries[slot as usize].heartbeat.encoded();
    slots
        .map(|slot| String::from_utf8(encoded(slot)).unwrap())
        .collect()
}

fn take(buffer: &mut Buffer, room: usize) -> Part {
    let (tail, end) = (Tail::of_room(room), buffer.end());
    buffer.rewind();
    let mut chunk = Chunk::new(&tail, room);
    while buffer.pack(&mut chunk, end, ALL) {}
    chunk.seal().unwrap()
}

#[test]
fn hb_2_the_newest_of_a_session_is_held_at_the_end_of_the_order() {
    let mut buffer = Buffer::new(LIMITS);
    assert_eq!(outcome(&mut buffer, "1", "a"), Outcome::Held);
    assert_eq!(outcome(&mut buffer, "2", "b"), Outcome::Held);
    assert_eq!(outcome(&mut buffer, "1", "c"), Outcome::Coalesced);
    assert_eq!(held(&buffer), ["b", "c"]);
}

#[test]
fn hb_2_the_newest_snapshot_outlives_heartbeats_without_one() {
    let mut buffer = Buffer::new(LIMITS);
    offer(&mut buffer, "1", "a", "S");
    offer(&mut buffer, "1", "b", "");
    offer(&mut buffer, "1", "c", "");
    assert_eq!(held(&buffer), ["cS"]);
    offer(&mut buffer, "1", "d", "T");
    offer(&mut buffer, "1", "e", "");
    assert_eq!(held(&buffer), ["eT"]);
    assert_eq!(buffer.bytes(), OVERHEAD + 3);
}

#[test]
fn hb_4_what_was_replaced_while_it_was_sent_stays() {
    let mut buffer = Buffer::new(LIMITS);
    offer(&mut buffer, "1", "a", "");
    offer(&mut buffer, "2", "b", "");
    let sent = take(&mut buffer, 1_000);
    offer(&mut buffer, "1", "c", "");
    buffer.settle(sent.tickets());
    assert_eq!(held(&buffer), ["c"]);
}

#[test]
fn hb_4_a_snapshot_that_was_sent_is_not_sent_again_with_the_next_heartbeat() {
    let mut buffer = Buffer::new(LIMITS);
    offer(&mut buffer, "1", "a", "S");
    offer(&mut buffer, "2", "b", "S");
    let sent = take(&mut buffer, 1_000);
    offer(&mut buffer, "1", "c", "");
    offer(&mut buffer, "2", "d", "T");
    let freed = buffer.settle(sent.tickets());
    assert_eq!((freed.heartbeats.len(), freed.snapshots.len()), (0, 1));
    assert_eq!(held(&buffer), ["c", "dT"]);
}

#[test]
fn hb_4_what_took_the_slot_of_a_sent_entry_stays() {
    let mut buffer = Buffer::new(cap(1, 1));
    offer(&mut buffer, "1", "a", "");
    let sent = take(&mut buffer, 1_000);
    assert_eq!(evicted(&offer(&mut buffer, "2", "b", "")), (0, 1));
    buffer.settle(sent.tickets());
    assert_eq!(held(&buffer), ["b"]);
    assert!(!buffer.slots.contains_key("1"));
}

#[test]
fn hb_6_a_snapshot_too_large_for_a_newer_heartbeat_is_given_up() {
    let mut buffer = Buffer::new(Limits {
        heartbeat: 10,
        ..LIMITS
    });
    offer(&mut buffer, "1", "a", "SSSSSSSSS");
    assert!(offer(&mut buffer, "1", "b", "").oversize.is_none());
    assert!(offer(&mut buffer, "1", "bb", "").oversize.is_some());
    assert_eq!(held(&buffer), ["bb"]);
    assert_eq!(buffer.bytes(), OVERHEAD + 3);
}

#[test]
fn hb_9_a_full_buffer_refuses_new_sessions_only() {
    let mut buffer = Buffer::new(Limits {
        sessions: 2,
        ..LIMITS
    });
    offer(&mut buffer, "1", "a", "");
    offer(&mut buffer, "2", "b", "");
    assert_eq!(outcome(&mut buffer, "3", "c"), Outcome::Refused);
    assert_eq!(outcome(&mut buffer, "1", "d"), Outcome::Coalesced);
    assert_eq!(held(&buffer), ["b", "d"]);
}

#[test]
fn hb_10_over_the_byte_cap_the_oldest_snapshots_go_first() {
    let mut buffer = Buffer::new(cap(3, 6));
    offer(&mut buffer, "1", "a", "S");
    offer(&mut buffer, "2", "b", "T");
    assert_eq!(evicted(&offer(&mut buffer, "1", "c", "")), (0, 0));
    // The order is b, c; the snapshot of c is the older one.
    assert_eq!(evicted(&offer(&mut buffer, "3", "ddd", "")), (1, 0));
    assert_eq!(held(&buffer), ["bT", "c", "ddd"]);
}

#[test]
fn hb_10_without_a_snapshot_left_the_oldest_sessions_go() {
    let mut buffer = Buffer::new(cap(2, 10));
    offer(&mut buffer, "1", "aaaa", "S");
    offer(&mut buffer, "2", "bbbb", "S");
    assert_eq!(evicted(&offer(&mut buffer, "3", "cccc", "S")), (3, 1));
    assert_eq!(held(&buffer), ["bbbb", "cccc"]);
    assert!(!buffer.slots.contains_key("1"));
}

#[test]
fn hb_10_what_is_over_the_cap_alone_takes_nobody_elses_place() {
    let mut buffer = Buffer::new(cap(2, 20));
    let over = "S".repeat(OVERHEAD + 30);
    offer(&mut buffer, "1", "a", "S");
    let offered = offer(&mut buffer, "2", "b", &over);
    assert_eq!(
        (offered.outcome, evicted(&offered)),
        (Outcome::Held, (1, 0))
    );
    assert_eq!(held(&buffer), ["aS", "b"]);
    let offered = offer(&mut buffer, "2", &over, "");
    assert_eq!(
        (offered.outcome, evicted(&offered)),
        (Outcome::Refused, (0, 0))
    );
    assert_eq!(held(&buffer), ["aS", "b"]);
}

#[test]
fn an_empty_buffer_gives_the_slots_of_a_storm_back() {
    let mut buffer = Buffer::new(Limits {
        sessions: 10_000,
        bytes: 1 << 30,
        ..LIMITS
    });
    let mut flushed = |sessions: usize| {
        for session in 0..sessions {
            offer(&mut buffer, &session.to_string(), "a", "");
        }
        let sent = take(&mut buffer, 1 << 20);
        assert_eq!(sent.len(), sessions);
        buffer.settle(sent.tickets());
        (buffer.bytes(), buffer.entries.capacity())
    };
    let (bytes, slots) = flushed(10_000);
    assert!(bytes == 0 && slots >= 10_000);
    assert_eq!(flushed(5_000).1, slots, "the next may be as large");
    assert_eq!(flushed(100), (0, 0));
}

#[test]
fn reload_8_under_lowered_caps_the_oldest_give_way() {
    let mut buffer = Buffer::new(LIMITS);
    for (session, rest, snapshot) in [("1", "a", "S"), ("2", "b", "T"), ("3", "c", "U")] {
        offer(&mut buffer, session, rest, snapshot);
    }
    let freed = buffer.limit(Limits {
        sessions: 2,
        ..LIMITS
    });
    assert_eq!((freed.snapshots.len(), freed.heartbeats.len()), (0, 1));
    assert_eq!(held(&buffer), ["bT", "cU"]);
    let freed = buffer.limit(cap(2, 3));
    assert_eq!((freed.snapshots.len(), freed.heartbeats.len()), (1, 0));
    assert_eq!(held(&buffer), ["b", "cU"]);
    buffer.limit(LIMITS);
    assert_eq!(outcome(&mut buffer, "4", "d"), Outcome::Held);
}
