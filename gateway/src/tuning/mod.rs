//! Limits and paces that change under whoever waits at them.
//!
//! Responsible for taking a new value without losing a place that is held or a tick that is waited
//! for. Must never know what is limited, nor where a value comes from.

mod ceiling;
mod pace;

pub(crate) use ceiling::{Ceiling, Slot};
pub(crate) use pace::Pace;
