//! An order of slots in which any of them can leave at once.
//!
//! Responsible for the links only; who the slots belong to is the user's. Every operation takes
//! the same time however long the list is. Must never allocate but for a slot higher than any
//! before.

/// The end of the list, as a link.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Links {
    before: u32,
    after: u32,
}

/// A doubly linked list over slots 0 to 2^32-2. A slot is in it once at most, which the user sees
/// to.
pub(super) struct List {
    links: Vec<Links>,
    first: u32,
    last: u32,
}

impl List {
    pub(super) fn new() -> Self {
        Self {
            links: Vec::new(),
            first: NONE,
            last: NONE,
        }
    }

    /// The first slot.
    pub(super) fn first(&self) -> Option<u32> {
        some(self.first)
    }

    /// The slot behind `slot`, which is in the list.
    pub(super) fn after(&self, slot: u32) -> Option<u32> {
        some(self.links[slot as usize].after)
    }

    /// Puts `slot`, which is not in the list, behind all others.
    pub(super) fn push_back(&mut self, slot: u32) {
        let index = slot as usize;
        let alone = Links {
            before: NONE,
            after: NONE,
        };
        if index >= self.links.len() {
            self.links.resize(index + 1, alone);
        }
        self.links[index] = Links {
            before: self.last,
            ..alone
        };
        match some(self.last) {
            Some(last) => self.links[last as usize].after = slot,
            None => self.first = slot,
        }
        self.last = slot;
    }

    /// Takes out `slot`, which is in the list.
    pub(super) fn remove(&mut self, slot: u32) {
        let Links { before, after } = self.links[slot as usize];
        match some(before) {
            Some(before) => self.links[before as usize].after = after,
            None => self.first = after,
        }
        match some(after) {
            Some(after) => self.links[after as usize].before = before,
            None => self.last = before,
        }
    }
}

fn some(link: u32) -> Option<u32> {
    (link != NONE).then_some(link)
}

#[cfg(test)]
mod tests;
