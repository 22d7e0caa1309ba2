//! The lane of Guardian frames: best effort, never in the way of an agent's stream (GUARD-*).

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use yuzu_proto::wire::{bytes_field_len, put_bytes_field};

use super::Inner;
use super::breaker::BreakerState;
use super::rpc::Rpc;

/// Forwards in flight (GUARD-4).
pub(crate) const IN_FLIGHT: usize = 50;

const AGENT_ID: u32 = 1;
const RESPONSE: u32 = 2;

/// Sends `frame` as the agent's, or drops and counts it. `slots` bounds what is in flight.
pub(super) fn forward(inner: &Arc<Inner>, slots: &Arc<Semaphore>, agent_id: &str, frame: &[u8]) {
    let dropped = |reason| {
        inner
            .metrics
            .guardian_forward_dropped_total
            .with_label_values(&[reason])
            .inc();
    };
    if matches!(inner.circuit.state(), BreakerState::Open { .. }) {
        return dropped("circuit_open");
    }
    let Ok(slot) = Arc::clone(slots).try_acquire_owned() else {
        return dropped("at_capacity");
    };
    inner.metrics.guardian_forward_accepted_total.inc();
    let (inner, request) = (Arc::clone(inner), wrapped(agent_id, frame));
    tokio::spawn(async move {
        let _slot = slot;
        let until = Instant::now() + inner.rpc_timeout();
        // Counted and logged there; nothing else depends on it (GUARD-5).
        let _ = inner.client.call(Rpc::Guardian, request, None, until).await;
    });
}

/// `ForwardGuardianRequest` around the frame's own bytes.
fn wrapped(agent_id: &str, frame: &[u8]) -> Bytes {
    let size = bytes_field_len(AGENT_ID, agent_id.len()) + bytes_field_len(RESPONSE, frame.len());
    let mut request = BytesMut::with_capacity(size);
    put_bytes_field(&mut request, AGENT_ID, agent_id.as_bytes());
    put_bytes_field(&mut request, RESPONSE, frame);
    request.freeze()
}
