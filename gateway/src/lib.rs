//! The gateway: holds the agents' streams, fans commands out, and proxies the control plane.
//!
//! `Gateway::start` is the one door: the binary, the demo and the tests use it alike.

pub mod config;
pub mod heartbeat;
pub mod notify;
pub mod observe;
pub mod upstream;
