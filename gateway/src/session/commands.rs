//! The commands that wait for one agent, in their order.
//!
//! Responsible for giving back the room of a burst. Pure. An agent has nearly always one at most,
//! which lies here itself: a broadcast touches every agent, and one place less in memory for each.
//! Must never bound anything: that is the mailbox.

use std::collections::VecDeque;

use bytes::Bytes;

/// Room for so many commands is kept when none is left.
const KEPT_ROOM: usize = 16;

/// See the module.
#[derive(Default)]
pub(super) struct Commands {
    /// The first; none: there are none at all.
    first: Option<Bytes>,
    /// Those behind it. Boxed: an agent that never has two keeps eight bytes for them.
    #[expect(clippy::box_collection, reason = "it is what lies here that counts")]
    more: Option<Box<VecDeque<Bytes>>>,
}

impl Commands {
    /// One more, behind the others.
    pub(super) fn push(&mut self, frame: Bytes) {
        match &mut self.first {
            first @ None => *first = Some(frame),
            Some(_) => self.more.get_or_insert_default().push_back(frame),
        }
    }

    /// The first, which does not wait any more.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let frame = self.first.take()?;
        if let Some(more) = &mut self.more {
            self.first = more.pop_front();
            if self.first.is_none() && more.capacity() > KEPT_ROOM {
                self.more = None;
            }
        }
        Some(frame)
    }

    /// How many.
    pub(super) fn len(&self) -> usize {
        let more = self.more.as_ref().map_or(0, |more| more.len());
        usize::from(self.first.is_some()) + more
    }

    /// Commands behind the first that there is room for.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.more.as_ref().map_or(0, |more| more.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes and pops, beside what they should do.
    fn compare(steps: impl IntoIterator<Item = bool>) {
        let (mut commands, mut wanted) = (Commands::default(), VecDeque::new());
        for (n, push) in steps.into_iter().enumerate() {
            if push {
                let frame = Bytes::from(n.to_string());
                commands.push(frame.clone());
                wanted.push_back(frame);
            } else {
                assert_eq!(commands.pop(), wanted.pop_front());
            }
            assert_eq!(commands.len(), wanted.len());
        }
        while let Some(frame) = wanted.pop_front() {
            assert_eq!(commands.pop(), Some(frame));
        }
        assert_eq!(commands.pop(), None);
    }

    #[test]
    fn they_leave_as_they_came_whatever_came_between() {
        for pattern in 0..1 << 12 {
            compare((0..12).map(|bit| pattern >> bit & 1 == 1));
        }
    }

    #[test]
    fn one_at_a_time_takes_no_memory_and_a_burst_gives_it_back() {
        let mut commands = Commands::default();
        for _ in 0..3 {
            commands.push(Bytes::from_static(b"x"));
            assert!(commands.pop().is_some());
        }
        assert_eq!(commands.room(), 0);
        for _ in 0..100 {
            commands.push(Bytes::from_static(b"x"));
        }
        assert!(commands.room() >= 99);
        while commands.pop().is_some() {}
        assert_eq!(commands.room(), 0);
    }
}
