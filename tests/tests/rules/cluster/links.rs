//! MESH-2, CLUSTER-6: nothing of the mesh travels unauthenticated.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::watch;
use yuzu_gateway::config::{ClusterTls, Config, ListenerTls, Secret, Service};
use yuzu_proto::node::v1::{HelloRequest, HelloResponse, NodeIdentity, ProveRequest};
use yuzu_proto::path;
use yuzu_tests::agent::PATIENCE;
use yuzu_tests::certs::{Authority, Directory, Wish};
use yuzu_tests::raw::{Connection, Options, Request, code};

use super::{Node, OTHER_SECRET, SECRET, config, says, seed};
use crate::logs::capture;
use crate::support::{WHILE, soon};

const SECRET_FAILED: [(&str, &str); 1] = [("reason", "secret")];

fn with_secret(name: &str, secret: &str) -> Config {
    let mut config = config(name);
    config.cluster.secret = Some(Secret::new(secret));
    config
}

#[tokio::test]
async fn mesh_2_a_node_with_another_secret_is_counted_and_never_listed() {
    let a = Node::start(config("a")).await;
    let b = Node::join(config("b"), &[&a]).await;
    let stranger = Node::join(with_secret("s", OTHER_SECRET), &[&a, &b]).await;
    let forged = [("reason", "forged")];
    for node in [&a, &b] {
        node.counts("cluster_datagrams_rejected_total", &forged, 3.0)
            .await;
    }
    a.lists(&["b"]).await;
    b.lists(&["a"]).await;
    assert_eq!(stranger.names().await, [""; 0]);
}

/// A connection to the node listener by hand.
async fn dial(node: &Node) -> Connection {
    Connection::open(node.address(), &Options::default())
        .await
        .expect("a connection")
}

/// A link whose one direction is broken: it takes everything, and says nothing.
#[tokio::test]
async fn mesh_5_a_link_on_which_nothing_comes_ends_although_what_is_sent_arrives() {
    let mut quick = config("a");
    quick.cluster.dead_after = Duration::from_secs(1);
    let node = Node::start(quick).await;
    let mut link = TcpStream::connect(node.address()).await.unwrap();
    let silent = Instant::now();
    let begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    link.write_all(begin).await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, link.read_to_end(&mut Vec::new())).await;
    ended.expect("it ends").expect("in order");
    // Who proves nothing may stay for ten seconds.
    let expected = Duration::from_millis(900)..Duration::from_secs(5);
    assert!(
        expected.contains(&silent.elapsed()),
        "{:?}",
        silent.elapsed()
    );
}

fn hello(name: &str) -> HelloRequest {
    HelloRequest {
        node: Some(NodeIdentity {
            name: name.into(),
            incarnation: 1,
            instance: vec![1; 16].into(),
        }),
        nonce: vec![2; 32].into(),
        protocol: 1,
        ..HelloRequest::default()
    }
}

async fn call(
    connection: &Connection,
    path: &str,
    message: &impl Message,
) -> yuzu_tests::raw::Answer {
    let message = message.encode_to_vec();
    let answer = connection.unary(Request::new(path), &message).await;
    answer.expect("an answer")
}

#[tokio::test]
async fn mesh_2_a_connection_that_does_not_know_the_secret_is_refused_and_let_go() {
    let node = Node::start(config("node")).await;
    let connection = dial(&node).await;
    let answer = call(&connection, path::NODE_HELLO, &hello("a")).await;
    assert_eq!(answer.status.code, code::OK);
    let told = HelloResponse::decode(answer.message.expect("a message")).expect("a response");
    assert_eq!(told.node.expect("an identity").name, "node");
    assert_eq!(told.proof.len(), 32);
    // What the node proved is of no use to whoever throws it back.
    let prove = ProveRequest { proof: told.proof };
    let refused = call(&connection, path::NODE_PROVE, &prove).await;
    assert_eq!(refused.status.code, code::UNAUTHENTICATED);
    connection.closed().await;
    assert_eq!(
        node.metric("cluster_connect_failures_total", &SECRET_FAILED)
            .await,
        1.0
    );
    assert_eq!(node.metric("cluster_peers_connected", &[]).await, 0.0);
    assert_eq!(node.names().await, [""; 0]);
}

#[tokio::test]
async fn mesh_2_an_unproven_connection_may_call_nothing_else() {
    let node = Node::start(config("node")).await;
    let connection = dial(&node).await;
    let method = "/yuzu.node.v1.NodeService/WatchAgents";
    let refused = call(&connection, method, &hello("a")).await;
    assert_eq!(refused.status.code, code::PERMISSION_DENIED);
    // Nor what other listeners serve.
    for method in [path::REGISTER, path::LIST_AGENTS] {
        let refused = call(&connection, method, &hello("a")).await;
        assert_eq!(refused.status.code, code::UNIMPLEMENTED);
    }
    // A proof without a Hello is none.
    let prove = ProveRequest::default();
    let refused = call(&connection, path::NODE_PROVE, &prove).await;
    assert_eq!(refused.status.code, code::INVALID_ARGUMENT);
    connection.closed().await;
}

#[tokio::test]
async fn mesh_2_a_connection_that_proves_nothing_in_time_is_closed() {
    let mut silent = config("node");
    silent.listeners[1].limits.unregistered_timeout = Duration::from_secs(1);
    let node = Node::start(silent).await;
    let connection = dial(&node).await;
    let answer = call(&connection, path::NODE_HELLO, &hello("a")).await;
    assert_eq!(answer.status.code, code::OK);
    connection.closed().await;
    let reason = [("reason", "unregistered")];
    assert_eq!(node.metric("listener_closed_total", &reason).await, 1.0);
}

/// Certificates of nodes.
struct Install {
    authority: Authority,
    directory: Directory,
}

impl Install {
    fn new(name: &str) -> Self {
        Self {
            authority: Authority::new(name),
            directory: Directory::new(),
        }
    }

    fn files(&self, name: &str, wish: Wish) -> (PathBuf, PathBuf, PathBuf) {
        let leaf = self.authority.issue(wish);
        let (certificate, key) = self
            .directory
            .write_leaf(&format!("{name}-{}", leaf.serial), &leaf);
        (
            certificate,
            key,
            self.directory.write("ca.pem", &self.authority.pem()),
        )
    }

    /// A node whose links are mutual TLS.
    fn node(&self, name: &str) -> Config {
        self.node_with(name, Wish::host(name))
    }

    /// With this certificate.
    fn node_with(&self, name: &str, wish: Wish) -> Config {
        let (cert_file, key_file, ca_file) = self.files(name, wish);
        let mut config = config(name);
        config.listeners[1].tls = Some(ListenerTls {
            cert_file: cert_file.clone(),
            key_file: key_file.clone(),
            ca_file: ca_file.clone(),
            ..ListenerTls::of(&[Service::Node])
        });
        config.cluster.tls = ClusterTls {
            ca_file,
            cert_file,
            key_file,
            server_name: "localhost".into(),
        };
        config
    }
}

#[tokio::test]
async fn mesh_2_links_are_mutual_tls_where_it_is_configured() {
    let install = Install::new("install");
    let a = Node::start(install.node("a")).await;
    let b = Node::join(install.node("b"), &[&a]).await;
    a.lists(&["b"]).await;
    b.lists(&["a"]).await;
}

#[tokio::test]
async fn mesh_2_a_node_with_a_foreign_certificate_is_counted_and_never_listed() {
    let (install, foreign) = (Install::new("install"), Install::new("foreign"));
    let m = Node::start(install.node("m")).await;
    // It knows the secret, and dials m.
    let a = Node::join(foreign.node("a"), &[&m]).await;
    // And this one is dialled by m.
    let z = Node::join(foreign.node("z"), &[&m]).await;
    let tls = [("reason", "tls")];
    for dialler in [&a, &m] {
        dialler
            .counts("cluster_connect_failures_total", &tls, 2.0)
            .await;
    }
    for node in [&m, &a] {
        assert!(
            !node
                .names()
                .await
                .iter()
                .any(|name| name == "m" || name == "a")
        );
    }
    assert_eq!(m.names().await, [""; 0]);
    assert_eq!(m.metric("cluster_peers_connected", &[]).await, 0.0);
    // It has no seeds, and knows that there are two that it is not linked with.
    m.counts("cluster_peers_expected", &[], 2.0).await;
    assert_eq!(m.metric("cluster_peers_resolved", &[]).await, 0.0);
    drop(z);
}

/// The side that dials, which says what failed.
async fn dialling_says(dialler: Config, dialled: Config, words: &str) {
    let (log, _guard) = capture();
    let z = Node::start(dialled).await;
    let a = Node::join(dialler, &[&z]).await;
    says(&log, words).await;
    let text = log.text();
    let who = format!("no link with z at {}: tls: ", z.address());
    let told = |line: &&str| line.contains("WARN") && line.contains(&who) && line.contains(words);
    assert!(text.lines().any(|line| told(&line)), "{text}");
    let tls = [("reason", "tls")];
    a.counts("cluster_connect_failures_total", &tls, 1.0).await;
}

#[tokio::test]
async fn mesh_2_a_link_that_tls_fails_says_which_peer_and_what_to_do() {
    let (install, foreign) = (Install::new("install"), Install::new("foreign"));
    let host = Wish::host;
    let (a, z) = (|| install.node("a"), || install.node("z"));
    let mut plain = config("z");
    plain.listeners[1].tls = None;
    let cases = [
        (
            a(),
            install.node_with("z", host("z").expired()),
            "its certificate expired ",
        ),
        (
            a(),
            install.node_with("z", host("z").named("other.internal")),
            "its certificate does not name localhost, but ",
        ),
        (
            a(),
            foreign.node("z"),
            "from an issuer that is not in cluster.tls.ca_file",
        ),
        // The other side judges this one's when this one is through already.
        (
            install.node_with("a", host("a").expired()),
            z(),
            "it refuses the certificate of this node, cluster.tls.cert_file: it has expired",
        ),
        (a(), plain, "tls: it "),
    ];
    for (dialler, dialled, words) in cases {
        Box::pin(dialling_says(dialler, dialled, words)).await;
    }
}

#[tokio::test]
async fn mesh_2_a_node_without_tls_is_not_let_in_where_it_is_asked_for() {
    let install = Install::new("install");
    let z = Node::start(install.node("z")).await;
    let a = Node::join(config("a"), &[&z]).await;
    let refused = [("reason", "refused")];
    a.counts("cluster_connect_failures_total", &refused, 1.0)
        .await;
    assert_eq!(z.names().await, [""; 0]);
    assert_eq!(a.names().await, [""; 0]);
}

/// What the second byte says of a datagram.
const PAYLOAD: u8 = 0;
const GREETING: u8 = 1;
const ANSWER: u8 = 2;

/// Passes datagrams between a node and whoever takes this for it, and keeps those to the node.
pub(super) struct Tap {
    pub(super) address: SocketAddr,
    kept: watch::Sender<Vec<Vec<u8>>>,
    socket: Arc<UdpSocket>,
    node: SocketAddr,
}

impl Tap {
    pub(super) async fn before(node: &Node) -> Self {
        Self::passing(node, |_| true).await
    }

    /// Of what is for the node, passes this on alone.
    async fn passing(node: &Node, passes: fn(&[u8]) -> bool) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a socket");
        let tap = Self {
            address: socket.local_addr().expect("an address"),
            kept: watch::Sender::default(),
            socket: Arc::new(socket),
            node: node.address(),
        };
        let (socket, kept, node) = (Arc::clone(&tap.socket), tap.kept.clone(), tap.node);
        tokio::spawn(async move {
            let mut buffer = vec![0; 65_536];
            let mut peer = None;
            while let Ok((len, from)) = socket.recv_from(&mut buffer).await {
                if from == node {
                    if let Some(peer) = peer {
                        let _ = socket.send_to(&buffer[..len], peer).await;
                    }
                    continue;
                }
                peer = Some(from);
                kept.send_modify(|kept| kept.push(buffer[..len].to_vec()));
                if passes(&buffer[..len]) {
                    let _ = socket.send_to(&buffer[..len], node).await;
                }
            }
        });
        tap
    }

    pub(super) async fn again(&self) -> usize {
        let kept = self.kept.borrow().clone();
        for datagram in &kept {
            self.socket
                .send_to(datagram, self.node)
                .await
                .expect("sent");
        }
        kept.len()
    }
}

#[tokio::test]
async fn mesh_2_a_replayed_datagram_is_refused_and_counted() {
    let a = Node::start(config("a")).await;
    let tap = Tap::before(&a).await;
    let mut b = config("b");
    b.cluster.seed_nodes = vec![seed(tap.address)];
    let b = Node::start(b).await;
    let replayed = [("reason", "replayed")];
    let mut kept = tap.kept.subscribe();
    let some = soon("datagrams", kept.wait_for(|kept| !kept.is_empty())).await;
    drop(some.expect("the tap lives"));
    let before = a
        .metric("cluster_datagrams_rejected_total", &replayed)
        .await;
    assert_eq!(before, 0.0);
    let again = tap.again().await;
    a.counts("cluster_datagrams_rejected_total", &replayed, again as f64)
        .await;
    drop(b);
}

#[tokio::test]
async fn mesh_2_a_datagram_for_another_node_is_refused_and_answered_to_nobody() {
    let (a, c) = (
        Node::start(config("a")).await,
        Node::start(config("c")).await,
    );
    let tap = Tap::before(&a).await;
    let mut b = config("b");
    b.cluster.seed_nodes = vec![seed(tap.address)];
    let b = Node::start(b).await;
    b.lists(&["a"]).await;
    let kept = tap.kept.borrow().clone();
    let is = |kind: u8| move |datagram: &&Vec<u8>| datagram[1] == kind;
    let payloads: Vec<_> = kept.iter().filter(is(PAYLOAD)).collect();
    // For anybody.
    let greeting = kept.iter().find(is(GREETING));
    assert!(!payloads.is_empty());
    let capturer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    for datagram in &payloads {
        capturer.send_to(datagram, c.address()).await.unwrap();
    }
    let misaddressed = [("reason", "misaddressed")];
    c.counts(
        "cluster_datagrams_rejected_total",
        &misaddressed,
        payloads.len() as f64,
    )
    .await;
    // A greeting is answered by as many bytes, which are of use to nobody but b.
    let greeting = greeting.expect("b did not know a");
    capturer.send_to(greeting, c.address()).await.unwrap();
    let mut answer = vec![0; 65_536];
    let (len, _) = tokio::time::timeout(PATIENCE, capturer.recv_from(&mut answer))
        .await
        .expect("an answer")
        .unwrap();
    assert_eq!((len, answer[1]), (greeting.len(), ANSWER));
    let more = tokio::time::timeout(WHILE, capturer.recv_from(&mut answer)).await;
    assert!(more.is_err(), "a payload was answered");
    assert_eq!(c.names().await, [""; 0]);
    // To a itself such an answer says nothing either: it is not a that has asked.
    capturer.send_to(&answer[..len], a.address()).await.unwrap();
    a.counts("cluster_datagrams_rejected_total", &misaddressed, 1.0)
        .await;
}

#[tokio::test]
async fn mesh_2_a_payload_that_was_caught_brings_no_answer_upon_an_address_that_it_did_not_come_from()
 {
    let a = Node::start(config("a")).await;
    let tap = Tap::passing(&a, |datagram| datagram[1] != PAYLOAD).await;
    let mut b = config("b");
    b.cluster.seed_nodes = vec![seed(tap.address)];
    let b = Node::start(b).await;
    let mut kept = tap.kept.subscribe();
    let payload =
        |kept: &Vec<Vec<u8>>| kept.iter().find(|datagram| datagram[1] == PAYLOAD).cloned();
    let caught = soon("a payload", kept.wait_for(|kept| payload(kept).is_some())).await;
    let caught = payload(&caught.expect("the tap lives")).expect("it is there");
    // It is the first that a gets of b, and opens gossip.
    let victim = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    victim.send_to(&caught, a.address()).await.unwrap();
    let mut answer = vec![0; 65_536];
    let (len, _) = tokio::time::timeout(PATIENCE, victim.recv_from(&mut answer))
        .await
        .expect("a greeting")
        .unwrap();
    assert_eq!(answer[1], GREETING);
    assert!(len <= caught.len(), "{len} for {}", caught.len());
    let more = tokio::time::timeout(WHILE, victim.recv_from(&mut answer)).await;
    assert!(more.is_err(), "nobody answered the greeting");
    // From where b is, it is answered.
    b.lists(&["a"]).await;
}

#[tokio::test]
async fn cluster_6_neither_the_secret_nor_what_is_said_is_in_a_datagram() {
    let a = Node::start(config("node-a")).await;
    let tap = Tap::before(&a).await;
    let mut b = config("node-b");
    b.cluster.seed_nodes = vec![seed(tap.address)];
    let b = Node::start(b).await;
    b.lists(&["node-a"]).await;
    let kept = tap.kept.borrow().clone();
    assert!(!kept.is_empty());
    for text in [SECRET, "node-a", "node-b", "yuzu.node.v1"] {
        let text = text.as_bytes();
        let shown = |datagram: &Vec<u8>| datagram.windows(text.len()).any(|part| part == text);
        assert!(!kept.iter().any(shown));
    }
}

#[tokio::test]
async fn mesh_2_a_node_that_claims_the_name_of_another_is_refused_and_counted() {
    let z = Node::start(config("z")).await;
    let a = Node::join(config("a"), &[&z]).await;
    z.lists(&["a"]).await;
    let known = z.listed().await;
    // It knows the secret.
    let claimant = Node::join(config("a"), &[&z]).await;
    claimant.leaves().await;
    // By whichever of them it came to first.
    let taken = [("reason", "name_taken")];
    let mut refused = 0.0;
    for node in [&a, &z] {
        refused += node.metric("cluster_connect_failures_total", &taken).await;
    }
    assert!(refused >= 1.0);
    assert_eq!(z.listed().await, known);
    a.lists(&["z"]).await;
}
