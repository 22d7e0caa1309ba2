use std::collections::BTreeSet;
use std::time::Duration;

use prometheus::core::Collector;

use super::link::failure::Failure;
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
    let keys = Keys::derive(&config::Secret::new(
        "the secret of this cluster, 32 characters",
    ));
    let metrics = Arc::new(Metrics::new(name).expect("families"));
    (own, SealedTransport::new(socket, keys, metrics), address)
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
