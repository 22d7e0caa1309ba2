//! Heartbeat: admitted, buffered, acknowledged at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use hyper::body::Incoming;
use prost::Message;
use tokio::time::Instant;
use tonic::Status;
use tracing::info;
use yuzu_proto::agent::v1::HeartbeatResponse;
use yuzu_proto::common::v1::Timestamp;
use yuzu_proto::peek::HeartbeatPeek;

use super::AgentService;
use crate::edge::connection::Connection;
use crate::edge::{Response, grpc};
use crate::session::{Refusal, unix_ms};

impl AgentService {
    /// The answer never waits for the server (HB-1).
    pub(super) async fn heartbeat(
        &self,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
    ) -> Result<Response, Status> {
        let (message, _charge) = grpc::read_unary(request.into_body(), connection).await?;
        let peek = HeartbeatPeek::peek(&message).map_err(grpc::malformed)?;
        // An id that is no text was never minted.
        let session_id = std::str::from_utf8(peek.session_id).unwrap_or_default();
        if let Err(refusal) = self.registry.admit(session_id, connection.key()) {
            return Err(self.refused(refusal));
        }
        self.batcher.push(session_id, &message);
        let answer = HeartbeatResponse {
            acknowledged: true,
            server_time: Some(Timestamp {
                millis_epoch: unix_ms(),
            }),
            pending_commands: Vec::new(),
        };
        Ok(grpc::answer(
            Bytes::from(answer.encode_to_vec()),
            connection,
        ))
    }

    /// Counts a refusal (ADMIT-3) and summarizes it (ADMIT-5).
    fn refused(&self, refusal: Refusal) -> Status {
        let metrics = &self.owners.metrics;
        match refusal {
            Refusal::ConnectionMismatch => {
                metrics
                    .heartbeat_session_mismatch_total
                    .with_label_values(&["security"])
                    .inc();
            }
            Refusal::UnknownSession => {
                metrics
                    .heartbeat_rejected_total
                    .with_label_values(&[refusal.label()])
                    .inc();
            }
        }
        if let Some(summary) = self.refusals.count(refusal, Instant::now()) {
            info!("Heartbeat admission rejected heartbeats since the last summary: {summary}");
        }
        Refusal::status()
    }
}

/// Refusals since the last summary line (ADMIT-5).
pub(super) struct Refusals {
    state: Mutex<Tally>,
}

#[derive(Default)]
struct Tally {
    interval: Duration,
    summed_up: Option<Instant>,
    unknown_session: u64,
    connection_mismatch: u64,
}

impl Refusals {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            state: Mutex::new(Tally {
                interval,
                ..Tally::default()
            }),
        }
    }

    pub(super) fn retune(&self, interval: Duration) {
        self.state().interval = interval;
    }

    fn state(&self) -> MutexGuard<'_, Tally> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one refusal; the text of the summary when one is due.
    fn count(&self, refusal: Refusal, now: Instant) -> Option<String> {
        let mut tally = self.state();
        match refusal {
            Refusal::UnknownSession => tally.unknown_session += 1,
            Refusal::ConnectionMismatch => tally.connection_mismatch += 1,
        }
        if tally
            .summed_up
            .is_some_and(|at| now.duration_since(at) < tally.interval)
        {
            return None;
        }
        let counted = [
            (Refusal::UnknownSession, tally.unknown_session),
            (Refusal::ConnectionMismatch, tally.connection_mismatch),
        ];
        let counted = counted.iter().filter(|(_, count)| *count > 0);
        let parts: Vec<_> = counted
            .map(|(reason, count)| format!("{}={count}", reason.label()))
            .collect();
        *tally = Tally {
            interval: tally.interval,
            summed_up: Some(now),
            ..Tally::default()
        };
        Some(parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admit_5_the_first_refusal_is_summed_up_at_once_and_then_once_per_interval() {
        let start = Instant::now();
        let refusals = Refusals::new(Duration::from_secs(10));
        let at = |seconds| start + Duration::from_secs(seconds);
        let first = refusals.count(Refusal::UnknownSession, at(0));
        assert_eq!(first.as_deref(), Some("unknown_session=1"));
        assert_eq!(refusals.count(Refusal::UnknownSession, at(1)), None);
        assert_eq!(refusals.count(Refusal::UnknownSession, at(9)), None);
        assert_eq!(refusals.count(Refusal::ConnectionMismatch, at(9)), None);
        let second = refusals.count(Refusal::UnknownSession, at(10));
        assert_eq!(
            second.as_deref(),
            Some("unknown_session=3, connection_mismatch=1")
        );
    }
}
