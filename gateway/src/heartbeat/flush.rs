//! Sends what the buffer holds, chunk by chunk (HB-3 to HB-5).
//!
//! Responsible for the order, for halving what the server refuses, and for leaving everything
//! that failed in the buffer. One flush runs at a time. Must never feed the breaker.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::Shared;
use super::buffer::Entry;
use super::chunk::{MAX_CHUNK, encode};
use crate::upstream::CallError;

const CHUNKS_MAX: usize = 8;
const CALLS_MAX: usize = 64;

const INVALID_ARGUMENT: u32 = 3;
const RESOURCE_EXHAUSTED: u32 = 8;

/// Flushes every `every`; never returns.
pub(super) async fn run(shared: &Shared, every: Duration) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick comes at once.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        flush(shared).await;
    }
}

/// One flush of what is held now.
pub(super) async fn flush(shared: &Shared) {
    let _one_at_a_time = shared.flushing.lock().await;
    let end = shared.lock().buffer.end();
    let (mut sent, mut chunks, mut calls) = (0, 0, 0);
    while chunks < CHUNKS_MAX {
        let chunk = shared.lock().buffer.chunk(end, MAX_CHUNK);
        if chunk.is_empty() {
            break;
        }
        let done = send(shared, chunk, &mut sent, &mut calls).await;
        if !done {
            break;
        }
        chunks += 1;
    }
    match (sent, chunks) {
        (0, _) => {}
        (sent, 0 | 1) => tracing::debug!("Flushed {sent} heartbeats in 1 chunk(s)"),
        (sent, chunks) => tracing::info!("Flushed {sent} heartbeats in {chunks} chunk(s)"),
    }
}

/// Sends one chunk, in halves where the server refuses it; false when the flush is to stop.
async fn send(shared: &Shared, chunk: Vec<Entry>, sent: &mut usize, calls: &mut usize) -> bool {
    let mut parts = vec![chunk];
    while let Some(mut part) = parts.pop() {
        if *calls >= CALLS_MAX {
            return false;
        }
        *calls += 1;
        let batch = encode(&part, &shared.node);
        match shared.upstream.batch_heartbeat(batch).await {
            Ok(answer) => {
                *sent += part.len();
                shared.accepted(&part);
                (shared.on_answer)(&answer, part.len());
            }
            Err(error) if !refused(&error) => return false,
            Err(error) if part.len() == 1 => shared.rejected(&part, reason(&error)),
            Err(_) => {
                let second = part.split_off(part.len() / 2);
                parts.extend([second, part]);
            }
        }
    }
    true
}

/// Whether the fault is in the batch; anything else is transient (HB-5).
fn refused(error: &CallError) -> bool {
    matches!(
        error.status_code(),
        Some(INVALID_ARGUMENT | RESOURCE_EXHAUSTED)
    ) || *error == CallError::Encode
}

fn reason(error: &CallError) -> &'static str {
    match error {
        CallError::Encode => "heartbeat_invalid",
        _ => "chunk_rejected",
    }
}

impl Shared {
    /// Forgets what the server took.
    fn accepted(&self, part: &[Entry]) {
        let mut held = self.lock();
        held.sent += part.len();
        part.iter()
            .for_each(|entry| held.buffer.remove(entry.place));
    }

    fn rejected(&self, part: &[Entry], reason: &str) {
        let mut held = self.lock();
        part.iter()
            .for_each(|entry| held.buffer.remove(entry.place));
        drop(held);
        self.dropped(reason, part.len());
    }
}
