//! Stream-status notices: telling the server which agent's stream is where.
//!
//! Responsible for holding every notice until the server has recorded it, in order, bounded, and
//! for counting each one that is lost. Must never block who hands a notice in, nor let one send
//! wait for another.

#[cfg(feature = "bench")]
pub(crate) mod bench;
mod desk;
mod high_water;
mod notice;
mod pause;
mod store;
#[cfg(test)]
mod tests;
mod unacked;
mod worker;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use desk::{Desk, Fact};
pub use notice::{Event, Notice, NoticeKey, Sender};

use crate::config;
use crate::observe::metrics::Metrics;
use crate::supervise::{Kept, NodeSupervisor, keep_running};
use crate::upstream::{BreakerState, NoticeCounts, Upstream};

/// Hands notices to the server; clones share one store.
#[derive(Clone)]
pub struct Notifier {
    shared: Arc<Shared>,
    worker: Arc<Kept>,
}

/// Whether the session of a key is still held here (UNACK-6).
type IsHeld = dyn Fn(&NoticeKey) -> bool + Send + Sync;

/// What the handle and the worker share.
struct Shared {
    desk: Mutex<Desk>,
    /// There may be something to send.
    wake: Notify,
    /// A notice may have left.
    left: Notify,
    /// Whether everything was sent or given up during a final send.
    drained: watch::Sender<bool>,
    upstream: Upstream,
    sender: Sender,
    is_held: Box<IsHeld>,
    /// In milliseconds.
    probe_timeout: AtomicU64,
    counts: Arc<NoticeCounts>,
    metrics: Arc<Metrics>,
}

impl Notifier {
    /// Starts the worker. Must be called inside a tokio runtime. `sender` is what every notice
    /// carries of this node. `is_held` tells whether the
    /// session of a key is still held by this node; it is called under the store's lock and must
    /// neither block nor call back.
    pub fn start(
        upstream: Upstream,
        sender: impl Into<Sender>,
        config: &config::Notify,
        metrics: Arc<Metrics>,
        is_held: impl Fn(&NoticeKey) -> bool + Send + Sync + 'static,
    ) -> Notifier {
        metrics
            .upstream_notify_pending_max
            .set(config.pending_max as i64);
        let shared = Arc::new(Shared {
            desk: Mutex::new(Desk::new(config, Instant::now())),
            wake: Notify::new(),
            left: Notify::new(),
            drained: watch::Sender::new(false),
            counts: upstream.notice_counts(),
            upstream,
            sender: sender.into(),
            is_held: Box::new(is_held),
            probe_timeout: AtomicU64::new(config.probe_timeout.as_millis() as u64),
            metrics,
        });
        let held = Arc::clone(&shared);
        let worker = keep_running("notify", move || worker::run(Arc::clone(&held)));
        Notifier {
            shared,
            worker: Arc::new(worker),
        }
    }

    /// Puts another configuration in force. No notice that is held is lost for it.
    pub(crate) fn retune(&self, config: &config::Notify) {
        let shared = &self.shared;
        let probe_timeout = config.probe_timeout.as_millis() as u64;
        shared.probe_timeout.store(probe_timeout, Ordering::Relaxed);
        let cap = shared.work(|desk| (desk.limit(config), Vec::new()));
        shared.metrics.upstream_notify_pending_max.set(cap as i64);
        // Windows may end sooner.
        shared.wake.notify_one();
    }

    /// Counts the restarts of the worker at the node (GEN-3).
    pub(crate) fn supervise(&self, node: &NodeSupervisor) {
        node.watch(&self.worker);
    }

    /// Takes a notice in. Never blocks; a full store refuses or makes room by NOTIFY-13.
    pub fn send(&self, notice: Notice) {
        let shared = &self.shared;
        shared.work(|desk| ((), desk.offer(notice, Instant::now())));
        shared.wake.notify_one();
    }

    /// Makes room for `more` notices than were configured: a planned stop is about to end so many
    /// sessions (STOP-2). From now on they are sent 64 at a time.
    pub fn prepare_stop(&self, more: usize) {
        let cap = self.shared.lock().prepare_stop(more);
        self.shared
            .metrics
            .upstream_notify_pending_max
            .set(cap as i64);
    }

    /// Waits until no notice of `key` is held or in flight: the last one was recorded, refused or
    /// counted lost. One that was refused is given up (OWNER-5). May wait as long as the server is
    /// away.
    pub async fn settled(&self, key: &NoticeKey) {
        let shared = &self.shared;
        loop {
            let left = shared.left.notified();
            let mut left = std::pin::pin!(left);
            left.as_mut().enable();
            if shared.work(|desk| desk.settle(key)) {
                return;
            }
            left.await;
        }
    }

    /// Waits until fewer than `most` notices are held.
    pub async fn fewer_than(&self, most: usize) {
        let shared = &self.shared;
        loop {
            let left = shared.left.notified();
            let mut left = std::pin::pin!(left);
            left.as_mut().enable();
            if shared.lock().held() < most {
                return;
            }
            left.await;
        }
    }

    /// Waits until a CONNECTED was lost, the breaker is closed and the store has room again: every
    /// agent is to be registered anew, once per return (NOTIFY-14). For one caller at a time.
    pub async fn replay_due(&self) {
        let shared = &self.shared;
        let mut breaker = shared.upstream.watch_breaker();
        loop {
            let left = shared.left.notified();
            let mut left = std::pin::pin!(left);
            left.as_mut().enable();
            let closed = *breaker.borrow_and_update() == BreakerState::Closed;
            if shared.lock().take_due_replay(closed) {
                return;
            }
            tokio::select! {
                () = left => {}
                // The sender lives as long as `shared`, which holds the upstream.
                _ = breaker.changed() => {}
            }
        }
    }

    /// The final send of a planned stop (STOP-6): all held notices at once, 64 at a time,
    /// whatever the breaker says, no retry but for those that found no stream, until `deadline`;
    /// the rest is counted lost. Later notices are counted, not sent. How many were sent, and how many not.
    pub async fn flush(&self, deadline: Instant) -> (usize, usize) {
        let shared = &self.shared;
        let mut drained = shared.drained.subscribe();
        shared.work(|desk| ((), desk.begin_final_send(Instant::now())));
        shared.wake.notify_one();
        // An error is the deadline, or a worker that is gone: what is left is lost either way.
        let _ = timeout_at(deadline, drained.wait_for(|done| *done)).await;
        let (sent, unsent) = shared.work(|desk| {
            let facts = desk.give_up(Instant::now());
            (desk.report(), facts)
        });
        shared.wake.notify_one();
        if unsent > 0 {
            tracing::warn!(
                "Planned stop: {sent} stream-status notification(s) sent, \
                 {unsent} not sent by the flush deadline"
            );
        }
        (sent, unsent)
    }
}

impl Shared {
    /// Does something at the desk, publishes its levels, and counts what happened.
    fn work<T>(&self, act: impl FnOnce(&mut Desk) -> (T, Vec<Fact>)) -> T {
        let mut desk = self.lock();
        let (result, facts) = act(&mut desk);
        self.publish(&desk);
        drop(desk);
        for fact in &facts {
            self.count(*fact);
        }
        if !facts.is_empty() {
            self.left.notify_waiters();
        }
        result
    }

    /// Called under the lock, so that the last levels published are the last ones there were.
    fn publish(&self, desk: &Desk) {
        let (held, in_flight) = (desk.held(), desk.in_flight());
        self.counts.held.store(held, Ordering::Relaxed);
        self.counts.in_flight.store(in_flight, Ordering::Relaxed);
        let metrics = &self.metrics;
        for (gauge, level) in [
            (&metrics.upstream_notify_pending, held),
            (&metrics.upstream_notify_inflight, in_flight),
            (&metrics.upstream_notify_pending_hwm, desk.high_water()),
            (&metrics.upstream_notify_unacked_keys, desk.unacked()),
            (
                &metrics.upstream_notify_unacked_slow_keys,
                desk.unacked_slow(),
            ),
        ] {
            gauge.set(level as i64);
        }
    }

    fn count(&self, fact: Fact) {
        let metrics = &self.metrics;
        match fact {
            Fact::Coalesced => metrics.upstream_notify_coalesced_total.inc(),
            Fact::Requeued => metrics.upstream_notify_requeued_total.inc(),
            Fact::Dropped => metrics
                .upstream_notify_dropped_total
                .with_label_values(&["at_capacity"])
                .inc(),
            Fact::Lost(event, loss) => metrics
                .upstream_notify_lost_total
                .with_label_values(&[event.label(), loss.label()])
                .inc(),
            Fact::Ended(end) => metrics
                .upstream_notify_unacked_ended_total
                .with_label_values(&[end.label()])
                .inc(),
            // Its line in the log is written where its agent is known.
            Fact::Again(_) => {}
        }
    }

    /// The bound of a probe.
    fn probe_timeout(&self) -> Duration {
        Duration::from_millis(self.probe_timeout.load(Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
