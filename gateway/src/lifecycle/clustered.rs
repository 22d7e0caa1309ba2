//! What a node among others has besides: its part of the cluster, commands for agents of others,
//! agents that move to them.
//!
//! Responsible for making them, in a cluster alone. Must never know a rule of theirs.

use std::sync::Arc;

use super::StartError;
use crate::cluster::{self, Cluster};
use crate::command::{Forwarder, Router, Served};
use crate::config::{self, Config, Visibility};
use crate::gateways::Names;
use crate::session::OwnerContext;
use crate::shed::MemoryShedder;
use crate::shift::{Eyes, Shifter};
use crate::system::UdpSocket;

pub(super) fn part_of_cluster(
    config: &Config,
    socket: UdpSocket,
    owners: &OwnerContext,
    names: &Names,
) -> Result<Cluster, StartError> {
    let secret = config.cluster.secret.as_ref().ok_or(StartError::NoSecret)?;
    Ok(Cluster::new(config, secret, socket, owners, names))
}

pub(super) fn start_shifter(
    config: config::Shift,
    owners: &Arc<OwnerContext>,
    shedder: &MemoryShedder,
    cluster: &Cluster,
) -> Shifter {
    let eyes = Eyes {
        memory: Box::new(shedder.is_shedding()),
        elsewhere: Box::new(cluster.elsewhere()),
    };
    Shifter::start(config, owners, eyes)
}

/// Whose name the agents of this node are told under (VIS-3).
pub(super) fn names(config: &Config) -> Names {
    match config.node.visibility {
        Visibility::Public => Names::public(&config.node.name),
        Visibility::Private => Names::private(&config.node.name, config.cluster.dead_after),
    }
}

/// What commands go through, and what serves those of other nodes.
pub(super) fn start_router(
    config: &Config,
    owners: &OwnerContext,
    cluster: Option<&Cluster>,
) -> (Arc<Router>, Option<Arc<Served>>) {
    let (registry, metrics) = (&owners.registry, &owners.metrics);
    let router = Router::new(
        Arc::clone(registry),
        Arc::clone(metrics),
        config.command.clone(),
    );
    let Some(cluster) = cluster else {
        return (Arc::new(router), None);
    };
    let (sharing, channels) = (cluster.sharing(), cluster.channels());
    let router = Arc::new(match config.node.visibility {
        // VIS-7.
        Visibility::Private => router,
        Visibility::Public => router.forwarding(Forwarder::new(
            registry,
            Arc::clone(&sharing),
            Arc::clone(&channels),
            metrics,
            &config.routing,
            config.observe.metrics_per_peer,
        )),
    });
    let served = Served::new(&router, registry, sharing, metrics, &config.routing);
    channels.accepted_by(Arc::clone(&served) as Arc<dyn cluster::Acceptor>);
    (router, Some(served))
}
