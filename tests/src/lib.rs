//! Simulated fleet, test bed and tools for testing the gateway over real sockets.
//!
//! Responsible for peers that behave exactly as told: [`raw`] is a gRPC client with control over
//! every byte, [`agent`] an agent driven by hand, [`fleet`] thousands of agents that act like the
//! real one. Must never look inside the gateway: everything here knows it by its sockets, or by
//! the connections through memory that [`testbed::in_memory`] makes of its public door.

pub mod agent;
pub mod broadcast;
pub mod certs;
pub mod cli;
pub mod fleet;
pub mod floor;
pub mod frames;
pub mod http;
pub mod metrics;
pub mod operator;
pub mod peer;
pub mod process;
pub mod random;
pub mod raw;
pub mod relay;
pub mod stub_process;
pub mod testbed;
pub mod usage;
