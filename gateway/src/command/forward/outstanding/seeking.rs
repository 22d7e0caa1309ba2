//! Targets that wait for a link to the node they were at: it may be dead, and they elsewhere by now
//! (SHIFT-4).
//!
//! Responsible for looking for them again, at times and in parts, as long as nothing was sent of them.
//! Must never touch a target that was sent.

use std::time::Duration;

use tokio::time::Instant;

use super::{Action, Found, Outstanding, Phase, Session, Slot};

/// Between two looks.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// Targets looked for at once: other calls have their turn.
const PART: usize = 4_096;

impl Session {
    /// Whether targets wait for its stream.
    fn waits_for_link(&self) -> bool {
        let is_shut = matches!(self.phase, Phase::Opening { .. } | Phase::Resuming { .. });
        is_shut && !self.waiting.is_empty()
    }
}

impl Outstanding {
    /// When targets that wait for a link are to be looked for, if there are any.
    pub(super) fn looks_at(&self) -> Option<Instant> {
        let waits = self.sessions.iter().any(Session::waits_for_link);
        self.look_at.filter(|_| waits)
    }

    /// Gives targets that wait for a link to the nodes that hold the agents now, if it is time to look.
    /// One that is nowhere stays where it is: its node may come back.
    pub(in crate::command::forward) fn seek(
        &mut self,
        mut look: impl FnMut(&str) -> Found,
        now: Instant,
    ) {
        if self.looks_at().is_none_or(|at| now < at) {
            return;
        }
        self.look_at = Some(now + LOOK);
        let mut left = PART;
        for id in 0..self.sessions.len() {
            let session = &mut self.sessions[id];
            if session.waits_for_link() {
                let count = session.waiting.len().min(left);
                left -= count;
                let slots: Vec<Slot> = session.waiting.drain(..count).collect();
                for slot in slots {
                    let found = look(&self.targets[slot].agent);
                    self.found(slot, found, now);
                }
            }
        }
        self.dispatch_all(now);
    }

    /// Puts a target that waits where it was found.
    fn found(&mut self, slot: Slot, found: Found, now: Instant) {
        let target = &mut self.targets[slot];
        match found {
            Found::At(place) if place.node != target.place.node => {
                target.place = place;
                self.leave(slot);
                self.assign(slot, now);
            }
            Found::Here => self.end(slot, Action::Here(slot)),
            Found::At(place) => {
                target.place = place;
                self.stay(slot);
            }
            Found::Nowhere => self.stay(slot),
        }
    }

    /// Behind those that were not looked for yet.
    fn stay(&mut self, slot: Slot) {
        let id = self.targets[slot].session;
        self.sessions[id].waiting.push_back(slot);
    }
}
