//! MESH-1, MESH-3 to MESH-6, CLUSTER-1, CLUSTER-2, CLUSTER-7, CLUSTER-8: who is there.

use std::time::Duration;

use tokio::time::Instant;
use yuzu_gateway::Gateway;
use yuzu_gateway::config::{Config, Endpoint, Listener};
use yuzu_tests::agent::PATIENCE;
use yuzu_tests::http;
use yuzu_tests::testbed::TestBed;

use super::{LOOK, Node, config, says, seed};
use crate::logs::capture;

#[tokio::test]
async fn mesh_1_nodes_find_each_other_through_one_seed_and_link() {
    let a = Node::start(config("a")).await;
    let b = Node::join(config("b"), &[&a]).await;
    let c = Node::join(config("c"), &[&a]).await;
    a.lists(&["b", "c"]).await;
    b.lists(&["a", "c"]).await;
    c.lists(&["a", "b"]).await;
    for node in [&a, &b, &c] {
        node.counts("cluster_peers_connected", &[], 2.0).await;
        // Of which one at most is a seed.
        node.counts("cluster_peers_expected", &[], 2.0).await;
        // One connection for each pair: nobody was refused as a second one.
        for reason in ["name_taken", "direction", "secret", "unexpected_node"] {
            let reason = [("reason", reason)];
            let refused = node.metric("cluster_connect_failures_total", &reason).await;
            assert_eq!(refused, 0.0, "{reason:?}");
        }
    }
    let open = [("listener", "node")];
    assert_eq!(a.metric("listener_connections", &open).await, 0.0);
    assert_eq!(b.metric("listener_connections", &open).await, 1.0);
    assert_eq!(c.metric("listener_connections", &open).await, 2.0);
}

#[tokio::test]
async fn cluster_8_a_node_that_comes_and_goes_is_counted() {
    let a = Node::start(config("a")).await;
    let b = Node::join(config("b"), &[&a]).await;
    a.lists(&["b"]).await;
    let up = [("event", "node_up"), ("node", "b")];
    assert_eq!(a.metric("cluster_events_total", &up).await, 1.0);
    b.counts("cluster_peers_resolved", &[], 1.0).await;
    b.gateway.shutdown().await;
    a.lists(&[]).await;
    let down = [("event", "node_down"), ("node", "b")];
    assert_eq!(a.metric("cluster_events_total", &down).await, 1.0);
    assert_eq!(a.metric("cluster_peers_connected", &[]).await, 0.0);
}

#[tokio::test]
async fn cluster_2_a_node_that_finds_nobody_is_a_cluster_of_one_and_ready() {
    let mut alone = config("alone");
    alone.cluster.seed_nodes = vec![Endpoint {
        host: "no-such-host.invalid".into(),
        port: 9100,
    }];
    let alone = Node::start(alone).await;
    let reason = [("reason", "resolve")];
    alone
        .counts("cluster_connect_failures_total", &reason, 2.0)
        .await;
    assert_eq!(alone.names().await, [""; 0]);
    assert_eq!(alone.page().await["state"], "alone");
    let ready = http::get(alone.gateway.health_address(), "/readyz").await;
    assert_eq!(ready.expect("an answer").status, 200);
}

#[tokio::test]
async fn cluster_2_a_node_that_finds_nobody_says_so_with_its_seeds_and_when_that_is_over() {
    let (log, _guard) = capture();
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = free.local_addr().expect("an address");
    drop(free);
    let mut alone = config("alone");
    alone.cluster.dead_after = Duration::from_secs(1);
    alone.cluster.seed_nodes = vec![
        seed(silent),
        Endpoint {
            host: "no-such-host.invalid".into(),
            port: 9100,
        },
    ];
    let alone = Node::start(alone).await;
    says(&log, "no other node was found").await;
    let expected = alone.metric("cluster_peers_expected", &[]).await;
    assert_eq!(expected, 1.0);
    let text = log.text();
    let mut lines = text.lines();
    let line = lines.find(|line| line.contains("no other node was found"));
    let line = line.expect("it was said");
    assert!(line.contains("WARN"), "{line}");
    assert!(line.contains(&silent.to_string()), "{line}");
    assert!(
        line.contains("no-such-host.invalid:9100 (no address)"),
        "{line}"
    );
    assert_eq!(
        lines.filter(|line| line.contains("no other node")).count(),
        0
    );
    let mut found = config("found");
    found.listeners[1].address = silent;
    let _found = Node::start(found).await;
    alone.lists(&["found"]).await;
    says(&log, "no longer alone").await;
    assert_eq!(alone.page().await["state"], "joined");
}

#[tokio::test]
async fn mesh_1_a_node_without_a_listener_for_nodes_has_no_cluster() {
    let bed = TestBed::start().await;
    let page = http::get(bed.gateway.health_address(), "/cluster").await;
    assert_eq!(page.expect("an answer").status, 404);
    assert_eq!(bed.gateway.node_address(), None);
}

#[tokio::test]
async fn mesh_3_the_labels_of_a_node_reach_the_others() {
    let a = Node::start(config("a")).await;
    let mut told = config("b");
    told.node.advertise = vec![Endpoint {
        host: "gw-b.example".into(),
        port: 50051,
    }];
    let b = Node::join(told, &[&a]).await;
    a.lists(&["b"]).await;
    let page = a.page().await;
    let row = &page["members"][0];
    assert_eq!(row["name"], "b");
    assert_eq!(row["protocol"], 1);
    assert_eq!(row["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(row["visibility"], "public");
    assert_eq!(row["draining"], false);
    assert_eq!(row["sessions"], 0);
    assert_eq!(row["advertise"], serde_json::json!(["gw-b.example:50051"]));
    assert_eq!(row["address"], b.address().to_string());
}

#[tokio::test]
async fn mesh_5_a_restarted_node_comes_back_with_a_higher_incarnation() {
    let a = Node::start(config("a")).await;
    let b = Node::join(config("b"), &[&a]).await;
    a.lists(&["b"]).await;
    let before = a.listed().await;
    // On the port that it had, as a restarted process does.
    let mut again = config("b");
    again.listeners[1] = Listener::node(b.address());
    b.gateway.shutdown().await;
    let _b = Node::join(again, &[&a]).await;
    let later = tokio::time::timeout(PATIENCE, async {
        loop {
            let listed = a.listed().await;
            if listed.len() == 1 && listed != before {
                return listed;
            }
            tokio::time::sleep(LOOK).await;
        }
    });
    let later = later.await.expect("it comes back");
    assert!(later[0].1 > before[0].1, "{later:?} after {before:?}");
}

#[tokio::test]
async fn mesh_6_of_two_nodes_with_one_name_the_younger_serves_alone() {
    let (log, _guard) = capture();
    let elder = Node::start(config("twin")).await;
    let witness = Node::join(config("witness"), &[&elder]).await;
    witness.lists(&["twin"]).await;
    let known = witness.listed().await;
    let younger = Node::join(config("twin"), &[&witness]).await;
    younger.leaves().await;
    assert_eq!(younger.names().await, [""; 0]);
    // Where the other one is found, and not only whence it called.
    let found = format!(
        "no link with 127.0.0.1: name_taken: it calls itself twin, at {}",
        younger.address()
    );
    says(&log, &found).await;
    younger.counts("cluster_peers_connected", &[], 0.0).await;
    // It goes on serving, and the elder is not touched.
    let ready = http::get(younger.gateway.health_address(), "/readyz").await;
    assert_eq!(ready.expect("an answer").status, 200);
    assert_eq!(witness.listed().await, known);
    elder.lists(&["witness"]).await;
    assert_eq!(elder.page().await["state"], "joined");
}

#[tokio::test]
async fn mesh_6_a_node_that_has_left_expects_no_peers() {
    let elder = Node::start(config("twin")).await;
    let younger = Node::start(config("twin")).await;
    let friend = Node::join(config("friend"), &[&younger]).await;
    younger.lists(&["friend"]).await;
    let expected = "cluster_peers_expected";
    younger.metric_becomes(expected, &[], 1.0).await;
    let _bridge = Node::join(config("bridge"), &[&elder, &friend]).await;
    younger.leaves().await;
    younger.metric_becomes(expected, &[], 0.0).await;
}

#[tokio::test]
async fn cluster_1_seeds_are_asked_again_until_one_answers() {
    // An address of which nobody has heard yet.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let mut b = config("b");
    b.cluster.seed_nodes = vec![seed(address)];
    let b = Node::start(b).await;
    b.counts("cluster_peers_resolved", &[], 1.0).await;
    assert_eq!(b.names().await, [""; 0]);
    let mut a = config("a");
    a.listeners[1].address = address;
    let _a = Node::start(a).await;
    b.lists(&["a"]).await;
}

#[tokio::test]
async fn boot_18_a_node_that_is_made_without_a_secret_does_not_start() {
    let mut open = config("open");
    open.cluster.secret = None;
    let refused = Gateway::start(open).await.expect_err("no secret");
    assert!(refused.to_string().contains("YUZU_GW_COOKIE"), "{refused}");
}

#[tokio::test]
async fn cluster_9_nodes_of_different_cluster_ids_are_one_cluster() {
    let a = Node::start(config("a")).await;
    let mut b = config("b");
    b.node.cluster_id = "another".into();
    let b = Node::join(b, &[&a]).await;
    a.lists(&["b"]).await;
    b.lists(&["a"]).await;
}

#[tokio::test]
async fn cluster_7_an_address_that_is_one_too_many_is_refused_and_counted() {
    let (a, c) = (
        Node::start(config("a")).await,
        Node::start(config("c")).await,
    );
    let mut b: Config = config("b");
    b.cluster.max_lifetime_addrs = 1;
    b.cluster.seed_nodes = vec![seed(a.address()), seed(c.address())];
    let b = Node::start(b).await;
    b.lists(&["a"]).await;
    b.counts("cluster_address_cap_exceeded_total", &[], 2.0)
        .await;
    assert_eq!(b.metric("cluster_peers_resolved", &[]).await, 1.0);
    assert_eq!(c.names().await, [""; 0]);
}

#[tokio::test]
async fn mesh_5_a_node_that_falls_silent_is_gone_within_dead_after() {
    let a = Node::start(config("a")).await;
    let mut silent = config("b");
    silent.cluster.seed_nodes = vec![seed(a.address())];
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let (end, ended) = std::sync::mpsc::sync_channel::<()>(0);
    // A runtime of its own, which stands still when it is told to: its sockets stay open.
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async move {
            let _b = Node::start(silent).await;
            let _ = stopped.await;
            let _ = ended.recv();
        });
    });
    a.lists(&["b"]).await;
    stop.send(()).expect("it waits");
    let silence = Instant::now();
    a.lists(&[]).await;
    let gone_after = silence.elapsed();
    drop(end);
    thread.join().expect("no panic");
    // Of 2 s, and some for a machine under load.
    assert!(gone_after > Duration::from_secs(1), "{gone_after:?}");
    assert!(gone_after < Duration::from_secs(3), "{gone_after:?}");
    assert_eq!(a.metric("cluster_peers_connected", &[]).await, 0.0);
}
