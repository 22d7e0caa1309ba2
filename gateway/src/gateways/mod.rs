//! Under which gateway's name an agent is told of (VIS-3, VIS-4, VIS-6).
//!
//! Responsible for the choice among public gateways, which every node makes alike, for the set that
//! is in force here, and for whom another set concerns. Must never know how gateways are found, nor
//! cost a public node anything.

mod choice;
pub(crate) mod hash;
mod names;
mod renaming;

pub(crate) use choice::PublicNodes;
pub(crate) use names::{MAX_NAME, Names};
pub(crate) use renaming::Renaming;
