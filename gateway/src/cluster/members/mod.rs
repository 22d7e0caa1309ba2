//! Who is in the cluster: the membership engine, and what the gateway makes of it (MESH-1).
//!
//! Responsible for the engine's life, its sealed transport, and the labels of this node. Must never
//! know what a member is used for.

pub(super) mod engine;
pub(super) mod gossip;
pub(super) mod labels;
pub(super) mod patience;
pub(super) mod solitude;
pub(super) mod view;
