//! Stream-status notices: telling the server which agent's stream is where.
//!
//! Responsible for holding every notice until the server has recorded it, in order, bounded, and
//! for counting each one that is lost. Must never block who hands a notice in, nor let one send
//! wait for another.

mod notice;
mod store;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use notice::Sender;
pub use notice::{Event, Notice, NoticeKey};
use store::{Offered, Store};

use crate::config;
use crate::observe::metrics::Metrics;
use crate::upstream::Upstream;
use crate::upstream::keep::{Kept, keep_running};

/// Hands notices to the server; clones share one store.
#[derive(Clone)]
pub struct Notifier {
    shared: Arc<Shared>,
    _worker: Arc<Kept>,
}

/// What the handle and the worker share.
struct Shared {
    store: Mutex<Held>,
    /// There may be something to send.
    wake: Notify,
    /// A notice left the store.
    left: Notify,
    /// Whether everything was sent or given up during a final send.
    drained: watch::Sender<bool>,
    upstream: Upstream,
    sender: Sender,
    probe_timeout: std::time::Duration,
    metrics: Arc<Metrics>,
}

struct Held {
    store: Store,
    stage: Stage,
    /// Results of the final send.
    sent: usize,
    unsent: usize,
}

/// How far a planned stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Notices wait for the breaker and for one of the ten slots.
    Normal,
    /// The final send: wide, whatever the breaker says, no retry (STOP-6).
    Final,
    /// Nothing is sent any more.
    Over,
}

impl Notifier {
    /// Starts the worker. Must be called inside a tokio runtime.
    pub fn start(
        upstream: Upstream,
        node: &config::Node,
        config: &config::Notify,
        metrics: Arc<Metrics>,
    ) -> Notifier {
        metrics
            .upstream_notify_pending_max
            .set(config.pending_max as i64);
        let shared = Arc::new(Shared {
            store: Mutex::new(Held {
                store: Store::new(config.pending_max),
                stage: Stage::Normal,
                sent: 0,
                unsent: 0,
            }),
            wake: Notify::new(),
            left: Notify::new(),
            drained: watch::Sender::new(false),
            upstream,
            sender: Sender::new(node),
            probe_timeout: config.probe_timeout,
            metrics,
        });
        let held = Arc::clone(&shared);
        let worker = keep_running("notify", move || worker::run(Arc::clone(&held)));
        Notifier {
            shared,
            _worker: Arc::new(worker),
        }
    }

    /// Takes a notice in. Never blocks; a full store refuses or makes room by NOTIFY-13.
    pub fn send(&self, notice: Notice) {
        let event = notice.event;
        let shared = &self.shared;
        let mut held = shared.lock();
        if held.stage == Stage::Over {
            held.unsent += 1;
            shared.lost(event, "shutdown");
            return;
        }
        let offered = held.store.offer(notice);
        shared.gauge(&held.store);
        drop(held);
        match offered {
            Offered::Held => {}
            Offered::Coalesced => shared.metrics.upstream_notify_coalesced_total.inc(),
            Offered::Evicted(evicted) => {
                shared.lost(evicted.event, "evicted");
                shared.left.notify_waiters();
            }
            Offered::Refused => {
                let dropped = &shared.metrics.upstream_notify_dropped_total;
                dropped.with_label_values(&["at_capacity"]).inc();
                shared.lost(event, "at_capacity");
            }
        }
        shared.wake.notify_one();
    }

    /// Waits until no notice of `key` is held or in flight: the last one was recorded, refused or
    /// counted lost (OWNER-5). May wait as long as the server is away.
    pub async fn settled(&self, key: &NoticeKey) {
        let shared = &self.shared;
        loop {
            let left = shared.left.notified();
            let mut left = std::pin::pin!(left);
            left.as_mut().enable();
            if !shared.lock().store.contains(key) {
                return;
            }
            left.await;
        }
    }

    /// The final send of a planned stop (STOP-6): all held notices at once, 64 at a time,
    /// whatever the breaker says, no retry, until `deadline`; the rest is counted lost. Later
    /// notices are counted, not sent. How many were sent, and how many not.
    pub async fn flush(&self, deadline: Instant) -> (usize, usize) {
        let shared = &self.shared;
        let mut drained = shared.drained.subscribe();
        {
            let mut held = shared.lock();
            if held.stage == Stage::Normal {
                held.stage = Stage::Final;
            }
        }
        shared.wake.notify_one();
        // An error is the deadline, or a worker that is gone: what is left is lost either way.
        let _ = timeout_at(deadline, drained.wait_for(|done| *done)).await;
        let (sent, unsent) = shared.give_up();
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
    /// Ends the final send: what is held or in flight is lost.
    fn give_up(&self) -> (usize, usize) {
        let mut held = self.lock();
        held.stage = Stage::Over;
        for event in held.store.drain() {
            held.unsent += 1;
            self.lost(event, "shutdown");
        }
        self.gauge(&held.store);
        let result = (held.sent, held.unsent);
        drop(held);
        self.wake.notify_one();
        self.left.notify_waiters();
        result
    }

    fn lost(&self, event: Event, reason: &str) {
        self.metrics
            .upstream_notify_lost_total
            .with_label_values(&[event.label(), reason])
            .inc();
    }

    fn gauge(&self, store: &Store) {
        self.metrics
            .upstream_notify_pending
            .set(store.held() as i64);
        self.metrics
            .upstream_notify_inflight
            .set(store.in_flight() as i64);
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
