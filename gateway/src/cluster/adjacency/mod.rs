//! Who holds which agent.
//!
//! Responsible for what this node tells its peers of its own sessions, for what they tell it, and
//! for the node that an agent is on. Must never route a command or end a session.

#[cfg(feature = "bench")]
pub(crate) mod bench;
mod digest;
mod exchange;
mod inbox;
mod journal;
mod outbox;
mod own;
mod page;
#[cfg(feature = "in-memory")]
pub(crate) mod pretend;
mod questions;
mod rows;
mod seats;
mod shard;
mod sharing;
mod table;
mod wire;

pub(crate) use sharing::Sharing;
pub(crate) use table::Whereabouts;

#[cfg(test)]
mod model;
#[cfg(test)]
mod testing;
