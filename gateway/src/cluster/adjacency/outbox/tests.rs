use super::super::digest::shard_of;
use super::super::journal::KEPT;
use super::super::testing::epoch;
use super::*;

struct Peer {
    journal: Journal,
    outbox: Outbox,
    now: Instant,
    epoch: u64,
}

impl Peer {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            journal: Journal::new(),
            outbox: Outbox::new(now),
            now,
            epoch: 0,
        }
    }

    fn came(&mut self, agent: &str, session: &str) {
        self.epoch += 1;
        let (agent, session) = (Arc::from(agent), Arc::from(session));
        self.journal
            .came(&agent, &session, epoch(self.epoch), self.now);
    }

    /// The next frame, after the time in which changes gather.
    fn next(&mut self) -> Option<Kind> {
        self.now += CHANGE_INTERVAL;
        self.outbox.next(&self.journal, self.now)
    }

    /// Everything that is ready.
    fn drain(&mut self) -> Vec<Kind> {
        std::iter::from_fn(|| self.next()).collect()
    }

    fn applied(&mut self, sequence: u64, wanted_shards: &[u32]) -> Result<(), NeverTold> {
        self.outbox.applied(&AgentsApplied {
            sequence,
            wanted_shards: wanted_shards.into(),
        })
    }
}

fn agents(rows: &[AgentRow]) -> Vec<&str> {
    rows.iter().map(|row| &*row.agent_id).collect()
}

#[test]
fn adj_1_a_telling_begins_with_every_shard_and_goes_on_with_changes() {
    let mut peer = Peer::new();
    peer.came("agent-1", "s-1");
    let mut frames = peer.drain().into_iter();
    assert_eq!(
        frames.next(),
        Some(Kind::Start(AgentsStart { sequence: 1 }))
    );
    let rows = frames.map(|frame| match frame {
        Kind::Rows(rows) => rows,
        other => panic!("{other:?}"),
    });
    let rows: Vec<_> = rows.collect();
    assert!(rows.iter().map(|rows| rows.shard).eq(0..256));
    assert!(
        rows.iter()
            .all(|rows| rows.sequence == 1 && rows.until.is_empty())
    );
    let full: Vec<_> = rows.iter().filter(|rows| !rows.rows.is_empty()).collect();
    assert_eq!(full.len(), 1);
    assert_eq!(full[0].shard as usize, shard_of("agent-1"));
    assert_eq!(agents(&full[0].rows), ["agent-1"]);

    peer.came("agent-2", "s-2");
    peer.journal.went(&Arc::from("agent-1"), epoch(1), peer.now);
    let Some(Kind::Changes(changes)) = peer.next() else {
        panic!("no changes");
    };
    assert_eq!(changes.after, 1);
    let ended: Vec<_> = changes.changes.iter().map(|change| change.ended).collect();
    assert_eq!(ended, [false, true]);
    assert_eq!(peer.next(), None);
}

#[test]
fn adj_1_changes_and_rows_take_turns() {
    let mut peer = Peer::new();
    let mut kinds = Vec::new();
    for number in 0..4 {
        peer.came(&format!("agent-{number}"), "s");
        kinds.push(match peer.next() {
            Some(Kind::Start(_)) => "start",
            Some(Kind::Changes(_)) => "changes",
            Some(Kind::Rows(_)) => "rows",
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(kinds, ["start", "changes", "rows", "changes"]);
}

#[test]
fn adj_1_a_peer_that_falls_behind_is_told_everything_anew() {
    let mut peer = Peer::new();
    peer.drain();
    for number in 0..=KEPT {
        peer.came(&format!("agent-{}", number % 7), "s");
    }
    let last = KEPT as u64 + 1;
    let frames: Vec<_> = std::iter::from_fn(|| peer.next())
        .take(1 + SHARDS)
        .collect();
    assert_eq!(frames[0], Kind::Start(AgentsStart { sequence: last }));
    assert_eq!(frames.len(), 1 + SHARDS);
    assert!(
        frames[1..]
            .iter()
            .all(|frame| matches!(frame, Kind::Rows(_)))
    );
}

#[test]
fn adj_2_digests_follow_when_everything_was_told_and_not_sooner() {
    let mut peer = Peer::new();
    peer.now += DIGEST_INTERVAL;
    let frames = peer.drain();
    let (last, others) = frames.split_last().unwrap();
    assert!(!others.iter().any(|frame| matches!(frame, Kind::Digests(_))));
    let Kind::Digests(digests) = last else {
        panic!("{last:?}");
    };
    assert_eq!((digests.sequence, digests.digests.len()), (0, SHARDS));
    assert_eq!(peer.next(), None);
    peer.now = peer.outbox.due(&peer.journal) - 2 * CHANGE_INTERVAL;
    assert_eq!(peer.next(), None);
    assert!(matches!(peer.next(), Some(Kind::Digests(_))));
}

#[test]
fn adj_2_a_shard_that_the_peer_wants_is_sent_again_alone() {
    let mut peer = Peer::new();
    peer.came("agent-1", "s-1");
    peer.came("agent-2", "s-2");
    peer.drain();
    peer.applied(2, &[shard_of("agent-2") as u32, 256, 999])
        .unwrap();
    let frames = peer.drain();
    assert_eq!(frames.len(), 1);
    let Kind::Rows(rows) = &frames[0] else {
        panic!("{:?}", frames[0]);
    };
    assert_eq!(agents(&rows.rows), ["agent-2"]);
}

#[test]
fn adj_4_frames_are_bounded_and_a_large_shard_goes_in_portions() {
    let mut peer = Peer::new();
    // All in one shard; the long session ids make a portion of three of them.
    let mut ids: Vec<_> = (0..)
        .map(|n| format!("agent-{n}"))
        .filter(|id| shard_of(id) == 7)
        .take(7)
        .collect();
    let session = "s".repeat(MAX_BYTES / 3 + 1);
    for id in &ids {
        peer.came(id, &session);
    }
    ids.sort();
    let rows: Vec<_> = peer
        .drain()
        .into_iter()
        .filter_map(|frame| match frame {
            Kind::Rows(rows) if rows.shard == 7 => Some(rows),
            _ => None,
        })
        .collect();
    let spans: Vec<_> = rows
        .iter()
        .map(|rows| (&*rows.after, &*rows.until, rows.rows.len()))
        .collect();
    let expected = [
        ("", &*ids[2], 3),
        (&*ids[2], &*ids[5], 3),
        (&*ids[5], "", 1),
    ];
    assert_eq!(spans, expected);

    // Changes as well: three, three and two.
    for id in ids.iter().chain(["agent-x".to_owned()].iter()) {
        peer.came(id, &session);
    }
    let changes: Vec<_> = peer
        .drain()
        .into_iter()
        .map(|frame| match frame {
            Kind::Changes(changes) => (changes.after, changes.changes.len()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(changes, [(7, 3), (10, 3), (13, 2)]);
}

#[test]
fn adj_1_a_peer_can_not_confirm_what_it_was_not_told() {
    let mut peer = Peer::new();
    peer.drain();
    assert_eq!(peer.applied(0, &[]), Ok(()));
    assert_eq!(peer.applied(1, &[]), Err(NeverTold));
}

#[test]
fn changes_that_come_together_go_together() {
    let mut peer = Peer::new();
    peer.drain();
    peer.came("agent-1", "s-1");
    assert_eq!(peer.outbox.due(&peer.journal), peer.outbox.changes_due);
    assert!(matches!(peer.next(), Some(Kind::Changes(_))));
    peer.came("agent-2", "s-2");
    peer.came("agent-3", "s-3");
    assert_eq!(peer.outbox.next(&peer.journal, peer.now), None);
    assert_eq!(peer.outbox.due(&peer.journal), peer.now + CHANGE_INTERVAL);
    let Some(Kind::Changes(changes)) = peer.next() else {
        panic!("no changes");
    };
    assert_eq!(changes.changes.len(), 2);
}

#[test]
fn what_the_peer_confirms_never_goes_back() {
    let mut peer = Peer::new();
    peer.drain();
    peer.came("agent-1", "s-1");
    peer.came("agent-2", "s-2");
    peer.drain();
    assert_eq!((peer.outbox.told(), peer.outbox.confirmed()), (2, 0));
    peer.applied(2, &[]).unwrap();
    peer.applied(1, &[]).unwrap();
    assert_eq!(peer.outbox.confirmed(), 2);
}
