//! What a fleet is made of and how its agents act.

use crate::raw;
use std::net::SocketAddr;
use std::time::Duration;

/// How a fleet is set up. [`Options::new`] gives agents that act like the real one and answer at
/// once.
#[derive(Debug, Clone)]
pub struct Options {
    /// The gateway's agent listener.
    pub gateway: SocketAddr,
    /// Listeners of other gateways: an agent whose connection was lost, or that gets none, tries the
    /// next one, and `gateway` again after the last.
    pub others: Vec<SocketAddr>,
    /// Number of agents, one connection each.
    pub agents: usize,
    /// Agent ids are this and the agent's number, from `first`.
    pub prefix: String,
    /// Number of the first agent.
    pub first: usize,
    /// Time between heartbeats; `None` sends none. The first one comes at a moment that differs
    /// from agent to agent, so that a fleet that starts together does not beat together.
    pub heartbeat: Option<Duration>,
    /// How commands are answered. One with the parameter `spread_ms` is answered later by a part of
    /// that time which differs from agent to agent; RUNNING frames come without it.
    pub answer: Answer,
    /// Whether [`super::Fleet::diary`] is written.
    pub keeps_diary: bool,
    /// Inventory reports; `None` sends none.
    pub inventory: Option<Periodic>,
    /// Unsolicited Guardian frames; `None` sends none.
    pub guardian: Option<Periodic>,
    /// What the agents do wrong.
    pub misbehaviour: Misbehaviour,
    /// Connects a second; `None` dials all at once.
    pub connects_per_second: Option<f64>,
    /// Factor on every backoff wait; 1 is the real agent (2, 4, ... 256 s).
    pub backoff_scale: f64,
    /// Deadline of Register and ReportInventory (the real agent: 30 s).
    pub call_timeout: Duration,
    /// Enrollment token of every agent; empty sends none.
    pub enrollment_token: String,
    /// Length of a Register in bytes; as long as its parts when that is more.
    pub register_bytes: usize,
    /// The connections.
    pub connection: raw::Options,
}

/// How commands are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Time from the command to its first answer frame.
    pub delay: Duration,
    /// Length of the output of the terminal frame, in bytes.
    pub bytes: usize,
    /// RUNNING frames before the terminal one; their output is `frame <n>`, from 1.
    pub running_frames: u32,
}

/// Something sent over and over while the agent is subscribed, first after one interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Periodic {
    /// Time between two.
    pub interval: Duration,
    /// Size of the payload.
    pub bytes: usize,
}

/// What agents do wrong. All but the first two come back like the real agent after a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Misbehaviour {
    /// Nothing.
    #[default]
    None,
    /// Connect and never register.
    NeverRegister,
    /// Take commands and answer none.
    NeverAnswer,
    /// Stop reading the Subscribe stream after this many commands; its window fills.
    StopReading {
        /// Commands taken before.
        after: u64,
    },
    /// Half-close the Subscribe stream after this many commands.
    HalfClose {
        /// Commands taken before.
        after: u64,
    },
    /// Reset the Subscribe stream after this many commands; the connection stays.
    Reset {
        /// Commands taken before.
        after: u64,
    },
    /// Close the socket after this many commands.
    Disconnect {
        /// Commands taken before.
        after: u64,
    },
    /// Reset the TCP connection after this many commands.
    Abort {
        /// Commands taken before.
        after: u64,
    },
}

impl Options {
    /// `agents` agents at `gateway`.
    pub fn new(gateway: SocketAddr, agents: usize) -> Self {
        Self {
            gateway,
            others: Vec::new(),
            agents,
            prefix: "sim-".into(),
            first: 0,
            heartbeat: Some(Duration::from_secs(30)),
            answer: Answer {
                delay: Duration::ZERO,
                bytes: 64,
                running_frames: 0,
            },
            keeps_diary: false,
            inventory: None,
            guardian: None,
            misbehaviour: Misbehaviour::None,
            connects_per_second: None,
            backoff_scale: 1.0,
            call_timeout: Duration::from_secs(30),
            enrollment_token: String::new(),
            register_bytes: 0,
            connection: raw::Options::default(),
        }
    }

    /// The listener that an agent tries after so many others.
    pub(super) fn address(&self, tried: usize) -> SocketAddr {
        match tried % (self.others.len() + 1) {
            0 => self.gateway,
            n => self.others[n - 1],
        }
    }

    /// The id of the agent with this number, counted from 0 within the fleet.
    pub fn agent_id(&self, index: usize) -> String {
        format!("{}{}", self.prefix, self.first + index)
    }
}
