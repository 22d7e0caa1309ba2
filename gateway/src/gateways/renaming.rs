//! Whom another set of public gateways concerns (VIS-5).
//!
//! Responsible for knowing under which sets agents may have been told of that are not in force any
//! more, until a walk over all of them has seen to it. Sets may change during a walk: it begins anew,
//! and what was told under any of them counts. Pure. Must never keep anything for an agent.

use super::choice::PublicNodes;

/// Sets that one walk looks back at. A node that changes more often finishes the walk first.
const MAX_SETS: usize = 8;

/// The set in force, and those before it that agents may still be told under.
#[derive(Debug, Default)]
pub(crate) struct Renaming {
    /// At first nobody is named.
    in_force: PublicNodes,
    /// That some agents may still be told under.
    before: Vec<PublicNodes>,
}

impl Renaming {
    /// Whether another set may be put in force before the walk has ended.
    pub(crate) fn has_room(&self) -> bool {
        self.before.len() < MAX_SETS
    }

    /// Puts another set in force. Whether a walk has to begin.
    pub(crate) fn change(&mut self, nodes: PublicNodes) -> bool {
        if self.in_force == nodes {
            return false;
        }
        let before = std::mem::replace(&mut self.in_force, nodes);
        // What was told under the new one is right again.
        self.before.retain(|set| *set != self.in_force);
        self.before.push(before);
        true
    }

    /// Whether an agent may have been told of under another name than that which it has now.
    pub(crate) fn concerns(&self, agent_id: &str) -> bool {
        let now = self.in_force.of(agent_id);
        self.before.iter().any(|set| set.of(agent_id) != now)
    }

    /// Whether a walk is due, or under way.
    pub(crate) fn is_due(&self) -> bool {
        !self.before.is_empty()
    }

    /// A walk that began with the set in force is at its end.
    pub(crate) fn walked(&mut self) {
        self.before.clear();
    }
}

#[cfg(test)]
mod tests;
