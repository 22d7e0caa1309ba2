//! The gateway: holds the agents' streams, fans commands out, and proxies the control plane.
//!
//! [`Gateway::start`] is the one door: the binary, the demo and the tests use it alike. The rooms
//! below import downwards only, in the order of `docs/architecture.md`.

mod agent_service;
#[cfg(feature = "bench")]
pub mod bench;
mod cluster;
mod command;
pub mod config;
mod edge;
mod gateways;
pub mod heartbeat;
mod lifecycle;
mod management;
pub mod notify;
pub mod observe;
pub(crate) mod pki;
mod replay;
mod session;
mod shed;
mod shift;
mod supervise;
mod system;
mod tuning;
pub mod upstream;

pub use lifecycle::{Gateway, StartError, StopReport};
