//! Random lives of a call, against owners that know what they have really done.
//!
//! The world here has links that break with frames on them, owners that forget, that refuse, that
//! carry a command out after this side has given up, and agents that move. Whatever happens, each
//! target ends once, and what it is told to be is true of the owners.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use proptest::prelude::*;

use super::tests::{place, times};
use super::*;

const NODES: [&str; 3] = ["b", "c", "d"];

/// What an owner has said in one session.
#[derive(Debug, Clone)]
enum Said {
    Written(Vec<u32>),
    Answer(Slot, bool),
}

/// One session as it really is.
#[derive(Debug, Default)]
struct Owner {
    /// Dispatches that are on the wire.
    on_wire: VecDeque<Vec<Slot>>,
    had: u64,
    /// Targets whose command it has, and which have not answered for the last time.
    runs: Vec<Slot>,
    said: Vec<Said>,
    heard: usize,
    is_open: bool,
    is_broken: bool,
    forgot: bool,
}

struct World {
    core: Outstanding,
    now: Instant,
    owners: Vec<Owner>,
    /// Targets whose command an owner has applied, as often as one has.
    applied: Vec<u32>,
    sent: Vec<u32>,
    answers: Vec<u32>,
    last_answers: HashSet<Slot>,
    timed_out: HashSet<Slot>,
    ended: Vec<Option<Ended>>,
    here: HashSet<Slot>,
}

impl World {
    fn new(targets: usize) -> Self {
        let now = Instant::now();
        let all = (0..targets).map(|n| {
            let node = NODES[n % NODES.len()];
            (Arc::from(n.to_string()), place(node, 1))
        });
        let mut core = Outstanding::new(times());
        core.add(all, now);
        let mut world = Self {
            core,
            now,
            owners: Vec::new(),
            applied: vec![0; targets],
            sent: vec![0; targets],
            answers: vec![0; targets],
            last_answers: HashSet::new(),
            timed_out: HashSet::new(),
            ended: vec![None; targets],
            here: HashSet::new(),
        };
        world.act(false);
        world
    }

    /// Does what the core wants; `full`: there is no room for a command.
    fn act(&mut self, full: bool) {
        loop {
            let actions = self.core.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Open(id, _) => {
                        assert_eq!(id, self.owners.len());
                        self.owners.push(Owner::default());
                    }
                    Action::Dispatch(id, slots) if full => {
                        self.core
                            .not_dispatched(id, &slots, Ended::Rejected, self.now);
                    }
                    Action::Dispatch(id, slots) => {
                        slots.iter().for_each(|slot| self.sent[*slot] += 1);
                        self.owners[id].on_wire.push_back(slots);
                    }
                    Action::Close(id) => {
                        let owner = &mut self.owners[id];
                        owner.is_open = false;
                        owner.heard = owner.said.len();
                    }
                    Action::Here(slot) => assert!(self.here.insert(slot)),
                    Action::Settle(slot, ended) => {
                        let before = self.ended[slot].replace(ended);
                        assert_eq!(before, None, "{slot} ended twice");
                    }
                    Action::Resume(_) | Action::NotResumed(_) | Action::Unreachable(_) => {}
                }
            }
        }
    }

    /// One thing happens.
    fn step(&mut self, kind: u8, pick: usize, chance: u8) {
        let id = pick % self.owners.len();
        let (even, now) = (chance.is_multiple_of(2), self.now);
        let owner = &mut self.owners[id];
        let reaches = owner.is_open && !owner.is_broken;
        match kind {
            0 if !owner.is_open && owner.had == 0 && owner.on_wire.is_empty() => {
                owner.is_open = true;
                self.core.opened(id, now);
            }
            // What is on the wire may arrive after this side has given up.
            1 | 2 if !owner.forgot => self.arrives(id, chance),
            3 | 4 if !owner.runs.is_empty() => {
                let at = usize::from(chance) % owner.runs.len();
                let slot = owner.runs[at];
                if even {
                    owner.runs.swap_remove(at);
                }
                owner.said.push(Said::Answer(slot, even));
            }
            5..=8 if reaches => self.hear(id, chance),
            9 if reaches => {
                owner.is_broken = true;
                if even {
                    owner.on_wire.clear();
                }
                self.core.broken(id, now);
            }
            10 if owner.is_open && self.core.is_resuming(id) => {
                // The streams of before are gone for good.
                owner.on_wire.clear();
                owner.is_broken = false;
                match owner.forgot {
                    true => self.core.not_resumed(id),
                    false => drop(self.core.resumed(id, owner.had, now).unwrap()),
                }
            }
            11 => owner.forgot |= owner.is_broken,
            // It refuses what it has not taken.
            12 if reaches && owner.heard == owner.said.len() => {
                owner.on_wire.clear();
                owner.forgot = true;
                self.core.refused(id, Ended::NotConnected);
            }
            13 if reaches && owner.heard == owner.said.len() && owner.on_wire.is_empty() => {
                let runs = owner.runs.iter().copied();
                self.timed_out.extend(runs);
                self.core.ended(id);
            }
            14 => {
                self.now += Duration::from_secs(u64::from(chance) % 12);
                // It has nowhere been all the time, or is found elsewhere while it waits.
                let found = match chance % 5 {
                    0 => Found::Here,
                    1 | 2 => Found::Nowhere,
                    n => Found::At(place(NODES[usize::from(n) - 3], 2 + u64::from(chance))),
                };
                self.core.seek(|_| found.clone(), self.now);
                self.core.tick(self.now);
            }
            15 if reaches => {
                owner.forgot = even;
                self.core.lost(id);
            }
            _ => {}
        }
        self.act(chance.is_multiple_of(7));
    }

    /// The owner gets a Dispatch.
    fn arrives(&mut self, id: SessionId, chance: u8) {
        let owner = &mut self.owners[id];
        let Some(slots) = owner.on_wire.pop_front() else {
            return;
        };
        owner.had += 1;
        let mut moved = Vec::new();
        for (position, slot) in slots.into_iter().enumerate() {
            if (usize::from(chance) + position).is_multiple_of(3) {
                moved.push(position as u32);
            } else {
                self.applied[slot] += 1;
                owner.runs.push(slot);
            }
        }
        owner.said.push(Said::Written(moved));
    }

    /// The entry node gets what the owner said next.
    fn hear(&mut self, id: SessionId, chance: u8) {
        let owner = &mut self.owners[id];
        let Some(said) = owner.said.get(owner.heard).cloned() else {
            return;
        };
        owner.heard += 1;
        match said {
            Said::Written(moved) => {
                let found = match chance % 4 {
                    0 => Found::Here,
                    1 => Found::Nowhere,
                    n => Found::At(place(NODES[usize::from(n) - 1], 2 + u64::from(chance))),
                };
                let told = self.core.written(id, &moved, |_| found.clone(), self.now);
                told.expect("the owner had it");
            }
            Said::Answer(slot, is_last) => {
                self.answers[slot] += 1;
                if is_last {
                    self.last_answers.insert(slot);
                }
                let agent = Arc::clone(self.core.agent(slot));
                let answer = Answer {
                    agent_id: &agent,
                    is_last,
                };
                let told = self.core.answered(id, &[answer], self.now);
                told.expect("the agent is waited for");
            }
        }
    }

    /// Lets everything come to its end, and judges.
    fn judge(mut self) {
        for _ in 0..10 {
            self.now += Duration::from_secs(100);
            self.core.tick(self.now);
            self.act(false);
            for id in 0..self.owners.len() {
                self.core.lost(id);
                self.act(false);
                // What was sent may still be carried out.
                if !self.owners[id].forgot {
                    while !self.owners[id].on_wire.is_empty() {
                        self.arrives(id, 1);
                    }
                }
            }
        }
        assert!(self.core.is_done());
        for slot in 0..self.ended.len() {
            assert!(
                self.sent[slot] <= 2,
                "{slot} was sent {} times",
                self.sent[slot]
            );
            assert!(self.applied[slot] <= 1, "{slot} was carried out twice");
            let Some(ended) = self.ended[slot] else {
                assert!(self.here.contains(&slot), "{slot} has not ended");
                assert_eq!(self.applied[slot], 0, "{slot} is carried out here as well");
                continue;
            };
            match ended {
                Ended::NotConnected | Ended::Rejected | Ended::Moved => {
                    assert_eq!(self.applied[slot], 0, "{slot} is {ended:?}, and was sent");
                }
                Ended::Answered => assert!(
                    self.last_answers.contains(&slot) || self.timed_out.contains(&slot),
                    "{slot} has no answer"
                ),
                Ended::OutcomeUnknown => {
                    assert!(self.sent[slot] > 0, "{slot} was not sent");
                    assert_eq!(self.answers[slot], 0, "{slot} has answered");
                }
                Ended::AgentDisconnected => {
                    assert!(self.answers[slot] > 0, "{slot} has not answered");
                    assert!(!self.last_answers.contains(&slot));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn fwd_6_fwd_7_fwd_8_every_target_ends_once_and_as_it_was(
        targets in 1..7_usize,
        steps in prop::collection::vec((0..16_u8, any::<usize>(), any::<u8>()), 0..120),
    ) {
        let mut world = World::new(targets);
        for (kind, pick, chance) in steps {
            world.step(kind, pick, chance);
        }
        world.judge();
    }
}
