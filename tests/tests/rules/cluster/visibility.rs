//! VIS-1 to VIS-6: private nodes, and under whose names their agents are told of.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use yuzu_gateway::config::{Config, Visibility};
use yuzu_proto::gateway::v1::StreamStatusNotification;
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_proto::server::v1::{GetAgentRequest, QueryInventoryRequest};
use yuzu_server_stub::{Rpc, StubServer};
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::operator::Operator;

use super::adjacency::{attach, knows, manage, served, server};
use super::aside::Aside;
use super::{Node, notices, seed, told};
use crate::support::{WHILE, command, serve_one};

fn private(name: &str, server: &StubServer) -> Config {
    let mut config = served(name, server);
    config.node.visibility = Visibility::Private;
    config
}

/// The gateway under which the server knows each agent.
fn routes(notices: &[StreamStatusNotification]) -> BTreeMap<&str, &str> {
    let connected = notices
        .iter()
        .filter(|notice| notice.event() == Event::Connected);
    connected
        .map(|notice| (&*notice.agent_id, &*notice.gateway_node))
        .collect()
}

/// The agents that the server knows under this gateway.
fn under(gateway: &str, notices: &[StreamStatusNotification]) -> BTreeSet<String> {
    let routes = routes(notices).into_iter();
    let under = routes.filter(|(_, one)| *one == gateway);
    under.map(|(agent, _)| agent.to_owned()).collect()
}

async fn agents(node: &Node, ids: &[&str]) -> Vec<Agent> {
    let mut agents = Vec::new();
    for id in ids {
        agents.push(attach(node, id).await);
    }
    agents
}

/// With the gateways a and b, the choice is worked out: see the tests of the choice.
const AGENTS: [&str; 8] = [
    "agent-1", "agent-2", "agent-3", "agent-4", "agent-5", "agent-6", "agent-7", "agent-8",
];

#[tokio::test]
async fn vis_3_the_server_never_hears_the_name_of_a_private_node() {
    let server = server().await;
    let a = Node::start(served("gw-a", &server)).await;
    let b = Node::join(served("gw-b", &server), &[&a]).await;
    let p = Node::join(private("gw-p", &server), &[&a]).await;
    p.lists(&["gw-a", "gw-b"]).await;
    a.lists(&["gw-b", "gw-p"]).await;
    assert_eq!(a.page().await["members"][1]["visibility"], "private");
    let held = agents(&p, &AGENTS).await;
    let _at_home = attach(&b, "at-home").await;
    for agent in &held {
        agent.heartbeat().await.expect("a heartbeat");
    }
    let expected: BTreeMap<&str, &str> = AGENTS
        .iter()
        .map(|agent| match *agent {
            // The highest of two scores.
            "agent-7" | "agent-8" => (*agent, "gw-b"),
            _ => (*agent, "gw-a"),
        })
        .chain([("at-home", "gw-b")])
        .collect();
    told(&server, "every agent has its gateway", |notices| {
        routes(notices) == expected
    })
    .await;

    // Nor of those who manage it.
    let mut operator = manage(&p).await;
    let answer = operator
        .query_inventory(QueryInventoryRequest::default())
        .await;
    let answer = answer.expect("an answer").into_inner();
    assert_eq!(answer.plugin_data.len(), AGENTS.len());
    for (agent, described) in answer.plugin_data {
        let described: serde_json::Value = serde_json::from_slice(&described).expect("JSON");
        assert_eq!(described["node"], expected[&*agent], "{agent}");
    }
    let of = GetAgentRequest {
        agent_id: "agent-1".into(),
    };
    let described = operator.get_agent(of).await.expect("an answer");
    assert!(!format!("{described:?}").contains("gw-p"));

    server
        .wait_received(Rpc::BatchHeartbeat, 1, PATIENCE)
        .await
        .expect("a batch");
    drop(held);
    told(&server, "every agent has left", |notices| {
        let gone = notices.iter();
        gone.filter(|one| one.event() == Event::Disconnected)
            .count()
            == AGENTS.len()
    })
    .await;
    p.gateway.shutdown().await;
    for rpc in Rpc::ALL.into_iter() {
        for received in server.received(rpc) {
            let bytes = received.raw.as_ref();
            let named = bytes.windows(4).any(|part| part == b"gw-p");
            assert!(!named, "{rpc:?} names the private node");
        }
    }
}

#[tokio::test]
async fn vis_5_agents_whose_gateway_goes_are_announced_again_and_no_others() {
    let server = server().await;
    let a = Node::start(served("gw-a", &server)).await;
    let b = Node::join(served("gw-b", &server), &[&a]).await;
    let p = Node::join(private("gw-p", &server), &[&a]).await;
    p.lists(&["gw-a", "gw-b"]).await;
    let _held = agents(&p, &AGENTS).await;
    told(&server, "they are told of", |notices| {
        let [a, b] = ["gw-a", "gw-b"].map(|gateway| under(gateway, notices).len());
        a + b == AGENTS.len() && b == 2
    })
    .await;
    let so_far = notices(&server);
    let (stay, move_on) = (under("gw-a", &so_far), under("gw-b", &so_far));
    let before = so_far.len();
    // As soon as it begins to stop: it says so, and is not chosen any more (FWD-10).
    b.gateway.shutdown().await;
    told(&server, "they have another gateway", |notices| {
        under("gw-b", notices).is_empty()
    })
    .await;
    let again = notices(&server).split_off(before);
    let agents: BTreeSet<_> = again.iter().map(|one| one.agent_id.clone()).collect();
    assert_eq!(agents, move_on);
    assert_eq!(again.len(), move_on.len());
    // The stream is where it was.
    for notice in &again {
        let first = notices(&server).into_iter();
        let mut first = first.filter(|one| one.agent_id == notice.agent_id);
        let first = first.next().expect("an earlier one");
        assert_eq!(notice.event(), Event::Connected);
        assert_eq!(notice.stream_home_id, first.stream_home_id);
        assert_eq!(notice.session_id, first.session_id);
        assert_eq!(notice.gateway_node, "gw-a");
    }
    let now = under("gw-a", &notices(&server));
    assert_eq!(now.len(), stay.len() + move_on.len());

    // One that comes wins its share, and nobody else is told of.
    let before = notices(&server).len();
    let c = Node::join(served("gw-c", &server), &[&a]).await;
    c.lists(&["gw-a", "gw-p"]).await;
    told(&server, "the newcomer has its agents", |notices| {
        !under("gw-c", notices).is_empty()
    })
    .await;
    tokio::time::sleep(WHILE).await;
    let now = notices(&server);
    let again = &now[before..];
    assert!(again.iter().all(|one| one.gateway_node == "gw-c"));
    assert_eq!(again.len(), under("gw-c", &now).len());
}

#[tokio::test]
async fn vis_6_without_a_public_node_everyone_says_so_and_the_own_name_is_given() {
    let server = server().await;
    let a = Node::start(served("gw-a", &server)).await;
    let p = Node::join(private("gw-p", &server), &[&a]).await;
    let q = Node::join(private("gw-q", &server), &[&a]).await;
    p.lists(&["gw-a", "gw-q"]).await;
    q.lists(&["gw-a", "gw-p"]).await;
    let _agent = attach(&p, "agent-1").await;
    let is_under = |gateway| {
        let is_so = move |notices: &[StreamStatusNotification]| {
            routes(notices).get("agent-1") == Some(&gateway)
        };
        told(&server, gateway, is_so)
    };
    is_under("gw-a").await;
    for node in [&a, &p, &q] {
        assert_eq!(node.metric("cluster_no_live_public_node", &[]).await, 0.0);
    }
    a.gateway.shutdown().await;
    for node in [&p, &q] {
        node.counts("cluster_no_live_public_node", &[], 1.0).await;
    }
    // Its node's own name.
    is_under("gw-p").await;
    let b = Node::join(served("gw-b", &server), &[&p]).await;
    b.lists(&["gw-p", "gw-q"]).await;
    is_under("gw-b").await;
    assert_eq!(p.metric("cluster_no_live_public_node", &[]).await, 0.0);
    assert_eq!(b.metric("cluster_no_live_public_node", &[]).await, 0.0);
}

#[tokio::test]
async fn vis_7_a_private_node_serves_its_own_agents_and_forwards_no_command() {
    let server = server().await;
    let a = Node::start(served("gw-a", &server)).await;
    let p = Node::join(private("gw-p", &server), &[&a]).await;
    p.lists(&["gw-a"]).await;
    let _elsewhere = attach(&a, "elsewhere").await;
    let mut here = attach(&p, "here").await;
    knows(&p, 1).await;
    knows(&a, 1).await;
    let operator = async |node: &Node| {
        let address = node.gateway.management_address().expect("a listener");
        Operator::connect(address).await.expect("a connection")
    };
    let both = ["elsewhere", "here"];
    let manager = operator(&p).await;
    let mut fanout = manager
        .send(&both, command("c-1"), 0)
        .await
        .expect("a call");
    serve_one(&mut here).await;
    let (entries, status) = fanout.rest().await.expect("an end");
    let outputs: BTreeMap<_, _> = entries
        .iter()
        .map(|entry| (&*entry.agent_id, &*entry.response.output))
        .collect();
    let expected = [("elsewhere", "not_connected"), ("here", "done")];
    assert!(status.is_ok());
    assert_eq!(outputs, BTreeMap::from(expected));
    assert_eq!(p.metric("forward_sessions", &[]).await, 0.0);
    // A public one forwards, to private ones as well.
    let manager = operator(&a).await;
    let mut fanout = manager
        .send(&["here"], command("c-2"), 0)
        .await
        .expect("a call");
    serve_one(&mut here).await;
    assert_eq!(fanout.rest().await.expect("an end").0.len(), 1);
}

#[tokio::test]
async fn vis_3_a_private_node_that_stood_still_announces_nobody_anew() {
    let server = server().await;
    let a = Node::start(served("gw-a", &server)).await;
    let mut private = private("gw-p", &server);
    private.cluster.seed_nodes = vec![seed(a.address())];
    let dead_after = private.cluster.dead_after;
    let mut p = Aside::start(private).await;
    a.lists(&["gw-p"]).await;
    let mut held = Vec::new();
    for id in AGENTS {
        held.push(Agent::attach(p.agents, id).await.expect("an agent"));
    }
    told(&server, "they are told of", |notices| {
        let routes = routes(notices);
        routes.len() == AGENTS.len() && routes.values().all(|gateway| *gateway == "gw-a")
    })
    .await;
    let before = notices(&server).len();
    // Longer than the other waits, which forgets it and ends their link.
    p.stands_still(dead_after + Duration::from_secs(1)).await;
    let gone = [("event", "node_down"), ("node", "gw-p")];
    a.counts("cluster_events_total", &gone, 1.0).await;
    a.lists(&["gw-p"]).await;
    // Its term is over, and some more.
    tokio::time::sleep(dead_after * 3 / 2).await;
    assert_eq!(a.names().await, ["gw-p"]);
    let gone = [("event", "node_down"), ("node", "gw-a")];
    assert_eq!(p.metric("cluster_events_total", &gone).await, 0.0);
    assert_eq!(p.metric("cluster_peers_connected", &[]).await, 1.0);
    assert_eq!(notices(&server).split_off(before), []);
}
