//! The heartbeats that wait for the next flush: one entry per session, oldest first.
//!
//! Responsible for the caps on sessions and bytes and for what gives way at them. An entry is a
//! copy of the agent's own bytes: a slice would pin its whole receive buffer. Must never send or
//! count.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use yuzu_proto::wire::bytes_field_len;

/// Field of `BatchHeartbeatRequest` that holds one heartbeat.
pub(super) const HEARTBEATS: u32 = 1;

/// What became of a pushed heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// Held.
    Held,
    /// Held in place of an older one of its session, at the end of the order (HB-2).
    Coalesced,
    /// Not held: the cap on sessions is reached (HB-9).
    Refused,
}

/// A heartbeat of the buffer, by its place in the order.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) place: u64,
    pub(crate) heartbeat: Bytes,
}

impl Entry {
    /// Its share of an encoded batch.
    pub(crate) fn encoded_len(&self) -> usize {
        bytes_field_len(HEARTBEATS, self.heartbeat.len())
    }
}

/// The pure core.
pub(crate) struct Buffer {
    max_sessions: usize,
    max_bytes: usize,
    bytes: usize,
    next: u64,
    order: BTreeMap<u64, (Arc<str>, Bytes)>,
    places: HashMap<Arc<str>, u64>,
}

impl Buffer {
    pub(crate) fn new(max_sessions: usize, max_bytes: usize) -> Self {
        Self {
            max_sessions,
            max_bytes,
            bytes: 0,
            next: 0,
            order: BTreeMap::new(),
            places: HashMap::new(),
        }
    }

    /// Sessions held.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// The place behind everything held now.
    pub(crate) fn end(&self) -> u64 {
        self.next
    }

    /// Takes a heartbeat in, then drops the oldest while the cap on bytes is passed (HB-10); how
    /// many were dropped.
    pub(crate) fn push(&mut self, session_id: &str, heartbeat: Bytes) -> (Pushed, usize) {
        let pushed = match self.places.get(session_id) {
            Some(place) => {
                self.remove(*place);
                Pushed::Coalesced
            }
            None if self.len() >= self.max_sessions => return (Pushed::Refused, 0),
            None => Pushed::Held,
        };
        let session: Arc<str> = session_id.into();
        self.bytes += heartbeat.len();
        self.places.insert(Arc::clone(&session), self.next);
        self.order.insert(self.next, (session, heartbeat));
        self.next += 1;
        let mut dropped = 0;
        while self.bytes > self.max_bytes {
            let Some((&oldest, _)) = self.order.first_key_value() else {
                break;
            };
            self.remove(oldest);
            dropped += 1;
        }
        (pushed, dropped)
    }

    /// The oldest entries placed before `end`, as many as fit `max` bytes encoded, at least one
    /// if there is any (HB-3). They stay held until [`Buffer::remove`].
    pub(crate) fn chunk(&self, end: u64, max: usize) -> Vec<Entry> {
        let mut size = 0;
        self.order
            .range(..end)
            .map(|(place, (_, heartbeat))| Entry {
                place: *place,
                heartbeat: heartbeat.clone(),
            })
            .take_while(|entry| {
                let first = size == 0;
                size += entry.encoded_len();
                first || size <= max
            })
            .collect()
    }

    /// Forgets the entry at `place`; one that was replaced since is somewhere else and stays.
    pub(crate) fn remove(&mut self, place: u64) {
        if let Some((session, heartbeat)) = self.order.remove(&place) {
            self.bytes -= heartbeat.len();
            self.places.remove(&session);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn held(buffer: &Buffer) -> Vec<Bytes> {
        buffer
            .chunk(u64::MAX, usize::MAX)
            .into_iter()
            .map(|entry| entry.heartbeat)
            .collect()
    }

    fn push(buffer: &mut Buffer, session: &str, heartbeat: &'static str) -> (Pushed, usize) {
        buffer.push(session, Bytes::from_static(heartbeat.as_bytes()))
    }

    #[test]
    fn hb_2_the_newest_of_a_session_is_held_at_the_end_of_the_order() {
        let mut buffer = Buffer::new(10, 1_000);
        assert_eq!(push(&mut buffer, "s1", "a"), (Pushed::Held, 0));
        assert_eq!(push(&mut buffer, "s2", "b"), (Pushed::Held, 0));
        assert_eq!(push(&mut buffer, "s1", "c"), (Pushed::Coalesced, 0));
        assert_eq!(held(&buffer), ["b", "c"]);
    }

    #[test]
    fn hb_3_chunks_are_greedy_oldest_first_and_hold_at_least_one() {
        let mut buffer = Buffer::new(10, 1_000);
        push(&mut buffer, "s1", "12345678");
        push(&mut buffer, "s2", "12345678");
        push(&mut buffer, "s3", "1");
        let places = |max| -> Vec<u64> {
            buffer
                .chunk(buffer.end(), max)
                .iter()
                .map(|entry| entry.place)
                .collect()
        };
        // Eight bytes and two of tag and length each.
        assert_eq!(places(20), [0, 1]);
        assert_eq!(places(19), [0]);
        assert_eq!(places(23), [0, 1, 2]);
        assert_eq!(places(1), [0]);
        assert_eq!(
            buffer.chunk(1, 1_000).len(),
            1,
            "nothing placed at the end or later"
        );
    }

    #[test]
    fn hb_4_what_was_replaced_while_it_was_sent_stays() {
        let mut buffer = Buffer::new(10, 1_000);
        push(&mut buffer, "s1", "old");
        let sent = buffer.chunk(buffer.end(), 1_000);
        push(&mut buffer, "s1", "new");
        buffer.remove(sent[0].place);
        assert_eq!(held(&buffer), ["new"]);
    }

    #[test]
    fn hb_9_a_full_buffer_refuses_new_sessions_only() {
        let mut buffer = Buffer::new(2, 1_000);
        push(&mut buffer, "s1", "a");
        push(&mut buffer, "s2", "b");
        assert_eq!(push(&mut buffer, "s3", "c"), (Pushed::Refused, 0));
        assert_eq!(push(&mut buffer, "s1", "d"), (Pushed::Coalesced, 0));
        assert_eq!(held(&buffer), ["b", "d"]);
    }

    #[test]
    fn hb_10_over_the_byte_cap_the_oldest_sessions_go() {
        let mut buffer = Buffer::new(10, 10);
        push(&mut buffer, "s1", "12345");
        push(&mut buffer, "s2", "1234");
        assert_eq!(push(&mut buffer, "s3", "123456"), (Pushed::Held, 1));
        assert_eq!(held(&buffer), ["1234", "123456"]);
        assert_eq!(push(&mut buffer, "s4", "12345678901"), (Pushed::Held, 3));
        assert_eq!(buffer.len(), 0);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Push(u8, usize),
        Flush(usize, bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0u8..12, 0usize..40).prop_map(|(s, len)| Step::Push(s, len)),
            1 => (1usize..80, any::<bool>()).prop_map(|(max, ok)| Step::Flush(max, ok)),
        ]
    }

    proptest! {
        /// Against a plain list of (session, heartbeat), oldest first.
        #[test]
        fn agrees_with_a_list(steps in prop::collection::vec(step(), 1..150)) {
            let mut buffer = Buffer::new(6, 100);
            let mut model: Vec<(u8, Vec<u8>)> = Vec::new();
            for (round, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push(session, len) => {
                        let heartbeat = vec![round as u8; len];
                        buffer.push(&session.to_string(), heartbeat.clone().into());
                        let known = model.iter().any(|(s, _)| *s == session);
                        if known || model.len() < 6 {
                            model.retain(|(s, _)| *s != session);
                            model.push((session, heartbeat));
                        }
                        while model.iter().map(|(_, h)| h.len()).sum::<usize>() > 100 {
                            model.remove(0);
                        }
                    }
                    Step::Flush(max, ok) => {
                        let chunk = buffer.chunk(buffer.end(), max);
                        let mut expected = 0;
                        let mut size = 0;
                        for (_, heartbeat) in &model {
                            size += heartbeat.len() + 2;
                            if expected > 0 && size > max {
                                break;
                            }
                            expected += 1;
                        }
                        prop_assert_eq!(chunk.len(), expected);
                        if ok {
                            chunk.iter().for_each(|entry| buffer.remove(entry.place));
                            model.drain(..expected);
                        }
                    }
                }
                let expected: Vec<_> = model.iter().map(|(_, h)| h.clone()).collect();
                prop_assert_eq!(held(&buffer), expected);
                let bytes: usize = model.iter().map(|(_, h)| h.len()).sum();
                prop_assert_eq!(buffer.bytes, bytes);
                prop_assert_eq!(buffer.places.len(), model.len());
            }
        }
    }
}
