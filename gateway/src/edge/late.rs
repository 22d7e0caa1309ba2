//! Timers that go off late, since this process stood still or was short of time.
//!
//! Responsible for one more look before a peer is taken for silent: what it has sent meanwhile waits
//! in the socket, and is to be read first. hyper asks its timer before it reads, and so do the tasks
//! here. Pure. Must never put a verdict off more than once.

use std::time::{Duration, Instant};

/// A timer that goes off so much behind its time is late.
const LATE: Duration = Duration::from_millis(20);
/// For what waits in the socket.
const LOOK: Duration = Duration::from_millis(100);

/// Whether a timer has been put off. Pure.
#[derive(Debug, Default)]
pub(crate) struct SecondLook {
    taken: bool,
}

impl SecondLook {
    /// A timer that was due at `due` goes off. `Some`: late, so it is to go off at that time instead,
    /// once.
    pub(crate) fn at(&mut self, due: Instant, now: Instant) -> Option<Instant> {
        let is_late = now.saturating_duration_since(due) > LATE;
        self.taken = is_late && !self.taken;
        self.taken.then(|| now + LOOK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mesh_5_what_goes_off_late_is_put_off_once() {
        let (mut look, due) = (SecondLook::default(), Instant::now());
        let after = |ms| due + Duration::from_millis(ms);
        assert_eq!(look.at(due, due), None);
        assert_eq!(look.at(due, after(20)), None);
        assert_eq!(look.at(due, after(3_000)), Some(after(3_100)));
        // Late again, on a machine that is short of time.
        assert_eq!(look.at(after(3_100), after(3_300)), None);
        assert_eq!(look.at(after(9_000), after(9_100)), Some(after(9_200)));
    }
}
