//! Answers that were handed over and that nobody takes.
//!
//! hyper asks a response body for its next frame only while the peer's window is open, and an
//! answer behind a closed window can not be taken back: only closing the connection frees it.
//! Responsible for knowing how long the oldest ready answer of a connection has waited. Must
//! never hold an answer itself.

use std::time::Duration;

use tokio::time::Instant;

/// The ready answers of one connection.
#[derive(Debug, Default)]
pub(crate) struct AnswerLedger {
    /// When the answer in each slot became ready; `None` while it has nothing to send.
    slots: Vec<Slot>,
    open: usize,
}

#[derive(Debug, Clone, Copy)]
enum Slot {
    Free,
    Idle,
    Ready(Instant),
}

/// One answer in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AnswerId(u32);

impl AnswerLedger {
    /// Enters an answer that has nothing to send yet. The number of slots is bounded by the
    /// concurrent streams of the connection.
    pub(crate) fn open(&mut self) -> AnswerId {
        self.open += 1;
        let free = self
            .slots
            .iter()
            .position(|slot| matches!(slot, Slot::Free));
        let index = free.unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            self.slots.len() - 1
        });
        self.slots[index] = Slot::Idle;
        AnswerId(index as u32)
    }

    /// The answer has something to send. Keeps the time of the first call until it is taken.
    pub(crate) fn ready(&mut self, id: AnswerId, now: Instant) {
        if let Some(slot @ Slot::Idle) = self.slots.get_mut(id.0 as usize) {
            *slot = Slot::Ready(now);
        }
    }

    /// The peer took what there was.
    pub(crate) fn taken(&mut self, id: AnswerId) {
        if let Some(slot @ Slot::Ready(_)) = self.slots.get_mut(id.0 as usize) {
            *slot = Slot::Idle;
        }
    }

    /// The answer is over.
    pub(crate) fn close(&mut self, id: AnswerId) {
        if let Some(slot) = self.slots.get_mut(id.0 as usize)
            && !matches!(slot, Slot::Free)
        {
            *slot = Slot::Free;
            self.open -= 1;
        }
        if self.open == 0 {
            self.slots = Vec::new();
        }
    }

    /// When the oldest ready answer will have waited `patience`; `None` when nothing waits.
    pub(crate) fn overdue_at(&self, patience: Duration) -> Option<Instant> {
        let ready = self.slots.iter().filter_map(|slot| match slot {
            Slot::Ready(since) => Some(*since),
            Slot::Free | Slot::Idle => None,
        });
        ready.min().map(|since| since + patience)
    }

    /// Whether any answer is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.open == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn the_oldest_ready_answer_decides() {
        let start = Instant::now();
        let mut ledger = AnswerLedger::default();
        let (a, b) = (ledger.open(), ledger.open());
        assert_eq!(ledger.overdue_at(PATIENCE), None);
        ledger.ready(b, start + Duration::from_secs(2));
        ledger.ready(a, start + Duration::from_secs(5));
        ledger.ready(b, start + Duration::from_secs(9));
        assert_eq!(
            ledger.overdue_at(PATIENCE),
            Some(start + Duration::from_secs(32))
        );
        ledger.taken(b);
        assert_eq!(
            ledger.overdue_at(PATIENCE),
            Some(start + Duration::from_secs(35))
        );
        ledger.close(a);
        assert_eq!(ledger.overdue_at(PATIENCE), None);
        assert!(!ledger.is_empty());
        ledger.close(b);
        ledger.close(b);
        assert!(ledger.is_empty());
    }

    #[test]
    fn slots_are_used_again() {
        let mut ledger = AnswerLedger::default();
        let first = ledger.open();
        let keep = ledger.open();
        ledger.close(first);
        assert_eq!(ledger.open(), first);
        assert_ne!(keep, first);
        assert_eq!(ledger.slots.len(), 2);
    }
}
