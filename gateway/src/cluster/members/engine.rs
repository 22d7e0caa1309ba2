//! The membership engine, set up for `cluster.dead_after_ms` (MESH-1, MESH-5).
//!
//! Responsible for the engine's settings, and for turning what it believes into members. Must never
//! decide who is dead: the engine does, within the bound that its settings give.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use chitchat::{
    ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig, NodeState, spawn_chitchat,
};

use super::gossip::{SealedTransport, unix_ms};
use super::labels::Labels;
use super::patience::Patience;
use super::view::Member;
use crate::cluster::link::handshake::Identity;

/// Clusters of another contract are not spoken to.
const CLUSTER: &str = "yuzu.node.v1";
/// Of a node that is dead, until the engine forgets it.
const REMEMBERED: Duration = Duration::from_secs(120);

/// Starts the engine. What it told of itself before does not count any more: each start has a
/// generation of its own, since the others would take smaller versions and heartbeats for old news.
///
/// # Errors
/// Whatever the engine says.
pub(crate) async fn start(
    own: &Identity,
    address: SocketAddr,
    dead_after: Duration,
    labels: &Labels,
    transport: &SealedTransport,
) -> anyhow::Result<ChitchatHandle> {
    let config = ChitchatConfig {
        chitchat_id: ChitchatId::new(Arc::clone(&own.name), unix_ms(), address),
        cluster_id: CLUSTER.to_owned(),
        gossip_interval: Patience::pace(dead_after),
        listen_addr: address,
        // Told one by one, as they are resolved.
        seed_nodes: Vec::new(),
        failure_detector_config: detector(dead_after),
        marked_for_deletion_grace_period: REMEMBERED,
        catchup_callback: None,
        extra_liveness_predicate: None,
    };
    let labels = labels.pairs().into_iter();
    let labels = labels.map(|(key, value)| (key.to_owned(), value)).collect();
    spawn_chitchat(config, labels, transport).await
}

/// The engine takes a node for dead when its silence is `phi_threshold` times the usual time between
/// two of its heartbeats. It learns that time; here it may learn from one sample at most, beside
/// five that say a tenth of `dead_after`, so that it stays between 0.83 and 1.17 of that. Then a node
/// is dead after 0.62 to 0.88 of `dead_after`, one round of gossip later at most.
fn detector(dead_after: Duration) -> FailureDetectorConfig {
    FailureDetectorConfig {
        phi_threshold: 7.5,
        sampling_window_size: 1,
        max_interval: 2 * Patience::pace(dead_after),
        initial_interval: Patience::pace(dead_after),
        dead_node_grace_period: REMEMBERED,
    }
}

/// A node as the engine has it; `None` while it only knows that there is one.
pub(crate) fn member(id: &ChitchatId, state: &NodeState) -> Option<Member> {
    let labels = Labels::read(|key| state.get(key));
    (labels.incarnation > 0).then(|| Member {
        name: Arc::clone(&id.node_id),
        incarnation: labels.incarnation,
        generation: id.generation_id,
        gossip: id.gossip_advertise_addr,
        labels,
    })
}
