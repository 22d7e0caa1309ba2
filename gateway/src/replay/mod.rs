//! Registration replay: a server that lost its sessions gets them back, and no agent notices.
//!
//! Responsible for what the server's heartbeat verdicts ask for, and for registering each agent
//! that is concerned once more, under its own session, at a bounded pace (REPLAY-*). Must never
//! make a heartbeat or a live registration wait, nor replay because a call succeeded again.

mod driver;
mod flight;
mod guard;
mod queue;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod verdict;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout_at};

use queue::Queue;
use verdict::Verdict;

use crate::config;
use crate::notify::Notifier;
use crate::observe::log::limit::LineLimit;
use crate::observe::metrics::Metrics;
use crate::session::Registry;
use crate::supervise::{Kept, NodeSupervisor, keep_running};
use crate::upstream::Upstream;

/// A verdict that finds more than this many before it is dropped (REPLAY-5).
const BACKLOG: usize = 100;
/// The line about truncated verdicts is written once in this time (REPLAY-3).
const TRUNCATED_EVERY: Duration = Duration::from_secs(60);

/// Takes verdicts in; clones share one queue.
#[derive(Clone)]
pub(crate) struct Replayer {
    shared: Arc<Shared>,
    verdicts: mpsc::Sender<Verdict>,
    driver: Arc<Kept>,
}

/// What the handle, the driver and the replays on their way share.
struct Shared {
    queue: Mutex<Queue>,
    /// Verdicts on their way to the driver, which outlive one that panics.
    handed: tokio::sync::Mutex<mpsc::Receiver<Verdict>>,
    /// There may be something to start.
    wake: Notify,
    /// A replay has ended.
    landed: Notify,
    drip: ArcSwap<Drip>,
    truncated: LineLimit,
    registry: Arc<Registry>,
    upstream: Upstream,
    notifier: Notifier,
    metrics: Arc<Metrics>,
}

/// How fast a drip is.
#[derive(Debug)]
struct Drip {
    /// Replays on their way at most (REPLAY-11).
    width: usize,
    start_jitter: Duration,
}

impl Drip {
    fn of(config: &config::Config) -> Self {
        Self {
            width: config.upstream.replay_concurrency,
            start_jitter: config.replay.start_jitter,
        }
    }
}

impl Replayer {
    /// Starts the driver. Must be called inside a tokio runtime.
    pub(crate) fn start(
        config: &config::Config,
        registry: Arc<Registry>,
        upstream: Upstream,
        notifier: Notifier,
        metrics: Arc<Metrics>,
    ) -> Replayer {
        let (verdicts, handed) = mpsc::channel(BACKLOG + 1);
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue::new(&config.replay)),
            handed: tokio::sync::Mutex::new(handed),
            wake: Notify::new(),
            landed: Notify::new(),
            drip: ArcSwap::from_pointee(Drip::of(config)),
            truncated: LineLimit::new(TRUNCATED_EVERY),
            registry,
            upstream,
            notifier,
            metrics,
        });
        let held = Arc::clone(&shared);
        let driver = keep_running("registration replay", move || {
            driver::run(Arc::clone(&held))
        });
        Replayer {
            shared,
            verdicts,
            driver: Arc::new(driver),
        }
    }

    /// Puts another configuration in force. What is queued stays queued.
    pub(crate) fn retune(&self, config: &config::Config) {
        let shared = &self.shared;
        shared.drip.store(Arc::new(Drip::of(config)));
        shared.work(|queue| queue.limit(&config.replay));
        // There may be room for more.
        shared.wake.notify_one();
    }

    /// Counts the restarts of the driver at the node (GEN-3).
    pub(crate) fn supervise(&self, node: &NodeSupervisor) {
        node.watch(&self.driver);
    }

    /// Takes in the server's answer (an encoded `BatchHeartbeatResponse`) to a batch of
    /// `heartbeats`. Never blocks. Bytes that are no such message are no verdict (REPLAY-20).
    pub(crate) fn verdict(&self, answer: &Bytes, heartbeats: usize) {
        let Ok(read) = Verdict::read(answer, heartbeats) else {
            tracing::debug!("Heartbeat verdict: the answer is not a message");
            return;
        };
        if read.listed > 0 {
            tracing::debug!(
                "Heartbeat verdict: {} unknown session(s) listed, {} malformed",
                read.listed,
                read.malformed
            );
        }
        let shared = &self.shared;
        shared.dropped("malformed", read.malformed);
        let verdict = read.verdict;
        if verdict.truncated {
            shared.say_truncated();
        }
        if verdict.is_empty() {
            return;
        }
        // Closed: the node is going down.
        if let Err(TrySendError::Full(verdict)) = self.verdicts.try_send(verdict) {
            let named = verdict.named.len();
            shared.dropped("queue_full", named);
            tracing::debug!(
                "Registration replay: heartbeat verdict named {named} session(s) while more than \
                 {BACKLOG} verdicts wait; dropped"
            );
        }
    }

    /// Whether the driver lives.
    pub(crate) fn is_running(&self) -> bool {
        !self.driver.is_finished()
    }

    /// A planned stop began: nothing is replayed from now on (REPLAY-19).
    pub(crate) fn stop(&self) {
        self.shared.work(|queue| queue.stop(Instant::now()));
    }

    /// Waits for the replays that were on their way at the stop, until `deadline` at most. One
    /// that reached the server after the agent's DISCONNECTED would bring its session back.
    pub(crate) async fn landed(&self, deadline: Instant) {
        let shared = &self.shared;
        loop {
            let landed = shared.landed.notified();
            let mut landed = std::pin::pin!(landed);
            landed.as_mut().enable();
            let out = shared.lock().in_flight();
            if out == 0 || timeout_at(deadline, landed).await.is_err() {
                return;
            }
        }
    }
}

impl Shared {
    /// Does something with the queue, and publishes its depth.
    fn work<T>(&self, act: impl FnOnce(&mut Queue) -> T) -> T {
        let mut queue = self.lock();
        let result = act(&mut queue);
        // Under the lock, so that the gauge ends with the last change.
        let depth = queue.depth() as i64;
        self.metrics.registration_replay_queue_depth.set(depth);
        result
    }

    /// Counts ids of a verdict that are not queued.
    fn dropped(&self, reason: &str, count: usize) {
        let dropped = &self.metrics.heartbeat_verdict_dropped_total;
        dropped.with_label_values(&[reason]).inc_by(count as u64);
    }

    fn say_truncated(&self) {
        self.metrics.heartbeat_unknown_truncated_total.inc();
        if let Some(suppressed) = self.truncated.admit() {
            tracing::warn!(
                "Heartbeat verdict truncated by the server: more sessions are unknown to it than \
                 one answer lists; suppressed {}",
                suppressed.count()
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
