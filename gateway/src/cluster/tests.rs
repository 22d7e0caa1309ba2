use std::collections::BTreeSet;
use std::time::Duration;

use chitchat::ChitchatMessage;
use chitchat::transport::{Socket, Transport};
use prometheus::core::Collector;
use tokio::io::AsyncReadExt;

use super::link::failure::Failure;
use super::seal::{MAX_DATAGRAM, Opener, Said, Sealer};
use super::secret::SenderId;
use super::*;

#[test]
fn gen_4_every_reason_has_its_series_from_the_start() {
    let metrics = Metrics::new("node").expect("families");
    let reasons = |families: Vec<prometheus::proto::MetricFamily>| -> BTreeSet<String> {
        let series = families.iter().flat_map(|family| family.get_metric());
        series
            .map(|one| one.get_label()[0].value().to_owned())
            .collect()
    };
    let expected = |labels: &[&str]| labels.iter().map(|label| (*label).to_owned()).collect();
    let links: BTreeSet<String> = expected(Failure::LABELS);
    assert_eq!(
        reasons(metrics.cluster_connect_failures_total.collect()),
        links
    );
    let datagrams: BTreeSet<String> = expected(&seal::Rejected::LABELS);
    assert_eq!(
        reasons(metrics.cluster_datagrams_rejected_total.collect()),
        datagrams
    );
}

fn node(name: &str) -> (Identity, SealedTransport, SocketAddr) {
    let own = Identity {
        name: name.into(),
        incarnation: 7,
        instance: [7; 16],
    };
    let socket = crate::system::datagrams(([127, 0, 0, 1], 0).into()).expect("a socket");
    let address = socket.local_addr().expect("an address");
    let metrics = Arc::new(Metrics::new(name).expect("families"));
    (own, SealedTransport::new(socket, keys(), metrics), address)
}

fn keys() -> Keys {
    Keys::derive(&config::Secret::new(
        "the secret of this cluster, 32 characters",
    ))
}

/// What the engine of this node tells of `peer`, when it believes in it again.
async fn hears(handle: &ChitchatHandle, after: u64) -> members::view::Member {
    let mut live = handle
        .with_chitchat(|engine| engine.live_nodes_watcher())
        .await;
    let heard = live.wait_for(|live| {
        let mut members = live
            .iter()
            .filter_map(|(id, state)| engine::member(id, state));
        members.any(|member| &*member.name == "b" && member.generation > after)
    });
    let heard = tokio::time::timeout(Duration::from_secs(20), heard).await;
    let heard = heard.expect("in time").expect("the engine runs");
    let mut members = heard
        .iter()
        .filter_map(|(id, state)| engine::member(id, state));
    let found = members.find(|member| &*member.name == "b" && member.generation > after);
    found.expect("it was there")
}

#[tokio::test]
async fn mesh_1_an_engine_that_is_started_again_is_heard_again() {
    let ((a, a_socket, at_a), (b, b_socket, at_b)) = (node("a"), node("b"));
    let labels = Labels {
        incarnation: 7,
        ..Labels::default()
    };
    let dead_after = Duration::from_millis(500);
    let one = engine::start(&a, at_a, dead_after, &labels, &a_socket)
        .await
        .expect("starts");
    let other = engine::start(&b, at_b, dead_after, &labels, &b_socket)
        .await
        .expect("starts");
    other.gossip(at_a).expect("it runs");
    let first = hears(&one, 0).await;
    assert_eq!((first.incarnation, first.gossip), (7, at_b));
    drop(other);
    let other = engine::start(&b, at_b, dead_after, &labels, &b_socket)
        .await
        .expect("starts");
    other.gossip(at_a).expect("it runs");
    assert_eq!(hears(&one, first.generation).await.incarnation, 7);
}

/// One life of a node without an engine, at the address of all of them.
struct Life<'a> {
    socket: &'a UdpSocket,
    sealer: Sealer,
    opener: Opener,
}

impl<'a> Life<'a> {
    fn new(socket: &'a UdpSocket, sender: SenderId) -> Self {
        Self {
            socket,
            sealer: Sealer::new(&keys(), sender),
            opener: Opener::new(keys(), 4),
        }
    }

    /// The next datagram: who says what to this life.
    async fn hear(&mut self) -> (SenderId, Said) {
        let mut datagram = vec![0; MAX_DATAGRAM];
        let len = self.socket.recv(&mut datagram).await.expect("a datagram");
        let own = self.sealer.sender();
        let opened = self.opener.open(&mut datagram[..len], &own, unix_ms());
        opened.expect("it is for this life").expect("it is whole")
    }

    /// Who is there, while the engine there has nothing to say.
    async fn greet(&mut self, engine: &mut dyn Socket) -> SenderId {
        let greeting = self.sealer.greet(1, unix_ms());
        self.socket.send(&greeting).await.expect("it is sent");
        tokio::select! {
            _ = engine.recv() => panic!("a greeting is not for the engine"),
            (life, _) = self.hear() => life,
        }
    }
}

#[tokio::test]
async fn mesh_2_what_an_engine_left_unanswered_binds_nothing_that_it_says_later() {
    let (_, transport, address) = node("a");
    let mut engine = transport.open(address).await.expect("it opens");
    let socket = crate::system::datagrams(([127, 0, 0, 1], 0).into()).expect("a socket");
    socket.connect(address).await.expect("it connects");
    let mut first = Life::new(&socket, [1; 16]);
    let a = first.greet(&mut *engine).await;
    let mut plain = Vec::new();
    chitchat::Serializable::serialize(&ChitchatMessage::BadCluster, &mut plain);
    for datagram in first.sealer.seal(&a, &plain, unix_ms()).expect("it fits") {
        socket.send(&datagram).await.expect("it is sent");
    }
    engine.recv().await.expect("a message");
    // It is started again before anything is said to it.
    let mut second = Life::new(&socket, [2; 16]);
    assert_eq!(second.greet(&mut *engine).await, a);
    let to = socket.local_addr().expect("an address");
    let sent = engine.send(to, ChitchatMessage::BadCluster).await;
    sent.expect("it is sent");
    assert_eq!(second.hear().await, (a, Said::Payload(plain)));
}

/// What a node that dials `peer` says before the peer has said a word, up to `end`.
async fn says_first(dialler: &Dialler, peer: tokio::net::TcpListener, end: &str) -> Vec<u8> {
    let address = peer.local_addr().expect("an address");
    let target = link::dial::Target {
        name: "peer".into(),
        incarnation: 1,
        address: members::labels::endpoint(&address.to_string()),
        is_stopping: false,
    };
    let hear = async {
        let (mut stream, _) = peer.accept().await.expect("it dials");
        let mut said = Vec::new();
        while !said.windows(end.len()).any(|part| part == end.as_bytes()) {
            let read = stream.read_buf(&mut said).await.expect("it speaks");
            assert!(read > 0, "it said nothing of {end}");
        }
        said
    };
    tokio::select! {
        linked = dialler.link(&target) => panic!("nobody answered: {linked}"),
        said = hear => said,
    }
}

#[tokio::test]
async fn cluster_3_an_engine_that_is_started_again_tells_the_address_that_is_in_force_now() {
    let mut config = Config::default();
    config.cluster.secret = Some(config::Secret::new(
        "the secret of this cluster, 32 characters",
    ));
    let secret = config.cluster.secret.clone().expect("it was set");
    let socket = crate::system::datagrams(([127, 0, 0, 1], 0).into()).expect("a socket");
    let bound = socket.local_addr().expect("an address").to_string();
    let owners = crate::session::testing::context();
    let names = Names::public(&config.node.name);
    let cluster = Cluster::new(&config, &secret, socket, &owners, &names);
    // What the engine found when it was started before.
    let before = "192.0.2.1:9100";
    cluster.parts.mesh.is_at(before);
    let page = cluster.page();
    let shown = || String::from_utf8(page().body.to_vec()).expect("text");
    assert!(shown().contains(before));
    cluster.start();
    let started = async {
        while shown().contains(before) {
            tokio::task::yield_now().await;
        }
    };
    let started = tokio::time::timeout(Duration::from_secs(20), started).await;
    started.expect("the page shows another address");
    assert!(shown().contains(&bound));
    let peer = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await;
    let dialler = &cluster.parts.dialler;
    let said = says_first(dialler, peer.expect("a listener"), &bound).await;
    let old = before.as_bytes();
    assert!(!said.windows(old.len()).any(|part| part == old));
    cluster.leave();
}
