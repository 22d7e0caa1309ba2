//! SHIFT-1 to SHIFT-4: agents move to other nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use yuzu_gateway::config::{Config, Shift};
use yuzu_proto::gateway::v1::StreamStatusNotification;
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_proto::server::v1::ListAgentsRequest;
use yuzu_server_stub::StubServer;
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::fleet::{Fleet, Options};
use yuzu_tests::operator::Operator;

use super::adjacency::{attach, knows, manage, served, server};
use super::{LOOK, Node, notices, told};
use crate::support::{command, serve_one, soon};

/// A node that moves agents soon, and all but three.
fn moving(name: &str, server: &StubServer) -> Config {
    let mut config = served(name, server);
    config.shift = Shift {
        grace: Duration::from_millis(200),
        min_sessions: 3,
        ..Shift::default()
    };
    config
}

/// What stands before the nodes: each connection goes to the one with the fewest.
struct Balancer {
    address: SocketAddr,
    nodes: Arc<Nodes>,
}

impl Balancer {
    async fn start(nodes: &[&Node]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a port");
        let balancer = Self {
            address: listener.local_addr().expect("an address"),
            nodes: Arc::default(),
        };
        nodes.iter().for_each(|node| balancer.add(agents_at(node)));
        let known = Arc::clone(&balancer.nodes);
        tokio::spawn(async move {
            while let Ok((agent, _)) = listener.accept().await {
                tokio::spawn(carry(agent, Arc::clone(&known)));
            }
        });
        balancer
    }

    fn add(&self, node: SocketAddr) {
        self.nodes.lock().unwrap().push((node, Arc::default()));
    }

    fn fleet(&self, agents: usize) -> Fleet {
        Fleet::start(Options {
            heartbeat: None,
            backoff_scale: 0.01,
            ..Options::new(self.address, agents)
        })
    }
}

type Nodes = Mutex<Vec<(SocketAddr, Arc<AtomicUsize>)>>;

/// One agent's connection. Chosen before it is made, so that those that come together are spread.
async fn carry(mut agent: TcpStream, nodes: Arc<Nodes>) {
    let mut refused = BTreeSet::new();
    loop {
        let (address, open) = {
            let nodes = nodes.lock().unwrap();
            let left = nodes.iter().filter(|(node, _)| !refused.contains(node));
            let fewest = left.min_by_key(|(_, open)| open.load(Ordering::Relaxed));
            let Some((address, open)) = fewest.cloned() else {
                return;
            };
            open.fetch_add(1, Ordering::Relaxed);
            (address, open)
        };
        let node = TcpStream::connect(address).await;
        let was_carried = node.is_ok();
        if let Ok(mut node) = node {
            // However it ends, both ends are closed.
            let _ = tokio::io::copy_bidirectional(&mut agent, &mut node).await;
        }
        open.fetch_sub(1, Ordering::Relaxed);
        if was_carried {
            return;
        }
        refused.insert(address);
    }
}

fn agents_at(node: &Node) -> SocketAddr {
    node.gateway.agent_address().expect("an agent listener")
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !is_so() {
            tokio::time::sleep(LOOK).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}");
}

/// Agents that the server was told are connected, with how often.
fn connects(notices: &[StreamStatusNotification]) -> BTreeMap<&str, usize> {
    let mut told = BTreeMap::new();
    for notice in notices {
        if notice.event() == Event::Connected {
            *told.entry(&*notice.agent_id).or_default() += 1;
        }
    }
    told
}

#[tokio::test]
async fn shift_1_a_node_with_too_many_gives_agents_to_one_that_comes() {
    let server = server().await;
    let a = Node::start(moving("a", &server)).await;
    let balancer = Balancer::start(&[&a]).await;
    let fleet = balancer.fleet(60);
    fleet.all_subscribed(PATIENCE).await.expect("a fleet");
    let imbalance = [("reason", "imbalance")];
    assert_eq!(a.metric("agent_migrations_total", &imbalance).await, 0.0);

    let b = Node::join(moving("b", &server), &[&a]).await;
    balancer.add(agents_at(&b));
    until("half of them have moved", || {
        (a.gateway.agents_connected(), b.gateway.agents_connected()) == (30, 30)
    })
    .await;
    assert_eq!(a.metric("agent_migrations_total", &imbalance).await, 30.0);
    assert_eq!(a.metric("goaway_sent_total", &imbalance).await, 30.0);
    assert_eq!(b.metric("agent_migrations_total", &imbalance).await, 0.0);
    // Each of them once: the one stream ended, the other began.
    told(&server, "30 have moved", |notices| {
        let times = connects(notices).into_values();
        times.filter(|times| *times == 2).count() == 30
    })
    .await;
    // And no more: a round ends at the mean (SHIFT-3).
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(a.metric("agent_migrations_total", &imbalance).await, 30.0);
    fleet.stop().await;
}

#[tokio::test]
async fn shift_2_a_node_that_stops_moves_its_agents_first() {
    let server = server().await;
    let mut config = moving("a", &server);
    // Gossip needs its time too, on a busy machine.
    config.shift.grace = Duration::from_secs(3);
    let a = Node::start(config).await;
    let b = Node::join(moving("b", &server), &[&a]).await;
    a.lists(&["b"]).await;
    let balancer = Balancer::start(&[&a]).await;
    let fleet = balancer.fleet(40);
    fleet.all_subscribed(PATIENCE).await.expect("a fleet");
    balancer.add(agents_at(&b));
    until("they are shared", || b.gateway.agents_connected() == 20).await;
    let migrations = &a.gateway.metrics().agent_migrations_total;
    let moved = migrations.with_label_values(&["draining"]);
    let (started, agents) = (Instant::now(), a.gateway.agents_connected());
    let stopping = tokio::spawn(a.gateway.shutdown());
    // Its peers are told first.
    b.lists_draining().await;
    let report = soon("the stop", stopping).await.expect("no panic");
    assert_eq!(report.unsent, 0);
    // Not as long as moving may take, since nobody was left.
    assert!(
        started.elapsed() < Duration::from_secs(8),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(moved.get(), agents as u64, "below its floor as well");
    until("all are at the other", || {
        b.gateway.agents_connected() == 40
    })
    .await;
    fleet.stop().await;
}

/// Two nodes, and one that can die without a word.
struct Trio {
    server: StubServer,
    b: Node,
    c: Node,
    /// Where agents reach the third, `a`.
    address: SocketAddr,
    die: SyncSender<()>,
}

impl Trio {
    async fn start() -> Self {
        let server = server().await;
        let config = |name| {
            let mut config = served(name, &server);
            config.cluster.dead_after = Duration::from_secs(3);
            config
        };
        let b = Node::start(config("b")).await;
        let c = Node::join(config("c"), &[&b]).await;
        let mut config = config("a");
        config.cluster.seed_nodes = vec![super::seed(b.address())];
        let (address, die) = mortal(config);
        b.lists(&["a", "c"]).await;
        c.lists(&["a", "b"]).await;
        Self {
            server,
            b,
            c,
            address,
            die,
        }
    }
}

/// A node on a runtime of its own.
fn mortal(config: Config) -> (SocketAddr, SyncSender<()>) {
    let (tell, told) = sync_channel(1);
    let (die, dies) = sync_channel::<()>(1);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let node = runtime.block_on(Node::start(config));
        tell.send(agents_at(&node)).expect("the test waits");
        let _ = dies.recv();
        // Its tasks are dropped where they stand.
        drop(runtime);
        drop(node);
    });
    (told.recv().expect("it starts"), die)
}

#[tokio::test]
async fn shift_4_the_agents_of_a_node_that_dies_are_routable_elsewhere_after_one_reconnect() {
    let Trio {
        server,
        b,
        c,
        address,
        die,
    } = Trio::start().await;
    let balancer = Balancer::start(&[&b, &c]).await;
    balancer.add(address);
    let fleet = balancer.fleet(60);
    fleet.all_subscribed(PATIENCE).await.expect("a fleet");
    let held = || b.gateway.agents_connected() + c.gateway.agents_connected();
    let left = held();
    assert!((30..60).contains(&left), "{left}");
    told(&server, "all", |notices| connects(notices).len() == 60).await;
    let before = notices(&server);
    let before = connects(&before);

    die.send(()).expect("it lives");
    until("all are back", || held() == 60).await;
    b.lists(&["c"]).await;
    knows(&b, c.gateway.agents_connected()).await;
    knows(&c, b.gateway.agents_connected()).await;
    // Each of them is somewhere, once, and can be reached there.
    let mut found = BTreeSet::new();
    for node in [&b, &c] {
        let all = ListAgentsRequest {
            limit: 1_000,
            ..ListAgentsRequest::default()
        };
        let listed = manage(node).await.list_agents(all).await;
        for agent in listed.expect("an answer").into_inner().agents {
            assert!(found.insert(agent.agent_id), "twice");
        }
    }
    assert_eq!(found.len(), 60);
    let lost = 60 - left;
    told(&server, "those that came back", |notices| {
        connects(notices).values().sum::<usize>() >= 60 + lost
    })
    .await;
    for (agent, times) in connects(&notices(&server)) {
        assert!(
            times <= before[agent] + 1,
            "{agent} came back more than once"
        );
    }
    fleet.stop().await;
}

#[tokio::test]
async fn shift_4_a_command_that_waits_for_a_dead_node_reaches_the_agent_where_it_came_back() {
    for comes_to_entry in [false, true] {
        let trio = Trio::start().await;
        let entry = &trio.b;
        let lost = Agent::attach(trio.address, "agent").await;
        let _lost = lost.expect("an agent");
        knows(entry, 1).await;
        trio.die.send(()).expect("it lives");
        entry
            .metric_becomes("cluster_peers_connected", &[], 1.0)
            .await;
        let operators = entry.gateway.management_address().expect("a listener");
        let operator = Operator::connect(operators).await.expect("a connection");
        let sent = operator.send(&["agent"], command("c-1"), 20).await;
        let mut fanout = sent.expect("a call");
        let home = if comes_to_entry { entry } else { &trio.c };
        let mut agent = attach(home, "agent").await;
        let served = serve_one(&mut agent).await;
        assert_eq!(served.message.command_id, "c-1");
        assert_eq!(
            fanout.entry().await.expect("an entry").response.output,
            "done"
        );
        let ok = [("outcome", "ok")];
        entry
            .metric_becomes("forward_requests_total", &ok, 1.0)
            .await;
    }
}

#[tokio::test]
async fn shift_5_the_round_trip_of_each_agent_is_known_and_pings_tell_it_again() {
    let server = server().await;
    let mut config = served("a", &server);
    // The gateway PINGs who is silent for a third of it.
    config.listeners[0].http2.idle_timeout = Duration::from_secs(1);
    let a = Node::start(config).await;
    let b = Node::join(served("b", &server), &[&a]).await;
    a.lists(&["b"]).await;
    assert_eq!(
        a.metric("agent_rtt_ms_count", &[]).await,
        0.0,
        "links are no agents"
    );
    let _one = attach(&b, "one").await;
    b.counts("agent_rtt_ms_count", &[], 1.0).await;
    let _two = attach(&a, "two").await;
    a.counts("agent_rtt_ms_count", &[], 3.0).await;
    let mean = a.metric("agent_rtt_ms_sum", &[]).await / a.metric("agent_rtt_ms_count", &[]).await;
    assert!((0.0..1_000.0).contains(&mean), "{mean} ms on loopback");
}

#[tokio::test]
async fn shift_1_commands_reach_an_agent_that_was_asked_to_move_until_its_stream_ends() {
    let server = server().await;
    let mut config = moving("a", &server);
    config.shift.grace = Duration::from_secs(2);
    let a = Node::start(config).await;
    let b = Node::join(moving("b", &server), &[&a]).await;
    a.lists(&["b"]).await;
    let mut agent = attach(&a, "agent").await;
    let manager = a.gateway.management_address().expect("a listener");
    let operator = Operator::connect(manager).await.expect("a connection");
    let migrations = &a.gateway.metrics().agent_migrations_total;
    let moved = migrations.with_label_values(&["draining"]);
    let began = Instant::now();
    let stop = tokio::spawn(a.gateway.shutdown());
    until("it was asked", || moved.get() == 1).await;
    let mut fanout = operator.send(&["agent"], command("c-1"), 0).await.unwrap();
    serve_one(&mut agent).await;
    assert_eq!(fanout.rest().await.unwrap().0.len(), 1);
    let end = agent.stream_end().await.expect("an end");
    assert_eq!(end.code, 0);
    assert!(
        began.elapsed() >= Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
    // Its next calls go elsewhere.
    assert!(agent.register().await.is_err());
    assert_eq!(stop.await.expect("no panic").unsent, 0);
    let _back = attach(&b, "agent").await;
}
