//! What the process costs: its memory, tasks and busy workers.
//!
//! Responsible for sampling them every gauge interval under their old `beam_*` names. Must never
//! touch a session or wait for one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeMetrics};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::metrics::Metrics;
use crate::tuning::Pace;

/// Resident anonymous memory of this process in bytes, the quantity that memory shedding samples
/// too; `None` where the system has no `/proc/self/status`.
pub fn resident_anonymous_bytes() -> Option<u64> {
    parse_anonymous(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn parse_anonymous(status: &str) -> Option<u64> {
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Turns the growing busy time of all workers into the busy share of each interval.
#[derive(Debug)]
struct BusyShare {
    at: Instant,
    busy: Duration,
}

impl BusyShare {
    fn new(now: Instant, busy: Duration) -> Self {
        Self { at: now, busy }
    }

    /// The share since the last call, 0 to 1; 0 when no time has passed.
    fn sample(&mut self, now: Instant, busy: Duration, workers: usize) -> f64 {
        let spent = busy.saturating_sub(self.busy).as_secs_f64();
        let available = now.saturating_duration_since(self.at).as_secs_f64() * workers as f64;
        *self = Self { at: now, busy };
        if available > 0.0 {
            (spent / available).min(1.0)
        } else {
            0.0
        }
    }
}

fn total_busy(runtime: &RuntimeMetrics) -> Duration {
    (0..runtime.num_workers())
        .map(|worker| runtime.worker_total_busy_duration(worker))
        .sum()
}

/// The running sampler. Dropped, it stops.
#[derive(Debug)]
pub struct Sampler {
    task: JoinHandle<()>,
    pace: Pace,
}

impl Sampler {
    /// Samples every `interval` from now on.
    pub(crate) fn retune(&self, interval: Duration) {
        self.pace.set(interval);
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Samples the process into `metrics` at once and then every `interval`, and calls `extra` each
/// time for the gauges that other rooms know (`agents_current`). `extra` must return at once; when
/// it panics, that sample is left out. Call inside the runtime to be measured.
pub fn spawn_sampler(
    metrics: Arc<Metrics>,
    interval: Duration,
    extra: impl Fn() + Send + 'static,
) -> Sampler {
    let pace = Pace::new(interval);
    let mut ticks = pace.ticks();
    let task = tokio::spawn(async move {
        let runtime = Handle::current().metrics();
        let mut busy = BusyShare::new(Instant::now(), total_busy(&runtime));
        loop {
            ticks.tick().await;
            let share = busy.sample(Instant::now(), total_busy(&runtime), runtime.num_workers());
            metrics.beam_scheduler_util.set(share);
            metrics
                .beam_process_count
                .set(as_gauge(runtime.num_alive_tasks() as u64));
            if let Some(bytes) = resident_anonymous_bytes() {
                metrics
                    .beam_memory_bytes
                    .with_label_values(&["total"])
                    .set(as_gauge(bytes));
            }
            // The panic hook has written where it happened.
            let _ = catch_unwind(AssertUnwindSafe(&extra));
        }
    });
    Sampler { task, pace }
}

fn as_gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use tokio::sync::mpsc;

    use super::*;

    #[test]
    fn anonymous_memory_is_read_in_bytes() {
        let status = "Name:\tyuzu\nVmRSS:\t  20480 kB\nRssAnon:\t   12345 kB\nRssFile:\t 8 kB\n";
        assert_eq!(parse_anonymous(status), Some(12_641_280));
    }

    #[test]
    fn a_status_without_a_readable_value_has_none() {
        for status in [
            "",
            "Name:\tyuzu\nVmRSS:\t 1 kB\n",
            "RssAnon:\t many kB\n",
            "RssAnon:\t 12\n",
            "RssAnon:\t -1 kB\n",
            "RssAnon:\t 18446744073709551615 kB\n",
            "XRssAnon:\t 12 kB\n",
        ] {
            assert_eq!(parse_anonymous(status), None, "{status:?}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_memory_of_this_process_grows_with_what_it_touches() {
        let before = resident_anonymous_bytes().unwrap();
        let block = std::hint::black_box(vec![7u8; 64 << 20]);
        let after = resident_anonymous_bytes().unwrap();
        assert!(after > before + (48 << 20), "{before} to {after}");
        drop(block);
    }

    #[test]
    fn the_busy_share_is_that_of_the_last_interval_and_of_all_workers() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut busy = BusyShare::new(start, Duration::from_secs(100));
        assert_eq!(busy.sample(at(10), Duration::from_secs(105), 2), 0.25);
        assert_eq!(busy.sample(at(20), Duration::from_secs(125), 2), 1.0);
        assert_eq!(busy.sample(at(30), Duration::from_secs(125), 2), 0.0);
    }

    #[test]
    fn the_busy_share_stays_within_0_and_1() {
        let start = Instant::now();
        let mut busy = BusyShare::new(start, Duration::from_secs(5));
        assert_eq!(busy.sample(start, Duration::from_secs(9), 2), 0.0);
        let later = start + Duration::from_secs(1);
        assert_eq!(busy.sample(later, Duration::from_secs(90), 2), 1.0);
        let last = later + Duration::from_secs(1);
        assert_eq!(busy.sample(last, Duration::from_secs(1), 2), 0.0);
    }

    #[tokio::test(start_paused = true)]
    async fn samples_at_once_and_then_every_interval_until_it_is_dropped() {
        let metrics = Arc::new(Metrics::new("gw1").unwrap());
        let (told, mut samples) = mpsc::channel(8);
        let start = Instant::now();
        let current = metrics.agents_current.clone();
        let sampler = spawn_sampler(metrics.clone(), Duration::from_secs(10), move || {
            current.set(7);
            told.try_send(start.elapsed().as_secs()).unwrap();
            panic!("the sampler goes on");
        });
        for expected in [0, 10, 20] {
            assert_eq!(samples.recv().await, Some(expected));
        }
        assert_eq!(metrics.agents_current.get(), 7);
        assert_eq!(metrics.beam_process_count.get(), 1);
        #[cfg(target_os = "linux")]
        assert!(
            metrics
                .beam_memory_bytes
                .with_label_values(&["total"])
                .get()
                > 100_000
        );
        drop(sampler);
        assert_eq!(samples.recv().await, None);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_work_of_every_worker_is_seen() {
        let runtime = Handle::current().metrics();
        let before = total_busy(&runtime);
        let both = Arc::new(Barrier::new(2));
        let work = || {
            let both = both.clone();
            tokio::spawn(async move {
                // Passed only when both workers are here at once.
                both.wait();
                let start = std::time::Instant::now();
                while start.elapsed() < Duration::from_millis(50) {
                    std::hint::spin_loop();
                }
            })
        };
        let (one, other) = tokio::join!(work(), work());
        one.and(other).unwrap();
        let seen = async {
            while total_busy(&runtime) < before + Duration::from_millis(95) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), seen)
            .await
            .unwrap();
    }
}
