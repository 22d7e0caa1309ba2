//! One call: bytes in, bytes out, exactly one outcome class.
//!
//! Responsible for the call's time (sent as `grpc-timeout` and kept here), the ledger's slot, the
//! limits on sizes, and for counting and logging how it ended. A call has two halves, for callers
//! to whom the order of requests matters: the request is handed over, the answer is waited for. A
//! caller that drops the call resets its stream and frees its slot. Must never retry a request
//! that may have reached the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::client::ResponseFuture;
use tokio::time::{Instant, timeout_at};

use super::channel::Channel;
use super::error::{CallError, ConnectError};
use super::frame;
use super::ledger::Slot;
use super::rpc::Rpc;
use super::transport::{broken, unanswered};
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
    max_answer: AtomicUsize,
    metrics: Arc<Metrics>,
}

impl Client {
    pub(crate) fn new(channel: Option<Channel>, max_answer: usize, metrics: Arc<Metrics>) -> Self {
        Self {
            channel,
            max_answer: AtomicUsize::new(max_answer),
            metrics,
        }
    }

    /// From now on answers have at most `max_answer` bytes.
    pub(crate) fn retune(&self, max_answer: usize) {
        self.max_answer.store(max_answer, Ordering::Relaxed);
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

    /// Waits for a live connection, also while none is being made. Whether there is one, at
    /// `until` at the latest.
    pub(crate) async fn connected(&self, until: Instant) -> bool {
        match &self.channel {
            None => false,
            Some(channel) => timeout_at(until, channel.connected()).await.is_ok(),
        }
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
        let begun = self.begin(rpc, &request, session, until).await;
        self.finish(begun).await
    }

    /// The first half of [`Client::call`]: hands the request to the connection. Requests leave in
    /// the order in which this returns. It waits only while a connection is being made, and
    /// dropped in that wait it has done nothing.
    pub(crate) async fn begin(
        &self,
        rpc: Rpc,
        request: &[u8],
        session: Option<&str>,
        until: Instant,
    ) -> Begun {
        let started = Instant::now();
        let sent = if request.len() > MAX_REQUEST {
            Err(CallError::Encode)
        } else {
            self.send(rpc, request, session, until).await
        };
        Begun {
            rpc,
            started,
            until,
            sent,
        }
    }

    /// The second half of [`Client::call`]: the answer to a request that was handed over.
    pub(crate) async fn finish(&self, begun: Begun) -> Result<Bytes, CallError> {
        let Begun {
            rpc,
            started,
            until,
            sent,
        } = begun;
        let max_answer = self.max_answer.load(Ordering::Relaxed);
        let result = match sent {
            Ok(sent) => timeout_at(until, sent.answer(rpc, max_answer))
                .await
                .unwrap_or(Err(CallError::Timeout)),
            Err(error) => Err(error),
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
            if let Some(kind) = error.tls_failure() {
                self.metrics
                    .upstream_tls_handshake_failures_total
                    .with_label_values(&[rpc.label(), kind])
                    .inc();
            }
            log_failure(rpc, error, code);
        }
    }

    async fn send(
        &self,
        rpc: Rpc,
        request: &[u8],
        session: Option<&str>,
        until: Instant,
    ) -> Result<Sent, CallError> {
        let channel = self.channel.as_ref().ok_or(CallError::NoUpstream)?;
        let message = frame::prefixed(request);
        for _ in 0..CONNECTIONS_MAX {
            let connection = match channel.live() {
                Some(connection) => connection,
                None => timeout_at(until, channel.connection())
                    .await
                    .unwrap_or(Err(CallError::Timeout))?,
            };
            let slot = connection
                .open()
                .map_err(|_full| CallError::TooManyStreams)?;
            let left = until.saturating_duration_since(Instant::now());
            let request = frame::request(rpc, connection.origin(), session, left)?;
            match connection.send(request, message.clone()) {
                Ok(answer) => return Ok(Sent { answer, slot }),
                // It was ending: nothing was sent, and there will be another one.
                Err(_) if connection.is_closed() => {}
                Err(error) => return Err(broken(&error)),
            }
        }
        Err(CallError::Closed(ConnectError::new(
            "closed",
            "no connection took the request",
        )))
    }
}

/// A call whose request is on its way, or that failed before that. Dropped, it is neither counted
/// nor waited for; a stream that it opened is reset.
#[derive(Debug)]
#[must_use = "a call is counted when it is finished"]
pub(crate) struct Begun {
    rpc: Rpc,
    started: Instant,
    until: Instant,
    sent: Result<Sent, CallError>,
}

/// An open stream.
#[derive(Debug)]
struct Sent {
    answer: ResponseFuture,
    slot: Slot,
}

impl Sent {
    async fn answer(self, rpc: Rpc, max: usize) -> Result<Bytes, CallError> {
        // Declared before the answer, so that the stream is dropped before its slot is freed.
        let _slot = self.slot;
        let response = self.answer.await.map_err(|error| unanswered(&error))?;
        let answer = frame::answer(response, max).await?;
        match rpc.understands(&answer) {
            true => Ok(answer),
            false => Err(CallError::Answer("not a message of this call")),
        }
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
