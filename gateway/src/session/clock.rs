//! The wall clock, as the contracts want it.

use crate::system::since_epoch;

/// Wall clock, Unix milliseconds; 0 before 1970.
pub(crate) fn unix_ms() -> i64 {
    i64::try_from(since_epoch().as_millis()).unwrap_or(i64::MAX)
}
