//! ListAgents and GetAgent, from the session table (MGMT-1 to MGMT-3).

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use tonic::Status;
use yuzu_proto::common::v1::{PluginInfo, Timestamp};
use yuzu_proto::server::v1::{
    AgentSummary, GetAgentRequest, GetAgentResponse, ListAgentsRequest, ListAgentsResponse,
};

use super::{MAX_LISTING, ManagementService, answer, decode};
use crate::edge::Response;
use crate::edge::connection::Connection;
use crate::session::Session;

const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1000;

impl ManagementService {
    pub(super) fn list_agents(
        &self,
        message: Bytes,
        connection: &Arc<Connection>,
    ) -> Result<Response, Status> {
        let request: ListAgentsRequest = decode(message)?;
        let limit = page_size(request.limit);
        let (sessions, more) = self.registry.page(&request.cursor, limit);
        let page = page(sessions.iter().map(|session| summary(session)), more);
        Ok(answer(&page, connection))
    }

    /// Of this node's sessions, else of those that other nodes hold (ADJ-5).
    pub(super) async fn get_agent(
        &self,
        message: Bytes,
        connection: &Arc<Connection>,
    ) -> Result<Response, Status> {
        let request: GetAgentRequest = decode(message)?;
        let found = match self.registry.route(&request.agent_id) {
            Some(session) => Some(described(&session)),
            None => self.described_elsewhere(&request.agent_id).await,
        };
        let found = found.ok_or_else(|| Status::not_found("no such agent is connected"))?;
        Ok(answer(&found, connection))
    }

    async fn described_elsewhere(&self, agent_id: &str) -> Option<GetAgentResponse> {
        let description = self.sharing.as_ref()?.describe(agent_id).await?;
        Some(GetAgentResponse {
            summary: Some(AgentSummary {
                agent_id: agent_id.to_owned(),
                hostname: description.hostname,
                platform: None,
                agent_version: String::new(),
                online: true,
                last_seen: Some(Timestamp {
                    millis_epoch: description.connected_at_ms,
                }),
            }),
            plugins: description.plugins.into_iter().map(plugin).collect(),
        })
    }
}

fn described(session: &Session) -> GetAgentResponse {
    let plugins = session.registration.plugins.iter();
    GetAgentResponse {
        summary: Some(summary(session)),
        plugins: plugins.map(|name| plugin(name.to_string())).collect(),
    }
}

fn plugin(name: String) -> PluginInfo {
    PluginInfo {
        name,
        ..PluginInfo::default()
    }
}

/// The page size in force: 1..=1000, else 100 (MGMT-1).
fn page_size(limit: i32) -> usize {
    match usize::try_from(limit) {
        Ok(limit @ 1..=MAX_PAGE) => limit,
        _ => DEFAULT_PAGE,
    }
}

/// A page of `agents`, after which there are `more`. It ends early when it would grow too large:
/// host names are as long as agents say.
fn page(agents: impl Iterator<Item = AgentSummary>, mut more: bool) -> ListAgentsResponse {
    let mut page = ListAgentsResponse::default();
    let mut bytes = 0;
    for agent in agents {
        bytes += agent.encoded_len();
        if bytes > MAX_LISTING && !page.agents.is_empty() {
            more = true;
            break;
        }
        page.agents.push(agent);
    }
    if more && let Some(last) = page.agents.last() {
        page.next_cursor = last.agent_id.clone();
    }
    page
}

fn summary(session: &Session) -> AgentSummary {
    AgentSummary {
        agent_id: session.agent_id().to_string(),
        hostname: session.registration.hostname.to_string(),
        platform: None,
        agent_version: String::new(),
        online: true,
        last_seen: Some(Timestamp {
            millis_epoch: session.connected_at_ms,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(n: usize, hostname: usize) -> AgentSummary {
        AgentSummary {
            agent_id: format!("agent-{n}"),
            hostname: "h".repeat(hostname),
            ..AgentSummary::default()
        }
    }

    #[test]
    fn mgmt_1_next_cursor_is_the_last_id_when_more_exist_and_empty_otherwise() {
        let agents = || (0..3).map(|n| agent(n, 10));
        assert_eq!(page(agents(), true).next_cursor, "agent-2");
        assert_eq!(page(agents(), false).next_cursor, "");
        assert_eq!(page(agents(), false).agents.len(), 3);
        assert_eq!(page(std::iter::empty(), false).next_cursor, "");
    }

    #[test]
    fn mgmt_1_a_page_too_large_to_receive_ends_early_and_the_next_one_goes_on() {
        let page = page((0..9).map(|n| agent(n, 1 << 20)), false);
        assert_eq!(page.agents.len(), 2);
        assert_eq!(page.next_cursor, "agent-1");
        assert!(page.encoded_len() < 4 << 20);
        let huge = super::page((0..2).map(|n| agent(n, 5 << 20)), false);
        assert_eq!((huge.agents.len(), &*huge.next_cursor), (1, "agent-0"));
    }

    #[test]
    fn mgmt_1_a_limit_outside_1_to_1000_is_100() {
        let sizes = [
            (-1, 100),
            (0, 100),
            (1, 1),
            (1000, 1000),
            (1001, 100),
            (i32::MIN, 100),
        ];
        for (limit, size) in sizes {
            assert_eq!(page_size(limit), size, "limit {limit}");
        }
    }
}
