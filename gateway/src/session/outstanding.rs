//! The commands of one agent that somebody waits for, by command id.
//!
//! Responsible for finding them. Pure. An agent has nearly always one, which lies here itself: a
//! broadcast touches every agent, and one place less in memory for each. Must never bound anything:
//! that is the mailbox.

use std::collections::HashMap;

use bytes::Bytes;

use super::replies::{Waiter, Waiters};

/// See the module.
#[derive(Default)]
pub(super) struct Outstanding {
    first: Option<(Bytes, Waiters)>,
    /// The others, if there are any. What comes while `first` is free goes there unless its id is here.
    /// Boxed: an agent that never has two keeps eight bytes for them.
    #[expect(clippy::box_collection, reason = "it is what lies here that counts")]
    more: Option<Box<HashMap<Bytes, Waiters>>>,
}

impl Outstanding {
    /// One more waits for `id`.
    pub(super) fn add(&mut self, id: &Bytes, waiter: Waiter) {
        match &mut self.first {
            Some((first, waiters)) if first == id => return waiters.add(waiter),
            _ => {}
        }
        if let Some(waiters) = self.more.as_mut().and_then(|more| more.get_mut(id)) {
            return waiters.add(waiter);
        }
        let waiters = Waiters::One(waiter);
        match &mut self.first {
            first @ None => *first = Some((id.clone(), waiters)),
            Some(_) => {
                let more = self.more.get_or_insert_default();
                more.insert(id.clone(), waiters);
            }
        }
    }

    /// Who waits for `id`.
    pub(super) fn get(&self, id: &[u8]) -> Option<&Waiters> {
        match &self.first {
            Some((first, waiters)) if first == id => Some(waiters),
            _ => self.more.as_ref()?.get(id),
        }
    }

    /// Nobody waits for `id` any more; who did.
    pub(super) fn remove(&mut self, id: &[u8]) -> Option<Waiters> {
        if let Some((_, waiters)) = self.first.take_if(|(first, _)| first == id) {
            return Some(waiters);
        }
        self.more.as_mut()?.remove(id)
    }

    /// Keeps those that say so.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&mut Waiters) -> bool) {
        self.first.take_if(|(_, waiters)| !keep(waiters));
        if let Some(more) = &mut self.more {
            more.retain(|_, waiters| keep(waiters));
        }
    }

    /// How many commands.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let more = self.more.as_ref().map_or(0, |more| more.len());
        usize::from(self.first.is_some()) + more
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none() && self.more.as_ref().is_none_or(|more| more.is_empty())
    }

    /// All who wait, a command after the other.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiters> {
        let first = self.first.iter().map(|(_, waiters)| waiters);
        first.chain(self.more.iter().flat_map(|more| more.values()))
    }

    /// Gives back memory when there is room for far more commands than there are.
    pub(super) fn shrink(&mut self) {
        if let Some(more) = &mut self.more
            && more.len() < more.capacity() / 4
        {
            more.shrink_to_fit();
        }
    }

    /// Room for so many commands beside the first.
    pub(super) fn capacity(&self) -> usize {
        self.more.as_ref().map_or(0, |more| more.capacity())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::testing::Caller;
    use super::*;

    fn targets(waiters: Option<&Waiters>) -> Vec<u32> {
        let waiters = waiters.map_or(&[][..], Waiters::as_slice);
        waiters.iter().map(|waiter| waiter.target).collect()
    }

    #[test]
    fn cmd_12_an_id_is_found_wherever_it_lies_and_has_all_its_callers() {
        let mut outstanding = Outstanding::default();
        let caller = Arc::new(Caller::default());
        let [a, b, c] = ["a", "b", "c"].map(|id| Bytes::from_static(id.as_bytes()));
        for (id, target) in [(&a, 1), (&b, 2), (&a, 3), (&b, 4)] {
            outstanding.add(id, caller.waiter(target));
        }
        assert_eq!(outstanding.len(), 2);
        assert_eq!(targets(outstanding.get(b"a")), [1, 3]);
        assert_eq!(targets(outstanding.get(b"b")), [2, 4]);
        assert!(outstanding.get(b"c").is_none());
        assert_eq!(targets(outstanding.remove(b"a").as_ref()), [1, 3]);
        // The first place is free now; b must not come to lie in both.
        outstanding.add(&b, caller.waiter(5));
        outstanding.add(&c, caller.waiter(6));
        assert_eq!(outstanding.len(), 2);
        assert_eq!(targets(outstanding.remove(b"b").as_ref()), [2, 4, 5]);
        assert!(outstanding.remove(b"b").is_none());
        assert_eq!(targets(outstanding.get(b"c")), [6]);
        outstanding.retain(|_| false);
        assert!(outstanding.is_empty());
        assert_eq!(outstanding.iter().count(), 0);
    }
}
