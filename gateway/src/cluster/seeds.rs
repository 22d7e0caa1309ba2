//! Where the other nodes are looked for (MESH-4, CLUSTER-1, CLUSTER-7), and this one's own address
//! (CLUSTER-3).
//!
//! Responsible for resolving names again and again, within a bound on distinct addresses. Must never
//! connect to one.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::time::timeout;

use crate::config::Endpoint;
use crate::system::{is_local, lookup_host};

/// Addresses of one name.
const MAX_PER_NAME: usize = 1_024;
/// For one name.
const PATIENCE: Duration = Duration::from_secs(5);

/// Distinct addresses in the life of the process.
#[derive(Debug)]
pub(crate) struct Addresses {
    known: HashSet<SocketAddr>,
    max: usize,
}

impl Addresses {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            known: HashSet::new(),
            max,
        }
    }

    /// Those of `found` that may be spoken to, each once, and how many were one too many.
    pub(crate) fn admit(
        &mut self,
        found: impl IntoIterator<Item = SocketAddr>,
    ) -> (Vec<SocketAddr>, usize) {
        let (mut admitted, mut refused) = (Vec::new(), HashSet::new());
        for address in found {
            if !self.known.contains(&address) && self.known.len() >= self.max {
                refused.insert(address);
            } else {
                self.known.insert(address);
                if !admitted.contains(&address) {
                    admitted.push(address);
                }
            }
        }
        (admitted, refused.len())
    }
}

/// The addresses of a seed; `None` when it has none.
pub(crate) async fn resolve(seed: &Endpoint) -> Option<Vec<SocketAddr>> {
    let found = timeout(PATIENCE, lookup_host((seed.host.as_str(), seed.port))).await;
    let found: Vec<_> = found.ok()?.ok()?.take(MAX_PER_NAME).collect();
    (!found.is_empty()).then_some(found)
}

/// The IP that peers reach this node at, unless it is configured: the one it listens on; else one of
/// the seeds' that belongs to this machine; else that of its host name; else loopback.
pub(crate) async fn own_ip(
    listening: IpAddr,
    seeds: &[Endpoint],
    host_name: Option<String>,
) -> IpAddr {
    if !listening.is_unspecified() {
        return listening;
    }
    for seed in seeds {
        let found = resolve(seed).await.unwrap_or_default();
        if let Some(own) = found.iter().find(|address| is_local(address.ip())) {
            return own.ip();
        }
    }
    if let Some(host) = host_name {
        let found = resolve(&Endpoint { host, port: 1 })
            .await
            .unwrap_or_default();
        let v4 = found.iter().find(|address| address.is_ipv4());
        if let Some(address) = v4.or(found.first()) {
            return address.ip();
        }
    }
    Ipv4Addr::LOCALHOST.into()
}

/// Whether a seed is this very node: it listens on `port` of an address of this machine.
pub(crate) fn is_own(seed: SocketAddr, port: u16) -> bool {
    seed.port() == port && is_local(seed.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 9100).into()
    }

    #[test]
    fn cluster_7_addresses_beyond_the_bound_are_refused_for_the_life_of_the_process() {
        let mut addresses = Addresses::new(2);
        let found = |last: &[u8]| last.iter().copied().map(address).collect::<Vec<_>>();
        assert_eq!(addresses.admit(found(&[1, 2, 1])), (found(&[1, 2]), 0));
        assert_eq!(addresses.admit(found(&[3, 2, 3, 4])), (found(&[2]), 2));
        // Also when the first ones have gone.
        assert_eq!(addresses.admit(found(&[3])), (vec![], 1));
        assert_eq!(addresses.admit(found(&[1])), (found(&[1]), 0));
    }

    #[tokio::test]
    async fn cluster_3_the_own_address_is_found_in_this_order() {
        let any = Ipv4Addr::UNSPECIFIED.into();
        let seed = |host: &str| Endpoint {
            host: host.to_owned(),
            port: 9100,
        };
        let listening = Ipv4Addr::new(192, 0, 2, 9).into();
        assert_eq!(own_ip(listening, &[], None).await, listening);
        // 192.0.2.0/24 belongs to nobody.
        let seeds = [seed("192.0.2.1"), seed("127.0.0.9")];
        let expected: IpAddr = Ipv4Addr::new(127, 0, 0, 9).into();
        assert_eq!(own_ip(any, &seeds, None).await, expected);
        let host = Some("127.0.0.7".to_owned());
        let expected: IpAddr = Ipv4Addr::new(127, 0, 0, 7).into();
        assert_eq!(own_ip(any, &seeds[..1], host).await, expected);
        let expected: IpAddr = Ipv4Addr::LOCALHOST.into();
        assert_eq!(own_ip(any, &seeds[..1], None).await, expected);
    }
}
