//! Command fan-out: from one SendCommand to the mailboxes of its targets, and the answers back.
//!
//! Responsible for resolving targets, for correlating what is left, and for the bounds of a caller
//! that does not read. Must never hold a lock while something is sent, and never look into a
//! command beyond its id and plugin.

mod backlog;
#[cfg(feature = "bench")]
pub(crate) mod bench;
mod callers;
mod entries;
mod fanout;
mod metrics;
mod pool;
mod router;
mod tracker;

pub(crate) use fanout::FanoutBody;
pub(crate) use router::{Command, Router, Ticket};
