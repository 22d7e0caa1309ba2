//! Whether the processors are too busy (SHIFT-2).
//!
//! Responsible for the process's time on them and for how long it has been too much. Must never let
//! one quiet moment, nor one busy moment, decide.

use std::time::Duration;

use tokio::time::Instant;

/// The processors are too busy after this long.
const BUSY_FOR: Duration = Duration::from_secs(60);
/// One look covers at least this: shorter ones are noise.
const LOOK: Duration = Duration::from_secs(5);

/// How busy this process has been. Pure: it is told.
#[derive(Debug, Default)]
pub(super) struct Busy {
    last: Option<(Instant, Duration)>,
    /// Above the mark without a break.
    since: Option<Instant>,
}

impl Busy {
    /// Takes the time that this process has had on all of `processors` since its start. Whether it
    /// had more than `high` of it at every look for a minute.
    pub(super) fn sample(
        &mut self,
        now: Instant,
        used: Duration,
        processors: usize,
        high: f64,
    ) -> bool {
        let (at, before) = *self.last.get_or_insert((now, used));
        let passed = now.saturating_duration_since(at);
        if passed >= LOOK {
            self.last = Some((now, used));
            let share = used.saturating_sub(before).div_duration_f64(passed);
            let is_busy = share > high * processors as f64;
            self.since = is_busy.then(|| self.since.unwrap_or(at));
        }
        self.since.is_some_and(|since| now >= since + BUSY_FOR)
    }
}

/// The time that this process has had on the processors; `None` where the system has no
/// `/proc/self/stat`.
pub(super) fn used() -> Option<Duration> {
    parse_used(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

fn parse_used(stat: &str) -> Option<Duration> {
    // The name of the program may have spaces and brackets of its own.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (times.next()?.parse().ok()?, times.next()?.parse().ok()?);
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    Some(Duration::from_secs(user.checked_add(system)?) / u32::try_from(ticks).ok()?)
}

#[cfg(test)]
mod tests;
