//! Peers that are not of this version, and peers that mean harm: both know the secret.

mod hostile;
mod versions;

use yuzu_gateway::config::Config;
use yuzu_server_stub::StubServer;
use yuzu_tests::operator::Operator;
use yuzu_tests::peer::{Introduction, Peer};
use yuzu_tests::raw::Options;

use super::adjacency::{served, server};
use super::{Node, SECRET};

/// The name of a peer: it has to be smaller than the node's.
const PEER: &str = "a-peer";

/// A node alone, and its server.
async fn node(change: impl FnOnce(&mut Config)) -> (Node, StubServer) {
    let server = server().await;
    let mut config = served("node", &server);
    change(&mut config);
    (Node::start(config).await, server)
}

async fn link(node: &Node) -> Peer {
    link_with(node, &Options::default()).await
}

async fn link_with(node: &Node, options: &Options) -> Peer {
    let who = Introduction::of(PEER);
    let peer = Peer::link(node.address(), &who, SECRET, options).await;
    peer.expect("a link")
}

async fn operator(node: &Node) -> Operator {
    let address = node.gateway.management_address().expect("a listener");
    Operator::connect(address).await.expect("a connection")
}
