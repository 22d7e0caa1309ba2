//! AgentService, as the agents call it.
//!
//! Responsible for reading what is needed of a request, asking the core, and answering with the
//! statuses of the contract. Must never decide anything that a core decides.

mod heartbeat;
mod identity;
mod inventory;
mod register;
mod subscribe;

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use tonic::Status;
use yuzu_proto::path;

use crate::edge::connection::Connection;
use crate::edge::{Response, grpc};
use crate::heartbeat::Batcher;
use crate::session::{OwnerContext, Registry};
use crate::upstream::{CallError, Upstream};
pub(crate) use identity::IdentityGate;

/// The largest part of an agent's deadline kept back for its answer (PERMIT-4).
const MAX_MARGIN: Duration = Duration::from_secs(5);

/// Serves `yuzu.agent.v1.AgentService`.
pub(crate) struct AgentService {
    registry: Arc<Registry>,
    owners: Arc<OwnerContext>,
    upstream: Upstream,
    batcher: Batcher,
    refusals: heartbeat::Refusals,
}

impl AgentService {
    pub(crate) fn new(
        owners: Arc<OwnerContext>,
        batcher: Batcher,
        summary_interval: Duration,
    ) -> Self {
        Self {
            registry: Arc::clone(&owners.registry),
            upstream: owners.upstream.clone(),
            owners,
            batcher,
            refusals: heartbeat::Refusals::new(summary_interval),
        }
    }

    /// Refused heartbeats are summed up once every `summary_interval` from now on.
    pub(crate) fn retune(&self, summary_interval: Duration) {
        self.refusals.retune(summary_interval);
    }

    /// Answers a call of this service; `None` when the path is not served (LSN-9). `gate` judges
    /// the certificates of a listener that enforces identities.
    pub(crate) async fn call(
        &self,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
        gate: Option<&IdentityGate>,
    ) -> Option<Response> {
        let bound = || gate.map_or(Ok(()), |gate| gate.shows_certificate(connection));
        let answered = match request.uri().path() {
            path::HEARTBEAT => match bound() {
                Ok(()) => self.heartbeat(request, connection).await,
                Err(status) => Err(status),
            },
            path::SUBSCRIBE => self.subscribe(request, connection, gate),
            // Boxed: a heartbeat, of which there are most, must not take the room of these.
            path::REGISTER => Box::pin(self.register(request, connection, gate)).await,
            path::REPORT_INVENTORY => match bound() {
                Ok(()) => Box::pin(self.report_inventory(request, connection)).await,
                Err(status) => Err(status),
            },
            _ => return None,
        };
        Some(answered.unwrap_or_else(grpc::refuse))
    }

    /// How long a call to the server may take in all: the agent's own deadline less the margin
    /// (PERMIT-4).
    fn deadline<B>(&self, request: &Request<B>) -> tokio::time::Instant {
        let own = grpc::timeout(request.headers());
        let budget = match own {
            Some(timeout) => timeout - MAX_MARGIN.min(timeout / 6),
            None => self.upstream.call_timeout(),
        };
        tokio::time::Instant::now() + budget
    }

    /// The status of a failed upstream call (REG-12, INV-5).
    fn failed(error: &CallError) -> Status {
        if error.gateway_made() {
            Status::unavailable(error.to_string())
        } else {
            Status::internal("the server could not be asked or refused the call")
        }
    }
}
