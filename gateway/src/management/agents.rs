//! ListAgents and GetAgent, from the session table and what peers tell (MGMT-1 to MGMT-3, ADJ-5).

use std::collections::BTreeMap;
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
use crate::session::{Epoch, Session};

const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1000;

impl ManagementService {
    /// Lists whom a command without ids goes to (ADJ-5).
    pub(super) async fn list_agents(
        &self,
        message: Bytes,
        connection: &Arc<Connection>,
    ) -> Result<Response, Status> {
        let request: ListAgentsRequest = decode(message)?;
        let limit = page_size(request.limit);
        let sharing = self.sharing.as_ref();
        let elsewhere = match sharing.filter(|_| self.router.broadcasts_to_mesh()) {
            // One more, to know whether there is one.
            Some(sharing) => Some(sharing.list(&request.cursor, limit + 1).await),
            None => None,
        };
        let (sessions, more) = self.registry.page(&request.cursor, limit);
        let own = sessions
            .iter()
            .map(|session| (session.epoch, summary(session)));
        let page = match elsewhere {
            None => page(own.map(|(_, agent)| agent), more),
            Some(elsewhere) => {
                let (agents, is_over) = merged(own, elsewhere.into_agents(), limit);
                page(agents, more || is_over)
            }
        };
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

/// The first `limit` of both, each agent once, as its newer session is (ADJ-3); and whether there are
/// more of them.
fn merged(
    own: impl Iterator<Item = (Epoch, AgentSummary)>,
    elsewhere: impl Iterator<Item = (Box<str>, Epoch)>,
    limit: usize,
) -> (impl Iterator<Item = AgentSummary>, bool) {
    let mut all: BTreeMap<String, (Epoch, AgentSummary)> = own
        .map(|(epoch, agent)| (agent.agent_id.clone(), (epoch, agent)))
        .collect();
    for (agent_id, epoch) in elsewhere {
        let agent_id = String::from(agent_id);
        if all.get(&agent_id).is_none_or(|(own, _)| *own < epoch) {
            let agent = summary_elsewhere(agent_id.clone());
            all.insert(agent_id, (epoch, agent));
        }
    }
    let is_over = all.len() > limit;
    let first = all.into_values().take(limit);
    (first.map(|(_, agent)| agent), is_over)
}

/// That an agent is connected to another node is all that is known of it here: the rest is asked for
/// by GetAgent.
fn summary_elsewhere(agent_id: String) -> AgentSummary {
    AgentSummary {
        agent_id,
        online: true,
        ..AgentSummary::default()
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

    fn epoch(number: u64) -> Epoch {
        Epoch::from_number(number).unwrap()
    }

    #[test]
    fn adj_5_mgmt_1_own_agents_and_those_of_peers_make_one_page() {
        let own = |agents: &[(usize, u64)]| {
            let own = agents.iter().map(|&(n, at)| (epoch(at), agent(n, 3)));
            own.collect::<Vec<_>>()
        };
        let there = |agents: &[(usize, u64)]| {
            let there = agents.iter();
            let there = there.map(|&(n, at)| (format!("agent-{n}").into(), epoch(at)));
            there.collect::<Vec<_>>()
        };
        // What is here has its host name.
        let list = |own: Vec<_>, there: Vec<_>, limit| {
            let (agents, more) = merged(own.into_iter(), there.into_iter(), limit);
            let shown = |agent: AgentSummary| format!("{} {}", agent.agent_id, agent.hostname);
            (agents.map(shown).collect::<Vec<_>>(), more)
        };
        let (agents, more) = list(own(&[(1, 10), (3, 10)]), there(&[(2, 10), (4, 10)]), 4);
        assert_eq!(
            (&*agents.join(","), more),
            ("agent-1 hhh,agent-2 ,agent-3 hhh,agent-4 ", false)
        );
        let (agents, more) = list(own(&[(1, 10), (3, 10)]), there(&[(2, 10), (4, 10)]), 3);
        assert_eq!((agents.len(), more), (3, true));
        // The newer session counts, and each agent is there once.
        let (agents, more) = list(own(&[(1, 10), (2, 20)]), there(&[(1, 11), (2, 19)]), 2);
        assert_eq!((&*agents.join(","), more), ("agent-1 ,agent-2 hhh", false));
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
