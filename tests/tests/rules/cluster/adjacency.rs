//! ADJ-1 to ADJ-5, MESH-5: who holds which agent.

use tonic::Code;
use tonic::transport::Channel;
use yuzu_gateway::config::{Broadcast, Config, Listener, Visibility};
use yuzu_proto::server::v1::agent_event::Event as Change;
use yuzu_proto::server::v1::management_service_client::ManagementServiceClient;
use yuzu_proto::server::v1::{
    AgentEvent, GetAgentRequest, GetAgentResponse, ListAgentsRequest, WatchEventsRequest,
};
use yuzu_server_stub::{StubConfig, StubServer};
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::fleet::{Fleet, Options};

use super::{Node, config, seed};
use crate::support::soon;

const OF_PEERS: [(&str, &str); 1] = [("node", "all")];

pub(super) async fn server() -> StubServer {
    let server = StubServer::start(StubConfig::default()).await;
    server.expect("the server stub starts")
}

/// A node with a server and a management port. It takes nobody for dead who only is slow, as all are on
/// a busy machine.
pub(super) fn served(name: &str, server: &StubServer) -> Config {
    let mut config = config(name);
    config.cluster.dead_after = PATIENCE;
    let management = Listener::management(config.listeners[0].address);
    config.listeners.push(management);
    config.upstream.endpoints = vec![seed(server.addr())];
    config
}

pub(super) async fn attach(node: &Node, id: &str) -> Agent {
    let address = node.gateway.agent_address().expect("an agent listener");
    Agent::attach(address, id).await.expect("an agent")
}

pub(super) async fn manage(node: &Node) -> ManagementServiceClient<Channel> {
    let address = node.gateway.management_address().expect("a listener");
    let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address");
    ManagementServiceClient::new(endpoint.connect().await.expect("a connection"))
}

async fn get(
    client: &mut ManagementServiceClient<Channel>,
    id: &str,
) -> Result<GetAgentResponse, Code> {
    let ask = GetAgentRequest {
        agent_id: id.to_owned(),
    };
    let answer = client.get_agent(ask).await;
    answer
        .map(tonic::Response::into_inner)
        .map_err(|status| status.code())
}

/// Waits until a node finds the agent: its peer has 2 s for each answer.
async fn finds(client: &mut ManagementServiceClient<Channel>, id: &str) -> GetAgentResponse {
    let found = async {
        loop {
            match get(client, id).await {
                Ok(found) => return found,
                Err(code) => assert_eq!(code, Code::NotFound),
            }
        }
    };
    soon("the agent", found).await
}

/// Waits until a node knows of exactly so many agents of the others.
pub(super) async fn knows(node: &Node, agents: usize) {
    node.metric_becomes("adjacency_agents", &OF_PEERS, agents as f64)
        .await;
}

#[tokio::test]
async fn adj_1_a_node_knows_the_agents_of_its_peers_whoever_was_there_first() {
    let server = server().await;
    let a = Node::start(served("a", &server)).await;
    let early = attach(&a, "early").await;
    let b = Node::join(served("b", &server), &[&a]).await;
    let c = Node::join(served("c", &server), &[&a]).await;
    knows(&b, 1).await;
    let _late = attach(&a, "late").await;
    let _other = attach(&b, "other").await;
    knows(&a, 1).await;
    knows(&b, 2).await;
    knows(&c, 3).await;
    drop(early);
    knows(&b, 1).await;
    knows(&c, 2).await;
    // Nothing was missing on the way.
    for node in [&a, &b, &c] {
        assert_eq!(node.metric("adjacency_resync_total", &[]).await, 0.0);
        assert_eq!(node.metric("adjacency_lag_ms", &[]).await, 0.0);
    }
}

#[tokio::test]
async fn adj_5_get_agent_and_watch_events_see_agents_of_peers() {
    let server = server().await;
    let a = Node::start(served("a", &server)).await;
    let b = Node::join(served("b", &server), &[&a]).await;
    let _early = attach(&b, "early").await;
    knows(&a, 1).await;
    let mut client = manage(&a).await;
    let watch = client.watch_events(WatchEventsRequest::default()).await;
    let mut events = watch.expect("a watch").into_inner();
    let mut next = async || -> AgentEvent {
        let event = tokio::time::timeout(PATIENCE, events.message()).await;
        event
            .expect("in time")
            .expect("no error")
            .expect("an event")
    };

    let agent = attach(&b, "agent").await;
    let came = next().await;
    assert_eq!(came.agent_id, "agent");
    let Some(Change::Connected(connected)) = came.event else {
        panic!("not connected");
    };
    assert_eq!(connected.session_id, agent.session_id);
    let here = get(&mut manage(&b).await, "agent").await;
    let there = finds(&mut client, "agent").await;
    assert_eq!(there.summary.as_ref().unwrap().hostname, "agent.example");
    assert_eq!(Ok(there), here);

    drop(agent);
    let went = next().await;
    assert_eq!(went.agent_id, "agent");
    assert!(matches!(went.event, Some(Change::Disconnected(_))));
    assert_eq!(get(&mut client, "agent").await, Err(Code::NotFound));
    assert_eq!(get(&mut client, "nobody").await, Err(Code::NotFound));
}

/// All pages of so many: ids and host names.
async fn listed(node: &Node, limit: i32) -> Vec<(String, String)> {
    let (mut client, mut all) = (manage(node).await, Vec::new());
    let mut ask = ListAgentsRequest {
        limit,
        ..ListAgentsRequest::default()
    };
    loop {
        let page = client.list_agents(ask.clone()).await.expect("a page");
        let page = page.into_inner();
        assert!(page.agents.len() <= limit as usize);
        for agent in page.agents {
            // When an agent of a peer came is not known here, nor its host name.
            assert!(agent.online);
            assert_eq!(agent.last_seen.is_none(), agent.hostname.is_empty());
            all.push((agent.agent_id, agent.hostname));
        }
        ask.cursor = page.next_cursor;
        if ask.cursor.is_empty() {
            return all;
        }
    }
}

#[tokio::test]
async fn adj_5_list_agents_lists_those_of_peers_where_broadcasts_reach_them() {
    let server = server().await;
    let mesh = |name| {
        let mut config = served(name, &server);
        config.command.broadcast = Broadcast::Mesh;
        config
    };
    let a = Node::start(mesh("a")).await;
    let b = Node::join(mesh("b"), &[&a]).await;
    let c = Node::join(served("c", &server), &[&a]).await;
    let mut private = mesh("p");
    private.node.visibility = Visibility::Private;
    let p = Node::join(private, &[&a]).await;
    let _agents = [
        attach(&a, "agent-1").await,
        attach(&b, "agent-2").await,
        attach(&c, "agent-3").await,
    ];
    // Two nodes claim each of these; the later one has it.
    let _moved = attach(&a, "agent-4").await;
    knows(&b, 3).await;
    let _there = attach(&b, "agent-4").await;
    let _other = attach(&b, "agent-0").await;
    knows(&a, 4).await;
    let _here = attach(&a, "agent-0").await;
    knows(&b, 4).await;
    knows(&c, 6).await;
    let host = |id: &str| (id.to_owned(), format!("{id}.example"));
    let unknown = |id: &str| (id.to_owned(), String::new());
    for limit in [1, 2, 100] {
        let expected = [
            host("agent-0"),
            host("agent-1"),
            unknown("agent-2"),
            unknown("agent-3"),
            unknown("agent-4"),
        ];
        assert_eq!(listed(&a, limit).await, expected, "pages of {limit}");
        assert_eq!(listed(&c, limit).await, [host("agent-3")]);
    }
    // It forwards to nobody (VIS-7).
    knows(&p, 7).await;
    assert_eq!(listed(&p, 100).await, []);
}

#[tokio::test]
async fn mesh_5_the_agents_of_a_dead_node_go_with_it_and_come_back_elsewhere() {
    let server = server().await;
    let a = Node::start(served("a", &server)).await;
    let b = Node::join(served("b", &server), &[&a]).await;
    let c = Node::join(served("c", &server), &[&a]).await;
    let agent = attach(&b, "agent").await;
    let _stays = attach(&c, "stays").await;
    knows(&a, 2).await;
    knows(&c, 1).await;
    b.gateway.shutdown().await;
    knows(&a, 1).await;
    knows(&c, 0).await;
    drop(agent);
    let _back = attach(&c, "agent").await;
    knows(&a, 2).await;
    finds(&mut manage(&a).await, "agent").await;
}

#[tokio::test]
async fn mesh_5_rows_of_a_node_that_starts_anew_are_those_of_its_new_life() {
    let server = server().await;
    let a = Node::start(served("a", &server)).await;
    let b = Node::join(served("b", &server), &[&a]).await;
    let _agents = [attach(&b, "one").await, attach(&b, "two").await];
    knows(&a, 2).await;
    b.gateway.shutdown().await;
    let b = Node::join(served("b", &server), &[&a]).await;
    let _back = attach(&b, "one").await;
    knows(&a, 1).await;
}

#[tokio::test]
async fn adj_3_an_agent_that_moves_is_where_its_newer_session_is() {
    let server = server().await;
    let a = Node::start(served("a", &server)).await;
    let b = Node::join(served("b", &server), &[&a]).await;
    let c = Node::join(served("c", &server), &[&a]).await;
    // Both streams live.
    let older = attach(&b, "agent").await;
    knows(&a, 1).await;
    let newer = attach(&c, "agent").await;
    knows(&a, 2).await;
    let mut client = manage(&a).await;
    finds(&mut client, "agent").await;
    drop(newer);
    knows(&a, 1).await;
    finds(&mut client, "agent").await;
    drop(older);
    knows(&a, 0).await;
    assert_eq!(get(&mut client, "agent").await, Err(Code::NotFound));
}

#[tokio::test]
async fn adj_4_many_agents_arrive_while_the_nodes_work() {
    let server = server().await;
    let a = Node::start(served("a", &server)).await;
    let address = a.gateway.agent_address().expect("an agent listener");
    let fleet = Fleet::start(Options {
        heartbeat: None,
        ..Options::new(address, 300)
    });
    fleet.all_subscribed(PATIENCE).await.expect("a fleet");
    let b = Node::join(served("b", &server), &[&a]).await;
    knows(&b, 300).await;
    fleet.stop().await;
    knows(&b, 0).await;
}
