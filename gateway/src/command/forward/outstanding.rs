//! The targets of one call that other nodes hold: what was sent, what came back, how each ends.
//!
//! Responsible for the sessions that a call needs, for the outcome of each target (FWD-6), for the
//! second attempt (FWD-7), for resuming (FWD-8) and for the times of FWD-5. Pure: it is told what
//! happens and when, and says what is to be done. Must never say that a command was not sent when
//! it may have been.

mod closing;
mod seeking;
mod terms;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;

use super::answers::Answer;
use closing::Closing;
use seeking::LOOK;
pub(in crate::command) use terms::Place;
pub(super) use terms::{Action, Ended, Foreign, Found, SessionId, Slot, Times};

/// Targets of one Dispatch, so that none takes either node long.
pub(in crate::command) const MAX_TARGETS: usize = 2_048;
/// Dispatches that are on their way at once: far fewer than an owner takes unconfirmed.
const MAX_UNWRITTEN: usize = 32;

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
    /// To be sent when it is open, as Dispatches before are written.
    waiting: VecDeque<Slot>,
    /// Sent, and the owner has not said that it wrote them.
    unwritten: VecDeque<Unwritten>,
    /// Dispatches sent.
    dispatches: u64,
    /// Targets that have not ended.
    open: usize,
    /// Nothing more is sent for now.
    is_held_back: bool,
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
    /// When targets that wait for a link are looked for.
    look_at: Option<Instant>,
    times: Times,
    actions: Vec<Action>,
    /// Sessions that are over, while their targets end.
    closing: VecDeque<Closing>,
}

impl Outstanding {
    /// Without any target.
    pub(super) fn new(times: Times) -> Self {
        Self {
            targets: Vec::new(),
            by_agent: HashMap::new(),
            sessions: Vec::new(),
            current: HashMap::new(),
            open: 0,
            look_at: None,
            times,
            actions: Vec::new(),
            closing: VecDeque::new(),
        }
    }

    /// What is to be let go of when the call is over.
    pub(super) fn into_agents(self) -> impl Iterator<Item = Arc<str>> {
        let agents = self.targets.into_iter().map(|target| target.agent);
        agents.chain(self.by_agent.into_keys())
    }

    /// More targets, each of another agent.
    pub(super) fn add(
        &mut self,
        targets: impl IntoIterator<Item = (Arc<str>, Place)>,
        now: Instant,
    ) {
        for (agent, place) in targets {
            let slot = self.targets.len();
            self.by_agent.insert(Arc::clone(&agent), slot);
            self.targets.push(Target {
                agent,
                place,
                is_second: false,
                state: State::Waiting,
                session: 0,
            });
            self.open += 1;
            self.assign(slot, now);
        }
        self.look_at.get_or_insert(now + LOOK);
        self.dispatch_all(now);
    }

    /// What is to be done since the last time, in this order. Of sessions that are over some targets
    /// end with each call; nothing is to be done when there is nothing here.
    pub(super) fn take_actions(&mut self) -> Vec<Action> {
        while let Some(mut closing) = self.closing.pop_front() {
            if self.end_some(&mut closing) {
                self.closing.push_front(closing);
            }
            if !self.actions.is_empty() {
                break;
            }
        }
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

    /// Gives a target to the session of the node it is at, to be sent with the next Dispatch.
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
                    waiting: VecDeque::new(),
                    unwritten: VecDeque::new(),
                    dispatches: 0,
                    open: 0,
                    is_held_back: false,
                });
                id
            }
        };
        let (target, session) = (&mut self.targets[slot], &mut self.sessions[id]);
        target.session = id;
        target.state = State::Waiting;
        session.open += 1;
        session.waiting.push_back(slot);
        // It may be held back for longer than it may be idle.
        if let Phase::Open { idle_since } = &mut session.phase {
            *idle_since = None;
        }
    }

    /// Sends what waits for sessions that are open.
    fn dispatch_all(&mut self, now: Instant) {
        for id in 0..self.sessions.len() {
            self.dispatch(id, now);
        }
    }

    /// Sends what waits for the session, if it is open, as far as it may be on its way.
    fn dispatch(&mut self, id: SessionId, now: Instant) {
        let session = &mut self.sessions[id];
        if session.is_held_back || !matches!(session.phase, Phase::Open { .. }) {
            return;
        }
        while !session.waiting.is_empty() && session.unwritten.len() < MAX_UNWRITTEN {
            let count = session.waiting.len().min(MAX_TARGETS);
            let slots: Vec<_> = session.waiting.drain(..count).collect();
            session.phase = Phase::Open { idle_since: None };
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
        self.look_idle(id, now);
    }

    /// Sends nothing more, as the caller has not taken what came, or goes on.
    pub(super) fn hold_back(&mut self, id: SessionId, is_held_back: bool, now: Instant) {
        self.sessions[id].is_held_back = is_held_back;
        self.dispatch(id, now);
    }

    pub(super) fn is_held_back(&self, id: SessionId) -> bool {
        self.sessions[id].is_held_back
    }

    fn look_idle(&mut self, id: SessionId, now: Instant) {
        let session = &mut self.sessions[id];
        if let Phase::Open { idle_since } = &mut session.phase
            && session.open == 0
        {
            idle_since.get_or_insert(now);
        }
    }

    fn settle(&mut self, slot: Slot, ended: Ended) {
        self.end(slot, Action::Settle(slot, ended));
    }

    /// Other nodes have nothing more to do with the target, but for this.
    fn end(&mut self, slot: Slot, action: Action) {
        self.leave(slot);
        self.open -= 1;
        self.actions.push(action);
    }

    /// The target is not its session's any more.
    fn leave(&mut self, slot: Slot) {
        let target = &mut self.targets[slot];
        target.state = State::Done;
        self.sessions[target.session].open -= 1;
    }

    /// The session has a stream.
    pub(super) fn opened(&mut self, id: SessionId, now: Instant) {
        let phase = &mut self.sessions[id].phase;
        if let Phase::Opening { .. } = phase {
            *phase = Phase::Open { idle_since: None };
            self.dispatch(id, now);
        }
    }

    /// A Dispatch of this session, for these targets, was not sent; they end so.
    pub(super) fn not_dispatched(
        &mut self,
        id: SessionId,
        slots: &[Slot],
        ended: Ended,
        now: Instant,
    ) {
        let session = &mut self.sessions[id];
        let found = session.unwritten.iter().position(|one| one.slots == slots);
        let Some(unsent) = found.and_then(|place| session.unwritten.remove(place)) else {
            return;
        };
        session.dispatches -= 1;
        for slot in unsent.slots {
            self.settle(slot, ended);
        }
        self.dispatch(id, now);
    }

    /// The owner has the command of the oldest Dispatch in its mailboxes, but for those that `moved`
    /// names by their position.
    ///
    /// # Errors
    /// There was no such Dispatch, or a target of it can't have moved; nothing has changed then.
    pub(super) fn written(
        &mut self,
        id: SessionId,
        moved: &[u32],
        mut look: impl FnMut(&str) -> Found,
        now: Instant,
    ) -> Result<(), Foreign> {
        let moved = self.moved(id, moved)?;
        self.sessions[id].unwritten.pop_front();
        for slot in moved {
            let target = &mut self.targets[slot];
            let found = match target.is_second {
                true => Found::Nowhere,
                false => look(&target.agent),
            };
            match found {
                Found::At(place) if place != target.place => {
                    target.is_second = true;
                    target.place = place;
                    self.leave(slot);
                    self.assign(slot, now);
                }
                Found::Here => self.end(slot, Action::Here(slot)),
                Found::At(_) | Found::Nowhere => self.settle(slot, Ended::Moved),
            }
        }
        self.dispatch_all(now);
        Ok(())
    }

    /// The targets at these positions of the oldest Dispatch.
    ///
    /// # Errors
    /// There is none, or one is there twice, or has answered.
    fn moved(&self, id: SessionId, positions: &[u32]) -> Result<Vec<Slot>, Foreign> {
        let oldest = self.sessions[id].unwritten.front().ok_or(Foreign)?;
        let mut seen = HashSet::new();
        let slots = positions.iter().map(|position| {
            let slot = *oldest.slots.get(*position as usize)?;
            let target = &self.targets[slot];
            let is_sent = target.state == State::Sent && target.session == id;
            (is_sent && seen.insert(slot)).then_some(slot)
        });
        slots.collect::<Option<_>>().ok_or(Foreign)
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
                self.settle(slot, Ended::Answered);
            }
        }
        self.look_idle(id, now);
        Ok(())
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
            Phase::Resuming { .. } => self.not_resumed(id),
            Phase::Opening { .. } | Phase::Open { .. } => self.lost(id),
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
            self.settle(slot, Ended::NotConnected);
        }
        self.sessions[id].phase = Phase::Open { idle_since: None };
        self.dispatch(id, now);
        Ok(missed)
    }

    /// The session can't be resumed.
    pub(super) fn not_resumed(&mut self, id: SessionId) {
        if let Phase::Resuming { .. } = self.sessions[id].phase {
            self.actions.push(Action::NotResumed(id));
            self.lost(id);
        }
    }

    /// Whether the stream of this session broke and no other has taken its place.
    pub(super) fn is_resuming(&self, id: SessionId) -> bool {
        matches!(self.sessions[id].phase, Phase::Resuming { .. })
    }

    /// When to call [`Self::tick`], if nothing happens before.
    pub(super) fn due(&self) -> Option<Instant> {
        let sessions = self.sessions.iter();
        let due = sessions.filter_map(|session| self.due_of(session));
        due.chain(self.looks_at()).min()
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
                Phase::Resuming { .. } => self.not_resumed(id),
                Phase::Opening { .. } => {
                    self.actions.push(Action::Unreachable(id));
                    self.lost(id);
                }
                // Silent for too long, or idle.
                Phase::Open { .. } | Phase::Closed => self.lost(id),
            }
        }
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
