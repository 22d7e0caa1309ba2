use std::sync::Arc;

use yuzu_proto::node::v1::AgentsStart;

use super::super::digest::shard_of;
use super::super::table::Adjacency;
use super::super::testing::{epoch, row as row_of};
use super::*;

struct Peer {
    table: Arc<Adjacency>,
    inbox: Inbox,
}

impl Peer {
    /// After the change 10.
    fn new() -> Self {
        let table = Adjacency::new();
        let (telling, _) = table.listen("gw1", 1).unwrap();
        let mut peer = Self {
            table,
            inbox: Inbox::new(telling),
        };
        peer.take(&Kind::Start(AgentsStart { sequence: 10 }))
            .unwrap();
        peer
    }

    fn take(&mut self, frame: &Kind) -> Result<Taken, Rejected> {
        self.inbox.take(frame, &mut |_| ())
    }

    fn holds(&self, agent: &str) -> Option<u64> {
        self.table.find(agent).map(|at| at.epoch.number())
    }
}

fn agent_row(agent: &str, number: u64) -> AgentRow {
    AgentRow {
        agent_id: agent.to_owned(),
        session_id: "s".to_owned(),
        epoch: number,
    }
}

fn came(agent: &str, number: u64) -> AgentChange {
    AgentChange {
        row: Some(agent_row(agent, number)),
        ended: false,
    }
}

fn went(agent: &str, number: u64) -> AgentChange {
    AgentChange {
        ended: true,
        ..came(agent, number)
    }
}

fn changes(after: u64, changes: &[AgentChange]) -> Kind {
    Kind::Changes(AgentChanges {
        after,
        changes: changes.to_vec(),
    })
}

fn rows(sequence: u64, shard: usize, rows: &[AgentRow]) -> Kind {
    Kind::Rows(AgentRows {
        sequence,
        shard: shard as u32,
        rows: rows.to_vec(),
        ..AgentRows::default()
    })
}

fn taken(applied: u64, wanted: ShardSet) -> Result<Taken, Rejected> {
    Ok(Taken {
        applied,
        wanted,
        full: false,
    })
}

fn only(shard: usize) -> ShardSet {
    let mut set = ShardSet::NONE;
    set.insert(shard);
    set
}

#[test]
fn adj_1_changes_apply_in_their_order_and_each_once() {
    let mut peer = Peer::new();
    let frame = changes(10, &[came("a", 1), came("b", 2), went("a", 1)]);
    assert_eq!(peer.take(&frame), taken(13, ShardSet::NONE));
    assert_eq!((peer.holds("a"), peer.holds("b")), (None, Some(2)));
    // Told twice: what is known of it stays as it is.
    let again = changes(11, &[came("b", 2), went("a", 1), went("b", 2)]);
    assert_eq!(peer.take(&again), taken(14, ShardSet::NONE));
    assert_eq!(peer.take(&frame), taken(14, ShardSet::NONE));
    assert_eq!((peer.holds("a"), peer.holds("b")), (None, None));
}

#[test]
fn adj_2_after_a_gap_everything_is_wanted_again() {
    let mut peer = Peer::new();
    let wanted = peer.take(&changes(12, &[came("a", 3)]));
    assert_eq!(wanted, taken(13, ShardSet::ALL));
    assert_eq!(peer.holds("a"), Some(3));
    assert_eq!(peer.take(&rows(20, 0, &[])), taken(20, ShardSet::ALL));
    assert_eq!(
        peer.take(&changes(20, &[went("a", 3)])),
        taken(21, ShardSet::NONE)
    );
}

#[test]
fn adj_2_rows_of_an_earlier_moment_are_wanted_again() {
    let mut peer = Peer::new();
    peer.take(&changes(10, &[came("agent-1", 3)])).unwrap();
    let shard = shard_of("agent-1");
    assert_eq!(peer.take(&rows(10, shard, &[])), taken(11, only(shard)));
    assert_eq!(peer.holds("agent-1"), Some(3));
    assert_eq!(peer.take(&rows(11, shard, &[])), taken(11, ShardSet::NONE));
    assert_eq!(peer.holds("agent-1"), None);
}

#[test]
fn adj_2_a_shard_whose_digest_differs_is_wanted_again() {
    let mut peer = Peer::new();
    peer.take(&changes(10, &[came("agent-1", 3)])).unwrap();
    let mut digests = [Digest::default(); SHARDS];
    digests[shard_of("agent-1")].add(&row_of("agent-1", "s", 3));
    let frame = |sequence, digests: &[Digest]| {
        let digests = digests.iter().map(|digest| digest.number()).collect();
        Kind::Digests(AgentDigests { sequence, digests })
    };
    assert_eq!(peer.take(&frame(11, &digests)), taken(11, ShardSet::NONE));
    digests[9].add(&row_of("agent-2", "s", 4));
    assert_eq!(peer.take(&frame(11, &digests)), taken(11, only(9)));
    // Those of an earlier moment say nothing.
    assert_eq!(peer.take(&frame(10, &digests)), taken(11, ShardSet::NONE));
    assert_eq!(
        peer.take(&frame(11, &digests[1..])),
        Err(Rejected::Malformed)
    );
}

#[test]
fn adj_3_the_largest_epoch_is_remembered_until_it_is_asked_for() {
    let mut peer = Peer::new();
    assert_eq!(peer.inbox.take_newest(), None);
    peer.take(&changes(10, &[came("a", 9), went("b", 12)]))
        .unwrap();
    peer.take(&rows(12, shard_of("agent-1"), &[agent_row("agent-1", 11)]))
        .unwrap();
    assert_eq!(peer.inbox.take_newest(), Some(epoch(12)));
    assert_eq!(peer.inbox.take_newest(), None);
}

#[test]
fn mgmt_4_what_was_before_the_node_was_heard_of_is_no_news() {
    let mut peer = Peer::new();
    let mut seen = Vec::new();
    let mut take = |peer: &mut Peer, frame: &Kind| {
        let mut note = |change: Seen<'_>| seen.push(format!("{change:?}"));
        peer.inbox.take(frame, &mut note).unwrap();
        std::mem::take(&mut seen)
    };
    let shard = shard_of("agent-1");
    let one = rows(10, shard, &[agent_row("agent-1", 1)]);
    assert_eq!(take(&mut peer, &one), [""; 0]);
    // A change is, at any time.
    let change = changes(10, &[came("agent-2", 2)]);
    assert_eq!(take(&mut peer, &change), ["Came(Row(agent-2, Epoch(2)))"]);
    assert_eq!(take(&mut peer, &rows(11, SHARDS - 1, &[])), [""; 0]);
    // From here on rows repair what was missed.
    let gone = take(&mut peer, &rows(11, shard, &[]));
    assert_eq!(gone, ["Went(\"agent-1\")"]);
    // A second telling of the same life is no history, either.
    let (telling, _) = peer.table.listen("gw1", 1).unwrap();
    peer.inbox = Inbox::new(telling);
    take(&mut peer, &Kind::Start(AgentsStart { sequence: 11 }));
    let back = rows(11, shard, &[agent_row("agent-1", 3)]);
    assert_eq!(take(&mut peer, &back), ["Came(Row(agent-1, Epoch(3)))"]);
}

#[test]
fn a_frame_that_breaks_the_contract_changes_nothing() {
    let long = "a".repeat(257);
    let nameless = AgentChange {
        row: None,
        ended: true,
    };
    let mut sessionless = came("a", 1);
    sessionless.row.as_mut().unwrap().session_id.clear();
    let malformed = [
        changes(10, &[came("b", 2), came("", 1)]),
        changes(10, &[came("b", 2), went(&long, 1)]),
        changes(10, &[came("b", 2), came("a", 1 << 62)]),
        changes(10, &[came("b", 2), nameless]),
        changes(10, &[came("b", 2), sessionless]),
        rows(10, SHARDS, &[]),
        rows(10, 0, &[agent_row("agent-1", 1)]),
        Kind::Applied(AgentsApplied::default()),
    ];
    for frame in malformed {
        let mut peer = Peer::new();
        assert_eq!(peer.take(&frame), Err(Rejected::Malformed), "{frame:?}");
        assert_eq!(peer.table.census()[0].1, 0);
    }
    let mut unbegun = Peer::new();
    unbegun.inbox.applied = None;
    let frame = changes(0, &[came("a", 1)]);
    assert_eq!(unbegun.take(&frame), Err(Rejected::Malformed));
}

#[test]
fn mesh_5_a_telling_ends_with_the_life_of_its_node() {
    let mut peer = Peer::new();
    drop(peer.table.keep_only(|_, _| false));
    let frame = changes(10, &[came("a", 1)]);
    assert_eq!(peer.take(&frame), Err(Rejected::Superseded));
}
