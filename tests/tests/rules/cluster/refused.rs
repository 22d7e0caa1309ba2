//! MESH-2, MESH-6, FWD-3: who is not to be believed is refused, counted under its reason, and nothing
//! is learned of it. (A foreign certificate: `links`.)

use std::time::Duration;

use prost::Message;
use yuzu_proto::node::v1::forward_frame::Kind;
use yuzu_proto::node::v1::forward_refused::Reason;
use yuzu_proto::node::v1::{ForwardDispatch, ForwardFrame, ForwardOpen};
use yuzu_proto::path;
use yuzu_tests::peer::{Introduction, Peer};
use yuzu_tests::raw::{Answer, Connection, Options, Request, code};

use super::adjacency::{attach, knows, served, server};
use super::links::Tap;
use super::{Node, OTHER_SECRET, SECRET, config, seed};
use crate::logs::capture;
use crate::support::{WHILE, command, serve_one};

const ALL: [(&str, &str); 1] = [("node", "all")];

/// Dials a node under this name, and proves this secret.
async fn link(node: &Node, name: &str, secret: &str) -> Result<Peer, Answer> {
    let who = Introduction::of(name);
    Peer::link(node.address(), &who, secret, &Options::default()).await
}

/// Nothing is known of any other node or its agents.
async fn knows_nobody(node: &Node) {
    assert_eq!(node.names().await, [""; 0]);
    assert_eq!(node.metric("cluster_peers_connected", &[]).await, 0.0);
    assert_eq!(node.metric("adjacency_agents", &ALL).await, 0.0);
}

#[tokio::test]
async fn mesh_2_of_a_node_with_another_secret_nothing_is_learned() {
    let server = server().await;
    let a = Node::start(served("a", &server)).await;
    let mut config = served("s", &server);
    config.cluster.secret = Some(yuzu_gateway::config::Secret::new(OTHER_SECRET));
    let stranger = Node::join(config, &[&a]).await;
    let _agent = attach(&stranger, "its-agent").await;
    let forged = [("reason", "forged")];
    a.counts("cluster_datagrams_rejected_total", &forged, 3.0)
        .await;
    // By a link it gets no further.
    let refused = link(&a, "0", OTHER_SECRET).await.expect_err("a refusal");
    assert_eq!(refused.status.code, code::UNAUTHENTICATED);
    let secret = [("reason", "secret")];
    let failures = a.metric("cluster_connect_failures_total", &secret).await;
    assert_eq!(failures, 1.0);
    knows_nobody(&a).await;
    knows_nobody(&stranger).await;
}

#[tokio::test]
async fn mesh_2_replayed_datagrams_bring_nobody_back() {
    let a = Node::start(config("a")).await;
    let tap = Tap::before(&a).await;
    let mut b = config("b");
    b.cluster.seed_nodes = vec![seed(tap.address)];
    let b = Node::start(b).await;
    a.lists(&["b"]).await;
    b.gateway.shutdown().await;
    a.lists(&[]).await;
    let events = a.metric("cluster_events_total", &[]).await;
    let again = tap.again().await;
    let replayed = [("reason", "replayed")];
    a.counts("cluster_datagrams_rejected_total", &replayed, again as f64)
        .await;
    tokio::time::sleep(WHILE).await;
    assert_eq!(a.metric("cluster_events_total", &[]).await, events);
    knows_nobody(&a).await;
}

#[tokio::test]
async fn mesh_6_of_a_node_that_claims_another_s_name_nothing_is_learned() {
    let server = server().await;
    let z = Node::start(served("z", &server)).await;
    let a = Node::join(served("a", &server), &[&z]).await;
    let _agent = attach(&a, "agent").await;
    z.lists(&["a"]).await;
    knows(&z, 1).await;
    let known = z.listed().await;
    // It knows the secret.
    let refused = link(&z, "a", SECRET).await.expect_err("a refusal");
    assert_eq!(refused.status.code, tonic::Code::AlreadyExists as u16);
    let taken = [("reason", "name_taken")];
    let failures = z.metric("cluster_connect_failures_total", &taken).await;
    assert_eq!(failures, 1.0);
    assert_eq!(z.listed().await, known);
    assert_eq!(z.metric("adjacency_agents", &ALL).await, 1.0);
}

#[tokio::test]
async fn log_1_mesh_2_a_reason_that_is_frequent_hides_no_other() {
    let (log, _guard) = capture();
    let z = Node::start(config("z")).await;
    let said = |reason: &str| {
        let text = log.text();
        let lines = text.lines().filter(|line| line.contains("no link with"));
        lines.filter(|line| line.contains(reason)).count()
    };
    for _ in 0..3 {
        link(&z, "a", OTHER_SECRET).await.expect_err("a refusal");
    }
    assert_eq!(said(": secret"), 1);
    // z dials a node of this name.
    link(&z, "zz", SECRET).await.expect_err("a refusal");
    assert_eq!(said(": direction"), 1);
}

/// A forwarded session of the node `origin` with a command for `agent`.
fn session(origin: &str, hop: u32, number: u64) -> [ForwardFrame; 2] {
    let open = ForwardOpen {
        version: 1,
        origin: origin.into(),
        hop,
        identity: String::new(),
        call: number,
        session: number,
        timeout_ms: 10_000,
    };
    let dispatch = ForwardDispatch {
        command: Some(command("c").encode_to_vec().into()),
        agent_ids: vec!["agent".into()],
    };
    [Kind::Open(open), Kind::Dispatch(dispatch)].map(|kind| ForwardFrame { kind: Some(kind) })
}

#[tokio::test]
async fn fwd_3_a_marker_of_a_caller_who_is_no_node_reaches_no_agent() {
    let server = server().await;
    let node = Node::start(served("z", &server)).await;
    let mut agent = attach(&node, "agent").await;
    let management = node.gateway.management_address().expect("a listener");
    let agents = node.gateway.agent_address().expect("a listener");
    for address in [management, agents, node.address()] {
        let connection = Connection::open(address, &Default::default())
            .await
            .expect("a connection");
        for path in [path::NODE_FORWARD, path::NODE_ACCEPT] {
            let (sender, mut receiver) = connection
                .stream(Request::new(path))
                .await
                .expect("an answer");
            for frame in session("a", 1, 1) {
                // It may be over already.
                let _ = sender.send_message(&frame).await;
            }
            let status = receiver.finish().await.expect("a status");
            let wanted = match address == node.address() {
                true => code::PERMISSION_DENIED,
                false => code::UNIMPLEMENTED,
            };
            assert_eq!(status.code, wanted, "{path} at {address}");
        }
    }
    let refused = [("reason", "unauthenticated")];
    assert_eq!(node.metric("forwarded_refused_total", &refused).await, 2.0);
    assert_eq!(node.metric("forwarded_sessions", &[]).await, 0.0);
    assert!(agent.command_within(WHILE).await.is_none());
    knows_nobody(&node).await;
}

#[tokio::test]
async fn fwd_3_a_second_hop_and_another_node_s_marker_reach_no_agent() {
    let server = server().await;
    let node = Node::start(served("z", &server)).await;
    let mut agent = attach(&node, "agent").await;
    let peer = link(&node, "a", SECRET).await.expect("a link");
    let forward = |frames: [ForwardFrame; 2]| {
        let connection = &peer.connection;
        async move {
            let stream = connection.stream(Request::new(path::NODE_FORWARD)).await;
            let (sender, receiver) = stream.expect("a stream");
            for frame in frames {
                sender.send_message(&frame).await.expect("an open stream");
            }
            (sender, receiver)
        }
    };
    let refusals = [
        ("a", 2, Reason::Hop, "hop"),
        ("a", 0, Reason::Hop, "hop"),
        ("b", 1, Reason::NoMarker, "no_marker"),
    ];
    for (origin, hop, reason, label) in refusals {
        let labels = [("reason", label)];
        let before = node.metric("forwarded_refused_total", &labels).await;
        let (_sender, mut receiver) = forward(session(origin, hop, 1)).await;
        let frame = receiver.message().await.expect("a frame").expect("a frame");
        let frame = ForwardFrame::decode(frame).expect("a frame");
        let Some(Kind::Refused(refused)) = frame.kind else {
            panic!("{frame:?}");
        };
        assert_eq!(refused.reason(), reason);
        let after = node.metric("forwarded_refused_total", &labels).await;
        assert_eq!(after, before + 1.0, "{label}");
    }
    assert!(
        agent
            .command_within(Duration::from_millis(100))
            .await
            .is_none()
    );
    assert_eq!(node.metric("forwarded_sessions", &[]).await, 0.0);
    // The same with a marker of its own.
    let _session = forward(session("a", 1, 1)).await;
    assert_eq!(serve_one(&mut agent).await.message.command_id, "c");
}
