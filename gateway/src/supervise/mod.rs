//! Tasks that must not end, and how often what panicked may begin anew (GEN-3).
//!
//! Responsible for counting restarts and for saying when it is no longer worth trying. Must never
//! know what a task does, nor end the process: whoever runs the node does.

mod intensity;
mod keep;
mod node;

pub(crate) use intensity::Intensity;
pub(crate) use keep::{Kept, keep_running};
pub(crate) use node::NodeSupervisor;
