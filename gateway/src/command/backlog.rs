//! The answers that wait for one caller.
//!
//! Responsible for their order, for the bound in bytes (CMD-22), for what one agent may have
//! waiting beyond it, for what the pool of all callers has no room for, and for which agents wait.
//! Pure: no task, no clock. Must never drop an answer by itself.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use bytes::{Bytes, BytesMut};

use super::entries::NoAnswer;
use super::pool::Pool;

/// Bytes that one agent may have waiting beyond the bound, so that it goes on answering other
/// callers; one answer may wait there whatever its size.
const ALLOWANCE: usize = 8 << 10;
/// Bytes that all agents may have waiting beyond the bound together; what reaches the bound is
/// taken whatever its size.
const BEYOND: usize = 8 << 20;
/// Small answers that wait together leave in one DATA frame of about this size.
const COALESCE: usize = 32 << 10;
/// Room for so many answers is kept when all have left.
const KEPT_ROOM: usize = 64;

/// The answers of one SendCommand that its caller has not taken yet.
pub(super) struct Backlog {
    pool: Arc<Pool>,
    bound: usize,
    queue: VecDeque<Waiting>,
    /// Of the agents' answers in the queue; as many are taken from the pool.
    bytes: usize,
    /// The agents that have answers beyond the bound in the queue, or wait for room.
    beyond: HashMap<u32, Beyond>,
    /// The agents that wait for room of all, each with the bytes it brings. Who was woken otherwise
    /// may still be named.
    line: VecDeque<(u32, usize)>,
}

/// Why an answer has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// The bound is reached, and the agent has had its allowance.
    Agent,
    /// The bound is reached, and so is what may wait beyond it.
    Caller,
    /// The callers of the node together have no room.
    Pool,
}

/// Room for one answer; it is counted as if the answer waited.
#[must_use]
pub(super) struct Room {
    target: u32,
    beyond: bool,
}

/// What a caller has not taken yet.
pub(super) enum Waiting {
    Answer {
        target: u32,
        frame: Bytes,
        beyond: bool,
    },
    NoAnswer {
        agent: Arc<str>,
        reason: NoAnswer,
    },
}

#[derive(Default)]
struct Beyond {
    bytes: usize,
    /// Who waits to bring the next.
    owner: Option<Waker>,
    /// It is in the line for room of all.
    in_line: bool,
}

impl Waiting {
    fn len(&self, command_id: &str) -> usize {
        match self {
            Self::Answer { frame, .. } => frame.len(),
            Self::NoAnswer { agent, reason } => reason.len(agent, command_id),
        }
    }

    fn put(&self, out: &mut BytesMut, command_id: &str) {
        match self {
            Self::Answer { frame, .. } => out.extend_from_slice(frame),
            Self::NoAnswer { agent, reason } => reason.put(out, agent, command_id),
        }
    }
}

impl Backlog {
    /// An empty one for `bound` bytes of answers, taken from `pool`.
    pub(super) fn new(bound: usize, pool: Arc<Pool>) -> Self {
        Self {
            pool,
            bound,
            queue: VecDeque::new(),
            bytes: 0,
            beyond: HashMap::new(),
            line: VecDeque::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes of answers that wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the bound is reached, or an agent waits.
    pub(super) fn is_full(&self) -> bool {
        !self.beyond.is_empty()
    }

    /// Room for an agent's answer of `len` bytes, if there is any. There always is when none waits:
    /// an answer larger than the bound passes alone, and a caller that reads goes on when others do
    /// not.
    pub(super) fn room(&mut self, target: u32, len: usize) -> Result<Room, NoRoom> {
        let alone = self.bytes == 0;
        let beyond = !alone && self.bytes + len > self.bound;
        let has = self.beyond.get(&target).map_or(0, |agent| agent.bytes);
        if beyond && has > 0 && has + len > ALLOWANCE {
            return Err(NoRoom::Agent);
        }
        if self.bytes > self.bound && self.bytes + len > self.bound + BEYOND {
            return Err(NoRoom::Caller);
        }
        if alone {
            self.pool.take(len);
        } else if !self.pool.try_take(len) {
            return Err(NoRoom::Pool);
        }
        if beyond {
            self.beyond.entry(target).or_default().bytes += len;
        }
        self.bytes += len;
        Ok(Room { target, beyond })
    }

    /// Queues the answer that there is room for.
    pub(super) fn put(&mut self, Room { target, beyond }: Room, frame: Bytes) {
        self.queue.push_back(Waiting::Answer {
            target,
            frame,
            beyond,
        });
    }

    /// Has `owner` woken when [`Self::room`] may grant the `len` bytes it has just refused.
    pub(super) fn wait(&mut self, target: u32, len: usize, why: NoRoom, owner: &Waker) {
        let agent = self.beyond.entry(target).or_default();
        agent.owner = Some(owner.clone());
        if why != NoRoom::Agent && !std::mem::replace(&mut agent.in_line, true) {
            self.line.push_back((target, len));
        }
    }

    /// Queues the entry of a target without an answer. There is at most one for each target, a few
    /// bytes until it is taken, so it is not held to the bound.
    pub(super) fn note(&mut self, agent: Arc<str>, reason: NoAnswer) {
        self.queue.push_back(Waiting::NoAnswer { agent, reason });
    }

    /// The next piece for the caller of `command_id`, and the agents to wake; an empty piece when
    /// nothing waits.
    pub(super) fn take(&mut self, command_id: &str) -> (Bytes, Vec<Waker>) {
        let (count, len) = self.next_piece(command_id);
        let mut owners = Vec::new();
        let before = self.bytes;
        for index in 0..count {
            self.give_room_back(index, &mut owners);
        }
        self.advance_line(before - self.bytes, count == self.queue.len(), &mut owners);
        let mut taken = self.queue.drain(..count);
        let piece = match taken.next() {
            Some(Waiting::Answer { frame, .. }) if count == 1 => frame,
            first => {
                let mut out = BytesMut::with_capacity(len);
                for waiting in first.into_iter().chain(taken.by_ref()) {
                    waiting.put(&mut out, command_id);
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
    fn next_piece(&self, command_id: &str) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        for waiting in &self.queue {
            let len = waiting.len(command_id);
            if count > 0 && bytes + len > COALESCE {
                break;
            }
            count += 1;
            bytes += len;
        }
        (count, bytes)
    }

    fn give_room_back(&mut self, index: usize, owners: &mut Vec<Waker>) {
        let Some(Waiting::Answer {
            target,
            frame,
            beyond,
        }) = self.queue.get(index)
        else {
            return;
        };
        self.bytes -= frame.len();
        self.pool.give_back(frame.len());
        if *beyond && let Some(agent) = self.beyond.get_mut(target) {
            agent.bytes -= frame.len();
            owners.extend(agent.owner.take());
            if agent.bytes == 0 {
                self.beyond.remove(target);
            }
        }
    }

    /// Wakes those in line whose answers fit into `room`, at least one when there is any; all of
    /// them when no later piece would wake the rest.
    fn advance_line(&mut self, mut room: usize, all: bool, owners: &mut Vec<Waker>) {
        while all || room > 0 {
            let Some((target, len)) = self.line.pop_front() else {
                return;
            };
            let Some(agent) = self.beyond.get_mut(&target) else {
                continue;
            };
            if !std::mem::take(&mut agent.in_line) {
                continue;
            }
            room = room.saturating_sub(len);
            owners.extend(agent.owner.take());
            if agent.bytes == 0 {
                self.beyond.remove(&target);
            }
        }
    }

    /// The agents that wait in line: the pool has room again.
    pub(super) fn waiting_in_line(&mut self) -> Vec<Waker> {
        let mut owners = Vec::new();
        self.advance_line(0, true, &mut owners);
        owners
    }

    /// Forgets everything: the agents that wait for room, and what waited, for the caller of this
    /// to drop where nobody waits for it.
    pub(super) fn clear(&mut self) -> (Vec<Waker>, VecDeque<Waiting>) {
        self.pool.give_back(std::mem::take(&mut self.bytes));
        self.line = VecDeque::new();
        let owners = self.owners();
        self.beyond = HashMap::new();
        (owners, std::mem::take(&mut self.queue))
    }

    /// Every agent that waits for room.
    pub(super) fn owners(&mut self) -> Vec<Waker> {
        let agents = self.beyond.values_mut();
        agents.filter_map(|agent| agent.owner.take()).collect()
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        self.pool.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests;
