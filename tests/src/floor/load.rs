//! What measures a floor and the gateway: agents that answer at once, and an operator.

use crate::raw::Tls;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::Instant;

/// Dials at the same time: more than the backlog of a listener only wait for resends.
pub(super) const DIALS: usize = 1_024;

/// Where a load goes.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) agents: SocketAddr,
    pub(super) management: SocketAddr,
    /// TLS of the agents.
    pub(super) tls: Option<Tls>,
    /// Length of a Register; no matter to plain sockets.
    pub(super) register_bytes: usize,
}

/// Attached agents and an operator.
pub(super) trait Load: Sized {
    /// Agents that dial all at once, each on its own connection; completes when all are attached.
    /// `heartbeat` is the time between two of one agent. The ids begin with `prefix`.
    async fn attach(
        target: &Target,
        prefix: &str,
        agents: usize,
        heartbeat: Option<Duration>,
    ) -> Result<Self, String>;

    /// One command to all agents, up to the end of its answers. The number of answers.
    async fn broadcast(&self, name: u64) -> Result<usize, String>;

    /// One command to the first agents, each named, up to the end of its answers. The number of
    /// answers; none where a caller can not name several.
    async fn multicast(&self, name: u64, first: usize) -> Result<Option<usize>, String>;

    /// One command to one agent, up to the end of its answers. Callers at the same time give
    /// different `caller`s, from 0.
    async fn command(&self, name: u64, agent: usize, caller: usize) -> Result<(), String>;

    /// Heartbeats acknowledged so far.
    fn heartbeats(&self) -> u64;

    /// Ends all agents and waits for them.
    async fn detach(self) -> Result<(), String>;
}

/// When the agent with this number, of so many, sends its first heartbeat: they are spread evenly.
pub(super) fn first_beat(every: Duration, index: usize, agents: usize) -> Instant {
    Instant::now() + every.mul_f64((index + 1) as f64 / agents as f64)
}
