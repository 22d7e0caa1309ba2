//! The shape of the cluster, with its defaults; a part of [`super::schema`].
//!
//! Responsible for names, types and defaults, and for keeping the shared secret out of sight. Must
//! never decide what a bad value does.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::schema::{Config, Endpoint, Limits, Listener, Service};
use crate::pki::Paths;

/// The port of nodes where an address names none.
pub const NODE_PORT: u16 = 9100;

/// Where nodes are served by default: every interface.
pub const NODE_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), NODE_PORT);

/// Least length of the shared secret, in bytes (BOOT-18).
pub const LEAST_SECRET_BYTES: usize = 32;

/// Whether agents and the server may be told of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// They may.
    Public,
    /// Other nodes only: the server is told of its agents under the names of public nodes.
    Private,
}

/// `[cluster]`, and the shared secret. In force only where a listener serves nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// A name whose A and AAAA records are the nodes, where `seed_nodes` is empty.
    pub seed_dns_name: Option<Endpoint>,
    /// Nodes to begin with. Replaces `seed_dns_name` unless it is empty.
    pub seed_nodes: Vec<Endpoint>,
    /// Time between two looks at the seeds, and between two attempts to reach a peer.
    pub redial_interval: Duration,
    /// Distinct addresses of seeds in the life of the process.
    pub max_lifetime_addrs: usize,
    /// A node is gone after this long a silence (MESH-5).
    pub dead_after: Duration,
    /// `[cluster.tls]`: how this node dials its peers; without its files, in plaintext.
    pub tls: ClusterTls,
    /// What the nodes of a cluster share (`YUZU_GW_COOKIE`); no key. There if and only if the node
    /// is clustered.
    pub secret: Option<Secret>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            seed_dns_name: None,
            seed_nodes: Vec::new(),
            redial_interval: Duration::from_millis(5_000),
            max_lifetime_addrs: 1_024,
            dead_after: Duration::from_millis(5_000),
            tls: ClusterTls::default(),
            secret: None,
        }
    }
}

impl Cluster {
    /// Where peers are looked for (MESH-4).
    pub fn seeds(&self) -> Vec<Endpoint> {
        match self.seed_nodes.is_empty() {
            true => self.seed_dns_name.iter().cloned().collect(),
            false => self.seed_nodes.clone(),
        }
    }
}

/// `[shift]`. In force only where a listener serves nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shift {
    /// From the GOAWAY on an agent's connection to the end of its stream.
    pub grace: Duration,
    /// Agents that are asked to move within a second.
    pub max_per_second: u32,
    /// Share of the processors' time above which agents are asked to move.
    pub cpu_high: f64,
    /// So many times the mean of the public nodes is too much for one of them; above 1.
    pub imbalance: f64,
    /// Agents that stay in any case, unless the node stops.
    pub min_sessions: usize,
}

impl Default for Shift {
    fn default() -> Self {
        Self {
            grace: Duration::from_millis(5_000),
            max_per_second: 100,
            cpu_high: 0.85,
            imbalance: 1.25,
            min_sessions: 100,
        }
    }
}

/// `[routing]`: bounds of commands that other nodes carry out (FWD-5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routing {
    /// Forwarded sessions that this node has opened, and as many that it serves.
    pub max_sessions: usize,
    /// Of them, those opened to one owner node.
    pub max_sessions_per_owner: usize,
    /// Bytes on their way to owners, and of answers in hand.
    pub max_inflight_bytes: usize,
    /// Until the owner says that it wrote the command.
    pub forward_timeout: Duration,
    /// Until there is a stream to the owner.
    pub connect_timeout: Duration,
    /// A session that waits for nothing ends after this long.
    pub idle_close: Duration,
    /// A session whose stream broke can be resumed for this long (FWD-8).
    pub resume_grace: Duration,
}

impl Default for Routing {
    fn default() -> Self {
        Self {
            max_sessions: 4_096,
            max_sessions_per_owner: 1_024,
            max_inflight_bytes: 256 << 20,
            forward_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            idle_close: Duration::from_secs(30),
            resume_grace: Duration::from_secs(5),
        }
    }
}

/// Whom a command without agent ids goes to (ADJ-5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Broadcast {
    /// The agents of this node.
    #[default]
    Local,
    /// Those of every node.
    Mesh,
}

/// `[cluster.tls]`. PEM files; an empty path is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterTls {
    /// The CAs of the nodes, and the only ones that are trusted.
    pub ca_file: PathBuf,
    /// This node's client certificate.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
    /// The name that every node's certificate must have; empty is the host of its peer address.
    pub server_name: String,
}

impl ClusterTls {
    /// Whether any of its files is named.
    pub fn is_set(&self) -> bool {
        let files = [&self.ca_file, &self.cert_file, &self.key_file];
        files.iter().any(|path| !path.as_os_str().is_empty())
    }

    /// Whether all of them are.
    pub(super) fn is_complete(&self) -> bool {
        let files = [&self.ca_file, &self.cert_file, &self.key_file];
        files.iter().all(|path| !path.as_os_str().is_empty())
    }

    /// Where they are.
    pub(crate) fn paths(&self) -> Paths<'_> {
        Paths {
            certificate: &self.cert_file,
            key: &self.key_file,
            authorities: &self.ca_file,
            revocation_lists: &[],
            single_authority: false,
        }
    }
}

/// The secret that the nodes of a cluster share. It is never printed and never travels.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Takes it as it stands in the environment.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// To derive keys from.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Why it protects nothing, as a clause behind its name (BOOT-18).
    pub(super) fn weakness(&self) -> Option<&'static str> {
        const MARKS: [&str; 7] = [
            "${",
            "$(",
            "{{",
            "changeme",
            "change-me",
            "change_me",
            "placeholder",
        ];
        let text = String::from_utf8_lossy(&self.0).to_lowercase();
        let text = text.trim();
        let in_brackets = text.starts_with('<') && text.ends_with('>');
        if text.is_empty() {
            Some("is empty or not set")
        } else if in_brackets || MARKS.iter().any(|mark| text.contains(mark)) {
            Some("is a placeholder that nobody has replaced")
        } else if self.0.len() < LEAST_SECRET_BYTES {
            // Older gateways had a default, which is shorter too.
            Some("has less than 32 characters")
        } else {
            None
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Listener {
    /// A listener with the defaults of one that serves other gateways: 1,024 of them, and ten seconds
    /// for each to prove the secret.
    pub fn node(address: SocketAddr) -> Self {
        let management = Self::management(address);
        Self {
            name: "node".into(),
            services: vec![Service::Node],
            limits: Limits {
                max_connections: 1_024,
                unregistered_timeout: Duration::from_secs(10),
                ..management.limits
            },
            ..management
        }
    }
}

impl Config {
    /// The listener of nodes, and its place. There is at most one.
    pub fn node_listener(&self) -> Option<(usize, &Listener)> {
        let mut listeners = self.listeners.iter().enumerate();
        listeners.find(|(_, listener)| listener.serves(Service::Node))
    }
}
