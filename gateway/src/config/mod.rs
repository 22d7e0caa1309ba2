//! Configuration: schema, file, environment, ranges.
//!
//! Responsible for one question: may the gateway start with this, and with which values? Must
//! never touch a socket or log a line: it returns the [`Problem`]s, the caller tells them.
//!
//! [`load`] walks from what was written to what is in force. [`keys`] is the table of all keys,
//! [`later`] the table of those that this version does not serve.

mod cluster;
mod document;
mod effective;
mod environment;
mod files;
mod keys;
mod later;
mod listener;
mod memory_limit;
mod origin;
mod peer_addresses;
mod peer_values;
mod peers;
mod print;
mod problem;
mod refusal;
mod refusals;
mod reload;
mod schema;
mod security;
mod shedding;
mod slot;
mod source;
mod values;
mod words;

pub use effective::{Loaded, Origin, load};
pub(crate) use files::UpstreamFile;
pub use memory_limit::{LimitOrigin, Machine, MemoryLimit};
pub use origin::{CallerOrigin, OriginMode, Source as OriginSource};
pub(crate) use peers::{Guarded, PeerRefusal, ResolvedPeer};
pub use problem::{Effect, Place, Problem, Refused};
pub use refusal::Refusal;
pub use reload::{Changes, reload};
pub use schema::*;
pub use shedding::{Fraction, Marks, Plan, Shedding};
pub use source::{Source, SourceFile};

#[cfg(test)]
mod tests;
