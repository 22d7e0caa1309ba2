//! What operators see: metrics, health, logs.
//!
//! Must never be consulted for a decision.

pub mod descriptors;
pub mod health;
pub mod http;
pub mod log;
pub mod metrics;
pub mod process;
