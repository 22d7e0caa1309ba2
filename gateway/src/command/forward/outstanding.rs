//! The targets of one call that other nodes hold: what was sent, what came back, how each ends.
//!
//! Responsible for the sessions that a call needs, for the outcome of each target (FWD-6), for the
//! second attempt (FWD-7), for resuming (FWD-8) and for the times of FWD-5. Pure: it is told what
//! happens and when, and says what is to be done. Must never say that a command was not sent when
//! it may have been.

mod terms;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;

use super::answers::Answer;
pub(in crate::command) use terms::Place;
pub(super) use terms::{Action, Ended, Foreign, Found, SessionId, Slot, Times};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its session is not open.
    Waiting,
    Sent,
    Answered,
    Done,
}

#[derive(Debug)]
struct Target {
    agent: Arc<str>,
    place: Place,
    is_second: bool,
    state: State,
    session: SessionId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Opening { until: Instant },
    Open { idle_since: Option<Instant> },
    Resuming { until: Instant },
    Closed,
}

#[derive(Debug)]
struct Session {
    phase: Phase,
    /// To be sent when it is open.
    waiting: Vec<Slot>,
    /// Sent, and the owner has not said that it wrote them.
    unwritten: VecDeque<Unwritten>,
    /// Dispatches sent.
    dispatches: u64,
    /// Targets that have not ended.
    open: usize,
}

#[derive(Debug)]
struct Unwritten {
    slots: Vec<Slot>,
    until: Instant,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Outstanding {
    targets: Vec<Target>,
    by_agent: HashMap<Arc<str>, Slot>,
    sessions: Vec<Session>,
    /// The session of each node that is not over.
    current: HashMap<Arc<str>, SessionId>,
    /// Targets that have not ended.
    open: usize,
    times: Times,
    actions: Vec<Action>,
}

impl Outstanding {
    /// Begins with these targets, each of another agent.
    pub(super) fn new(
        targets: impl IntoIterator<Item = (Arc<str>, Place)>,
        times: Times,
        now: Instant,
    ) -> Self {
        let mut all = Self {
            targets: Vec::new(),
            by_agent: HashMap::new(),
            sessions: Vec::new(),
            current: HashMap::new(),
            open: 0,
            times,
            actions: Vec::new(),
        };
        for (agent, place) in targets {
            let slot = all.targets.len();
            all.by_agent.insert(Arc::clone(&agent), slot);
            all.targets.push(Target {
                agent,
                place,
                is_second: false,
                state: State::Waiting,
                session: 0,
            });
            all.open += 1;
            all.assign(slot, now);
        }
        all
    }

    /// What is to be done since the last time, in this order.
    pub(super) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Whether every target has ended.
    pub(super) fn is_done(&self) -> bool {
        self.open == 0
    }

    pub(super) fn agent(&self, slot: Slot) -> &Arc<str> {
        &self.targets[slot].agent
    }

    /// The session that the target was given to last.
    pub(super) fn session_of(&self, slot: Slot) -> SessionId {
        self.targets[slot].session
    }

    /// Gives a target to the session of the node it is at.
    fn assign(&mut self, slot: Slot, now: Instant) {
        let node = &self.targets[slot].place.node;
        let id = match self.current.get(node) {
            Some(id) => *id,
            None => {
                let id = self.sessions.len();
                self.current.insert(Arc::clone(node), id);
                self.actions.push(Action::Open(id, Arc::clone(node)));
                self.sessions.push(Session {
                    phase: Phase::Opening {
                        until: now + self.times.connect,
                    },
                    waiting: Vec::new(),
                    unwritten: VecDeque::new(),
                    dispatches: 0,
                    open: 0,
                });
                id
            }
        };
        let (target, session) = (&mut self.targets[slot], &mut self.sessions[id]);
        target.session = id;
        target.state = State::Waiting;
        session.open += 1;
        session.waiting.push(slot);
        if let Phase::Open { .. } = session.phase {
            self.dispatch(id, now);
        }
    }

    /// Sends what waits for the session, which is open.
    fn dispatch(&mut self, id: SessionId, now: Instant) {
        let session = &mut self.sessions[id];
        session.phase = Phase::Open { idle_since: None };
        let slots = std::mem::take(&mut session.waiting);
        if slots.is_empty() {
            return self.look_idle(id, now);
        }
        session.dispatches += 1;
        session.unwritten.push_back(Unwritten {
            slots: slots.clone(),
            until: now + self.times.forward,
        });
        for slot in &slots {
            self.targets[*slot].state = State::Sent;
        }
        self.actions.push(Action::Dispatch(id, slots));
    }

    fn look_idle(&mut self, id: SessionId, now: Instant) {
        let session = &mut self.sessions[id];
        if let Phase::Open { idle_since } = &mut session.phase
            && session.open == 0
        {
            idle_since.get_or_insert(now);
        }
    }

    fn settle(&mut self, slot: Slot, ended: Ended, now: Instant) {
        self.leave(slot, now);
        self.open -= 1;
        self.actions.push(Action::Settle(slot, ended));
    }

    /// The target is not its session's any more.
    fn leave(&mut self, slot: Slot, now: Instant) {
        let target = &mut self.targets[slot];
        target.state = State::Done;
        let id = target.session;
        self.sessions[id].open -= 1;
        self.look_idle(id, now);
    }

    /// The session has a stream.
    pub(super) fn opened(&mut self, id: SessionId, now: Instant) {
        if let Phase::Opening { .. } = self.sessions[id].phase {
            self.dispatch(id, now);
        }
    }

    /// The command of the last Dispatch of this session was not sent; its targets end so.
    pub(super) fn not_dispatched(&mut self, id: SessionId, ended: Ended, now: Instant) {
        let session = &mut self.sessions[id];
        session.dispatches -= 1;
        let unsent = session.unwritten.pop_back();
        for slot in unsent.map(|unsent| unsent.slots).unwrap_or_default() {
            self.settle(slot, ended, now);
        }
    }

    /// The owner has the command of the oldest Dispatch in its mailboxes, but for those that `moved`
    /// names by their position.
    ///
    /// # Errors
    /// There was no such Dispatch, or the target has ended.
    pub(super) fn written(
        &mut self,
        id: SessionId,
        moved: &[u32],
        mut look: impl FnMut(&str) -> Found,
        now: Instant,
    ) -> Result<(), Foreign> {
        let written = self.sessions[id].unwritten.pop_front().ok_or(Foreign)?;
        for position in moved {
            let slot = *written.slots.get(*position as usize).ok_or(Foreign)?;
            let target = &mut self.targets[slot];
            if target.state != State::Sent || target.session != id {
                return Err(Foreign);
            }
            let found = match target.is_second {
                true => Found::Nowhere,
                false => look(&target.agent),
            };
            match found {
                Found::At(place) if place != target.place => {
                    target.is_second = true;
                    target.place = place;
                    self.leave(slot, now);
                    self.assign(slot, now);
                }
                Found::Here => {
                    self.leave(slot, now);
                    self.open -= 1;
                    self.actions.push(Action::Here(slot));
                }
                Found::At(_) | Found::Nowhere => self.settle(slot, Ended::Moved, now),
            }
        }
        Ok(())
    }

    /// Answers came, in this order.
    ///
    /// # Errors
    /// One is of an agent that no answer is waited for from; nothing has changed then.
    pub(super) fn answered(
        &mut self,
        id: SessionId,
        answers: &[Answer<'_>],
        now: Instant,
    ) -> Result<(), Foreign> {
        let mut before = Vec::with_capacity(answers.len());
        for answer in answers {
            let slot = self.by_agent.get(answer.agent_id).copied();
            let target = slot.map(|slot| (slot, &mut self.targets[slot]));
            match target {
                Some((slot, target))
                    if target.session == id
                        && matches!(target.state, State::Sent | State::Answered) =>
                {
                    before.push((slot, target.state));
                    target.state = match answer.is_last {
                        true => State::Done,
                        false => State::Answered,
                    };
                }
                _ => {
                    for (slot, state) in before.into_iter().rev() {
                        self.targets[slot].state = state;
                    }
                    return Err(Foreign);
                }
            }
        }
        for (answer, (slot, _)) in answers.iter().zip(before) {
            if answer.is_last {
                self.settle(slot, Ended::Answered, now);
            }
        }
        Ok(())
    }

    /// The owner says that the call is over, since its time has passed.
    pub(super) fn ended(&mut self, id: SessionId, now: Instant) {
        self.close(id, now, |state, _| match state {
            State::Waiting => Ended::NotConnected,
            _ => Ended::Answered,
        });
    }

    /// The owner takes nothing more, and has applied nothing that it has not said Written of.
    /// `unsent` is how those end.
    pub(super) fn refused(&mut self, id: SessionId, unsent: Ended, now: Instant) {
        self.close(id, now, |state, is_written| match state {
            State::Sent if is_written => Ended::OutcomeUnknown,
            State::Answered => Ended::AgentDisconnected,
            _ => unsent,
        });
    }

    /// The owner is lost for good.
    pub(super) fn lost(&mut self, id: SessionId, now: Instant) {
        self.close(id, now, |state, _| match state {
            State::Sent => Ended::OutcomeUnknown,
            State::Answered => Ended::AgentDisconnected,
            _ => Ended::NotConnected,
        });
    }

    /// Ends a session, and its targets as `outcome` says of their state and of whether the owner has
    /// said that it wrote the command.
    fn close(&mut self, id: SessionId, now: Instant, outcome: impl Fn(State, bool) -> Ended) {
        let session = &mut self.sessions[id];
        if session.phase == Phase::Closed {
            return;
        }
        session.phase = Phase::Closed;
        session.waiting = Vec::new();
        let unwritten = std::mem::take(&mut session.unwritten);
        self.current.retain(|_, current| *current != id);
        self.actions.push(Action::Close(id));
        let unwritten = unwritten.into_iter().flat_map(|unwritten| unwritten.slots);
        let mut is_written = vec![true; self.targets.len()];
        unwritten.for_each(|slot| is_written[slot] = false);
        for (slot, is_written) in is_written.into_iter().enumerate() {
            let target = &self.targets[slot];
            if target.session == id && target.state != State::Done {
                let ended = outcome(target.state, is_written);
                self.settle(slot, ended, now);
            }
        }
    }

    /// The stream of the session broke (FWD-8).
    pub(super) fn broken(&mut self, id: SessionId, now: Instant) {
        let session = &mut self.sessions[id];
        match session.phase {
            Phase::Open { .. } if session.open > 0 && !self.times.grace.is_zero() => {
                let until = now + self.times.grace;
                session.phase = Phase::Resuming { until };
                self.actions.push(Action::Resume(id));
            }
            Phase::Resuming { until } if now < until => self.actions.push(Action::Resume(id)),
            Phase::Resuming { .. } => self.not_resumed(id, now),
            Phase::Opening { .. } | Phase::Open { .. } => self.lost(id, now),
            Phase::Closed => {}
        }
    }

    /// The owner goes on with the session, and has had so many Dispatches of it. How many it missed.
    ///
    /// # Errors
    /// It was not asked to.
    pub(super) fn resumed(
        &mut self,
        id: SessionId,
        dispatches: u64,
        now: Instant,
    ) -> Result<usize, Foreign> {
        let session = &mut self.sessions[id];
        if !matches!(session.phase, Phase::Resuming { .. }) || dispatches > session.dispatches {
            return Err(Foreign);
        }
        let missed = (session.dispatches - dispatches) as usize;
        let had = session.unwritten.len().checked_sub(missed).ok_or(Foreign)?;
        session.dispatches = dispatches;
        // The owner says itself that these did not arrive.
        let unsent = session.unwritten.split_off(had);
        for slot in unsent.into_iter().flat_map(|unsent| unsent.slots) {
            self.settle(slot, Ended::NotConnected, now);
        }
        self.dispatch(id, now);
        Ok(missed)
    }

    /// The session can't be resumed.
    pub(super) fn not_resumed(&mut self, id: SessionId, now: Instant) {
        if let Phase::Resuming { .. } = self.sessions[id].phase {
            self.actions.push(Action::NotResumed(id));
            self.lost(id, now);
        }
    }

    /// Whether the stream of this session broke and no other has taken its place.
    pub(super) fn is_resuming(&self, id: SessionId) -> bool {
        matches!(self.sessions[id].phase, Phase::Resuming { .. })
    }

    /// When to call [`Self::tick`], if nothing happens before.
    pub(super) fn due(&self) -> Option<Instant> {
        let sessions = self.sessions.iter();
        sessions.filter_map(|session| self.due_of(session)).min()
    }

    fn due_of(&self, session: &Session) -> Option<Instant> {
        match session.phase {
            Phase::Opening { until } | Phase::Resuming { until } => Some(until),
            Phase::Open { idle_since } => {
                let idle = idle_since.map(|since| since + self.times.idle);
                let written = session.unwritten.front().map(|unwritten| unwritten.until);
                idle.into_iter().chain(written).min()
            }
            Phase::Closed => None,
        }
    }

    /// Times may have passed.
    pub(super) fn tick(&mut self, now: Instant) {
        for id in 0..self.sessions.len() {
            let due = self.due_of(&self.sessions[id]);
            if due.is_none_or(|due| now < due) {
                continue;
            }
            match self.sessions[id].phase {
                Phase::Resuming { .. } => self.not_resumed(id, now),
                Phase::Opening { .. } => {
                    self.actions.push(Action::Unreachable(id));
                    self.lost(id, now);
                }
                // Silent for too long, or idle.
                Phase::Open { .. } | Phase::Closed => self.lost(id, now),
            }
        }
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
