//! A node played by hand: it proves a secret on a connection of its own, and says what it likes.

use super::Node;
use prost::Message;
use ring::{hkdf, hmac};
use yuzu_proto::node::v1::{HelloRequest, HelloResponse, NodeIdentity, ProveRequest};
use yuzu_proto::path;
use yuzu_tests::raw::{Connection, Options, Request, Status, code};

/// The link of a node that dialled.
pub(super) struct Peer {
    pub(super) connection: Connection,
}

impl Peer {
    /// Dials `node` under this name, as one that started at the Unix millisecond `incarnation`, and
    /// proves `secret`; how the proof was answered.
    pub(super) async fn dial(
        node: &Node,
        name: &str,
        incarnation: u64,
        secret: &str,
    ) -> (Self, Status) {
        let options = Options::default();
        let connection = Connection::open(node.address(), &options).await;
        let peer = Self {
            connection: connection.expect("a connection"),
        };
        let hello = HelloRequest {
            node: Some(NodeIdentity {
                name: name.into(),
                incarnation,
                instance: vec![1; 16].into(),
            }),
            nonce: vec![2; 32].into(),
            protocol: 1,
            capabilities: Vec::new(),
        };
        let (status, answer) = peer.call(path::NODE_HELLO, &hello).await;
        assert_eq!(status.code, code::OK);
        let answer = HelloResponse::decode(&*answer).expect("a response");
        let proof = proof(secret, &hello, &answer).into();
        let (status, _) = peer.call(path::NODE_PROVE, &ProveRequest { proof }).await;
        (peer, status)
    }

    pub(super) async fn call(&self, path: &str, message: &impl Message) -> (Status, Vec<u8>) {
        let message = message.encode_to_vec();
        let answer = self.connection.unary(Request::new(path), &message).await;
        let answer = answer.expect("an answer");
        (answer.status, answer.message.unwrap_or_default().into())
    }
}

/// What the dialler proves, in plaintext, as `docs/contract/cluster.md` has it.
fn proof(secret: &str, hello: &HelloRequest, answer: &HelloResponse) -> Vec<u8> {
    let root = hkdf::Salt::new(hkdf::HKDF_SHA256, b"yuzu.node.v1").extract(secret.as_bytes());
    let key = root.expand(&[b"link proof"], hmac::HMAC_SHA256);
    let key = hmac::Key::from(key.expect("a short key"));
    let mut said = Vec::new();
    for part in [&b"yuzu.node.v1 link"[..], b"dialler", b""] {
        put(&mut said, part);
    }
    write(&mut said, hello.node.as_ref(), &hello.nonce, hello.protocol);
    write(
        &mut said,
        answer.node.as_ref(),
        &answer.nonce,
        answer.protocol,
    );
    hmac::sign(&key, &said).as_ref().to_vec()
}

/// What one side said, without capabilities.
fn write(out: &mut Vec<u8>, node: Option<&NodeIdentity>, nonce: &[u8], protocol: u32) {
    let node = node.expect("an identity");
    put(out, node.name.as_bytes());
    put(out, &node.incarnation.to_be_bytes());
    put(out, &node.instance);
    put(out, nonce);
    put(out, &protocol.to_be_bytes());
    put(out, &0_u32.to_be_bytes());
}

fn put(out: &mut Vec<u8>, part: &[u8]) {
    out.extend((part.len() as u32).to_be_bytes());
    out.extend(part);
}
