//! MESH-3, FWD-3, FWD-6: nodes of different versions work together, in what both can do.

use std::time::Duration;

use prost::Message;
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_proto::node::v1::agents_frame::Kind as Telling;
use yuzu_proto::node::v1::forward_frame::Kind;
use yuzu_proto::node::v1::forward_refused::Reason;
use yuzu_proto::node::v1::{
    AgentsFrame, ForwardDispatch, ForwardFrame, ForwardOpen, ForwardRefused,
};
use yuzu_proto::path;
use yuzu_tests::operator::Fanout;
use yuzu_tests::peer::{Stream, next_offer};
use yuzu_tests::raw::{Request, code};

use super::super::adjacency::{attach, knows};
use super::*;
use crate::support::{command, serve_one, soon, with_unknown_fields};

/// A field that no version knows today.
const UNKNOWN: [u8; 4] = [0xf2, 0x3f, 1, 7];

/// A node of a later version, with more to offer and to say.
fn later() -> Introduction {
    Introduction {
        capabilities: vec!["teleport".to_owned(), "x".repeat(64)],
        unknown_fields: UNKNOWN.to_vec(),
        ..Introduction::of(PEER)
    }
}

/// Waits until the peer was told of this agent.
async fn hears_of(stream: &mut Stream, agent_id: &str) {
    let told = async {
        loop {
            let message = stream.receiver.message().await.expect("no error");
            let frame = AgentsFrame::decode(message.expect("a frame")).expect("a frame");
            let is_it = |row: &yuzu_proto::node::v1::AgentRow| row.agent_id == agent_id;
            let found = match frame.kind {
                Some(Telling::Rows(rows)) => rows.rows.iter().any(is_it),
                Some(Telling::Changes(changes)) => {
                    let mut rows = changes.changes.iter().filter_map(|one| one.row.as_ref());
                    rows.any(is_it)
                }
                _ => false,
            };
            if found {
                return;
            }
        }
    };
    soon("a row", told).await;
}

async fn only_entry(fanout: &mut Fanout) -> String {
    let (entries, status) = fanout.rest().await.unwrap();
    assert!(status.is_ok(), "{status}");
    assert_eq!(entries.len(), 1);
    entries[0].response.output.clone()
}

#[tokio::test]
async fn mesh_3_fwd_6_a_peer_of_another_version_shares_agents_and_is_sent_what_it_takes() {
    let (node, _server) = node(|config| {
        config.routing.connect_timeout = Duration::from_millis(300);
    })
    .await;
    let mut near = attach(&node, "near").await;
    let peer = Peer::link(node.address(), &later(), SECRET, &Options::default()).await;
    let peer = peer.expect("a link");
    let mut share = peer.share().await;
    hears_of(&mut share, "near").await;
    // What is not known is passed over, and the stream goes on.
    share.sender.send(&UNKNOWN).await.unwrap();
    share.came(0, "far", 10).await;
    knows(&node, 1).await;
    let methods = ["/yuzu.node.v1.NodeService/Teleport", path::REGISTER];
    for method in methods {
        let answer = peer.connection.unary(Request::new(method), b"").await;
        assert_eq!(answer.unwrap().status.code, code::UNIMPLEMENTED);
    }

    // It has no forwarding at all: it never asks for offers.
    let operator = operator(&node).await;
    let both = ["near", "far"];
    let mut fanout = operator.send(&both, command("c-1"), 20).await.unwrap();
    serve_one(&mut near).await;
    let (entries, status) = fanout.rest().await.unwrap();
    assert!(status.is_ok());
    let mut outputs: Vec<_> = entries.iter().map(|one| &*one.response.output).collect();
    outputs.sort_unstable();
    assert_eq!(outputs, ["done", "not_connected"]);

    // It has another version of it.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let mut offers = peer.offers().await;
    let mut fanout = operator.send(&["far"], command("c-1"), 20).await.unwrap();
    let offer = next_offer(&mut offers).await;
    let session = peer.accept(offer.offer).await;
    let reason = Reason::Version.into();
    assert!(session.say(Kind::Refused(ForwardRefused { reason })).await);
    assert_eq!(only_entry(&mut fanout).await, "not_connected");
    // For a second it is not asked again.
    let mut fanout = operator.send(&["far"], command("c-1"), 20).await.unwrap();
    assert_eq!(only_entry(&mut fanout).await, "not_connected");

    // It lacks the method: for it that is Accept, which it never calls.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let mut fanout = operator.send(&["far"], command("c-1"), 1).await.unwrap();
    next_offer(&mut offers).await;
    let (entries, status) = fanout.rest().await.unwrap();
    assert!(status.is_ok());
    // It was offered the command, and may have carried it out.
    assert!(entries.is_empty());
    assert_eq!(node.metric("cluster_peers_connected", &[]).await, 1.0);
}

/// A frame with what a later version says besides.
fn with_more(kind: Kind) -> Vec<u8> {
    let mut wire = ForwardFrame { kind: Some(kind) }.encode_to_vec();
    wire.extend_from_slice(&UNKNOWN);
    wire
}

#[tokio::test]
async fn fwd_3_a_marker_of_a_later_version_is_refused_and_one_that_says_more_is_not() {
    let (node, _server) = node(|_| ()).await;
    let mut near = attach(&node, "near").await;
    let peer = link(&node).await;
    let dispatch = |command: CommandRequest| {
        Kind::Dispatch(ForwardDispatch {
            command: Some(with_unknown_fields(&command)),
            agent_ids: vec!["near".to_owned()],
        })
    };
    let mut session = peer.forward().await;
    let later = ForwardOpen {
        version: 2,
        ..peer.marker(1)
    };
    session.say(Kind::Open(later)).await;
    session.say(dispatch(command("c-1"))).await;
    let Some(Kind::Refused(refused)) = session.hear().await else {
        panic!("not refused");
    };
    assert_eq!(refused.reason(), Reason::Version);
    let version = [("reason", "version")];
    assert_eq!(node.metric("forwarded_refused_total", &version).await, 1.0);

    let mut session = peer.forward().await;
    let marker = with_more(Kind::Open(peer.marker(2)));
    session.sender.send(&marker).await.unwrap();
    let dispatch = with_more(dispatch(command("c-2")));
    session.sender.send(&dispatch).await.unwrap();
    let got = serve_one(&mut near).await;
    assert_eq!(got.message.command_id, "c-2");
    assert_eq!(got.raw, with_unknown_fields(&command("c-2")));
    assert!(matches!(session.hear().await, Some(Kind::Written(_))));
    assert!(matches!(session.hear().await, Some(Kind::Answers(_))));
}

#[tokio::test]
async fn mesh_2_a_peer_that_can_not_work_with_this_version_is_refused_and_counted() {
    let (node, _server) = node(|_| ()).await;
    let who = Introduction {
        protocol: 2,
        ..later()
    };
    let refused = Peer::link(node.address(), &who, SECRET, &Options::default()).await;
    let answer = refused.expect_err("no link");
    assert_eq!(answer.status.code, code::UNIMPLEMENTED);
    let version = [("reason", "version")];
    let counted = node.metric("cluster_connect_failures_total", &version);
    assert_eq!(counted.await, 1.0);
    assert_eq!(node.metric("cluster_peers_connected", &[]).await, 0.0);
}
