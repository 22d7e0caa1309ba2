//! QueryInventory: what this node knows of its connected agents (MGMT-5).

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use tonic::Status;
use yuzu_proto::common::v1::Timestamp;
use yuzu_proto::server::v1::{QueryInventoryRequest, QueryInventoryResponse};

use super::{ManagementService, answer, decode};
use crate::edge::Response;
use crate::edge::connection::Connection;
use crate::session::{Session, unix_ms};

const MAX_AGENTS: usize = 10_000;

impl ManagementService {
    pub(super) fn query_inventory(
        &self,
        message: Bytes,
        connection: &Arc<Connection>,
    ) -> Result<Response, Status> {
        let request: QueryInventoryRequest = decode(message)?;
        let sessions = if request.agent_id.is_empty() {
            self.registry.all()
        } else {
            self.registry.route(&request.agent_id).into_iter().collect()
        };
        let wanted = |session: &&Arc<Session>| {
            let plugins = &session.registration.plugins;
            request.plugin.is_empty() || plugins.iter().any(|name| **name == *request.plugin)
        };
        let plugin_data: HashMap<String, Bytes> = sessions
            .iter()
            .filter(wanted)
            .take(MAX_AGENTS)
            .map(|session| (session.agent_id().to_string(), self.describe(session)))
            .collect();
        let response = QueryInventoryResponse {
            agent_id: request.agent_id,
            plugin_data,
            collected_at: Some(Timestamp {
                millis_epoch: unix_ms(),
            }),
        };
        Ok(answer(&response, connection))
    }

    fn describe(&self, session: &Session) -> Bytes {
        let object = json!({
            "agent_id": &**session.agent_id(),
            "session_id": &*session.session_id,
            "node": self.node,
            "connected_at": session.connected_at_ms,
            "plugins": &*session.registration.plugins,
        });
        Bytes::from(object.to_string())
    }
}
