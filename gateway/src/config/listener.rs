//! The shape of `[[listener]]`, with its defaults.
//!
//! Responsible for names, types and defaults only, as [`super::schema`] is.

use std::net::SocketAddr;
use std::time::Duration;

use super::origin::CallerOrigin;
use super::schema::ms;
use super::security::ListenerTls;

/// What a listener serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Service {
    /// `yuzu.agent.v1.AgentService`.
    Agent,
    /// `yuzu.server.v1.ManagementService`.
    Management,
    /// `yuzu.node.v1.NodeService`.
    Node,
}

/// `[[listener]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Unique name, used in logs and metric labels.
    pub name: String,
    /// What is served, without repeats, never empty.
    pub services: Vec<Service>,
    /// Where to listen; port 0 takes any free port.
    pub address: SocketAddr,
    /// `[listener.tls]`; `None` is plaintext.
    pub tls: Option<ListenerTls>,
    /// `[listener.origin]`.
    pub origin: CallerOrigin,
    /// `[listener.limits]`.
    pub limits: Limits,
    /// `[listener.http2]`.
    pub http2: Http2,
}

/// `[listener.limits]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Open connections; more wait in the backlog (LSN-2).
    pub max_connections: usize,
    /// Open connections of one source address, per /64 for IPv6; 0 is no bound.
    pub max_connections_per_source: usize,
    /// Management listeners: places kept free of connections whose peer is not authorized, at most
    /// half of them (LSN-17); 0 keeps none.
    pub reserved_connections: usize,
    /// A connection without a session for this long is closed; zero is never.
    pub unregistered_timeout: Duration,
    /// A PROXY header must be complete within this time (LSN-3).
    pub proxy_header_timeout: Duration,
    /// A TLS handshake must be complete within this time (LSN-3).
    pub handshake_timeout: Duration,
    /// A unary request must be complete within this time (LSN-7).
    pub request_timeout: Duration,
    /// Largest message accepted; over it the call ends with status 8.
    pub max_message_bytes: usize,
    /// Bytes of unfinished requests one connection may hold (LSN-6).
    pub max_connection_memory_bytes: usize,
    /// Largest header list accepted.
    pub max_header_list_bytes: u32,
}

/// `[listener.http2]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http2 {
    /// Announced as SETTINGS_MAX_CONCURRENT_STREAMS.
    pub max_concurrent_streams: u32,
    /// A connection without a received byte for this long is closed (LSN-4).
    pub idle_timeout: Duration,
}

impl Listener {
    /// A listener with the defaults of an agent listener.
    pub fn agent(address: SocketAddr) -> Self {
        Self {
            name: "agent".into(),
            services: vec![Service::Agent],
            address,
            tls: None,
            origin: CallerOrigin::default(),
            limits: Limits {
                max_connections: 60_000,
                max_connections_per_source: 0,
                reserved_connections: 0,
                unregistered_timeout: ms(120_000),
                proxy_header_timeout: ms(1_000),
                handshake_timeout: ms(10_000),
                request_timeout: ms(30_000),
                max_message_bytes: 8 << 20,
                max_connection_memory_bytes: 32 << 20,
                max_header_list_bytes: 16_384,
            },
            http2: Http2 {
                max_concurrent_streams: 32,
                idle_timeout: ms(180_000),
            },
        }
    }

    /// A listener with the defaults of a management listener.
    pub fn management(address: SocketAddr) -> Self {
        let agent = Self::agent(address);
        Self {
            name: "management".into(),
            services: vec![Service::Management],
            limits: Limits {
                max_connections: 256,
                reserved_connections: 16,
                unregistered_timeout: ms(0),
                max_connection_memory_bytes: 64 << 20,
                ..agent.limits
            },
            http2: Http2 {
                max_concurrent_streams: 4096,
                idle_timeout: ms(600_000),
            },
            ..agent
        }
    }

    /// Whether this listener serves `service`.
    pub fn serves(&self, service: Service) -> bool {
        self.services.contains(&service)
    }

    /// Whether others than this host can reach it.
    pub fn is_exposed(&self) -> bool {
        !self.address.ip().to_canonical().is_loopback()
    }
}
