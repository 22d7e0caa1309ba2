//! A node of a cluster by hand.
//!
//! Responsible for proving the secret over a connection that it dials, as a node does, and for opening
//! the streams of a link. What it says over them, and whether it reads them, is the test's: it may be
//! of another version, or hostile. It does not gossip, and the node's name has to be the larger one.

use std::net::SocketAddr;

use prost::Message;
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::hmac;
use yuzu_proto::node::v1::agents_frame::Kind as Telling;
use yuzu_proto::node::v1::forward_frame::Kind;
use yuzu_proto::node::v1::{
    AgentChange, AgentChanges, AgentRow, AgentsFrame, AgentsStart, ForwardFrame, ForwardOffer,
    ForwardOpen, HelloRequest, HelloResponse, NodeIdentity, OffersRequest, ProveRequest,
};
use yuzu_proto::path;

use crate::agent::PATIENCE;
use crate::raw::{Answer, Connection, Options, Receiver, Request, Sender};

/// How a node introduces itself.
#[derive(Debug, Clone)]
pub struct Introduction {
    /// Its name.
    pub name: String,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// Of the contract.
    pub protocol: u32,
    /// Stands behind the known fields of its Hello.
    pub unknown_fields: Vec<u8>,
}

impl Introduction {
    /// One of this version.
    pub fn of(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            capabilities: Vec::new(),
            protocol: 1,
            unknown_fields: Vec::new(),
        }
    }
}

/// A link to a node.
#[derive(Debug)]
pub struct Peer {
    /// The connection.
    pub connection: Connection,
    name: String,
}

/// Both halves of a stream.
#[derive(Debug)]
pub struct Stream {
    /// To the node.
    pub sender: Sender,
    /// From the node.
    pub receiver: Receiver,
}

impl Peer {
    /// Dials a node and proves the secret.
    ///
    /// # Errors
    /// The answer of a node that refuses.
    ///
    /// # Panics
    /// If there is no connection, or the node answers otherwise than the contract says.
    pub async fn link(
        node: SocketAddr,
        who: &Introduction,
        secret: &str,
        options: &Options,
    ) -> Result<Self, Answer> {
        let connection = Connection::open(node, options).await.expect("a connection");
        let hello = hello(who);
        let mut wire = hello.encode_to_vec();
        wire.extend_from_slice(&who.unknown_fields);
        let answer = call(&connection, path::NODE_HELLO, &wire).await;
        if !answer.status.is_ok() {
            return Err(answer);
        }
        let told: HelloResponse = answer.decode().expect("a response");
        let prove = ProveRequest {
            proof: proof(secret, &hello, &told).to_vec().into(),
        };
        let answer = call(&connection, path::NODE_PROVE, &prove.encode_to_vec()).await;
        match answer.status.is_ok() {
            true => Ok(Self {
                connection,
                name: who.name.clone(),
            }),
            false => Err(answer),
        }
    }

    /// A stream of this method.
    ///
    /// # Panics
    /// If the node does not answer.
    pub async fn stream(&self, request: Request) -> Stream {
        let stream = self.connection.stream(request.timeout(PATIENCE)).await;
        let (sender, receiver) = stream.expect("a stream");
        Stream { sender, receiver }
    }

    /// Begins to tell of agents.
    pub async fn share(&self) -> Stream {
        let stream = self.stream(Request::new(path::NODE_SHARE_AGENTS)).await;
        let start = Telling::Start(AgentsStart { sequence: 0 });
        stream.tell(start).await;
        stream
    }

    /// The stream of offers.
    ///
    /// # Panics
    /// If the node does not answer.
    pub async fn offers(&self) -> Receiver {
        let request = Request::new(path::NODE_OFFERS);
        let ask = OffersRequest {}.encode_to_vec();
        let stream = self.connection.server_stream(request, &ask).await;
        stream.expect("a stream")
    }

    /// Takes an offer up.
    pub async fn accept(&self, offer: u64) -> Stream {
        let number = offer.to_string();
        let request = Request::new(path::NODE_ACCEPT).metadata("yuzu-offer", number.as_bytes());
        self.stream(request).await
    }

    /// A forwarded session without a marker.
    pub async fn forward(&self) -> Stream {
        self.stream(Request::new(path::NODE_FORWARD)).await
    }

    /// The marker of a session.
    pub fn marker(&self, session: u64) -> ForwardOpen {
        ForwardOpen {
            version: 1,
            origin: self.name.clone(),
            hop: 1,
            identity: String::new(),
            call: session,
            session,
            timeout_ms: 20_000,
        }
    }
}

impl Stream {
    /// Says this of agents.
    ///
    /// # Panics
    /// If the stream is over.
    pub async fn tell(&self, kind: Telling) {
        let frame = AgentsFrame { kind: Some(kind) };
        let sent = self.sender.send_message(&frame).await;
        sent.expect("the stream is open");
    }

    /// Tells of a session, which is change number `after` + 1.
    pub async fn came(&self, after: u64, agent_id: &str, epoch: u64) {
        let row = AgentRow {
            agent_id: agent_id.to_owned(),
            session_id: format!("s-{agent_id}"),
            epoch,
        };
        let change = AgentChange {
            row: Some(row),
            ended: false,
        };
        let changes = vec![change];
        self.tell(Telling::Changes(AgentChanges { after, changes }))
            .await;
    }

    /// Says this of a forwarded session. False: the stream is over.
    pub async fn say(&self, kind: Kind) -> bool {
        let frame = ForwardFrame { kind: Some(kind) };
        self.sender.send_message(&frame).await.is_ok()
    }

    /// The next frame of a forwarded session; `None`: it is over, or broken.
    ///
    /// # Panics
    /// If nothing comes, or what comes is no frame.
    pub async fn hear(&mut self) -> Option<Kind> {
        let message = tokio::time::timeout(PATIENCE, self.receiver.message()).await;
        let message = message.expect("something comes").ok()??;
        let frame = ForwardFrame::decode(message).expect("a frame");
        Some(frame.kind.expect("a kind"))
    }
}

/// The next offer.
///
/// # Panics
/// If none comes.
pub async fn next_offer(offers: &mut Receiver) -> ForwardOffer {
    let message = tokio::time::timeout(PATIENCE, offers.message()).await;
    let message = message.expect("an offer").expect("no error");
    ForwardOffer::decode(message.expect("an offer")).expect("an offer")
}

async fn call(connection: &Connection, path: &str, message: &[u8]) -> Answer {
    let answer = connection.unary(Request::new(path), message).await;
    answer.expect("an answer")
}

fn hello(who: &Introduction) -> HelloRequest {
    HelloRequest {
        node: Some(NodeIdentity {
            name: who.name.clone(),
            incarnation: 1,
            instance: vec![1; 16].into(),
        }),
        nonce: vec![2; 32].into(),
        protocol: who.protocol,
        capabilities: who.capabilities.clone(),
        address: String::new(),
    }
}

/// That of the dialling side, over a connection without TLS.
fn proof(secret: &str, hello: &HelloRequest, told: &HelloResponse) -> [u8; 32] {
    let root = Salt::new(HKDF_SHA256, b"yuzu.node.v1").extract(secret.as_bytes());
    let key = root.expand(&[b"link proof"], hmac::HMAC_SHA256);
    let key = hmac::Key::from(key.expect("a key"));
    let mut said = Vec::new();
    put(&mut said, b"yuzu.node.v1 link");
    put(&mut said, b"dialler");
    put(&mut said, b"");
    put_side(
        &mut said,
        hello.node.as_ref(),
        &hello.nonce,
        &hello.capabilities,
    );
    put_side(
        &mut said,
        told.node.as_ref(),
        &told.nonce,
        &told.capabilities,
    );
    let tag = hmac::sign(&key, &said);
    tag.as_ref().try_into().expect("32 bytes")
}

fn put_side(
    said: &mut Vec<u8>,
    node: Option<&NodeIdentity>,
    nonce: &[u8],
    capabilities: &[String],
) {
    let node = node.expect("an identity");
    put(said, node.name.as_bytes());
    put(said, &node.incarnation.to_be_bytes());
    put(said, &node.instance);
    put(said, nonce);
    put(said, &1_u32.to_be_bytes());
    put(said, &(capabilities.len() as u32).to_be_bytes());
    for capability in capabilities {
        put(said, capability.as_bytes());
    }
}

fn put(said: &mut Vec<u8>, part: &[u8]) {
    said.extend_from_slice(&(part.len() as u32).to_be_bytes());
    said.extend_from_slice(part);
}
