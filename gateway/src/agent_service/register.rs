//! Register: checked, proxied within the agent's own deadline, answered with the server's bytes.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use hyper::body::Incoming;
use prost::Message;
use tonic::Status;
use yuzu_proto::agent::v1::RegisterRequest;
use yuzu_proto::peek::{RegisterAnswerPeek, RegisterPeek};
use yuzu_proto::wire::replace_bytes_field;

use super::{AgentService, IdentityGate};
use crate::edge::connection::Connection;
use crate::edge::{Response, grpc, origin};
use crate::observe::log::{limit, limited};
use crate::session::{Kept, Registration};
use crate::upstream::Rpc;

/// Longest agent id, in bytes (REG-2).
const MAX_AGENT_ID: usize = 256;
/// Number of `RegisterRequest.gateway_observed_peer`.
const OBSERVED_PEER: u32 = 6;

impl AgentService {
    /// The order of steps is REG-1's. Cancelled anywhere, the slot, the queue place and the call
    /// are given back by their `Drop` (REG-14).
    pub(super) async fn register(
        &self,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
        gate: Option<&IdentityGate>,
    ) -> Result<Response, Status> {
        let deadline = self.deadline(&request);
        let origin = origin::of(&request, connection);
        let (message, _charge) = grpc::read_unary(request.into_body(), connection).await?;
        let peek = RegisterPeek::peek(&message).map_err(grpc::malformed)?;
        self.check_agent_id(peek.agent_id)?;
        let agent_id = self.check_text(&message, peek.agent_id)?;
        if let Some(gate) = gate {
            gate.may_register(connection, &agent_id)?;
        }
        // Empty when nobody is known (ORIGIN-3).
        let peer = origin.map_or_else(String::new, |ip| ip.to_string());
        let observed = replace_bytes_field(&message, OBSERVED_PEER, peer.as_bytes())
            .map_err(grpc::malformed)?;
        // What is kept is the copy: thousands of agents may wait for the server at once.
        drop(message);
        let slot = self
            .registry
            .reserve(connection.key(), &agent_id)
            .map_err(|_| {
                self.owners.metrics.session_limit_rejected_total.inc();
                limited!(
                    warn,
                    limit::SESSION_CAP_REACHED,
                    "Register refused: the connection has reached its session cap"
                );
                Status::unavailable("too many sessions on this connection")
            })?;
        let answer = self
            .upstream
            .register(observed.clone(), None, deadline)
            .await;
        let answer = answer.map_err(|error| {
            limited!(
                warn,
                limit::UPSTREAM_REGISTER_FAILED,
                "Upstream Register failed: {error}"
            );
            Self::failed(&error)
        })?;
        let verdict = RegisterAnswerPeek::peek(&answer).map_err(grpc::malformed)?;
        if verdict.accepted {
            // Nobody could subscribe with an empty id, and agents with the same one would share
            // their admission.
            let session_id = std::str::from_utf8(verdict.session_id).unwrap_or_default();
            if session_id.is_empty() {
                return Err(Status::internal("the server's answer has no session id"));
            }
            let peek = RegisterPeek::peek(&observed).map_err(grpc::malformed)?;
            let registration = Registration {
                agent_id,
                hostname: text(peek.hostname),
                plugins: peek
                    .plugins
                    .iter()
                    .map(|name| Box::from(&*text(name)))
                    .collect(),
                request: Kept::from(&*observed),
                peer: origin,
            };
            slot.commit(&Arc::from(session_id), registration)
                .map_err(|_| {
                    tracing::info!("Register superseded by a newer registration");
                    Status::unavailable("Registration superseded by a newer registration")
                })?;
        }
        Ok(grpc::answer(answer, connection))
    }

    fn check_agent_id(&self, agent_id: &[u8]) -> Result<(), Status> {
        if (1..=MAX_AGENT_ID).contains(&agent_id.len()) {
            return Ok(());
        }
        let family = &self.owners.metrics.register_refused_total;
        family.with_label_values(&["agent_id_length"]).inc();
        limited!(
            warn,
            limit::REGISTER_REFUSED,
            "Register refused: the agent id is empty or longer than 256 bytes (size {} bytes)",
            agent_id.len()
        );
        Err(Status::invalid_argument(
            "agent_id length exceeds 256 bytes or is empty",
        ))
    }

    /// Text that is not UTF-8 would be refused by every encoder (REG-11).
    fn check_text(&self, message: &Bytes, agent_id: &[u8]) -> Result<Arc<str>, Status> {
        let agent_id = std::str::from_utf8(agent_id).ok();
        match agent_id.filter(|_| RegisterRequest::decode(message.clone()).is_ok()) {
            Some(agent_id) => Ok(Arc::from(agent_id)),
            None => {
                self.upstream.record_encode_failure(Rpc::Register);
                Err(Status::internal("the request holds text that is not UTF-8"))
            }
        }
    }
}

fn text(bytes: &[u8]) -> Arc<str> {
    Arc::from(&*String::from_utf8_lossy(bytes))
}
