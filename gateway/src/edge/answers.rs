//! Answers that were handed over and that nobody takes.
//!
//! What is handed to HTTP/2 waits there for the peer's window and can not be taken back: only
//! closing the connection frees it. Responsible for knowing how long the oldest of a connection
//! has waited. Must never hold an answer itself.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// The pieces of answers that HTTP/2 holds for one connection. Their number is bounded by the
/// concurrent streams of the connection and by the send buffer of each.
#[derive(Debug, Default)]
pub(crate) struct AnswerLedger {
    /// The oldest, and when it was handed over: mostly the only one, which needs no map.
    oldest: Option<(PieceId, Instant)>,
    /// Those after it.
    later: BTreeMap<PieceId, Instant>,
    next: u64,
    /// When a piece was last taken.
    progress: Option<Instant>,
}

/// One piece in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PieceId(u64);

impl AnswerLedger {
    /// Enters a piece that is handed over now. `now` never goes back.
    pub(crate) fn hand_over(&mut self, now: Instant) -> PieceId {
        let id = PieceId(self.next);
        self.next += 1;
        match self.oldest {
            None => self.oldest = Some((id, now)),
            Some(_) => drop(self.later.insert(id, now)),
        }
        id
    }

    /// The piece was written, or its stream is gone.
    pub(crate) fn taken(&mut self, id: PieceId, now: Instant) {
        match self.oldest {
            Some((oldest, _)) if oldest == id => self.oldest = self.later.pop_first(),
            _ => drop(self.later.remove(&id)),
        }
        self.progress = Some(now);
    }

    /// When `patience` will have passed without the peer taking anything, though something waits;
    /// `None` when nothing waits. A peer that leaves one stream unread and reads another stays.
    pub(crate) fn overdue_at(&self, patience: Duration) -> Option<Instant> {
        let (_, oldest) = self.oldest?;
        let since = self.progress.map_or(oldest, |last| last.max(oldest));
        Some(since + patience)
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.oldest.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_peer_that_takes_nothing_is_overdue_when_the_oldest_piece_is() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let mut ledger = AnswerLedger::default();
        assert_eq!(ledger.overdue_at(PATIENCE), None);
        let first = ledger.hand_over(at(2));
        let second = ledger.hand_over(at(5));
        assert_eq!(ledger.overdue_at(PATIENCE), Some(at(32)));
        ledger.taken(second, at(9));
        assert_eq!(
            ledger.overdue_at(PATIENCE),
            Some(at(39)),
            "it took something at 9"
        );
        ledger.taken(first, at(12));
        ledger.taken(first, at(12));
        assert!(ledger.is_empty());
        assert_eq!(ledger.overdue_at(PATIENCE), None);
        ledger.hand_over(at(50));
        assert_eq!(ledger.overdue_at(PATIENCE), Some(at(80)));
    }
}
