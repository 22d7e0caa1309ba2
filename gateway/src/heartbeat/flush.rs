//! Sends what the buffer holds, chunk by chunk (HB-3 to HB-5).
//!
//! Responsible for the order, for halving what the server refuses, and for leaving everything
//! that failed in the buffer. One flush runs at a time. Must never feed the breaker.

use super::Shared;
use super::buffer::Step;
use super::chunk::{Chunk, Part};
use super::loss::Loss;
use crate::upstream::CallError;

const CHUNKS_MAX: usize = 8;
const CALLS_MAX: usize = 64;

/// What is copied or forgotten under one hold of the buffer's lock.
const STEP: Step = Step {
    entries: 256,
    bytes: 256 << 10,
};

const INVALID_ARGUMENT: u32 = 3;
const RESOURCE_EXHAUSTED: u32 = 8;

/// Flushes at the configured pace; never returns.
pub(super) async fn run(shared: &Shared) {
    shared.tail.is_named().await;
    let mut ticks = shared.pace.ticks();
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
    for _ in 0..CHUNKS_MAX {
        let Some(chunk) = shared.next_chunk(end) else {
            break;
        };
        let before = sent;
        let done = send(shared, chunk, &mut sent, &mut calls).await;
        chunks += usize::from(sent > before);
        if !done {
            break;
        }
    }
    match chunks {
        0 => {}
        1 => tracing::debug!("Flushed {sent} heartbeats in 1 chunk(s)"),
        _ => tracing::info!("Flushed {sent} heartbeats in {chunks} chunk(s)"),
    }
}

/// Sends one chunk, in halves where the server refuses it; false when the flush is to stop.
async fn send(shared: &Shared, chunk: Part, sent: &mut usize, calls: &mut usize) -> bool {
    let mut parts = vec![chunk];
    while let Some(part) = parts.pop() {
        if *calls >= CALLS_MAX {
            return false;
        }
        *calls += 1;
        match shared.upstream.batch_heartbeat(part.message()).await {
            Ok(answer) => {
                *sent += part.len();
                shared.accepted(&part);
                (shared.on_answer)(&answer, part.len());
            }
            Err(error) if !refused(&error) => return false,
            Err(error) if part.len() == 1 => shared.rejected(&part, reason(&error)),
            Err(_) => {
                let [first, second] = part.halves();
                parts.extend([second, first]);
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

fn reason(error: &CallError) -> Loss {
    match error {
        CallError::Encode => Loss::HeartbeatInvalid,
        _ => Loss::ChunkRejected,
    }
}

impl Shared {
    /// The oldest entries, as many as one batch can hold (HB-3). Copied in steps, so that no
    /// heartbeat that comes in waits for all of it.
    fn next_chunk(&self, end: u64) -> Option<Part> {
        let held = {
            let buffer = &mut self.lock().buffer;
            buffer.rewind();
            buffer.bytes()
        };
        let mut chunk = Chunk::new(&self.tail, held);
        while self.lock().buffer.pack(&mut chunk, end, STEP) {}
        chunk.seal()
    }

    /// Forgets what the server took.
    fn accepted(&self, part: &Part) {
        self.lock().sent += part.len();
        self.settle(part);
    }

    fn rejected(&self, part: &Part, loss: Loss) {
        self.settle(part);
        self.lost(loss, part.len());
    }

    fn settle(&self, part: &Part) {
        for tickets in part.tickets().chunks(STEP.entries) {
            // Freed without the lock.
            let _freed = self.lock().buffer.settle(tickets);
        }
    }
}
