//! Where a call comes from: the TCP peer, or the client that a trusted proxy names (ORIGIN).
//!
//! Responsible for deciding per call whose word counts and for counting what was not used. Pure
//! but for the counters. Must never put an address into a label or a log.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use http::HeaderMap;

use super::connection::Connection;
use super::proxy_protocol::Claim;
use crate::config::{CallerOrigin, OriginMode, OriginSource};
use crate::observe::metrics::Metrics;

const FORWARDED_FOR: &str = "x-forwarded-for";
/// Longest address in a claim, in bytes.
const MAX_CLAIM: usize = 64;

/// Why a claim was not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ignored {
    UntrustedSource,
    NoClaim,
    BadClaim,
}

impl Ignored {
    const fn label(self) -> &'static str {
        match self {
            Self::UntrustedSource => "untrusted_source",
            Self::NoClaim => "no_claim",
            Self::BadClaim => "bad_claim",
        }
    }
}

/// How a listener finds out where a call comes from.
#[derive(Debug)]
pub(crate) struct OriginRule {
    origin: CallerOrigin,
    metrics: Arc<Metrics>,
}

/// The client's bare IP as far as it is known, IPv4-mapped IPv6 folded (ORIGIN-4). `None`: a
/// trusted proxy named none.
pub(crate) type CallOrigin = Option<IpAddr>;

/// Travels with a call whose origin is not simply the TCP peer.
#[derive(Debug, Clone, Copy)]
struct Decided(CallOrigin);

/// Where a call of this connection comes from, as [`OriginRule::mark`] has decided.
pub(crate) fn of<B>(request: &http::Request<B>, connection: &Connection) -> CallOrigin {
    match request.extensions().get::<Decided>() {
        Some(Decided(origin)) => *origin,
        None => Some(connection.peer_ip()),
    }
}

impl OriginRule {
    pub(crate) fn new(origin: CallerOrigin, metrics: Arc<Metrics>) -> Self {
        Self { origin, metrics }
    }

    /// Whether a connection begins with a PROXY header.
    pub(crate) fn expects_proxy_header(&self) -> bool {
        self.origin.mode == OriginMode::ProxyProtocol
    }

    /// Whether it may be another than the TCP peer that a call comes from.
    pub(crate) fn is_claimed(&self) -> bool {
        self.origin.mode != OriginMode::Transport
    }

    /// The rule for calls of a connection that began under this one, when `now` is in force: that
    /// one, unless it asks for a claim that this connection did not begin with.
    pub(crate) fn successor<'a>(&'a self, now: &'a Self) -> &'a Self {
        match now.origin.mode == self.origin.mode {
            true => now,
            false => self,
        }
    }

    /// Whether this peer is a proxy that speaks for others.
    pub(crate) fn trusts(&self, peer: IpAddr) -> bool {
        let sources = &self.origin.sources;
        self.is_claimed() && trusted(peer.to_canonical(), sources)
    }

    /// The client that a trusted proxy names for the whole connection.
    pub(crate) fn client(&self, peer: IpAddr, claim: Claim) -> Option<IpAddr> {
        match claim {
            Claim::Address(client) if self.trusts(peer) => Some(client),
            _ => None,
        }
    }

    /// Decides where one call of `connection`, which began with `claim`, comes from (ORIGIN-1 to
    /// 3), and counts it (ORIGIN-5). Costs nothing in mode transport.
    pub(crate) fn mark<B>(
        &self,
        request: &mut http::Request<B>,
        connection: &Connection,
        claim: Claim,
    ) {
        if self.is_claimed() {
            let origin = self.decide(connection.peer_ip(), claim, request.headers());
            request.extensions_mut().insert(Decided(origin));
        }
    }

    fn decide(&self, peer: IpAddr, claim: Claim, headers: &HeaderMap) -> CallOrigin {
        let peer = peer.to_canonical();
        let claim = match self.origin.mode {
            OriginMode::Transport => return Some(peer),
            OriginMode::ProxyProtocol => claim,
            OriginMode::ForwardedFor => forwarded(headers, self.origin.trusted_hops),
        };
        let (origin, ignored) = judge(peer, &self.origin.sources, claim);
        if let Some(ignored) = ignored {
            let labels = [self.origin.mode.name(), ignored.label()];
            let family = &self.metrics.grpc_origin_ignored_total;
            family.with_label_values(&labels).inc();
        }
        origin
    }
}

fn trusted(peer: IpAddr, sources: &[OriginSource]) -> bool {
    sources.iter().any(|source| source.contains(peer))
}

fn judge(peer: IpAddr, sources: &[OriginSource], claim: Claim) -> (CallOrigin, Option<Ignored>) {
    match (trusted(peer, sources), claim) {
        (false, Claim::None) => (Some(peer), None),
        (false, _) => (Some(peer), Some(Ignored::UntrustedSource)),
        (true, Claim::None) => (None, Some(Ignored::NoClaim)),
        (true, Claim::Bad) => (None, Some(Ignored::BadClaim)),
        (true, Claim::Address(address)) => (Some(address), None),
    }
}

/// The entry `trusted_hops` from the right (ORIGIN-7). The header's lines count as one list.
fn forwarded(headers: &HeaderMap, trusted_hops: usize) -> Claim {
    let lines = headers.get_all(FORWARDED_FOR);
    if lines.iter().next().is_none() {
        return Claim::None;
    }
    let entries = lines
        .iter()
        .rev()
        .flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    entries
        .skip(trusted_hops)
        .map(bare_ip)
        .next()
        .flatten()
        .map_or(Claim::Bad, Claim::Address)
}

/// A bare IP between spaces and tabs; the zone of an IPv6 address is dropped.
fn bare_ip(entry: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(entry).ok()?;
    let text = text.trim_matches([' ', '\t']);
    if text.len() > MAX_CLAIM {
        return None;
    }
    let address = match text.split_once('%') {
        Some((address, _zone)) => IpAddr::V6(address.parse::<Ipv6Addr>().ok()?),
        None => text.parse().ok()?,
    };
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests;
