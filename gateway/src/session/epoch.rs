//! What orders the sessions of one agent, on whichever nodes they are.
//!
//! Responsible for epochs that grow with every session of this node and with every one that it has
//! heard of. Pure: the wall clock comes in as an argument. Must never go back, whatever that clock
//! does.

/// The low bits of an epoch count the sessions of one millisecond.
const COUNTER_BITS: u32 = 16;
/// Epochs from here on are nobody's: what is left above them is room to count on.
const LIMIT: u64 = 1 << 62;

/// Tells one live row from every other of this process, also from one with the same session id. A
/// later row has a larger one. Between nodes the larger one is the agent's newer session (ADJ-3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Epoch(u64);

impl Epoch {
    /// As another node tells it. `None`: no node gives such a number out.
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        (number < LIMIT).then_some(Self(number))
    }

    /// As it is told to other nodes, below 2^62.
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// Gives epochs out: Unix milliseconds and a counter, as a hybrid logical clock.
///
/// Two nodes whose clocks differ could call the older of an agent's sessions the newer one. So a
/// node counts on from every epoch that it hears of: a Subscribe is behind all that its node knew of
/// then, and the clocks decide only between sessions that the nodes had not told each other yet.
#[derive(Debug, Default)]
pub(super) struct EpochClock {
    last: u64,
}

impl EpochClock {
    /// The epoch of a session that begins at `unix_ms`.
    pub(super) fn next(&mut self, unix_ms: i64) -> Epoch {
        let now = u64::try_from(unix_ms).unwrap_or(0) << COUNTER_BITS;
        self.last = now.max(self.last + 1);
        Epoch(self.last)
    }

    /// Another node gave this one out.
    pub(super) fn heard_of(&mut self, epoch: Epoch) {
        self.last = self.last.max(epoch.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adj_3_epochs_follow_the_wall_clock_and_never_go_back() {
        let mut clock = EpochClock::default();
        let first = clock.next(1_000);
        assert_eq!(first.number(), 1_000 << 16);
        assert_eq!(clock.next(1_000).number(), (1_000 << 16) + 1);
        assert_eq!(clock.next(999).number(), (1_000 << 16) + 2);
        assert_eq!(clock.next(-5).number(), (1_000 << 16) + 3);
        assert_eq!(clock.next(1_001).number(), 1_001 << 16);
    }

    #[test]
    fn adj_3_a_session_is_newer_than_all_that_its_node_has_heard_of() {
        let (mut ahead, mut behind) = (EpochClock::default(), EpochClock::default());
        let old = ahead.next(90_000);
        behind.heard_of(old);
        assert!(behind.next(30_000) > old);
    }

    #[test]
    fn adj_3_an_epoch_that_leaves_no_room_is_nobody_s() {
        assert_eq!(Epoch::from_number(LIMIT), None);
        let last = Epoch::from_number(LIMIT - 1).unwrap();
        let mut clock = EpochClock::default();
        clock.heard_of(last);
        assert!(clock.next(0) > last);
    }
}
