//! The shape of the configuration: one struct per table of `gateway.toml`, with its defaults.
//!
//! Responsible for names, types and defaults only. Must never read a file, an environment
//! variable or decide what a bad value does: that is [`super::load`].
//!
//! A field has the name of its key without the unit: `rpc_timeout_ms` is `rpc_timeout:
//! Duration`, `default_timeout_s` is `default_timeout: Duration`. Sizes are bytes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

pub use super::cluster::*;
pub use super::listener::*;
use super::memory_limit::MemoryLimit;
pub use super::security::*;
use super::shedding::Shedding;

pub(super) const fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

const fn any(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)
}

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// Where agents are served by default: every interface.
pub const AGENT_ADDRESS: SocketAddr = any(50051);
/// Where management is served by default: loopback only.
pub const MANAGEMENT_ADDRESS: SocketAddr = loopback(50063);

/// The whole configuration, as in force.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Who this node is.
    pub node: Node,
    /// At least one listener, each with a unique name.
    pub listeners: Vec<Listener>,
    /// The way to the server.
    pub upstream: Upstream,
    /// Stream-status notices.
    pub notify: Notify,
    /// The heartbeat batcher.
    pub heartbeat: Heartbeat,
    /// Registration replay.
    pub replay: Replay,
    /// Sessions and their owners.
    pub session: Session,
    /// Command fan-out.
    pub command: Command,
    /// When agents are refused for want of memory.
    pub memory: Memory,
    /// Who may command.
    pub management: Management,
    /// The planned stop.
    pub shutdown: Shutdown,
    /// Metrics, health and logs.
    pub observe: Observe,
    /// The other gateways.
    pub cluster: Cluster,
    /// Agents that are asked to move to them.
    pub shift: Shift,
    /// Commands that other nodes carry out.
    pub routing: Routing,
    /// Switches for rigs and tests.
    pub lab: Lab,
}

/// `[node]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Stamped as `gateway_node`; empty in the file means `yuzu_gw@` and the host name, resolved
    /// while loading, so that it is never empty here.
    pub name: String,
    /// Label sent to the server; may be empty.
    pub cluster_id: String,
    /// Whether agents and the server may be told of it (VIS-1).
    pub visibility: Visibility,
    /// Addresses that agents dial, as other nodes are told (MESH-3).
    pub advertise: Vec<Endpoint>,
    /// The address that other nodes dial, port 0 for that of the node listener; `None` is worked
    /// out at the start (CLUSTER-3).
    pub peer_advertise: Option<Endpoint>,
}

/// Where something listens: the server, `http://host:port` or `https://host:port`, or another
/// gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Host name or bare IP (no brackets).
    pub host: String,
    /// Port, 1..=65535.
    pub port: u16,
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// `[upstream]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Upstream {
    /// In order of preference; calls go to one at a time, the others stand by. Empty only with
    /// `lab.allow_no_upstream`.
    pub endpoints: Vec<Endpoint>,
    /// Of all endpoints.
    pub scheme: Scheme,
    /// How long a standby is used before the endpoints ahead of it are tried again; zero is until
    /// it fails.
    pub failback_after: Duration,
    /// Bound of one connection attempt.
    pub connect_timeout: Duration,
    /// Bound of one call, the wait for a connection included.
    pub rpc_timeout: Duration,
    /// Bound of a caller's whole wait when it gave no deadline (PERMIT-4).
    pub call_timeout: Duration,
    /// TCP_NODELAY on the connection.
    pub tcp_nodelay: bool,
    /// Largest answer accepted.
    pub max_receive_message_bytes: usize,
    /// Registrations in flight.
    pub register_concurrency: usize,
    /// Registrations waiting.
    pub register_queue: usize,
    /// Inventory reports in flight.
    pub inventory_concurrency: usize,
    /// Inventory reports waiting.
    pub inventory_queue: usize,
    /// Replays in flight, at most `register_concurrency`.
    pub replay_concurrency: usize,
    /// `[upstream.tls]`, for [`Scheme::Https`].
    pub tls: UpstreamTls,
    /// `[upstream.breaker]`.
    pub breaker: Breaker,
}

/// `[upstream.breaker]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breaker {
    /// Consecutive failures that open it.
    pub failure_threshold: u32,
    /// First open time.
    pub reset_timeout: Duration,
    /// Largest open time, never below `reset_timeout`.
    pub max_reset_timeout: Duration,
}

/// `[notify]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notify {
    /// Held notices; 0 in the file is resolved while loading to three per admitted agent
    /// connection, at least 15,000.
    pub pending_max: usize,
    /// Bound of a probe.
    pub probe_timeout: Duration,
    /// First resend delay of an unacknowledged notice.
    pub unacked_retry_base: Duration,
    /// Largest resend delay.
    pub unacked_retry_max: Duration,
    /// Age at which resends slow down.
    pub unacked_slow_after: Duration,
    /// Delay of the slow phase.
    pub unacked_slow_max: Duration,
    /// How long a DISCONNECTED is resent.
    pub unacked_disconnected_window: Duration,
}

/// `[heartbeat]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// Time between flushes.
    pub batch_interval: Duration,
    /// Sessions buffered.
    pub max_sessions: usize,
    /// Bytes buffered.
    pub max_bytes: usize,
}

/// `[replay]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// A session is not replayed twice within this time.
    pub session_guard: Duration,
    /// Sessions queued.
    pub queue_max: usize,
    /// Longest random delay before replays begin.
    pub start_jitter: Duration,
}

/// `[session]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Sessions counted per connection (CAP-1).
    pub max_per_connection: usize,
    /// Rows of a closed connection stay takeable for this long (CAP-7).
    pub dead_connection_grace: Duration,
    /// Owner restarts within `restart_period` before all are restarted (OWNER-9).
    pub restart_intensity: u32,
    /// See `restart_intensity`.
    pub restart_period: Duration,
}

/// `[command]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Used when a command names no timeout (CMD-10).
    pub default_timeout: Duration,
    /// Commands waiting for one agent (CMD-17).
    pub mailbox: usize,
    /// The same in bytes.
    pub mailbox_bytes: usize,
    /// Answers waiting for one caller (CMD-22).
    pub caller_buffer_bytes: usize,
    /// A caller that leaves that full this long ends its fan-out (CMD-22).
    pub slow_caller_timeout: Duration,
    /// Whom a command without agent ids goes to (ADJ-5).
    pub broadcast: Broadcast,
}

/// `[memory]`, and what the machine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that unfinished requests of all connections may hold together (LSN-16).
    pub max_unfinished_request_bytes: usize,
    /// `[memory.shedding]`.
    pub shedding: Shedding,
    /// The memory that this process may use; no key.
    pub limit: Option<MemoryLimit>,
}

/// `[shutdown]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shutdown {
    /// Budget of the whole planned stop.
    pub flush_budget: Duration,
}

/// Form of the log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One readable line each.
    Text,
    /// One JSON object each.
    Json,
}

/// `[observe]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observe {
    /// Where `/metrics` is served; port 0 takes any free port.
    pub metrics_address: SocketAddr,
    /// Where `/healthz` and `/readyz` are served; port 0 takes any free port.
    pub health_address: SocketAddr,
    /// Time between updates of sampled gauges.
    pub gauge_interval: Duration,
    /// Whether figures about other nodes have a series for each of them.
    pub metrics_per_peer: bool,
    /// `error`, `warn`, `info`, `debug` or `trace`, or a filter like `info,yuzu_gateway=debug`.
    pub log_level: String,
    /// Form of the log lines.
    pub log_format: LogFormat,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node: Node {
                name: "yuzu_gw@127.0.0.1".into(),
                cluster_id: "default".into(),
                visibility: Visibility::Public,
                advertise: Vec::new(),
                peer_advertise: None,
            },
            listeners: vec![
                Listener::agent(AGENT_ADDRESS),
                Listener::management(MANAGEMENT_ADDRESS),
            ],
            upstream: Upstream {
                endpoints: vec![Endpoint {
                    host: "127.0.0.1".into(),
                    port: 50055,
                }],
                scheme: Scheme::Http,
                failback_after: ms(0),
                connect_timeout: ms(5_000),
                rpc_timeout: ms(5_000),
                call_timeout: ms(30_000),
                tcp_nodelay: true,
                max_receive_message_bytes: 4 << 20,
                register_concurrency: 48,
                register_queue: 10_000,
                inventory_concurrency: 8,
                inventory_queue: 1_000,
                replay_concurrency: 24,
                tls: UpstreamTls::default(),
                breaker: Breaker {
                    failure_threshold: 5,
                    reset_timeout: ms(10_000),
                    max_reset_timeout: ms(30_000),
                },
            },
            notify: Notify {
                pending_max: 180_000,
                probe_timeout: ms(15_000),
                unacked_retry_base: ms(1_000),
                unacked_retry_max: ms(60_000),
                unacked_slow_after: ms(900_000),
                unacked_slow_max: ms(600_000),
                unacked_disconnected_window: ms(120_000),
            },
            heartbeat: Heartbeat {
                batch_interval: ms(1_000),
                max_sessions: 10_000,
                max_bytes: 64 << 20,
            },
            replay: Replay {
                session_guard: ms(10_000),
                queue_max: 10_000,
                start_jitter: ms(1_000),
            },
            session: Session {
                max_per_connection: 8,
                dead_connection_grace: ms(15_000),
                restart_intensity: 2_000,
                restart_period: ms(10_000),
            },
            command: Command {
                default_timeout: ms(300_000),
                mailbox: 1_000,
                mailbox_bytes: 8 << 20,
                caller_buffer_bytes: 8 << 20,
                slow_caller_timeout: ms(5_000),
                broadcast: Broadcast::default(),
            },
            memory: Memory {
                max_unfinished_request_bytes: 256 << 20,
                shedding: Shedding {
                    enabled: true,
                    interval: ms(1_000),
                    high_fraction: None,
                    low_fraction: None,
                    high_bytes: None,
                    low_bytes: None,
                },
                limit: None,
            },
            management: Management {
                peer_auth_mode: PeerAuthMode::Pin,
                peer_identity: String::new(),
                peer_pins: Vec::new(),
                peer_denied: Vec::new(),
                pin_refresh: ms(5_000),
            },
            shutdown: Shutdown {
                flush_budget: ms(20_000),
            },
            observe: Observe {
                metrics_address: any(9568),
                health_address: any(8081),
                gauge_interval: ms(10_000),
                metrics_per_peer: false,
                log_level: "info".into(),
                log_format: LogFormat::Text,
            },
            cluster: Cluster::default(),
            shift: Shift::default(),
            routing: Routing::default(),
            lab: Lab::default(),
        }
    }
}
