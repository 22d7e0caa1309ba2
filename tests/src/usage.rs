//! What processes use, as the system tells, and which processes this one has started.
//!
//! Responsible for reading it from `/proc`, from outside of the process that is read. Must never make the
//! load's use of anything count for the process that is loaded.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::process::bytes_of;

/// What one process uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time since its start, threads that have ended included. To 10 ms.
    pub processor_time: Duration,
    /// Bytes in memory, files that it maps included.
    pub resident: u64,
    /// Bytes in memory that no file is behind.
    pub anonymous: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// How often one of the threads that live gave up its processor to wait.
    pub voluntary_switches: u64,
    /// How often one of them was taken off its processor.
    pub forced_switches: u64,
}

impl Usage {
    /// What this process uses now.
    ///
    /// # Errors
    /// When it is gone, or the system does not tell.
    pub fn of(process: u32) -> Result<Self, String> {
        let path = format!("/proc/{process}/status");
        let status = read(&path)?;
        let bytes = |name| bytes_of(name, &status).ok_or_else(|| format!("{path} has no {name}"));
        let descriptors = format!("/proc/{process}/fd");
        let descriptors = fs::read_dir(&descriptors).map_err(|e| format!("{descriptors}: {e}"))?;
        let [voluntary, forced] = switches(process)?;
        Ok(Self {
            processor_time: processor_time(process)?,
            resident: bytes("VmRSS:")?,
            anonymous: bytes("RssAnon:")?,
            descriptors: descriptors.count() as u64,
            voluntary_switches: voluntary,
            forced_switches: forced,
        })
    }
}

/// Processor time of all its threads, those that have ended included.
///
/// # Errors
/// When it is gone, or the system does not tell.
pub fn processor_time(process: u32) -> Result<Duration, String> {
    let path = format!("/proc/{process}/stat");
    let ticks = ticks(&read(&path)?).ok_or_else(|| format!("{path} tells no times"))?;
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

/// Voluntary and forced switches of the threads that live.
///
/// # Errors
/// When the process is gone, or the system does not tell.
pub fn switches(process: u32) -> Result<[u64; 2], String> {
    let path = format!("/proc/{process}/task");
    let threads = fs::read_dir(&path).map_err(|e| format!("{path}: {e}"))?;
    let mut all = [0; 2];
    for thread in threads.flatten() {
        // One may have ended since.
        let Ok(status) = fs::read_to_string(thread.path().join("status")) else {
            continue;
        };
        let names = ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
        for (sum, name) in all.iter_mut().zip(names) {
            *sum += number(name, &status).ok_or_else(|| format!("{path} tells no {name}"))?;
        }
    }
    Ok(all)
}

fn number(name: &str, text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))
}

/// A process that this one has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// What it is.
    pub what: &'static str,
    /// Its process id.
    pub process: u32,
}

/// As many as a tool starts in its life; a few hundred.
static STARTED: Mutex<Vec<Started>> = Mutex::new(Vec::new());

fn all_started() -> MutexGuard<'static, Vec<Started>> {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes a process that was started just now.
pub(crate) fn started(what: &'static str, process: u32) {
    all_started().push(Started { what, process });
}

/// Those that were started since there were `before` of them, in their order.
pub fn started_since(before: usize) -> Vec<Started> {
    all_started().iter().skip(before).copied().collect()
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

    #[test]
    fn tells_voluntary_from_forced_switches() {
        let status =
            "Threads:\t1\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        assert_eq!(number("voluntary_ctxt_switches:", status), Some(150));
        assert_eq!(number("nonvoluntary_ctxt_switches:", status), Some(545));
        assert_eq!(number("voluntary_ctxt_switches:", "Threads: 1"), None);
    }

    #[test]
    fn sees_what_this_process_uses() {
        let before = Usage::of(std::process::id()).unwrap();
        assert!(before.resident >= before.anonymous && before.anonymous > 0);
        let files: Vec<_> = (0..50).map(|_| fs::File::open("/proc/self/stat")).collect();
        let memory = vec![1_u8; 64 << 20];
        let after = Usage::of(std::process::id()).unwrap();
        assert_eq!((files.len(), memory.len()), (50, 64 << 20));
        // Other tests run meanwhile.
        assert!(after.descriptors > before.descriptors + 25);
        assert!(after.anonymous > before.anonymous + (32 << 20));
        assert!(after.processor_time >= before.processor_time);
    }

    #[test]
    fn a_process_that_is_gone_is_an_error() {
        // Above the highest that Linux gives.
        assert!(Usage::of(u32::MAX).is_err());
    }
}
