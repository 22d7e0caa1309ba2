//! Subscribe: takes the pending registration and starts the session's owner.

use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use tonic::Status;
use yuzu_proto::SESSION_HEADER;

use super::{AgentService, IdentityGate};
use crate::edge::connection::Connection;
use crate::edge::{Response, grpc};
use crate::observe::log::{limit, limited};
use crate::session::{Inbound, SubscribeBody, TakeRefused, start_owner};

impl AgentService {
    /// Answers with the headers at once, so that the agent knows that it is subscribed.
    pub(super) fn subscribe(
        &self,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
        gate: Option<&IdentityGate>,
    ) -> Result<Response, Status> {
        let header = request.headers().get(SESSION_HEADER);
        let header = header.ok_or_else(|| {
            Status::invalid_argument(format!("the metadata {SESSION_HEADER} is missing"))
        })?;
        let session_id = header.to_str().map_err(|_| not_pending())?;
        if let Some(gate) = gate {
            // Asked before the row is taken: a stranger's attempt must not use it up.
            gate.shows_certificate(connection)?;
            let agent_id = self.registry.pending_agent(session_id);
            gate.speaks_for(connection, &agent_id.ok_or_else(not_pending)?)?;
        }
        let home = mint_stream_home_id()?;
        let subscribed = self.registry.subscribe(session_id, connection.key(), home);
        let session = subscribed.map_err(|refused| match refused {
            TakeRefused::NotPending => not_pending(),
            TakeRefused::CapReached => self.cap_reached(),
        })?;
        let write_errors = self.owners.metrics.stream_write_errors_total.clone();
        let body = SubscribeBody::new(Arc::clone(&session), Arc::clone(connection), write_errors);
        let inbound = Inbound::new(request.into_body(), connection, &self.owners.arriving);
        start_owner(session, inbound, Arc::clone(&self.owners));
        Ok(grpc::stream(body))
    }

    fn cap_reached(&self) -> Status {
        self.owners.metrics.session_limit_rejected_total.inc();
        limited!(
            warn,
            limit::SESSION_CAP_REACHED,
            "Subscribe refused: the connection has reached its session cap"
        );
        Status::unavailable("too many sessions on this connection")
    }
}

fn not_pending() -> Status {
    Status::not_found("no pending registration for this session")
}

/// 16 random bytes as 32 lowercase hex digits.
fn mint_stream_home_id() -> Result<Arc<str>, Status> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes)
        .map_err(|_| Status::internal("the system gives no random bytes"))?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Arc::from(hex))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_home_is_32_lowercase_hex_digits_and_never_the_same() {
        let (a, b) = (
            mint_stream_home_id().unwrap(),
            mint_stream_home_id().unwrap(),
        );
        assert_eq!(a.len(), 32);
        assert!(a.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')));
        assert_ne!(a, b);
    }
}
