//! The adjacency table, filled by peers, for benchmarks.

use std::sync::Arc;

use tokio::time::Instant;
use yuzu_proto::node::v1::agents_frame::Kind;

use super::inbox::Inbox;
use super::journal::Journal;
use super::outbox::Outbox;
use super::table::Adjacency;
use crate::session::Epoch;

/// Peers with agents, and the table of a node that they tell of them.
#[derive(Debug)]
pub struct Peers {
    table: Arc<Adjacency>,
    journals: Vec<Journal>,
}

fn agent_id(agent: usize) -> Arc<str> {
    format!("{agent:08x}-0000-4000-8000-000000000000").into()
}

fn epoch(number: usize) -> Epoch {
    Epoch::from_number(number as u64).expect("below the limit")
}

impl Peers {
    /// `peers` of them, among which `agents` are spread. The table knows none of them yet.
    #[must_use]
    pub fn new(peers: usize, agents: usize) -> Self {
        let mut journals: Vec<_> = (0..peers).map(|_| Journal::new()).collect();
        for agent in 0..agents {
            let session_id = format!("gw-session-{agent:032x}").into();
            let journal = &mut journals[agent % peers];
            journal.came(&agent_id(agent), &session_id, epoch(agent), Instant::now());
        }
        Self {
            table: Adjacency::new(),
            journals,
        }
    }

    /// What this peer tells a node that knows nothing of it, frame by frame.
    #[must_use]
    pub fn snapshot(&self, peer: usize) -> Snapshot {
        let (now, journal) = (Instant::now(), &self.journals[peer]);
        let mut outbox = Outbox::new(now);
        let frames = std::iter::from_fn(|| outbox.next(journal, now));
        Snapshot(frames.collect())
    }

    /// Applies a snapshot of `peer`, calling `after_frame` in between; the number of frames.
    pub fn apply(&self, peer: usize, snapshot: &Snapshot, mut after_frame: impl FnMut()) -> usize {
        let heard = self.table.listen(&format!("gw{peer}"), 1);
        let Ok((telling, _)) = heard else {
            return 0;
        };
        let mut inbox = Inbox::new(telling);
        for frame in &snapshot.0 {
            if inbox.take(frame, &mut |_| ()).is_err() {
                return 0;
            }
            after_frame();
        }
        snapshot.0.len()
    }

    /// Whether the table knows where the agent is.
    #[must_use]
    pub fn find(&self, agent: usize) -> bool {
        self.table.find(&agent_id(agent)).is_some()
    }

    /// Rows of the table.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.table.census().iter().map(|(_, rows)| rows).sum()
    }
}

/// The frames of a telling.
#[derive(Debug)]
pub struct Snapshot(Vec<Kind>);
