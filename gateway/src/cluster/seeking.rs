//! Looking for the other nodes (MESH-4), and saying so when there are none (CLUSTER-2).
//!
//! Responsible for resolving the seeds again and again, for gossip with those that are not known to
//! live, and for the lines. Must never decide who is a member.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use chitchat::ChitchatHandle;
use tokio::time::Instant;
use tracing::{info, warn};

use super::Parts;
use super::link::failure::Failure;
use super::link::table::MAX_PEERS;
use super::members::solitude::{Notice, Solitude};
use super::seeds;
use crate::observe::log::safe_text;

/// Seeds that one line names.
const NAMED: usize = 8;

/// What the seeds are, as of the last look.
#[derive(Debug, Clone, Default)]
pub(super) struct Sought {
    /// Their addresses, this node's own among them.
    pub(super) addresses: Vec<SocketAddr>,
    /// Those that have none.
    unresolved: Vec<String>,
}

/// Where this node looks, and what was said of it.
#[derive(Debug)]
pub(super) struct Seeking {
    tried: Tried,
    solitude: Solitude,
}

/// The seeds beside this node.
#[derive(Debug, Default)]
struct Tried {
    addresses: Vec<SocketAddr>,
    unresolved: Vec<String>,
}

impl Tried {
    fn len(&self) -> usize {
        self.addresses.len() + self.unresolved.len()
    }
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.addresses.iter().map(ToString::to_string);
        let nowhere = |name: &String| format!("{} (no address)", safe_text(&**name));
        let named = addresses.chain(self.unresolved.iter().map(nowhere));
        let named: Vec<_> = named.take(NAMED).collect();
        f.write_str(&named.join(", "))?;
        match self.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Looks the seeds up again and again.
pub(super) async fn seek(parts: Arc<Parts>) {
    let seeds = parts.config.seeds();
    let mut ticks = tokio::time::interval(parts.config.redial_interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (mut found, mut unresolved) = (Vec::new(), Vec::new());
        for seed in &seeds {
            match seeds::resolve(seed).await {
                Some(resolved) => found.extend(resolved),
                None => {
                    parts
                        .mesh
                        .failed(Failure::Resolve, safe_text(&seed.to_string()));
                    unresolved.push(seed.to_string());
                }
            }
        }
        let (addresses, refused) = parts.addresses().admit(found);
        let metrics = &parts.metrics;
        metrics
            .cluster_address_cap_exceeded_total
            .inc_by(refused as u64);
        parts.seeds.send_replace(Sought {
            addresses,
            unresolved,
        });
    }
}

impl Parts {
    /// Nothing was looked for yet. A start takes a look at the seeds and a round of links.
    pub(super) fn seeking(&self) -> Seeking {
        Seeking {
            tried: Tried::default(),
            solitude: Solitude::new(self.config.dead_after + self.config.redial_interval),
        }
    }

    /// Gossips with the seeds that are not known to live.
    pub(super) fn seek_out(
        &self,
        handle: &ChitchatHandle,
        sought: Sought,
        own: SocketAddr,
        seeking: &mut Seeking,
    ) -> anyhow::Result<()> {
        let is_own = |seed: &SocketAddr| *seed == own || seeds::is_own(*seed, own.port());
        let addresses = sought.addresses.into_iter();
        seeking.tried = Tried {
            addresses: addresses.filter(|seed| !is_own(seed)).collect(),
            unresolved: sought.unresolved,
        };
        let peers = &seeking.tried.addresses;
        self.metrics.cluster_peers_resolved.set(peers.len() as i64);
        self.expect();
        let known: HashSet<_> = self
            .view()
            .reachable()
            .map(|member| member.gossip)
            .collect();
        let unknown = peers.iter().filter(|seed| !known.contains(seed));
        unknown
            .take(MAX_PEERS)
            .try_for_each(|seed| handle.gossip(*seed))
    }

    /// Says when this node is alone though it looks for others, and when it is no longer.
    pub(super) fn tell_solitude(&self, seeking: &mut Seeking) {
        let (members, heard) = {
            let view = self.view();
            (view.members().count(), view.heard())
        };
        let Seeking { tried, solitude } = seeking;
        match solitude.look(Instant::now().into_std(), members, tried.len() > 0) {
            Some(Notice::Alone) if heard == 0 => warn!(
                "Cluster: no other node was found, this one is alone: none of the seeds answers, which \
                 are {tried}. Do they run, do they have this secret, does UDP pass both ways?"
            ),
            Some(Notice::Alone) => warn!(
                "Cluster: this node is alone: it hears of {heard} other(s), and has a link with none. \
                 See the lines `no link with` here and on the others"
            ),
            Some(Notice::Found) => info!(members, "Cluster: no longer alone"),
            None => {}
        }
    }
}
