//! Whom a listener believes about where its calls come from.
//!
//! Responsible for the shape of `[listener.origin]` and of its sources. Pure.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use super::document::{Node, Raw};
use super::values::Misfit;

/// Bits of an IPv6 address before the IPv4 address that is mapped into it.
const MAPPED_BITS: u8 = 96;

/// `[listener.origin]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallerOrigin {
    /// Whose word counts.
    pub mode: OriginMode,
    /// The proxies that are believed; not empty in the proxied modes.
    pub sources: Vec<Source>,
    /// Proxies between the client and the one that connects here; of `forwarded_for` only.
    pub trusted_hops: usize,
}

/// Whose word counts for where a call comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OriginMode {
    /// The TCP peer's.
    #[default]
    Transport,
    /// That of the header which a proxy puts before everything else.
    ProxyProtocol,
    /// That of `x-forwarded-for`.
    ForwardedFor,
}

impl OriginMode {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Transport, Self::ProxyProtocol, Self::ForwardedFor];

    /// Its word in the file, and the value of the label `mode`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Transport => "transport",
            Self::ProxyProtocol => "proxy_protocol",
            Self::ForwardedFor => "forwarded_for",
        }
    }
}

/// A trusted proxy, or a network of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source(IpNet);

impl Source {
    /// Reads `192.0.2.7` or `10.0.0.0/8`. IPv4 in its IPv6 form is folded; `None` also for a
    /// mapped network that reaches beyond IPv4 (ORIGIN-4).
    pub fn parse(text: &str) -> Option<Self> {
        let net = match text.parse::<IpNet>() {
            Ok(net) => net,
            Err(_) => IpNet::from(text.parse::<IpAddr>().ok()?),
        };
        let IpAddr::V6(address) = net.addr() else {
            return Some(Self(net));
        };
        match address.to_ipv4_mapped() {
            None => Some(Self(net)),
            Some(_) if net.prefix_len() <= MAPPED_BITS => None,
            Some(v4) => Ipv4Net::new(v4, net.prefix_len() - MAPPED_BITS)
                .ok()
                .map(|net| Self(net.into())),
        }
    }

    /// Whether `address`, folded, is one of them.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() {
            self.0.addr().fmt(f)
        } else {
            self.0.fmt(f)
        }
    }
}

/// More of them are a mistake: a network is one.
const MAX_SOURCES: usize = 1_024;

pub(super) const MODE_ALLOWED: &str = "\"transport\", \"proxy_protocol\" or \"forwarded_for\"";
pub(super) const SOURCES_ALLOWED: &str = "a list of addresses and networks";

pub(super) fn mode(raw: &Raw) -> Option<OriginMode> {
    let text = raw.text()?;
    OriginMode::ALL.into_iter().find(|mode| mode.name() == text)
}

pub(super) fn sources(node: &Node) -> Result<Vec<Source>, Vec<Misfit>> {
    let Raw::List(items) = &node.raw else {
        return Err(vec![Misfit::new(node, SOURCES_ALLOWED)]);
    };
    if items.len() > MAX_SOURCES {
        let allowed = format!("a list of at most {MAX_SOURCES}");
        return Err(vec![Misfit::new(node, allowed)]);
    }
    let (mut sources, mut misfits) = (Vec::new(), Vec::new());
    for (index, item) in items.iter().enumerate() {
        match item.raw.text().and_then(Source::parse) {
            Some(source) => sources.push(source),
            None => {
                let allowed = "an address like \"10.0.0.5\" or a network like \"10.1.0.0/24\"";
                misfits.push(Misfit::new(item, allowed).item(index));
            }
        }
    }
    if misfits.is_empty() {
        Ok(sources)
    } else {
        Err(misfits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Option<String> {
        Source::parse(text).map(|source| source.to_string())
    }

    #[test]
    fn addresses_and_networks_are_read() {
        for same in [
            "192.0.2.7",
            "10.0.0.0/8",
            "2001:db8::1",
            "fd00::/8",
            "0.0.0.0/0",
        ] {
            assert_eq!(shown(same).as_deref(), Some(same));
        }
        for wrong in [
            "",
            "10.0.0.0/33",
            "::/129",
            "proxy",
            "10.0.0.1:80",
            "10.0.0.1/",
            "/8",
        ] {
            assert_eq!(shown(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn origin_4_mapped_sources_are_folded_and_a_wider_one_is_refused() {
        assert_eq!(shown("::ffff:192.0.2.7").as_deref(), Some("192.0.2.7"));
        assert_eq!(shown("::ffff:10.0.0.0/104").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(shown("::ffff:10.0.0.0/97").as_deref(), Some("10.0.0.0/1"));
        assert_eq!(shown("::ffff:10.0.0.0/96"), None);
        assert_eq!(shown("::ffff:0.0.0.0/90"), None);
    }

    #[test]
    fn a_network_holds_its_addresses_only() {
        let net = Source::parse("10.1.0.0/16").unwrap();
        let holds = |text: &str| net.contains(text.parse().unwrap());
        assert!(holds("10.1.255.255"));
        assert!(!holds("10.2.0.0"));
        assert!(!holds("::1"));
    }
}
