//! The agents that follow an id, in the order of their ids.
//!
//! Responsible for picking so many of them out of shards that know no order, in one look at each row.
//! Pure. Must never hold more than the page.

use std::collections::BTreeMap;

use crate::session::Epoch;

/// See the module.
#[derive(Debug)]
pub(crate) struct Page {
    /// Exclusive.
    after: String,
    most: usize,
    /// Each with its newest session.
    found: BTreeMap<Box<str>, Epoch>,
}

impl Page {
    /// At most `most` agents behind `after`; empty: from the first one on.
    pub(crate) fn new(after: &str, most: usize) -> Self {
        Self {
            after: after.to_owned(),
            most,
            found: BTreeMap::new(),
        }
    }

    /// Whether the agent belongs here, as far as the others are known.
    pub(super) fn wants(&self, agent_id: &str) -> bool {
        if agent_id <= &*self.after {
            return false;
        }
        let last = self.found.last_key_value();
        self.found.len() < self.most || last.is_some_and(|(last, _)| *agent_id < **last)
    }

    /// One that is wanted.
    pub(super) fn add(&mut self, agent_id: &str, epoch: Epoch) {
        self.found.insert(agent_id.into(), epoch);
        if self.found.len() > self.most {
            self.found.pop_last();
        }
    }

    /// What was found, in its order.
    pub(crate) fn into_agents(self) -> impl Iterator<Item = (Box<str>, Epoch)> {
        self.found.into_iter()
    }
}
