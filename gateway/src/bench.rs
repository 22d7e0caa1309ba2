//! The inside of the gateway as far as `benches/` has to reach it.
//!
//! Responsible for a door to pure cores that nothing else opens; built with the feature `bench`
//! only. Must never hold logic: what is measured is what the gateway runs.

pub use crate::cluster::adjacency::bench::Peers;
pub use crate::command::bench::Broadcast;
pub use crate::notify::bench::Notices;
pub use crate::session::bench::{Sessions, wrap};
