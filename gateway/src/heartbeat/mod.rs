//! Heartbeats on their way to the server, batched.
//!
//! Responsible for holding the newest heartbeat of each session within its caps and for sending
//! them every interval; what is given up is counted by reason. Must never make an agent wait, and
//! never touch the breaker (HB-11).

mod buffer;
mod chunk;
mod fit;
mod flush;
mod list;
mod loss;
mod message;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use buffer::{Buffer, Freed, Limits, Offered, Outcome};
use chunk::Tail;
use loss::Loss;

use crate::config;
use crate::gateways::Names;
use crate::observe::metrics::Metrics;
use crate::supervise::{Kept, NodeSupervisor, keep_running};
use crate::tuning::Pace;
use crate::upstream::Upstream;

/// Takes heartbeats in; clones share one buffer.
#[derive(Clone)]
pub struct Batcher {
    shared: Arc<Shared>,
    task: Arc<Kept>,
}

/// What the handle and the flush task share.
struct Shared {
    held: Mutex<Held>,
    /// Held during a flush: the one reserved stream of heartbeats.
    flushing: tokio::sync::Mutex<()>,
    upstream: Upstream,
    on_answer: Box<OnAnswer>,
    tail: Tail,
    pace: Pace,
    metrics: Arc<Metrics>,
}

/// Takes the server's answer to a batch, and how many heartbeats that had.
type OnAnswer = dyn Fn(&Bytes, usize) + Send + Sync;

struct Held {
    buffer: Buffer,
    /// Heartbeats the server took, ever.
    sent: usize,
}

impl Batcher {
    /// Starts the flush task. Must be called inside a tokio runtime. `names` says whose name every
    /// batch carries. `on_answer` gets the answer
    /// (the bytes of a `BatchHeartbeatResponse`, unchecked) to each batch that the server took,
    /// and the number of its heartbeats; it must not block.
    pub fn start(
        upstream: Upstream,
        names: impl Into<Names>,
        config: &config::Heartbeat,
        metrics: Arc<Metrics>,
        on_answer: impl Fn(&Bytes, usize) + Send + Sync + 'static,
    ) -> Batcher {
        let tail = Tail::new(names.into());
        let limits = limits(config, &tail);
        let shared = Arc::new(Shared {
            held: Mutex::new(Held {
                buffer: Buffer::new(limits),
                sent: 0,
            }),
            flushing: tokio::sync::Mutex::new(()),
            upstream,
            on_answer: Box::new(on_answer),
            tail,
            pace: Pace::new(config.batch_interval),
            metrics,
        });
        let held = Arc::clone(&shared);
        let task = keep_running("heartbeat flush", move || {
            let held = Arc::clone(&held);
            async move { flush::run(&held).await }
        });
        Batcher {
            shared,
            task: Arc::new(task),
        }
    }

    /// Puts another configuration in force. Under lowered caps the oldest heartbeats give way.
    pub(crate) fn retune(&self, config: &config::Heartbeat) {
        let shared = &self.shared;
        shared.pace.set(config.batch_interval);
        let freed = shared.lock().buffer.limit(limits(config, &shared.tail));
        shared.count_evicted(&freed);
    }

    /// Counts the restarts of the flush task at the node (GEN-3).
    pub(crate) fn supervise(&self, node: &NodeSupervisor) {
        node.watch(&self.task);
    }

    /// Buffers an admitted heartbeat (an encoded `HeartbeatRequest`) of `session_id`, as a copy.
    /// Never waits for a flush.
    pub fn push(&self, session_id: &str, heartbeat: &[u8]) {
        let shared = &self.shared;
        let fit = fit::fit(heartbeat, shared.tail.largest_heartbeat());
        for loss in fit.lost {
            shared.lost(loss, 1);
        }
        if let Some(heartbeat) = fit.heartbeat {
            let offered = shared.lock().buffer.offer(session_id, heartbeat);
            shared.count(&offered);
        }
    }

    /// One flush now, ended at `deadline` (STOP-5): how many heartbeats the server took, and how
    /// many are still held.
    pub async fn flush(&self, deadline: Instant) -> (usize, usize) {
        let before = self.shared.lock().sent;
        // An error is the deadline; what was not sent is still held.
        let _ = timeout_at(deadline, flush::flush(&self.shared)).await;
        let held = self.shared.lock();
        (held.sent - before, held.buffer.len())
    }
}

fn limits(config: &config::Heartbeat, tail: &Tail) -> Limits {
    let config::Heartbeat {
        batch_interval: _,
        max_sessions,
        max_bytes,
    } = *config;
    Limits {
        sessions: max_sessions,
        bytes: max_bytes,
        heartbeat: tail.largest_heartbeat(),
    }
}

impl Shared {
    fn count(&self, offered: &Offered) {
        match offered.outcome {
            Outcome::Held => {}
            Outcome::Coalesced => self.metrics.heartbeat_coalesced_total.inc(),
            Outcome::Refused => self.lost(Loss::BufferFull, 1),
        }
        if offered.oversize.is_some() {
            self.lost(Loss::SnapshotOversize, 1);
        }
        self.count_evicted(&offered.evicted);
    }

    fn count_evicted(&self, evicted: &Freed) {
        self.lost(Loss::SnapshotEvicted, evicted.snapshots.len());
        self.lost(Loss::BufferFull, evicted.heartbeats.len());
    }

    fn lost(&self, loss: Loss, count: usize) {
        if count > 0 {
            let dropped = &self.metrics.heartbeat_buffer_dropped_total;
            let dropped = dropped.with_label_values(&[loss.label()]);
            dropped.inc_by(count as u64);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
