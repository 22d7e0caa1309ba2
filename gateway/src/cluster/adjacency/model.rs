//! Nodes that tell each other over links which lose, repeat and reorder frames, against the plain
//! truth of who holds what.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;
use yuzu_proto::node::v1::agents_frame::Kind;

use super::inbox::{Inbox, Rejected};
use super::journal::Journal;
use super::outbox::{CHANGE_INTERVAL, DIGEST_INTERVAL, Outbox};
use super::table::Adjacency;
use super::testing::epoch;
use crate::session::Epoch;

const NODES: usize = 3;
const AGENTS: usize = 12;

#[derive(Debug, Clone)]
enum Step {
    /// An agent subscribes; the clock of its node is off by so much.
    Come {
        node: usize,
        agent: usize,
        skew: u64,
    },
    Go {
        node: usize,
        agent: usize,
    },
    /// The frames that are ready go onto a link.
    Write {
        from: usize,
        to: usize,
        frames: usize,
    },
    /// A frame of a link arrives, not always the first.
    Read {
        from: usize,
        to: usize,
        at: usize,
    },
    Lose {
        from: usize,
        to: usize,
        frames: usize,
    },
    Repeat {
        from: usize,
        to: usize,
    },
    /// The link breaks; a new stream takes its place.
    Relink {
        from: usize,
        to: usize,
    },
    /// A node starts anew without agents.
    Restart {
        node: usize,
    },
    /// A node is taken for dead by another and found again.
    Bury {
        node: usize,
        by: usize,
    },
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (node, agent) = (0..NODES, 0..AGENTS);
    let link = (0..NODES, 1..NODES).prop_map(|(from, by)| (from, (from + by) % NODES));
    prop_oneof![
        8 => (node.clone(), agent.clone(), 0..4_u64)
            .prop_map(|(node, agent, skew)| Step::Come { node, agent, skew }),
        4 => (node.clone(), agent).prop_map(|(node, agent)| Step::Go { node, agent }),
        8 => (link.clone(), 1..300_usize)
            .prop_map(|((from, to), frames)| Step::Write { from, to, frames }),
        12 => (link.clone(), prop_oneof![6 => Just(0_usize), 1 => 0..4_usize])
            .prop_map(|((from, to), at)| Step::Read { from, to, at }),
        2 => (link.clone(), 1..200_usize)
            .prop_map(|((from, to), frames)| Step::Lose { from, to, frames }),
        2 => link.clone().prop_map(|(from, to)| Step::Repeat { from, to }),
        1 => link.clone().prop_map(|(from, to)| Step::Relink { from, to }),
        1 => node.clone().prop_map(|node| Step::Restart { node }),
        1 => link.prop_map(|(node, by)| Step::Bury { node, by }),
        2 => (1..12_u64).prop_map(Step::Wait),
    ]
}

/// What one node tells another, and what is on its way.
struct Link {
    outbox: Outbox,
    inbox: Inbox,
    frames: VecDeque<Kind>,
    answers: VecDeque<Kind>,
}

struct Node {
    name: String,
    incarnation: u64,
    journal: Journal,
    table: Arc<Adjacency>,
    /// The truth: the session of each agent here.
    holds: BTreeMap<Arc<str>, (Arc<str>, Epoch)>,
}

struct World {
    nodes: Vec<Node>,
    links: BTreeMap<(usize, usize), Link>,
    now: Instant,
    tick: u64,
    /// Every session that ever was, with its node and its life.
    ever: BTreeSet<(String, u64, String)>,
    /// Shards that were asked for again.
    wanted: usize,
}

fn agent_id(agent: usize) -> Arc<str> {
    Arc::from(format!("agent-{agent}"))
}

impl World {
    fn new() -> Self {
        let node = |number| Node {
            name: format!("gw{number}"),
            incarnation: 1,
            journal: Journal::new(),
            table: Adjacency::new(),
            holds: BTreeMap::new(),
        };
        let mut world = Self {
            nodes: (0..NODES).map(node).collect(),
            links: BTreeMap::new(),
            now: Instant::now(),
            tick: 0,
            ever: BTreeSet::new(),
            wanted: 0,
        };
        for (from, to) in pairs() {
            world.relink(from, to);
        }
        world
    }

    fn relink(&mut self, from: usize, to: usize) {
        let (name, incarnation) = (self.nodes[from].name.clone(), self.nodes[from].incarnation);
        let (telling, _) = self.nodes[to].table.listen(&name, incarnation).unwrap();
        let link = Link {
            outbox: Outbox::new(self.now),
            inbox: Inbox::new(telling),
            frames: VecDeque::new(),
            answers: VecDeque::new(),
        };
        self.links.insert((from, to), link);
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Come { node, agent, skew } => self.come(node, agent, skew),
            Step::Go { node, agent } => self.go(node, agent),
            Step::Write { from, to, frames } => {
                for _ in 0..frames {
                    self.write(from, to);
                }
            }
            Step::Read { from, to, at } => self.read(from, to, at),
            Step::Lose { from, to, frames } => {
                let on_way = &mut self.link(from, to).frames;
                on_way.drain(..frames.min(on_way.len()));
            }
            Step::Repeat { from, to } => {
                let frames = &mut self.link(from, to).frames;
                frames.extend(frames.front().cloned());
            }
            Step::Relink { from, to } => self.relink(from, to),
            Step::Restart { node } => self.restart(node),
            Step::Bury { node, by } => {
                let (name, tables) = (self.nodes[node].name.clone(), &self.nodes[by].table);
                drop(tables.keep_only(|other, _| other != name));
                self.relink(node, by);
            }
            Step::Wait(seconds) => self.now += Duration::from_secs(seconds),
        }
    }

    fn link(&mut self, from: usize, to: usize) -> &mut Link {
        self.links.get_mut(&(from, to)).unwrap()
    }

    fn come(&mut self, node: usize, agent: usize, skew: u64) {
        self.tick += 8;
        let (agent_id, number) = (agent_id(agent), self.tick + 2 * skew + node as u64 % 2);
        let node = &mut self.nodes[node];
        let older = node.holds.get(&agent_id);
        let epoch = epoch(number).max(older.map_or(epoch(0), |(_, epoch)| {
            Epoch::from_number(epoch.number() + 1).unwrap()
        }));
        let session: Arc<str> = Arc::from(format!("s-{}", self.tick));
        self.ever
            .insert((node.name.clone(), node.incarnation, session.to_string()));
        node.journal.came(&agent_id, &session, epoch, self.now);
        node.holds.insert(agent_id, (session, epoch));
    }

    fn go(&mut self, node: usize, agent: usize) {
        let (node, agent_id) = (&mut self.nodes[node], agent_id(agent));
        if let Some((_, epoch)) = node.holds.remove(&agent_id) {
            node.journal.went(&agent_id, epoch, self.now);
        }
    }

    /// One frame onto the link; false: there is none.
    fn write(&mut self, from: usize, to: usize) -> bool {
        self.now += CHANGE_INTERVAL;
        let (now, journal) = (self.now, &self.nodes[from].journal);
        let link = self.links.get_mut(&(from, to)).unwrap();
        while let Some(Kind::Applied(answer)) = link.answers.pop_front() {
            link.outbox.applied(&answer).unwrap();
        }
        let next = link.outbox.next(journal, now);
        let more = next.is_some();
        link.frames.extend(next);
        more
    }

    fn read(&mut self, from: usize, to: usize, at: usize) {
        let link = self.link(from, to);
        let at = at.min(link.frames.len().saturating_sub(1));
        let Some(frame) = link.frames.remove(at) else {
            return;
        };
        match link.inbox.take(&frame, &mut |_| ()) {
            Ok(taken) => {
                link.answers.push_back(taken.told());
                self.wanted += taken.wanted.len();
            }
            // The first frame was lost: such a stream ends.
            Err(Rejected::Malformed) => self.relink(from, to),
            Err(Rejected::Superseded) => panic!("nothing took its place"),
        }
    }

    fn restart(&mut self, node: usize) {
        let restarted = &mut self.nodes[node];
        restarted.incarnation += 1;
        restarted.journal = Journal::new();
        restarted.table = Adjacency::new();
        restarted.holds.clear();
        for other in (0..NODES).filter(|other| *other != node) {
            self.relink(node, other);
            self.relink(other, node);
        }
    }

    /// No look-up ever gives a session that its node did not hold in its present life.
    fn check(&self) {
        for node in &self.nodes {
            for agent in 0..AGENTS {
                let Some(found) = node.table.find(&agent_id(agent)) else {
                    continue;
                };
                let at = self
                    .nodes
                    .iter()
                    .find(|other| *other.name == *found.node)
                    .unwrap();
                let key = (
                    at.name.clone(),
                    at.incarnation,
                    found.session_id.to_string(),
                );
                assert!(self.ever.contains(&key), "{found:?} at {}", node.name);
            }
        }
    }

    /// Lets everything arrive, digests and what they bring about as well.
    fn settle(&mut self) {
        for _ in 0..3 {
            self.wanted = 0;
            for (from, to) in pairs() {
                for _ in 0..4_000 {
                    if !self.write(from, to) && self.link(from, to).frames.is_empty() {
                        break;
                    }
                    self.read(from, to, 0);
                }
            }
            self.now += DIGEST_INTERVAL;
        }
    }

    fn check_settled(&self) {
        assert_eq!(self.wanted, 0, "the last digests fit");
        for (to, node) in self.nodes.iter().enumerate() {
            for agent in 0..AGENTS {
                let agent_id = agent_id(agent);
                let others = self.nodes.iter().enumerate().filter(|(at, _)| *at != to);
                let claims = others.filter_map(|(_, other)| {
                    let (session, epoch) = other.holds.get(&agent_id)?;
                    Some((epoch.number(), &*other.name, &**session))
                });
                let found = node.table.find(&agent_id);
                let found = found
                    .as_ref()
                    .map(|at| (at.epoch.number(), &*at.node, &*at.session_id));
                assert_eq!(found, claims.max(), "{agent_id} at {}", node.name);
            }
            let census: usize = node.table.census().iter().map(|(_, rows)| rows).sum();
            let held: usize = self.nodes.iter().map(|other| other.holds.len()).sum();
            assert_eq!(census, held - node.holds.len());
        }
    }
}

fn pairs() -> impl Iterator<Item = (usize, usize)> {
    let all = (0..NODES).flat_map(|from| (0..NODES).map(move |to| (from, to)));
    all.filter(|(from, to)| from != to)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn adj_1_adj_2_adj_3_all_nodes_come_to_know_who_holds_what(
        steps in prop::collection::vec(step(), 0..200)
    ) {
        let mut world = World::new();
        for step in steps {
            world.run(step);
            world.check();
        }
        world.settle();
        world.check_settled();
    }
}
