//! What a stream-status notice is, and how it looks on the wire.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use yuzu_proto::WIRE_CAPABILITY_DISPATCH_TAG;
use yuzu_proto::gateway::v1::{StreamStatusNotification, stream_status_notification};

use crate::config;
use crate::gateways::Names;

/// What happened to the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// The agent's stream is here.
    Connected,
    /// It is not any more.
    Disconnected,
}

impl Event {
    /// Both, in the order of the metric labels.
    pub const ALL: [Event; 2] = [Event::Connected, Event::Disconnected];

    /// Value of the metric label `event`.
    pub fn label(self) -> &'static str {
        match self {
            Event::Connected => "connected",
            Event::Disconnected => "disconnected",
        }
    }
}

/// Notices of one key are sent in order, one at a time, and a newer one replaces an older one
/// (NOTIFY-1, NOTIFY-3, NOTIFY-4).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct NoticeKey {
    /// The agent's id.
    pub agent_id: Arc<str>,
    /// The session, as the server minted it.
    pub session_id: Arc<str>,
    /// The stream's own id, the same for all its notices.
    pub stream_home_id: Arc<str>,
}

/// One stream-status notice. Has no `Debug`: it holds a session id.
#[derive(Clone, PartialEq, Eq)]
pub struct Notice {
    /// The agent's id.
    pub agent_id: Arc<str>,
    /// The session, as the server minted it.
    pub session_id: Arc<str>,
    /// The stream's own id, the same for all its notices.
    pub stream_home_id: Arc<str>,
    /// What happened.
    pub event: Event,
    /// The agent's address as attributed; `None` is sent as `unknown`. A value of this type needs
    /// no cleaning: it is never longer than 45 characters, and never anything but an address
    /// (NOTIFY-17).
    pub peer: Option<IpAddr>,
}

impl Notice {
    /// The key it is ordered by.
    pub fn key(&self) -> NoticeKey {
        NoticeKey {
            agent_id: Arc::clone(&self.agent_id),
            session_id: Arc::clone(&self.session_id),
            stream_home_id: Arc::clone(&self.stream_home_id),
        }
    }
}

/// What every notice of this node carries (NOTIFY-16).
#[derive(Debug, Clone)]
pub struct Sender {
    names: Names,
    cluster_id: String,
}

impl From<&config::Node> for Sender {
    /// Of a node that is named by its own name.
    fn from(node: &config::Node) -> Self {
        Self::new(node, Names::public(&node.name))
    }
}

impl Sender {
    pub(crate) fn new(node: &config::Node, names: Names) -> Self {
        Self {
            names,
            cluster_id: node.cluster_id.clone(),
        }
    }

    /// Waits until the name of a gateway can be given (VIS-3).
    pub(crate) async fn is_named(&self) {
        self.names.known().await;
    }

    /// The encoded `StreamStatusNotification`.
    pub(crate) fn encode(&self, notice: &Notice) -> Bytes {
        let event = match notice.event {
            Event::Connected => stream_status_notification::Event::Connected,
            Event::Disconnected => stream_status_notification::Event::Disconnected,
        };
        let peer = notice.peer.map(|peer| peer.to_canonical().to_string());
        let message = StreamStatusNotification {
            agent_id: notice.agent_id.to_string(),
            session_id: notice.session_id.to_string(),
            event: event.into(),
            peer_addr: peer.unwrap_or_else(|| "unknown".into()),
            gateway_node: self.names.of(&notice.agent_id).to_string(),
            wire_capabilities: vec![WIRE_CAPABILITY_DISPATCH_TAG.into()],
            cluster_id: self.cluster_id.clone(),
            stream_home_id: notice.stream_home_id.to_string(),
        };
        message.encode_to_vec().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(peer: Option<&str>, event: Event) -> StreamStatusNotification {
        let node = config::Node {
            name: "yuzu_gw@gw1".into(),
            cluster_id: "eu".into(),
            ..config::Config::default().node
        };
        let notice = Notice {
            agent_id: "a-1".into(),
            session_id: "gw-session-1".into(),
            stream_home_id: "00ff".into(),
            event,
            peer: peer.map(|peer| peer.parse().unwrap()),
        };
        StreamStatusNotification::decode(Sender::from(&node).encode(&notice)).unwrap()
    }

    #[test]
    fn notify_16_every_notice_carries_node_cluster_capabilities_and_stream_home() {
        for (event, number) in [(Event::Connected, 0), (Event::Disconnected, 1)] {
            let expected = StreamStatusNotification {
                agent_id: "a-1".into(),
                session_id: "gw-session-1".into(),
                event: number,
                peer_addr: "192.0.2.7".into(),
                gateway_node: "yuzu_gw@gw1".into(),
                wire_capabilities: vec!["command_dispatch_tag_v1".into()],
                cluster_id: "eu".into(),
                stream_home_id: "00ff".into(),
            };
            assert_eq!(encoded(Some("192.0.2.7"), event), expected);
        }
    }

    #[test]
    fn notify_17_the_peer_is_a_bare_address_or_unknown() {
        let peer = |peer| encoded(peer, Event::Connected).peer_addr;
        assert_eq!(peer(None), "unknown");
        assert_eq!(peer(Some("2001:db8::1")), "2001:db8::1");
        assert_eq!(peer(Some("::ffff:192.0.2.7")), "192.0.2.7");
    }

    proptest::proptest! {
        #[test]
        fn notify_17_every_address_is_short_and_plain(bits: u128, four: bool) {
            let peer = match four {
                true => IpAddr::from((bits as u32).to_be_bytes()),
                false => IpAddr::from(bits.to_be_bytes()),
            };
            let text = encoded(Some(&peer.to_string()), Event::Connected).peer_addr;
            let plain = |c: char| c.is_ascii_hexdigit() || c == '.' || c == ':';
            proptest::prop_assert!(text.len() <= 45 && text.chars().all(plain), "{text}");
        }
    }
}
