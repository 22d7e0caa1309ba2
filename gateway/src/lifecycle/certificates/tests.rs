//! Files that change under a running node, looked at by hand.

use std::fs;

use super::listeners::Listeners;
use super::*;
use crate::config::{
    Listener, ListenerTls, PeerAuthMode, PeerPin, ResolvedPeer, Scheme, UpstreamTls,
};
use crate::pki::server_identity;
use crate::pki::testing::{Authority, Directory, Wish};

/// A node with an agent and two management listeners over the same CA file.
struct Node {
    authority: Authority,
    directory: Directory,
    config: Config,
    metrics: Arc<Metrics>,
}

impl Node {
    fn new(mode: PeerAuthMode) -> Self {
        let (authority, directory) = (Authority::new("ca"), Directory::new());
        let node = "0.0.0.0:0".parse().unwrap();
        let second = Listener {
            name: "management-2".into(),
            ..Listener::management(node)
        };
        let listeners = [Listener::agent(node), Listener::management(node), second];
        let mut config = Config {
            listeners: listeners.into(),
            ..Config::default()
        };
        for listener in &mut config.listeners {
            let file = |end: &str| directory.path(&format!("{}.{end}", listener.name));
            listener.tls = Some(ListenerTls {
                cert_file: file("pem"),
                key_file: file("key"),
                ca_file: directory.path("ca.pem"),
                ..ListenerTls::of(&listener.services)
            });
        }
        config.management.peer_auth_mode = mode;
        let node = Self {
            authority,
            directory,
            config,
            metrics: Arc::new(Metrics::new("gw1").unwrap()),
        };
        node.directory.write("ca.pem", node.authority.pem());
        for listener in ["agent", "management", "management-2"] {
            node.renew(listener, 2100);
        }
        node
    }

    fn renew(&self, listener: &str, until: i32) {
        let wish = Wish {
            until,
            ..Wish::default()
        };
        let leaf = self.authority.issue(wish);
        self.directory
            .write(&format!("{listener}.pem"), leaf.certificate);
        self.directory.write(&format!("{listener}.key"), leaf.key);
    }

    fn files(&self) -> Snapshot {
        let pins = Pins::new(&self.config.management.peer_pins);
        Snapshot::read(paths(&self.config, &pins).iter().map(AsRef::as_ref))
    }

    fn listeners(&self) -> Listeners {
        let loaded = Listeners::load(&self.config, &self.files(), &self.metrics);
        loaded.unwrap_or_else(|error| panic!("{error}")).0
    }

    fn gauge(&self, gauge: &prometheus::IntGaugeVec, role: &str, name: &str) -> Option<i64> {
        let families = prometheus::core::Collector::collect(gauge);
        let metric = families.first()?.get_metric().iter().find(|metric| {
            let value = |label: &str| {
                let labels = metric.get_label();
                labels
                    .iter()
                    .find(|pair| pair.name() == label)
                    .map(|pair| pair.value())
            };
            value("role") == Some(role) && value("name") == Some(name)
        })?;
        Some(metric.get_gauge().get_value() as i64)
    }

    fn end(&self, role: &str, name: &str) -> Option<i64> {
        self.gauge(&self.metrics.cert_expiry_timestamp_seconds, role, name)
    }

    fn readable(&self, role: &str, name: &str) -> Option<i64> {
        self.gauge(&self.metrics.cert_file_readable, role, name)
    }
}

fn identity(peer: Option<ResolvedPeer>) -> Option<String> {
    peer.expect("new files").identity
}

#[test]
fn mgmt_auth_15_a_new_ca_is_judged_as_at_the_start() {
    let mut node = Node::new(PeerAuthMode::Identity);
    let mut listeners = node.listeners();
    assert_eq!(listeners.look(&node.files()), None, "nothing changed");

    let next = Authority::new("next");
    node.directory
        .write("ca.pem", node.authority.pem() + &next.pem());
    assert_eq!(
        listeners.look(&node.files()),
        None,
        "a bundle leaves nobody to admit"
    );
    assert_eq!(
        listeners.look(&node.files()),
        None,
        "and is not taken later"
    );

    node.directory.write("ca.pem", next.pem());
    let peer = identity(listeners.look(&node.files()));
    assert_eq!(peer, Some(server_identity(&next.der())));

    node.config.listeners[1].tls.as_mut().unwrap().ca_file = node.directory.path("own.pem");
    node.directory.write("own.pem", next.pem());
    let mut listeners = node.listeners();
    node.directory.write("own.pem", node.authority.pem());
    assert_eq!(listeners.look(&node.files()), None, "identity_ambiguous");
    node.directory.write("ca.pem", node.authority.pem());
    let peer = identity(listeners.look(&node.files()));
    assert_eq!(
        peer,
        Some(server_identity(&node.authority.der())),
        "held back no longer"
    );
}

#[test]
fn mgmt_auth_15_a_given_identity_refuses_a_bundle_later_too() {
    let mut node = Node::new(PeerAuthMode::IdentityOrPin);
    node.config.management.peer_identity = server_identity(&node.authority.der());
    let mut listeners = node.listeners();
    let bundle = node.authority.pem() + &Authority::new("next").pem();
    node.directory.write("ca.pem", bundle);
    assert_eq!(listeners.look(&node.files()), None);
    node.renew("management", 2100);
    assert_eq!(listeners.look(&node.files()), None, "the files are one set");
    node.directory.write("ca.pem", node.authority.pem());
    assert!(listeners.look(&node.files()).is_some());
}

#[test]
fn boot_24_files_that_are_at_fault_later_leave_the_last_good_ones() {
    let node = Node::new(PeerAuthMode::Identity);
    let mut listeners = node.listeners();
    let other = node.authority.issue(Wish::default());
    node.directory.write("management.pem", other.certificate);
    assert_eq!(
        listeners.look(&node.files()),
        None,
        "the key is still the old one"
    );
    node.directory.write("management.key", other.key);
    assert!(listeners.look(&node.files()).is_some());
    fs::remove_file(node.directory.path("ca.pem")).unwrap();
    assert_eq!(listeners.look(&node.files()), None);
    node.directory.write("ca.pem", node.authority.pem());
    assert!(listeners.look(&node.files()).is_some());
}

/// `date -u -d <year>-01-01 +%s`
const END_2040: i64 = 2_208_988_800;
const END_2050: i64 = 2_524_608_000;
const END_2100: i64 = 4_102_444_800;
const END_2101: i64 = 4_133_980_800;

#[test]
fn cert_5_every_configured_certificate_has_its_end() {
    let mut node = Node::new(PeerAuthMode::Pin);
    node.renew("agent", 2040);
    let server = node.authority.issue(Wish {
        until: 2050,
        ..Wish::default()
    });
    let pin = node.directory.write("server.pem", server.certificate);
    let list = node.directory.write("crl.pem", node.authority.revoke(&[1]));
    node.config.management.peer_pins = vec![PeerPin::Malformed, PeerPin::CertFile(pin)];
    node.config.listeners[1].tls.as_mut().unwrap().crl_files = vec![list];
    node.config.upstream.scheme = Scheme::Https;
    node.config.upstream.tls = UpstreamTls {
        ca_file: node.directory.path("ca.pem"),
        cert_file: node.directory.path("agent.pem"),
        key_file: node.directory.path("agent.key"),
        server_name: String::new(),
    };
    let mut expiry = Expiry::of(&node.config);
    expiry.look(&node.files(), &node.metrics);
    for (role, name, end) in [
        ("listener", "agent", END_2040),
        ("listener", "management", END_2100),
        ("listener", "management-2", END_2100),
        ("listener_ca", "agent", END_2101),
        ("listener_crl", "management", END_2100),
        ("upstream_client", "default_channel", END_2040),
        ("upstream_ca", "default_channel", END_2101),
        ("mgmt_peer_pin", "pin1", END_2050),
    ] {
        assert_eq!(node.end(role, name), Some(end), "{role} {name}");
        assert_eq!(node.readable(role, name), Some(1), "{role} {name}");
    }
    assert_eq!(node.end("mgmt_peer_pin", "pin0"), None);
}

#[test]
fn cert_5_a_file_that_can_not_be_read_keeps_its_end() {
    let node = Node::new(PeerAuthMode::Identity);
    fs::remove_file(node.directory.path("agent.pem")).unwrap();
    let mut expiry = Expiry::of(&node.config);
    let mut look = || expiry.look(&node.files(), &node.metrics);
    look();
    assert_eq!(node.end("listener", "agent"), None, "never readable");
    assert_eq!(node.readable("listener", "agent"), Some(0));
    node.renew("agent", 2040);
    look();
    assert_eq!(node.end("listener", "agent"), Some(END_2040));
    assert_eq!(node.readable("listener", "agent"), Some(1));
    node.directory.write("agent.pem", "");
    look();
    assert_eq!(node.end("listener", "agent"), Some(END_2040));
    assert_eq!(node.readable("listener", "agent"), Some(0));
}

#[test]
fn cert_5_an_end_that_can_not_be_read_takes_the_series_away() {
    let node = Node::new(PeerAuthMode::Identity);
    let mut expiry = Expiry::of(&node.config);
    expiry.look(&node.files(), &node.metrics);
    assert_eq!(node.end("listener", "agent"), Some(END_2100));
    let odd = crate::pki::testing::with_unreadable_end(&node.authority);
    node.directory.write("agent.pem", odd);
    expiry.look(&node.files(), &node.metrics);
    assert_eq!(node.end("listener", "agent"), None);
    assert_eq!(node.readable("listener", "agent"), Some(1));
}

#[test]
fn cert_5_two_files_of_one_name_show_the_earlier_end_and_both_must_be_readable() {
    let mut node = Node::new(PeerAuthMode::Identity);
    let list = node.directory.write("crl.pem", node.authority.revoke(&[1]));
    let missing = node.directory.path("later.pem");
    node.config.listeners[1].tls.as_mut().unwrap().crl_files = vec![list, missing];
    let mut expiry = Expiry::of(&node.config);
    expiry.look(&node.files(), &node.metrics);
    assert_eq!(node.end("listener_crl", "management"), Some(END_2100));
    assert_eq!(node.readable("listener_crl", "management"), Some(0));
}
