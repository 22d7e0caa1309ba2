//! Large answers of agents on their way in and through.
//!
//! Responsible for how many bytes of them are under way at once: a broadcast that every agent
//! answers with a large message at the same moment is received a few at a time, the rest waits in
//! the agents' windows (CMD-22). Must never hold up a small answer, nor a large one for longer
//! than [`PATIENCE`]: agents that trickle must not shut out the others.

use std::sync::Arc;
use std::time::Duration;

use prometheus::IntCounter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::observe::metrics::Metrics;

/// Answers up to this size, in bytes, are always received.
const SMALL: usize = 16 << 10;
/// Bytes of larger ones that may be under way at once.
const ROOM: usize = 8 << 20;
/// One that has waited for so long is received without room.
const PATIENCE: Duration = Duration::from_secs(1);
/// Room is counted in units of so many bytes.
const UNIT: usize = 1 << 10;

/// The room of a node.
#[derive(Debug, Clone)]
pub(crate) struct Arriving {
    room: Arc<Semaphore>,
    /// Counts the answers that were received without room.
    unplaced: IntCounter,
}

/// An answer's share of the room, held until it has been handed over.
#[derive(Debug)]
pub(crate) struct Place(
    #[expect(dead_code, reason = "held, not read")] Option<OwnedSemaphorePermit>,
);

impl Arriving {
    /// All of it free.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            room: Arc::new(Semaphore::new(ROOM / UNIT)),
            unplaced: metrics.command_answers_unplaced_total.clone(),
        }
    }

    /// Whether an answer of `len` bytes needs a place.
    pub(super) const fn asks(len: usize) -> bool {
        len > SMALL
    }

    /// Waits in line for the place of an answer of `len` bytes. Dropped, it leaves the line.
    pub(super) async fn place(&self, len: usize) -> Place {
        let units = len.min(ROOM).div_ceil(UNIT) as u32;
        let room = Arc::clone(&self.room).acquire_many_owned(units);
        let place = timeout(PATIENCE, room).await.ok().and_then(Result::ok);
        if place.is_none() {
            self.unplaced.inc();
        }
        Place(place)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::time::Instant;

    use super::*;

    fn arriving() -> Arriving {
        Arriving::new(&Metrics::new("test").unwrap())
    }

    #[test]
    fn cmd_22_an_answer_up_to_16_kib_needs_no_place() {
        assert!(!Arriving::asks(16_384));
        assert!(Arriving::asks(16_385));
    }

    #[tokio::test(start_paused = true)]
    async fn cmd_22_8_mib_of_large_answers_are_under_way_at_once_in_their_order() {
        let arriving = arriving();
        let mut places: Vec<_> = (0..4)
            .map(|_| arriving.place(2 << 20).now_or_never().unwrap())
            .collect();
        let mut fifth = Box::pin(arriving.place(2 << 20));
        assert!(fifth.as_mut().now_or_never().is_none());
        let mut sixth = Box::pin(arriving.place(20_000));
        assert!(sixth.as_mut().now_or_never().is_none());
        places.pop();
        assert!(sixth.as_mut().now_or_never().is_none(), "before its turn");
        assert!(fifth.as_mut().now_or_never().is_some());
        places.pop();
        assert!(sixth.as_mut().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn cmd_22_after_a_second_an_answer_is_received_without_room() {
        let arriving = arriving();
        let _trickling = arriving.place(64 << 20).await;
        let began = Instant::now();
        assert_eq!(arriving.unplaced.get(), 0);
        arriving.place(20_000).await;
        assert_eq!(began.elapsed(), Duration::from_secs(1));
        assert_eq!(arriving.unplaced.get(), 1);
    }
}
