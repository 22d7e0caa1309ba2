//! One call: bytes in, bytes out, exactly one outcome class.
//!
//! Responsible for the call's time (sent as `grpc-timeout` and kept here), the ledger's slot, the
//! limits on sizes, and for counting and logging how it ended. A caller that drops the call
//! resets its stream and frees its slot. Must never retry a request that may have reached the
//! server.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::channel::Channel;
use super::error::{CallError, ConnectError};
use super::frame;
use super::rpc::Rpc;
use super::transport::broken;
use crate::observe::log::{limit, limited};
use crate::observe::metrics::Metrics;

/// Largest request, encoded.
pub(crate) const MAX_REQUEST: usize = 4 << 20;

/// Connections that one call tries, when those before ended without taking the request.
const CONNECTIONS_MAX: usize = 3;

/// Makes calls.
#[derive(Debug)]
pub(crate) struct Client {
    /// `None`: no endpoint is configured.
    channel: Option<Channel>,
    max_answer: usize,
    metrics: Arc<Metrics>,
}

impl Client {
    pub(crate) fn new(channel: Option<Channel>, max_answer: usize, metrics: Arc<Metrics>) -> Self {
        Self {
            channel,
            max_answer,
            metrics,
        }
    }

    /// Whether there is a server to call.
    pub(crate) fn has_endpoint(&self) -> bool {
        self.channel.is_some()
    }

    /// Whether a connection is up.
    #[cfg(test)]
    pub(crate) fn is_connected(&self) -> bool {
        self.channel.as_ref().is_some_and(Channel::is_connected)
    }

    /// Calls `rpc` with the encoded `request`; the answer's encoded message, or why not, by
    /// `until` at the latest, the wait for a connection included.
    pub(crate) async fn call(
        &self,
        rpc: Rpc,
        request: Bytes,
        session: Option<&str>,
        until: Instant,
    ) -> Result<Bytes, CallError> {
        let started = Instant::now();
        let result = if request.len() > MAX_REQUEST {
            Err(CallError::Encode)
        } else {
            let attempt = self.attempt(rpc, &request, session, until);
            timeout_at(until, attempt)
                .await
                .unwrap_or(Err(CallError::Timeout))
        };
        match &result {
            Ok(_) => self
                .metrics
                .upstream_rpc_duration_ms
                .with_label_values(&[rpc.label()])
                .observe(started.elapsed().as_secs_f64() * 1_000.0),
            Err(error) => self.failed(rpc, error),
        }
        result
    }

    /// Counts and logs a failed call.
    pub(crate) fn failed(&self, rpc: Rpc, error: &CallError) {
        if let Some(code) = error.code() {
            self.metrics
                .upstream_rpc_errors_total
                .with_label_values(&[rpc.label(), code])
                .inc();
            log_failure(rpc, error, code);
        }
    }

    async fn attempt(
        &self,
        rpc: Rpc,
        request: &[u8],
        session: Option<&str>,
        until: Instant,
    ) -> Result<Bytes, CallError> {
        let channel = self.channel.as_ref().ok_or(CallError::NoUpstream)?;
        let message = frame::prefixed(request);
        for _ in 0..CONNECTIONS_MAX {
            let connection = channel.connection().await?;
            // Declared before the call, so that the call is dropped before its slot is freed.
            let _slot = connection
                .open()
                .map_err(|_full| CallError::TooManyStreams)?;
            let left = until.saturating_duration_since(Instant::now());
            let request =
                frame::request(rpc, connection.authority(), message.clone(), session, left)?;
            match connection.sender().try_send_request(request).await {
                Ok(response) => {
                    let answer = frame::answer(response, self.max_answer).await?;
                    return match rpc.understands(&answer) {
                        true => Ok(answer),
                        false => Err(CallError::Answer("not a message of this call")),
                    };
                }
                // Given back untouched by a connection that was ending: safe to send elsewhere.
                Err(error) if error.message().is_some() => {}
                Err(error) => return Err(broken(error.error())),
            }
        }
        Err(CallError::Closed(ConnectError::new(
            "closed",
            "no connection took the request",
        )))
    }
}

fn log_failure(rpc: Rpc, error: &CallError, code: &str) {
    let method = rpc.method();
    match error {
        CallError::Status(..) if error.request_fault() || rpc == Rpc::Guardian => {
            limited!(
                warn,
                limit::UPSTREAM_RPC_FAULTED,
                "Upstream RPC {method} failed: {error}"
            );
        }
        CallError::Status(..) => tracing::warn!("Upstream RPC {method} failed: {error}"),
        _ => limited!(
            warn,
            limit::UPSTREAM_RPC_RAISED,
            "Upstream RPC {method} raised {code}:{error}"
        ),
    }
}
