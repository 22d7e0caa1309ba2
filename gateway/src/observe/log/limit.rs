//! At most one line per kind and interval (LOG-1).
//!
//! Responsible for what is written when peers make the same line over and over. Must never be
//! used for the lines of LOG-2: each of those is written.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// `Register refused: ...`
pub static REGISTER_REFUSED: LineLimit = LineLimit::per_second();
/// `Register from agent <agent>: the peer address was replaced or cut to fit ...`
pub static PEER_ADDRESS_REPLACED: LineLimit = LineLimit::per_second();
/// `Upstream Register failed: <reason>`
pub static UPSTREAM_REGISTER_FAILED: LineLimit = LineLimit::per_second();
/// `Upstream ReportInventory failed: <reason>`
pub static UPSTREAM_INVENTORY_FAILED: LineLimit = LineLimit::per_second();
/// `Upstream RPC <Method> raised <Class>:<Why>`
pub static UPSTREAM_RPC_RAISED: LineLimit = LineLimit::per_second();
/// `Upstream RPC <Method> failed: <Status> <message>`, for the statuses 3, 5, 6, 9 and 11 only.
pub static UPSTREAM_RPC_FAULTED: LineLimit = LineLimit::per_second();
/// The per-connection session cap was reached.
pub static SESSION_CAP_REACHED: LineLimit = LineLimit::per_second();
/// `ReportInventory refused before forwarding: ...`
pub static INVENTORY_REFUSED: LineLimit = LineLimit::per_second();
/// `Management peer refused: <reason>`
pub static MANAGEMENT_PEER_REFUSED: LineLimit = LineLimit::per_second();
/// `Server did not record the <event> stream status notice for <agent> ...`
pub static NOTICE_UNACKNOWLEDGED: LineLimit = LineLimit::per_second();

/// `Cluster: this node stood still ...` (MESH-5)
pub static STOOD_STILL: LineLimit = LineLimit::new(Duration::from_secs(60));
/// `Cluster: no public node is alive ...` (VIS-6)
pub static NO_PUBLIC_NODE: LineLimit = LineLimit::new(Duration::from_secs(60));
/// `Cluster: peers hold more agents than this node keeps in mind ...`
pub static ADJACENCY_FULL: LineLimit = LineLimit::new(Duration::from_secs(60));
/// `Cluster: <node> tells of its agents what this node does not understand ...`
pub static ADJACENCY_MALFORMED: LineLimit = LineLimit::new(Duration::from_secs(60));

/// The pure core: told the time, it says whether a line may be written.
#[derive(Debug)]
pub struct RateLimit {
    interval: Duration,
    next: Option<Instant>,
    suppressed: u64,
}

impl RateLimit {
    /// One line per `interval`; zero limits nothing.
    pub const fn new(interval: Duration) -> Self {
        Self {
            interval,
            next: None,
            suppressed: 0,
        }
    }

    /// `Some` when a line may be written at `now`, with the number of those that were not since
    /// the last. The first line is never suppressed.
    pub fn admit(&mut self, now: Instant) -> Option<Suppressed> {
        if self.next.is_some_and(|next| now < next) {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.next = Some(now + self.interval);
        Some(Suppressed(std::mem::take(&mut self.suppressed)))
    }
}

/// Lines left out since the last one. Displays as the ending of a line: nothing for 0, else a
/// space and `(N similar line(s) suppressed since the last)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suppressed(u64);

impl Suppressed {
    /// How many.
    pub fn count(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Suppressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            n => write!(f, " ({n} similar line(s) suppressed since the last)"),
        }
    }
}

/// A [`RateLimit`] that many tasks share. The kinds of LOG-1 are the statics of this module; a
/// limit per task (a call to a dead one) is a field of the handle to that task.
#[derive(Debug)]
pub struct LineLimit(Mutex<RateLimit>);

impl LineLimit {
    /// One line per `interval`.
    pub const fn new(interval: Duration) -> Self {
        Self(Mutex::new(RateLimit::new(interval)))
    }

    /// One line per second.
    pub const fn per_second() -> Self {
        Self::new(Duration::from_secs(1))
    }

    /// [`RateLimit::admit`] by the monotonic clock.
    pub fn admit(&self) -> Option<Suppressed> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .admit(Instant::now())
    }
}

/// One [`LineLimit`] for each of `N` reasons, so that a frequent one hides no other.
#[derive(Debug)]
pub struct PerReason<const N: usize>([LineLimit; N]);

impl<const N: usize> PerReason<N> {
    /// One line of each reason per `interval`.
    pub fn new(interval: Duration) -> Self {
        Self(std::array::from_fn(|_| LineLimit::new(interval)))
    }

    /// That of a reason, by its number.
    ///
    /// # Panics
    /// When there are not so many reasons.
    pub fn of(&self, reason: usize) -> &LineLimit {
        &self.0[reason]
    }
}

/// Writes a line through a [`LineLimit`], with the number of suppressed ones at its end:
/// `limited!(warn, limit::REGISTER_REFUSED, "Register refused: ... (size {size} bytes)")`, or
/// with structured fields in braces before the text:
/// `limited!(warn, limit::SESSION_CAP_REACHED, { cap = 8 }, "session cap reached")`.
#[macro_export]
macro_rules! limited {
    ($level:ident, $limit:expr, { $($fields:tt)+ }, $($text:tt)+) => {
        if let Some(suppressed) = $limit.admit() {
            ::tracing::$level!({ $($fields)+ }, "{}{}", format_args!($($text)+), suppressed);
        }
    };
    ($level:ident, $limit:expr, $($text:tt)+) => {
        if let Some(suppressed) = $limit.admit() {
            ::tracing::$level!("{}{}", format_args!($($text)+), suppressed);
        }
    };
}
pub use limited;

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(limit: &mut RateLimit, start: Instant, at_ms: &[u64]) -> Vec<Option<u64>> {
        at_ms
            .iter()
            .map(|at| {
                limit
                    .admit(start + Duration::from_millis(*at))
                    .map(Suppressed::count)
            })
            .collect()
    }

    #[test]
    fn log_1_the_first_line_at_once_then_one_per_interval_with_the_count() {
        let mut limit = RateLimit::new(Duration::from_secs(1));
        let start = Instant::now();
        assert_eq!(
            lines(
                &mut limit,
                start,
                &[0, 0, 1, 999, 1000, 1001, 2500, 3499, 3500]
            ),
            [
                Some(0),
                None,
                None,
                None,
                Some(3),
                None,
                Some(1),
                None,
                Some(1)
            ],
        );
    }

    #[test]
    fn log_1_a_quiet_kind_has_nothing_to_report() {
        let mut limit = RateLimit::new(Duration::from_secs(1));
        let start = Instant::now();
        assert_eq!(lines(&mut limit, start, &[0, 5000, 60_000]), [Some(0); 3]);
    }

    #[test]
    fn log_1_wording_of_the_count() {
        assert_eq!(Suppressed(0).to_string(), "");
        assert_eq!(
            Suppressed(1).to_string(),
            " (1 similar line(s) suppressed since the last)"
        );
        assert_eq!(
            Suppressed(412).to_string(),
            " (412 similar line(s) suppressed since the last)"
        );
    }

    #[test]
    fn log_1_kinds_do_not_share_a_limit() {
        let (one, other) = (LineLimit::per_second(), LineLimit::per_second());
        assert_eq!(one.admit(), Some(Suppressed(0)));
        assert_eq!(other.admit(), Some(Suppressed(0)));
    }

    #[test]
    fn log_1_a_frequent_reason_hides_no_other() {
        let limits = PerReason::<2>::new(Duration::from_secs(60));
        assert_eq!(limits.of(0).admit(), Some(Suppressed(0)));
        assert_eq!(limits.of(0).admit(), None);
        assert_eq!(limits.of(1).admit(), Some(Suppressed(0)));
    }
}
