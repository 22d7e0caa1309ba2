//! The wall clock, as the contracts want it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Wall clock, Unix milliseconds; 0 before 1970.
pub(crate) fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    })
}
