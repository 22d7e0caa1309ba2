//! The buffer against a plain list.

use proptest::prelude::*;

use super::*;
use crate::heartbeat::chunk::Tail;

const LIMITS: Limits = Limits {
    sessions: 6,
    bytes: 4 * (OVERHEAD + 1) + 100,
    heartbeat: LARGEST,
};

/// Bytes of a heartbeat.
const LARGEST: usize = 60;

/// Bytes in a batch; a heartbeat takes two more than its own.
const ROOM: usize = 2 * LARGEST;

const STEP: Step = Step {
    entries: 2,
    bytes: 30,
};

#[derive(Debug, Clone)]
enum Move {
    Offer {
        session: u8,
        rest: usize,
        snapshot: usize,
    },
    /// Begins a batch; one that was begun failed.
    Begin,
    /// One step of filling it.
    Pack,
    /// The server took the batch, or a part of it.
    Settle { from: usize, to: usize },
}

fn a_move() -> impl Strategy<Value = Move> {
    let sizes = prop_oneof![
        3 => (0..LARGEST).prop_map(|rest| (rest, 0)),
        3 => (0..LARGEST).prop_flat_map(|rest| (Just(rest), 1..=LARGEST - rest)),
        // Larger than the buffer, without its snapshot or with it.
        1 => prop_oneof![Just((LIMITS.bytes, 0)), Just((0, LIMITS.bytes))],
    ];
    let from = prop_oneof![3 => Just(0), 1 => 0_usize..4];
    prop_oneof![
        6 => (0_u8..9, sizes)
            .prop_map(|(session, (rest, snapshot))| Move::Offer { session, rest, snapshot }),
        1 => Just(Move::Begin),
        3 => Just(Move::Pack),
        2 => (from, 1_usize..5).prop_map(|(from, to)| Move::Settle { from, to }),
    ]
}

#[derive(Debug, Clone, PartialEq)]
struct Held {
    session: String,
    version: u64,
    rest: Vec<u8>,
    /// With the version that brought it.
    snapshot: Option<(u64, Vec<u8>)>,
}

impl Held {
    fn encoded(&self) -> Vec<u8> {
        let snapshot = self.snapshot.iter().flat_map(|(_, bytes)| bytes);
        self.rest.iter().chain(snapshot).copied().collect()
    }

    fn cost(&self) -> usize {
        OVERHEAD + self.session.len() + self.encoded().len()
    }
}

/// What was lost, in the words of the metric.
#[derive(Debug, Default, PartialEq)]
struct Losses {
    buffer_full: usize,
    snapshot_evicted: usize,
    snapshot_oversize: usize,
}

#[derive(Default)]
struct Model {
    held: Vec<Held>,
    offered: u64,
    /// The batch: its end, the last version packed, session and version of each, its bytes.
    end: u64,
    packed: Option<u64>,
    batch: Vec<(String, u64)>,
    bytes: Vec<u8>,
    full: bool,
}

impl Model {
    fn total(&self) -> usize {
        self.held.iter().map(Held::cost).sum()
    }

    fn offer(&mut self, mut new: Held, losses: &mut Losses) -> Outcome {
        let older = self.held.iter().position(|h| h.session == new.session);
        let bare = OVERHEAD + new.session.len() + new.rest.len();
        if (older.is_none() && self.held.len() == LIMITS.sessions) || bare > LIMITS.bytes {
            losses.buffer_full += 1;
            return Outcome::Refused;
        }
        self.offered += 1;
        let older = older.map(|index| self.held.remove(index));
        let outcome = older.as_ref().map_or(Outcome::Held, |_| Outcome::Coalesced);
        if new.snapshot.is_none() {
            new.snapshot = older.and_then(|older| older.snapshot);
            if new.encoded().len() > LIMITS.heartbeat && new.snapshot.take().is_some() {
                losses.snapshot_oversize += 1;
            }
        }
        if new.cost() > LIMITS.bytes {
            new.snapshot = None;
            losses.snapshot_evicted += 1;
        }
        self.held.push(new);
        while self.total() > LIMITS.bytes {
            let came = |held: &&mut Held| held.snapshot.as_ref().map(|(version, _)| *version);
            let with_snapshot = self.held.iter_mut().filter(|held| held.snapshot.is_some());
            if let Some(oldest) = with_snapshot.min_by_key(came) {
                oldest.snapshot = None;
                losses.snapshot_evicted += 1;
            } else {
                self.held.remove(0);
                losses.buffer_full += 1;
            }
        }
        outcome
    }

    fn begin(&mut self) {
        self.end = self.offered;
        self.packed = None;
        self.batch.clear();
        self.bytes.clear();
        self.full = false;
    }

    fn pack(&mut self) {
        let enough = self.bytes.len() + STEP.bytes;
        for _ in 0..STEP.entries {
            let next = |h: &&Held| self.packed.is_none_or(|packed| h.version > packed);
            let next = self.held.iter().find(next);
            let Some(next) = next.filter(|h| h.version < self.end && !self.full) else {
                return;
            };
            let encoded = next.encoded();
            if self.bytes.len() + 2 + encoded.len() > ROOM {
                self.full = true;
                return;
            }
            self.bytes.extend([0x0a, encoded.len() as u8]);
            self.bytes.extend(encoded);
            self.packed = Some(next.version);
            self.batch.push((next.session.clone(), next.version));
            if self.bytes.len() >= enough {
                return;
            }
        }
    }

    fn settle(&mut self, from: usize, to: usize) {
        for (session, version) in &self.batch[from..to] {
            self.held
                .retain(|h| h.session != *session || h.version != *version);
            for held in self.held.iter_mut().filter(|h| h.session == *session) {
                held.snapshot.take_if(|(came, _)| *came <= *version);
            }
        }
    }
}

fn held(buffer: &Buffer) -> Vec<Held> {
    let slots = std::iter::successors(buffer.order.first(), |slot| buffer.order.after(*slot));
    let read = |slot: u32| {
        let entry = &buffer.entries[slot as usize];
        assert_eq!(buffer.slots[&entry.session], slot);
        let encoded = entry.heartbeat.encoded();
        let (rest, snapshot) = encoded.split_at(entry.heartbeat.rest_len());
        Held {
            session: entry.session.to_string(),
            version: entry.version,
            rest: rest.to_vec(),
            snapshot: (!snapshot.is_empty()).then(|| (entry.snapshot_version, snapshot.to_vec())),
        }
    };
    slots.map(read).collect()
}

fn snapshots(buffer: &Buffer) -> Vec<u64> {
    let list = &buffer.snapshots;
    let slots = std::iter::successors(list.first(), |slot| list.after(*slot));
    slots
        .map(|slot| buffer.entries[slot as usize].snapshot_version)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Any order of heartbeats, batches that fail, and batches taken in part or whole.
    #[test]
    fn agrees_with_a_list(moves in prop::collection::vec(a_move(), 1..200)) {
        let tail = Tail::of_room(ROOM);
        let mut buffer = Buffer::new(LIMITS);
        let mut model = Model::default();
        let mut chunk = Chunk::new(&tail, 0);
        for step in moves {
            match step {
                Move::Offer { session, rest, snapshot } => {
                    let version = model.offered;
                    let mut losses = Losses::default();
                    let new = Held {
                        session: session.to_string(),
                        version,
                        rest: vec![version as u8; rest],
                        snapshot: (snapshot > 0).then(|| (version, vec![b's'; snapshot])),
                    };
                    let snapshot = new.snapshot.iter().flat_map(|(_, bytes)| bytes.clone());
                    let heartbeat = Heartbeat::sample(&new.rest, &snapshot.collect::<Vec<_>>());
                    let offered = buffer.offer(&new.session, heartbeat);
                    prop_assert_eq!(offered.outcome, model.offer(new, &mut losses));
                    let refused = usize::from(offered.outcome == Outcome::Refused);
                    prop_assert_eq!(losses, Losses {
                        buffer_full: refused + offered.evicted.heartbeats.len(),
                        snapshot_evicted: offered.evicted.snapshots.len(),
                        snapshot_oversize: usize::from(offered.oversize.is_some()),
                    });
                }
                Move::Begin => {
                    model.begin();
                    chunk = Chunk::new(&tail, 0);
                    buffer.rewind();
                }
                Move::Pack => {
                    if !model.full {
                        buffer.pack(&mut chunk, model.end, STEP);
                    }
                    model.pack();
                    prop_assert_eq!(chunk.len(), model.bytes.len());
                }
                Move::Settle { from, to } => {
                    let from = from.min(model.batch.len());
                    let to = to.clamp(from, model.batch.len());
                    let sealed = std::mem::replace(&mut chunk, Chunk::new(&tail, 0)).seal();
                    if let Some(part) = sealed {
                        // Behind them stands the name of the node, which is empty.
                        let message = part.message();
                        prop_assert_eq!(message.strip_suffix(&[0x12, 0]), Some(&model.bytes[..]));
                        buffer.settle(&part.tickets()[from..to]);
                        model.settle(from, to);
                    }
                    model.begin();
                    buffer.rewind();
                }
            }
            prop_assert_eq!(held(&buffer), model.held.clone());
            let mut came: Vec<_> = model.held.iter().filter_map(|h| Some(h.snapshot.as_ref()?.0)).collect();
            came.sort_unstable();
            prop_assert_eq!(snapshots(&buffer), came);
            prop_assert_eq!(buffer.bytes(), model.total());
            prop_assert!(buffer.bytes() <= LIMITS.bytes);
            prop_assert_eq!(buffer.slots.len(), model.held.len());
        }
    }
}
