//! What a node tells the others of itself (MESH-3).
//!
//! Responsible for writing and reading labels, each within its bounds. Pure. Must never trust one
//! for more than it says: a label that can't be read counts as absent.

use crate::config::Endpoint;

const INCARNATION: &str = "incarnation";
const VERSION: &str = "version";
const PROTOCOL: &str = "protocol";
const VISIBILITY: &str = "visibility";
const DRAINING: &str = "draining";
const ADVERTISE: &str = "advertise";
const PEER: &str = "peer";
pub(super) const SESSIONS: &str = "sessions";
const FORWARDING: &str = "forwarding";
const FORWARDED: &str = "forwarded";

const MAX_VALUE: usize = 260;
const MAX_ADDRESSES: usize = 64;

/// The labels of one node, besides its name, which the engine carries. What a later version adds is
/// left alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Labels {
    /// Unix milliseconds of the node's start; 0 when it is not told yet.
    pub(crate) incarnation: u64,
    /// Of the software.
    pub(crate) version: String,
    /// Of the contract between nodes; 0 when it is not told.
    pub(crate) protocol: u32,
    /// Whether it hides from agents and the server; absent is public (VIS-1).
    pub(crate) is_private: bool,
    /// It is stopping.
    pub(crate) draining: bool,
    /// Addresses that agents dial.
    pub(crate) advertise: Vec<String>,
    /// The address that other nodes dial; its host is what a certificate must name.
    pub(crate) peer: Option<String>,
    /// Agents connected, as of some seconds ago.
    pub(crate) sessions: u64,
    /// Forwarded sessions that it has opened to others, likewise.
    pub(crate) forwarding: u64,
    /// Forwarded sessions that it serves for others, likewise.
    pub(crate) forwarded: u64,
}

impl Labels {
    /// As they are gossiped.
    pub(crate) fn pairs(&self) -> Vec<(&'static str, String)> {
        let visibility = match self.is_private {
            true => "private",
            false => "public",
        };
        vec![
            (INCARNATION, self.incarnation.to_string()),
            (VERSION, self.version.clone()),
            (PROTOCOL, self.protocol.to_string()),
            (VISIBILITY, visibility.to_owned()),
            (DRAINING, u8::from(self.draining).to_string()),
            (ADVERTISE, self.advertise.join(",")),
            (PEER, self.peer.clone().unwrap_or_default()),
            (SESSIONS, self.sessions.to_string()),
            (FORWARDING, self.forwarding.to_string()),
            (FORWARDED, self.forwarded.to_string()),
        ]
    }

    /// As `get` has them.
    pub(crate) fn read<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Self {
        let short = |key: &str| get(key).filter(|value| value.len() <= MAX_VALUE);
        let plain = |text: &&str| !text.is_empty() && !text.chars().any(char::is_control);
        let advertise = get(ADVERTISE).unwrap_or_default().split(',');
        let advertise = advertise
            .filter(|one| plain(one) && one.len() <= MAX_VALUE)
            .take(MAX_ADDRESSES);
        let number = |key: &str| short(key).and_then(|text| text.parse().ok());
        Self {
            incarnation: number(INCARNATION).unwrap_or_default(),
            version: short(VERSION).filter(plain).unwrap_or_default().to_owned(),
            protocol: short(PROTOCOL)
                .and_then(|text| text.parse().ok())
                .unwrap_or_default(),
            is_private: short(VISIBILITY) == Some("private"),
            draining: short(DRAINING) == Some("1"),
            advertise: advertise.map(str::to_owned).collect(),
            peer: short(PEER).filter(plain).map(str::to_owned),
            sessions: number(SESSIONS).unwrap_or_default(),
            forwarding: number(FORWARDING).unwrap_or_default(),
            forwarded: number(FORWARDED).unwrap_or_default(),
        }
    }
}

/// Host and port of an address that was gossiped.
pub(crate) fn endpoint(text: &str) -> Option<Endpoint> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty()).then(|| Endpoint {
        host: host.to_owned(),
        port,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn mesh_3_labels_are_read_as_they_were_written() {
        let labels = Labels {
            incarnation: 1_800_000_000_000,
            version: "1.2.3".into(),
            protocol: 1,
            is_private: false,
            draining: true,
            advertise: vec!["gw-1.example:50051".into(), "[2001:db8::1]:50051".into()],
            peer: Some("gw-1.internal:9100".into()),
            sessions: 12_345,
            forwarding: 6,
            forwarded: 7,
        };
        let written: BTreeMap<_, _> = labels.pairs().into_iter().collect();
        let read = Labels::read(|key| written.get(key).map(String::as_str));
        assert_eq!(read, labels);
    }

    #[test]
    fn mesh_3_what_is_absent_or_can_not_be_read_is_the_default() {
        assert_eq!(Labels::read(|_| None), Labels::default());
        assert_eq!(Labels::read(|_| Some("")), Labels::default());
        let long = "x".repeat(10_000);
        let read = Labels::read(|_| Some(&long));
        assert_eq!(read, Labels::default());
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        let read = |text: &str| endpoint(text).map(|one| (one.host, one.port));
        assert_eq!(read("gw:9100"), Some(("gw".into(), 9100)));
        assert_eq!(read("[::1]:1"), Some(("::1".into(), 1)));
        for none in ["", "gw", ":1", "gw:0", "gw:65536"] {
            assert_eq!(read(none), None, "{none:?}");
        }
    }
}
