//! The end of a session: how its targets end with it (FWD-6).
//!
//! Responsible for ending many targets in parts, so that other calls have their turn. Must never end a
//! target that another session has.

use std::collections::HashSet;

use super::{Action, Ended, Outstanding, Phase, SessionId, Slot, State};

/// Targets looked at in one part.
const PART: usize = 4_096;

/// Why a session is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// The owner has brought its targets to their end.
    Ended,
    /// The owner took nothing more; what was not sent ends so.
    Refused(Ended),
    /// The owner is lost.
    Lost,
}

impl How {
    /// How a target ends of which the owner has said that it wrote the command, or has not.
    fn outcome(self, state: State, is_written: bool) -> Ended {
        match (self, state) {
            (Self::Ended, State::Waiting) => Ended::NotConnected,
            (Self::Ended, _) => Ended::Answered,
            (Self::Refused(unsent), State::Sent) if !is_written => unsent,
            (Self::Refused(unsent), State::Waiting) => unsent,
            (Self::Lost, State::Waiting) => Ended::NotConnected,
            (_, State::Answered | State::Done) => Ended::AgentDisconnected,
            (_, State::Sent) => Ended::OutcomeUnknown,
        }
    }
}

/// A session that is over, while its targets end.
#[derive(Debug)]
pub(super) struct Closing {
    id: SessionId,
    how: How,
    /// Sent, and the owner has not said that it wrote them.
    unwritten: HashSet<Slot>,
    /// The targets before this one have ended.
    next: Slot,
}

impl Outstanding {
    /// The owner says that the call is over, since its time has passed.
    pub(in crate::command::forward) fn ended(&mut self, id: SessionId) {
        self.close(id, How::Ended);
    }

    /// The owner takes nothing more, and has applied nothing that it has not said Written of.
    /// `unsent` is how those end.
    pub(in crate::command::forward) fn refused(&mut self, id: SessionId, unsent: Ended) {
        self.close(id, How::Refused(unsent));
    }

    /// The owner is lost for good.
    pub(in crate::command::forward) fn lost(&mut self, id: SessionId) {
        self.close(id, How::Lost);
    }

    /// The call's time is over. An owner that has not said so by now is lost: there is no time left in
    /// which it could come back.
    pub(in crate::command::forward) fn give_up(&mut self) {
        for id in 0..self.sessions.len() {
            if self.sessions[id].open == 0 {
                continue;
            }
            match self.is_resuming(id) {
                true => self.not_resumed(id),
                false => self.lost(id),
            }
        }
    }

    /// Ends a session, and its targets with the actions that are taken next.
    fn close(&mut self, id: SessionId, how: How) {
        let session = &mut self.sessions[id];
        if session.phase == Phase::Closed {
            return;
        }
        session.phase = Phase::Closed;
        session.waiting.clear();
        let unwritten = std::mem::take(&mut session.unwritten);
        self.current.retain(|_, current| *current != id);
        self.actions.push(Action::Close(id));
        self.closing.push_back(Closing {
            id,
            how,
            unwritten: unwritten.into_iter().flat_map(|one| one.slots).collect(),
            next: 0,
        });
    }

    /// Ends some targets of a session that is over. False: there are none left.
    pub(super) fn end_some(&mut self, closing: &mut Closing) -> bool {
        let until = (closing.next + PART).min(self.targets.len());
        for slot in closing.next..until {
            let target = &self.targets[slot];
            if target.session == closing.id && target.state != State::Done {
                let is_written = !closing.unwritten.contains(&slot);
                let ended = closing.how.outcome(target.state, is_written);
                self.settle(slot, ended);
            }
        }
        closing.next = until;
        until < self.targets.len()
    }
}
