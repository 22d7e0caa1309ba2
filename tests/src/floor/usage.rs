//! What a process has used so far, as the system tells.

use std::fs;
use std::time::Duration;

/// Processor time of all its threads, those that have ended included.
pub(super) fn processor_time(process: u32) -> Result<Duration, String> {
    let path = format!("/proc/{process}/stat");
    let stat = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let ticks = ticks(&stat).ok_or_else(|| format!("{path} tells no times"))?;
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// utime and stime, the 14th and 15th field. The second field is a name that may hold anything.
fn ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut times = after_name.split_whitespace().skip(11);
    let mut next = || times.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_times_behind_a_name_with_brackets() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 9 0 0 0 700 41 0 0 20 0 3 0 88 10 20";
        assert_eq!(ticks(stat), Some(741));
        assert_eq!(ticks("42 (a) S 1"), None);
    }
}
