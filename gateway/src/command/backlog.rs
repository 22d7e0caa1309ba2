//! The answers that wait for one caller.
//!
//! Responsible for their order, for the bound in bytes (CMD-22), for what one agent may have
//! waiting beyond it, and for which agents wait. Pure: no task, no clock. Must never drop an
//! answer by itself.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use bytes::{Bytes, BytesMut};

use super::entries::NoAnswer;

/// Bytes that one agent may have waiting beyond the bound, so that it goes on answering other
/// callers; one answer may wait there whatever its size.
const ALLOWANCE: usize = 8 << 10;
/// Small answers that wait together leave in one DATA frame of about this size.
const COALESCE: usize = 32 << 10;
/// Room for so many answers is kept when all have left.
const KEPT_ROOM: usize = 64;

/// What the entries of a SendCommand are named after.
#[derive(Default)]
pub(super) struct Names {
    pub(super) targets: Vec<Arc<str>>,
    pub(super) command_id: String,
}

impl Names {
    fn agent(&self, target: u32) -> &str {
        self.targets.get(target as usize).map_or("", |id| id)
    }
}

/// The answers of one SendCommand that its caller has not taken yet.
#[derive(Default)]
pub(super) struct Backlog {
    bound: usize,
    queue: VecDeque<Waiting>,
    /// Of the agents' answers in the queue.
    bytes: usize,
    /// The agents that have answers beyond the bound in the queue.
    beyond: HashMap<u32, Beyond>,
}

struct Waiting {
    target: u32,
    what: What,
}

enum What {
    Answer { frame: Bytes, beyond: bool },
    NoAnswer(NoAnswer),
}

#[derive(Default)]
struct Beyond {
    bytes: usize,
    /// Who waits for these answers to leave before it can bring the next.
    owner: Option<Waker>,
}

impl Waiting {
    fn len(&self, names: &Names) -> usize {
        match &self.what {
            What::Answer { frame, .. } => frame.len(),
            What::NoAnswer(reason) => reason.len(names.agent(self.target), &names.command_id),
        }
    }

    fn put(&self, out: &mut BytesMut, names: &Names) {
        match &self.what {
            What::Answer { frame, .. } => out.extend_from_slice(frame),
            What::NoAnswer(reason) => reason.put(out, names.agent(self.target), &names.command_id),
        }
    }
}

impl Backlog {
    /// An empty one for `bound` bytes of answers.
    pub(super) fn new(bound: usize) -> Self {
        Self {
            bound,
            ..Self::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether the bound is reached.
    pub(super) fn is_full(&self) -> bool {
        !self.beyond.is_empty()
    }

    /// Queues an agent's answer. False: there is no room, and the agent has had its allowance.
    pub(super) fn offer(&mut self, target: u32, frame: &Bytes) -> bool {
        let len = frame.len();
        // An answer larger than the bound passes alone.
        let beyond = self.bytes > 0 && self.bytes + len > self.bound;
        if beyond {
            let agent = self.beyond.entry(target).or_default();
            if agent.bytes > 0 && agent.bytes + len > ALLOWANCE {
                return false;
            }
            agent.bytes += len;
        }
        self.bytes += len;
        let frame = frame.clone();
        let what = What::Answer { frame, beyond };
        self.queue.push_back(Waiting { target, what });
        true
    }

    /// Has `owner` woken when [`Self::offer`] may accept what it has just refused.
    pub(super) fn wait(&mut self, target: u32, owner: &Waker) {
        if let Some(agent) = self.beyond.get_mut(&target) {
            agent.owner = Some(owner.clone());
        }
    }

    /// Queues the entry of a target without an answer. There is at most one for each target, a few
    /// bytes until it is taken, so it is not held to the bound.
    pub(super) fn note(&mut self, target: u32, reason: NoAnswer) {
        let what = What::NoAnswer(reason);
        self.queue.push_back(Waiting { target, what });
    }

    /// The next piece for the caller, and the agents to wake; an empty piece when nothing waits.
    pub(super) fn take(&mut self, names: &Names) -> (Bytes, Vec<Waker>) {
        let (count, len) = self.next_piece(names);
        let mut owners = Vec::new();
        for index in 0..count {
            self.give_room_back(index, &mut owners);
        }
        let mut taken = self.queue.drain(..count);
        let piece = match taken.next() {
            Some(Waiting {
                what: What::Answer { frame, .. },
                ..
            }) if count == 1 => frame,
            first => {
                let mut out = BytesMut::with_capacity(len);
                for waiting in first.into_iter().chain(taken.by_ref()) {
                    waiting.put(&mut out, names);
                }
                out.freeze()
            }
        };
        drop(taken);
        let room = self.queue.capacity().max(self.beyond.capacity());
        if self.queue.is_empty() && room > KEPT_ROOM {
            self.queue = VecDeque::new();
            self.beyond = HashMap::new();
        }
        (piece, owners)
    }

    /// How many answers leave together, and their bytes: the first whatever its size.
    fn next_piece(&self, names: &Names) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        for waiting in &self.queue {
            let len = waiting.len(names);
            if count > 0 && bytes + len > COALESCE {
                break;
            }
            count += 1;
            bytes += len;
        }
        (count, bytes)
    }

    fn give_room_back(&mut self, index: usize, owners: &mut Vec<Waker>) {
        let Some(Waiting {
            target,
            what: What::Answer { frame, beyond },
        }) = self.queue.get(index)
        else {
            return;
        };
        self.bytes -= frame.len();
        if *beyond && let Some(agent) = self.beyond.get_mut(target) {
            agent.bytes -= frame.len();
            owners.extend(agent.owner.take());
            if agent.bytes == 0 {
                self.beyond.remove(target);
            }
        }
    }

    /// Every agent that waits for room.
    pub(super) fn owners(&mut self) -> Vec<Waker> {
        let agents = self.beyond.values_mut();
        agents.filter_map(|agent| agent.owner.take()).collect()
    }
}

#[cfg(test)]
mod tests;
