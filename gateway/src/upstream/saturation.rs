//! How full the lanes to the server are.
//!
//! Responsible for the counts that the lanes publish. Must never change what a lane does.

use std::sync::atomic::AtomicUsize;

/// What the notice store publishes for the slow-server detector (SLOW-1).
#[derive(Debug, Default)]
pub(crate) struct NoticeCounts {
    /// Notices being sent now.
    pub(crate) in_flight: AtomicUsize,
    /// Notices that wait to be sent.
    pub(crate) held: AtomicUsize,
}
