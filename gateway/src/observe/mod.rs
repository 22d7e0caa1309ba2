//! What operators see: metrics, health, logs.
//!
//! Must never be consulted for a decision.

pub mod log;
pub mod metrics;
