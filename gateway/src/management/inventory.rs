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
/// The same in bytes, several times what that many agents need.
const MAX_BYTES: usize = 32 << 20;

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
        let described = sessions
            .iter()
            .filter(wanted)
            .map(|session| (session.agent_id().to_string(), self.describe(session)));
        let plugin_data = bounded(described);
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
            "node": &*self.names.of(session.agent_id()),
            "connected_at": session.connected_at_ms,
            "plugins": &*session.registration.plugins,
        });
        Bytes::from(object.to_string())
    }
}

fn bounded(described: impl Iterator<Item = (String, Bytes)>) -> HashMap<String, Bytes> {
    let mut bytes = 0;
    let fitting = described.take(MAX_AGENTS).take_while(|(agent_id, object)| {
        bytes += agent_id.len() + object.len();
        bytes <= MAX_BYTES
    });
    fitting.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(count: usize, len: usize) -> impl Iterator<Item = (String, Bytes)> {
        (0..count).map(move |n| (n.to_string(), Bytes::from(vec![b'x'; len])))
    }

    #[test]
    fn mgmt_5_at_most_10_000_agents() {
        assert_eq!(bounded(described(10_001, 1)).len(), 10_000);
    }

    #[test]
    fn mgmt_5_agents_with_endless_plugin_lists_end_the_answer_early() {
        // An id of one byte and 1 MiB - 1 byte each: 32 of them are the bound.
        let megabyte = described(40, (1 << 20) - 1).map(|(_, object)| object);
        let ids = ('A'..).map(String::from);
        assert_eq!(bounded(ids.zip(megabyte)).len(), 32);
    }
}
