//! FWD-1 to FWD-10, ADJ-5: commands for agents that other nodes hold.

mod bounds;
mod broken;

use std::time::Duration;

use prost::Message;
use yuzu_gateway::config::{Broadcast, Config};
use yuzu_proto::agent::v1::command_response::Status;
use yuzu_proto::path;
use yuzu_proto::server::v1::SendCommandRequest;
use yuzu_server_stub::StubServer;
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::broadcast::broadcast;
use yuzu_tests::fleet::{Fleet, Options};
use yuzu_tests::operator::{Fanout, Operator};
use yuzu_tests::raw::{Connection, Request, code};

use super::Node;
use super::adjacency::{attach, knows, served, server};
use crate::support::{command, running, serve_one, soon, success, with_unknown_fields};

async fn operator(node: &Node) -> Operator {
    let address = node.gateway.management_address().expect("a listener");
    Operator::connect(address).await.expect("a connection")
}

/// Two nodes: `a` dials `b`.
struct Pair {
    server: StubServer,
    a: Node,
    b: Node,
}

impl Pair {
    async fn start() -> Self {
        Self::with(|_| ()).await
    }

    /// Both set up so.
    async fn with(change: impl Fn(&mut Config)) -> Self {
        let server = server().await;
        let config = |name| {
            let mut config = served(name, &server);
            change(&mut config);
            config
        };
        let a = Node::start(config("a")).await;
        let b = Node::join(config("b"), &[&a]).await;
        a.lists(&["b"]).await;
        b.lists(&["a"]).await;
        Self { server, a, b }
    }
}

/// An agent on `owner` that `entry` knows of.
async fn known(owner: &Node, entry: &Node, id: &str) -> Agent {
    let agent = attach(owner, id).await;
    knows(entry, 1).await;
    agent
}

/// The only entry that is left, which has this output.
async fn ends_as(fanout: &mut Fanout, output: &str) {
    let (entries, status) = fanout.rest().await.unwrap();
    assert!(status.is_ok(), "{status}");
    let [entry] = &entries[..] else {
        panic!("{} entries", entries.len());
    };
    assert_eq!(entry.response.output, output);
    assert_eq!(entry.response.status(), Status::Failure);
    assert_eq!(
        (entry.response.exit_code, &*entry.response.command_id),
        (-1, "c-1")
    );
}

/// Waits until a gauge has this value.
async fn becomes(node: &Node, name: &str, value: f64) {
    node.metric_becomes(name, &[], value).await;
}

async fn outcome(node: &Node, outcome: &str) -> f64 {
    let labels = [("outcome", outcome)];
    node.metric("forward_requests_total", &labels).await
}

#[tokio::test]
async fn cluster_4_fwd_1_fwd_4_a_command_reaches_an_agent_of_another_node_whoever_dialled() {
    let Pair {
        a,
        b,
        server: _server,
    } = Pair::start().await;
    let (on_a, on_b) = (attach(&a, "on-a").await, attach(&b, "on-b").await);
    knows(&a, 1).await;
    knows(&b, 1).await;
    for (entry, mut agent, id) in [(&a, on_b, "on-b"), (&b, on_a, "on-a")] {
        let operator = operator(entry).await;
        let request = with_unknown_fields(&command("c-1"));
        let mut wire = SendCommandRequest {
            agent_ids: vec![id.to_owned()],
            ..Default::default()
        }
        .encode_to_vec();
        prost::encoding::bytes::encode(2, &request.to_vec(), &mut wire);
        let mut fanout = operator.send_raw(&wire).await.unwrap();
        let got = agent.command().await.unwrap();
        assert_eq!(got.raw, request, "byte for byte");
        for output in ["1", "2"] {
            let answer = with_unknown_fields(&running("c-1", output));
            agent.answer_raw(&answer).await.unwrap();
            let entry = fanout.entry().await.unwrap();
            assert_eq!((&*entry.agent_id, entry.response_raw), (id, answer));
        }
        let answer = with_unknown_fields(&success("c-1", "done"));
        agent.answer_raw(&answer).await.unwrap();
        let (rest, status) = fanout.rest().await.unwrap();
        assert!(status.is_ok());
        assert_eq!(rest.len(), 1);
        assert_eq!(rest[0].response_raw, answer);
        assert_eq!(outcome(entry, "ok").await, 1.0);
        becomes(entry, "forward_sessions", 0.0).await;
        becomes(entry, "forward_inflight_bytes", 0.0).await;
    }
    for node in [&a, &b] {
        becomes(node, "forwarded_sessions", 0.0).await;
        let plugin = [("plugin", "shell")];
        assert_eq!(node.metric("commands_dispatched_total", &plugin).await, 1.0);
        assert!(node.metric("forward_bytes_out_total", &[]).await > 0.0);
        assert!(node.metric("forward_bytes_in_total", &[]).await > 0.0);
    }
}

#[tokio::test]
async fn fwd_1_cmd_2_own_agents_those_of_peers_and_nobody_in_one_call() {
    let Pair {
        a,
        b,
        server: _server,
    } = Pair::start().await;
    let mut far = known(&b, &a, "far").await;
    let mut near = attach(&a, "near").await;
    let operator = operator(&a).await;
    let ids = ["near", "nobody", "far"];
    let mut fanout = operator.send(&ids, command("c-1"), 20).await.unwrap();
    tokio::join!(serve_one(&mut near), serve_one(&mut far));
    let (entries, status) = fanout.rest().await.unwrap();
    assert!(status.is_ok());
    let mut outputs: Vec<_> = entries
        .iter()
        .map(|entry| (&*entry.agent_id, &*entry.response.output))
        .collect();
    outputs.sort_unstable();
    assert_eq!(
        outputs,
        [
            ("far", "done"),
            ("near", "done"),
            ("nobody", "not_connected")
        ]
    );
    assert_eq!(
        a.metric("fanout_remote_dispatched_count_sum", &[]).await,
        1.0
    );
    assert_eq!(a.metric("fanout_skipped_count_sum", &[]).await, 1.0);
}

#[tokio::test]
async fn fwd_1_adj_3_the_newest_session_gets_the_command_wherever_it_is() {
    let Pair {
        a,
        b,
        server: _server,
    } = Pair::start().await;
    let mut older = attach(&a, "agent").await;
    knows(&b, 1).await;
    let mut newer = known(&b, &a, "agent").await;
    let operator = operator(&a).await;
    let mut fanout = operator.send(&["agent"], command("c-1"), 20).await.unwrap();
    serve_one(&mut newer).await;
    assert_eq!(fanout.rest().await.unwrap().0.len(), 1);
    drop(newer);
    knows(&a, 0).await;
    let mut fanout = operator.send(&["agent"], command("c-2"), 20).await.unwrap();
    let got = serve_one(&mut older).await;
    assert_eq!(got.message.command_id, "c-2", "and only that one");
    assert_eq!(fanout.rest().await.unwrap().0.len(), 1);
}

#[tokio::test]
async fn fwd_8_a_caller_that_leaves_is_forgotten_by_the_owner_at_once() {
    for from_dialler in [true, false] {
        let Pair {
            a,
            b,
            server: _server,
        } = Pair::start().await;
        let (entry, owner) = if from_dialler { (&a, &b) } else { (&b, &a) };
        let mut agent = known(owner, entry, "agent").await;
        let operator = operator(entry).await;
        let mut fanout = operator.send(&["agent"], command("c-1"), 20).await.unwrap();
        agent.command().await.unwrap();
        agent.answer(&running("c-1", "1")).await.unwrap();
        fanout.entry().await.unwrap();
        assert_eq!(owner.metric("forwarded_sessions", &[]).await, 1.0);
        drop(fanout);
        // Far sooner than the grace of a link that broke.
        let gone = becomes(owner, "forwarded_sessions", 0.0);
        let gone = tokio::time::timeout(Duration::from_secs(3), gone).await;
        assert!(gone.is_ok(), "the owner keeps it");
        becomes(entry, "forward_sessions", 0.0).await;
    }
}

#[tokio::test]
async fn fwd_4_the_owner_s_timeout_ends_the_call_without_an_entry() {
    let Pair {
        a,
        b,
        server: _server,
    } = Pair::start().await;
    let mut agent = known(&b, &a, "agent").await;
    let operator = operator(&a).await;
    let mut fanout = operator.send(&["agent"], command("c-1"), 1).await.unwrap();
    agent.command().await.unwrap();
    let (entries, status) = fanout.rest().await.unwrap();
    assert!(entries.is_empty() && status.is_ok());
    b.counts("commands_timed_out_total", &[], 1.0).await;
    assert_eq!(a.metric("commands_timed_out_total", &[]).await, 0.0);
    becomes(&a, "forward_sessions", 0.0).await;
}

#[tokio::test]
async fn fwd_4_an_agent_that_leaves_is_disconnected_as_its_owner_says() {
    let Pair {
        a,
        b,
        server: _server,
    } = Pair::start().await;
    let mut agent = known(&b, &a, "agent").await;
    let operator = operator(&a).await;
    let mut fanout = operator.send(&["agent"], command("c-1"), 20).await.unwrap();
    agent.command().await.unwrap();
    drop(agent);
    ends_as(&mut fanout, "agent_disconnected").await;
    assert_eq!(
        outcome(&a, "ok").await,
        1.0,
        "the owner brought it to its end"
    );
}

#[tokio::test]
async fn fwd_3_who_is_no_node_forwards_nothing() {
    let Pair {
        a,
        b,
        server: _server,
    } = Pair::start().await;
    let _agent = known(&b, &a, "agent").await;
    let management = b.gateway.management_address().expect("a listener");
    let agents = b.gateway.agent_address().expect("a listener");
    let wanted = [
        (b.address(), code::PERMISSION_DENIED),
        (management, code::UNIMPLEMENTED),
        (agents, code::UNIMPLEMENTED),
    ];
    for (address, code) in wanted {
        let connection = Connection::open(address, &Default::default())
            .await
            .unwrap();
        for path in [path::NODE_FORWARD, path::NODE_ACCEPT] {
            let answer = connection.unary(Request::new(path), b"").await.unwrap();
            assert_eq!(answer.status.code, code, "{path} at {address}");
        }
    }
    let refused = [("reason", "unauthenticated")];
    assert_eq!(b.metric("forwarded_refused_total", &refused).await, 2.0);
    assert_eq!(b.metric("forwarded_sessions", &[]).await, 0.0);
}

#[tokio::test]
async fn fwd_10_a_node_that_stops_brings_forwarded_commands_to_their_end() {
    for stops_entry in [true, false] {
        let Pair { a, b, server } = Pair::start().await;
        let mut agent = known(&b, &a, "agent").await;
        let operator = operator(&a).await;
        let mut fanout = operator.send(&["agent"], command("c-1"), 20).await.unwrap();
        agent.command().await.unwrap();
        let (stops, stays) = if stops_entry { (a, b) } else { (b, a) };
        let stopping = tokio::spawn(stops.gateway.shutdown());
        stays.lists_draining().await;
        agent.answer(&running("c-1", "1")).await.unwrap();
        assert_eq!(fanout.entry().await.unwrap().response.output, "1");
        agent.answer(&success("c-1", "done")).await.unwrap();
        let (entries, status) = fanout.rest().await.unwrap();
        assert!(status.is_ok());
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].response.output, "done");
        soon("the stop", stopping).await.unwrap();
        drop((stays, server));
    }
}

#[tokio::test]
async fn adj_5_a_broadcast_stays_local_unless_it_is_for_the_mesh() {
    for mesh in [false, true] {
        let wanted = if mesh {
            Broadcast::Mesh
        } else {
            Broadcast::Local
        };
        let Pair {
            a,
            b,
            server: _server,
        } = Pair::with(|config| config.command.broadcast = wanted).await;
        let fleet = |node: &Node, prefix: &str, agents| {
            let address = node.gateway.agent_address().expect("a listener");
            Fleet::start(Options {
                heartbeat: None,
                prefix: prefix.to_owned(),
                ..Options::new(address, agents)
            })
        };
        let (near, far) = (fleet(&a, "near", 20), fleet(&b, "far", 60));
        near.all_subscribed(PATIENCE).await.expect("a fleet");
        far.all_subscribed(PATIENCE).await.expect("a fleet");
        knows(&a, 60).await;
        let round = broadcast(&operator(&a).await, command("c"), 20).await;
        let round = round.expect("a broadcast");
        assert!(round.status.is_ok());
        let all = if mesh { 80 } else { 20 };
        assert_eq!((round.tally.frames, round.tally.failures), (all, 0));
        assert_eq!(far.snapshot().commands, all as u64 - 20);
        near.stop().await;
        far.stop().await;
    }
}
