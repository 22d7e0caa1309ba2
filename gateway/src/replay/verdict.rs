//! What the server's answer to a batch of heartbeats says about its sessions.
//!
//! Responsible for which of the listed ids count (REPLAY-2) and for when they show that the server
//! lost its state (REPLAY-8). Pure. Must never look a session up, nor show an id in `Debug`.

use bytes::Bytes;
use yuzu_proto::peek::BatchAnswerPeek;
use yuzu_proto::wire::WireError;

/// Longest id of a session, in bytes.
const MAX_ID: usize = 64;
/// Most ids of one verdict that are used.
const MAX_NAMED: usize = 4_096;
/// Held agents for each session that has to be named, and the most that have to be.
const HELD_FOR_ONE: usize = 64;
const EVIDENCE_MAX: usize = 16;

/// The sessions that the server does not know.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Distinct, ascending, at most 4,096, of 1 to 64 bytes each; they need not be text.
    pub(crate) named: Vec<Bytes>,
    /// Heartbeats in the batch.
    pub(crate) heartbeats: usize,
    /// The server knows of more than it lists.
    pub(crate) truncated: bool,
}

/// An answer, read.
pub(crate) struct Reading {
    pub(crate) verdict: Verdict,
    /// Ids in the list, whatever they are.
    pub(crate) listed: usize,
    /// Those of them that can not be a session's.
    pub(crate) malformed: usize,
}

impl Verdict {
    /// Reads an encoded `BatchHeartbeatResponse`, the answer to a batch of `heartbeats`.
    ///
    /// # Errors
    /// The bytes are not such a message, so there is no verdict (REPLAY-20).
    pub(crate) fn read(answer: &Bytes, heartbeats: usize) -> Result<Reading, WireError> {
        let peek = BatchAnswerPeek::peek(answer)?;
        let listed = peek.unknown_session_ids.len();
        let mut named = peek.unknown_session_ids;
        named.retain(|id| (1..=MAX_ID).contains(&id.len()));
        let malformed = listed - named.len();
        named.sort_unstable();
        named.dedup();
        named.truncate(MAX_NAMED);
        let named = named.into_iter().map(|id| answer.slice_ref(id)).collect();
        Ok(Reading {
            verdict: Verdict {
                named,
                heartbeats,
                truncated: peek.truncated,
            },
            listed,
            malformed,
        })
    }

    /// Whether it says nothing (REPLAY-20).
    pub(crate) fn is_empty(&self) -> bool {
        self.named.is_empty() && !self.truncated
    }

    /// Whether the server lost its state, as seen by a node that holds `held` agents (REPLAY-8).
    pub(crate) fn shows_lost_state(&self, held: usize) -> bool {
        let named = self.named.len();
        let enough = (held / HELD_FOR_ONE).clamp(1, EVIDENCE_MAX);
        self.truncated || (named >= self.heartbeats.div_ceil(2) && named >= enough)
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use yuzu_proto::gateway::v1::BatchHeartbeatResponse;
    use yuzu_proto::wire::put_bytes_field;

    use super::*;

    /// The answer that lists `ids`, which need not be text.
    fn answer<T: AsRef<[u8]>>(ids: impl IntoIterator<Item = T>) -> Bytes {
        let mut bytes = Vec::new();
        for id in ids {
            put_bytes_field(&mut bytes, 2, id.as_ref());
        }
        bytes.into()
    }

    fn read<T: AsRef<[u8]>>(ids: impl IntoIterator<Item = T>) -> Reading {
        Verdict::read(&answer(ids), 1).unwrap()
    }

    fn verdict(named: usize, heartbeats: usize, truncated: bool) -> Verdict {
        let ids = (0..named).map(|id| format!("{id:05}"));
        let named = ids.map(Bytes::from).collect();
        Verdict {
            named,
            heartbeats,
            truncated,
        }
    }

    #[test]
    fn replay_2_ids_of_1_to_64_bytes_count_and_others_are_malformed() {
        let lengths = [0, 1, 64, 65, 100];
        let reading = read(lengths.map(|length| "x".repeat(length)));
        let kept: Vec<_> = reading.verdict.named.iter().map(Bytes::len).collect();
        assert_eq!(kept, [1, 64]);
        assert_eq!((reading.listed, reading.malformed), (5, 3));
    }

    #[test]
    fn replay_2_ids_are_used_once_in_their_order_whether_or_not_they_are_text() {
        let listed: [&[u8]; 5] = [b"b", b"\xff\xfe", b"a", b"b", b"a"];
        let reading = read(listed);
        let expected: [&[u8]; 3] = [b"a", b"b", b"\xff\xfe"];
        assert_eq!(reading.verdict.named, expected);
        assert_eq!((reading.listed, reading.malformed), (5, 0));
    }

    #[test]
    fn replay_2_the_first_4096_are_used_and_the_rest_is_not_counted() {
        // Listed from the last to the first, as a server may.
        let ids: Vec<_> = (0..4_100).map(|id| format!("{id:05}")).collect();
        let reading = read(ids.iter().rev());
        let named = &reading.verdict.named;
        assert_eq!((named.len(), reading.malformed), (4_096, 0));
        assert_eq!(
            (&named[0][..], &named[4_095][..]),
            (&b"00000"[..], &b"04095"[..])
        );
    }

    #[test]
    fn replay_20_an_answer_without_the_fields_says_nothing() {
        for answer in [
            BatchHeartbeatResponse::default(),
            BatchHeartbeatResponse {
                acknowledged_count: 7,
                ..Default::default()
            },
        ] {
            let reading = Verdict::read(&answer.encode_to_vec().into(), 7).unwrap();
            assert!(reading.verdict.is_empty());
            assert!(!reading.verdict.shows_lost_state(7));
        }
        assert!(Verdict::read(&Bytes::from_static(b"\xff\xff"), 7).is_err());
    }

    #[test]
    fn replay_8_half_of_the_batch_and_one_for_each_64_agents_held() {
        // Named, heartbeats in the batch, agents held, evidence.
        for (named, heartbeats, held, expected) in [
            (1, 2, 1, true),
            (1, 3, 1, false),
            (2, 3, 1, true),
            (0, 0, 0, false),
            (1, 1, 127, true),
            (1, 1, 128, false),
            (2, 2, 191, true),
            (2, 2, 192, false),
            (15, 15, 100_000, false),
            (16, 16, 100_000, true),
            (16, 33, 100_000, false),
        ] {
            let shown = verdict(named, heartbeats, false).shows_lost_state(held);
            assert_eq!(shown, expected, "{named} of {heartbeats}, {held} held");
        }
    }

    #[test]
    fn replay_8_a_truncated_list_is_evidence_whatever_it_names() {
        assert!(verdict(1, 100, true).shows_lost_state(10_000));
        assert!(!verdict(0, 100, true).is_empty());
    }
}
