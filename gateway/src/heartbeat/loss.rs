//! Why a heartbeat, or a part of one, is given up.
//!
//! Responsible for the reasons and their metric labels. Must never count.

/// A value of the label `reason` of `heartbeat_buffer_dropped_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// A whole heartbeat, at the cap on sessions or on bytes (HB-9, HB-10).
    BufferFull,
    /// A snapshot that made its heartbeat too large for a batch (HB-6).
    SnapshotOversize,
    /// A snapshot, at the cap on bytes (HB-10).
    SnapshotEvicted,
    /// All tags of a heartbeat (HB-7).
    HeartbeatOversize,
    /// Parts of tags, tags or a whole heartbeat that no server could read (HB-8).
    HeartbeatInvalid,
    /// A heartbeat that the server refused alone (HB-5).
    ChunkRejected,
}

impl Loss {
    /// The label's value.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::BufferFull => "buffer_full",
            Self::SnapshotOversize => "snapshot_oversize",
            Self::SnapshotEvicted => "snapshot_evicted",
            Self::HeartbeatOversize => "heartbeat_oversize",
            Self::HeartbeatInvalid => "heartbeat_invalid",
            Self::ChunkRejected => "chunk_rejected",
        }
    }
}
