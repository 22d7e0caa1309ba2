//! ReportInventory: admitted like a heartbeat, then proxied.

use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use prost::Message;
use tonic::Status;
use yuzu_proto::agent::v1::InventoryReport;
use yuzu_proto::peek::InventoryPeek;

use super::AgentService;
use crate::edge::connection::Connection;
use crate::edge::{Response, grpc};
use crate::observe::log::{limit, limited};
use crate::session::Refusal;
use crate::upstream::Rpc;

impl AgentService {
    /// Refused before a permit is asked for (INV-1); the server's answer is relayed unchanged
    /// (INV-4).
    pub(super) async fn report_inventory(
        &self,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
    ) -> Result<Response, Status> {
        let deadline = self.deadline(&request);
        let (message, _charge) = grpc::read_unary(request.into_body(), connection).await?;
        let peek = InventoryPeek::peek(&message).map_err(grpc::malformed)?;
        let session_id = std::str::from_utf8(peek.session_id).unwrap_or_default();
        if let Err(refusal) = self.registry.admit(session_id, connection.key()) {
            let reason = refusal.label();
            self.owners
                .metrics
                .inventory_rejected_total
                .with_label_values(&[reason])
                .inc();
            limited!(
                warn,
                limit::INVENTORY_REFUSED,
                "ReportInventory refused before forwarding: no session held on this connection ({reason})"
            );
            return Err(Refusal::status());
        }
        if InventoryReport::decode(message.clone()).is_err() {
            self.upstream.record_encode_failure(Rpc::Inventory);
            return Err(Status::internal("the report holds text that is not UTF-8"));
        }
        match self.upstream.inventory(message, deadline).await {
            Ok(answer) => Ok(grpc::answer(answer, connection)),
            Err(error) => {
                limited!(
                    warn,
                    limit::UPSTREAM_INVENTORY_FAILED,
                    "Upstream ReportInventory failed: {error}"
                );
                Err(Self::failed(&error))
            }
        }
    }
}
