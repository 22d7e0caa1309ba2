//! Every way in which a configuration refuses the start.
//!
//! Responsible for being the one list of them: what the CRITICAL line calls each (BOOT-1 to
//! BOOT-24), and what the tests walk. Must never know how one is found.

use std::fmt;

macro_rules! refusals {
    ($($(#[doc = $doc:literal])+ $name:ident = $term:literal,)+) => {
        /// A way in which a configuration refuses the start. Several share a defect term.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Refusal {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Refusal {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The defect term.
            pub const fn term(self) -> &'static str {
                match self {
                    $(Self::$name => $term,)+
                }
            }
        }
    };
}

refusals! {
    /// The file can't be read, or is too large.
    UnreadableFile = "unreadable_file",
    /// The file is not UTF-8.
    NotText = "bad_syntax",
    /// The file is not TOML.
    NotToml = "bad_syntax",
    /// A name that is no key (BOOT-3).
    UnknownKey = "unknown_keys",
    /// A table is something else.
    BadTable = "bad_table",
    /// A bad `node.name`.
    BadNodeName = "bad_node_name",
    /// A bad `node.cluster_id` (BOOT-16).
    BadClusterId = "invalid_cluster_id",
    /// A bad `node.visibility`.
    BadVisibility = "bad_visibility",
    /// A bad `node.advertise` or `node.peer_advertise`.
    BadAdvertise = "bad_advertise",
    /// Nothing serves agents (BOOT-1).
    NoListeners = "no_listeners",
    /// A bad `listener.name`.
    BadListenerName = "bad_name",
    /// Two listeners of one name (BOOT-6).
    DuplicateName = "duplicate_name",
    /// One port for two sockets (BOOT-6).
    DuplicatePort = "duplicate_port",
    /// Services that there are not (BOOT-7).
    BadServices = "bad_routes",
    /// A listener without services (BOOT-7).
    NoServices = "service_without_routes",
    /// A bad address of a listener, of the metrics or of the health endpoint.
    BadAddress = "bad_address",
    /// A bad value in `[listener.tls]`.
    BadListenerTls = "tls_incomplete",
    /// One of the three files is not named (BOOT-4).
    TlsIncomplete = "tls_incomplete",
    /// A file of a listener that can't be served (BOOT-24).
    ListenerTlsFiles = "listener_tls_files",
    /// Identities are enforced where no certificate is asked for.
    AgentIdentityWithoutCertificate = "agent_identity_without_certificate",
    /// Management beyond loopback without TLS (BOOT-9).
    ManagementWithoutTls = "insecure_mgmt_listener (no_tls)",
    /// The same without a client certificate (BOOT-9).
    ManagementWithoutClientAuth = "insecure_mgmt_listener (client_auth_not_required)",
    /// A bad value in `[listener.origin]` (BOOT-8, ORIGIN-8).
    BadOrigin = "bad_origin",
    /// A proxied mode that believes nobody (ORIGIN-8).
    OriginWithoutSources = "bad_origin",
    /// A proxied mode on a listener that serves management (ORIGIN-8).
    OriginOfManagement = "bad_origin",
    /// `forwarded_for` where client certificates are asked for (LSN-11).
    OriginBesideCertificates = "bad_origin",
    /// A connection may hold less than one message.
    BadLimits = "bad_limits",
    /// No endpoint (BOOT-12).
    NoUpstream = "no_default_channel",
    /// `upstream.endpoints` of a bad shape (BOOT-11).
    BadChannel = "bad_channel",
    /// An endpoint of a bad shape (BOOT-11).
    BadEndpoint = "bad_endpoint",
    /// An endpoint without a usable host (BOOT-11).
    BadHost = "bad_host",
    /// http and https together (BOOT-15).
    MixedEndpoints = "mixed_upstream_endpoints",
    /// A bad value in `[upstream.tls]` (BOOT-11).
    BadUpstreamTls = "bad_client_config",
    /// A certificate without its key, or a key without its certificate.
    HalfUpstreamCertificate = "bad_client_config",
    /// https without a CA (BOOT-13).
    UnverifiedUpstream = "unverified_upstream_tls",
    /// A TLS file of the way to the server is a directory or a special file (BOOT-14).
    UpstreamTlsFile = "unusable_upstream_tls_file",
    /// A private node that nobody would find (VIS-2).
    PrivateWithoutSeeds = "private_without_seeds",
    /// A bad address of a seed.
    BadSeeds = "bad_seeds",
    /// Seeds, and no listener for nodes.
    SeedsWithoutListener = "no_node_listener",
    /// A listener that serves nodes and something else, or a second one.
    NodeListenerNotAlone = "bad_routes",
    /// A bad value in `[cluster.tls]`, or not all three files.
    BadClusterTls = "bad_cluster_tls",
    /// A file of `[cluster.tls]` that can't be used.
    ClusterTlsFiles = "bad_cluster_tls",
    /// Peers are dialled with TLS and served without, or the reverse.
    HalfClusterTls = "bad_cluster_tls",
    /// Nodes are served over TLS without a client certificate.
    NodesWithoutClientAuth = "bad_cluster_tls",
    /// A shared secret that protects nothing (BOOT-18).
    InsecureSecret = "insecure_distribution_cookie",
    /// A bad value in `[memory.shedding]` (BOOT-17).
    BadShedding = "memory_shedding",
    /// Marks that can't work (BOOT-17, SHED-7).
    SheddingMarks = "memory_shedding",
    /// A bad `management.peer_auth_mode` (BOOT-10).
    BadPeerAuthMode = "bad_mgmt_peer_auth_mode",
    /// A bad `management.peer_identity` (BOOT-10).
    BadPeerIdentity = "bad_mgmt_peer_identity",
    /// `management.peer_pins` is not a list, or too long.
    BadPeerPins = "bad_pin_config",
    /// A bad `management.peer_denied` (BOOT-10).
    BadPeerDenied = "bad_mgmt_peer_denied",
    /// An explicit identity over a bundle (MGMT-AUTH-9).
    IdentityOverBundle = "identity_over_ca_bundle",
    /// Listeners that derive different identities (MGMT-AUTH-8).
    IdentityAmbiguous = "identity_ambiguous",
    /// Nothing is pinned where a pin is asked for (MGMT-AUTH-13).
    NoPeerPins = "insecure_mgmt_listener (no_mgmt_peer_pins)",
    /// No identity where one is asked for (MGMT-AUTH-13).
    NoPeerIdentity = "insecure_mgmt_listener (no_mgmt_peer_identity)",
    /// Neither (MGMT-AUTH-13).
    NoPeerPinsOrIdentity = "insecure_mgmt_listener (no_mgmt_peer_pins_or_identity)",
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.term())
    }
}
