//! One heartbeat as it is held: the agent's own bytes, with the snapshot apart.
//!
//! The snapshot is most of a large heartbeat and has a life of its own: a later heartbeat without
//! one keeps it, and it is the first thing given up. Responsible for taking the two apart and
//! putting them together again as they came. Must never change a byte of either.

use bytes::BufMut;

/// The encoded field `fleet_snapshot_json`, tag and length included; its content is not empty.
pub(super) struct Snapshot(Box<[u8]>);

impl Snapshot {
    /// Copies an encoded field.
    pub(super) fn new(field: &[u8]) -> Self {
        Self(field.into())
    }

    /// Bytes of the encoded field.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// An encoded `HeartbeatRequest`. Has no `Debug`: tags and snapshots are the agent's.
pub(super) struct Heartbeat {
    rest: Box<[u8]>,
    snapshot: Option<Snapshot>,
    /// Where in `rest` the snapshot stands.
    at: usize,
}

impl Heartbeat {
    /// A message without its snapshot, and the snapshot with its offset in it.
    pub(super) fn new(rest: Box<[u8]>, snapshot: Option<(usize, Snapshot)>) -> Self {
        let (at, snapshot) = match snapshot {
            Some((at, snapshot)) => (at, Some(snapshot)),
            None => (0, None),
        };
        Self { rest, snapshot, at }
    }

    /// Encoded size in bytes.
    pub(super) fn len(&self) -> usize {
        self.rest.len() + self.snapshot.as_ref().map_or(0, Snapshot::len)
    }

    /// Encoded size in bytes without the snapshot.
    pub(super) fn rest_len(&self) -> usize {
        self.rest.len()
    }

    /// Whether it has a snapshot.
    pub(super) fn has_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Takes the snapshot out.
    pub(super) fn take_snapshot(&mut self) -> Option<Snapshot> {
        self.snapshot.take()
    }

    /// Appends the snapshot of an older heartbeat.
    pub(super) fn carry(&mut self, snapshot: Snapshot) {
        self.at = self.rest.len();
        self.snapshot = Some(snapshot);
    }

    /// Writes [`Heartbeat::len`] bytes.
    pub(super) fn put(&self, out: &mut impl BufMut) {
        match &self.snapshot {
            None => out.put_slice(&self.rest),
            Some(snapshot) => {
                let (before, after) = self.rest.split_at(self.at);
                out.put_slice(before);
                out.put_slice(&snapshot.0);
                out.put_slice(after);
            }
        }
    }
}

#[cfg(test)]
impl Heartbeat {
    /// Bytes that mean nothing, with a snapshot behind them unless that is empty.
    pub(super) fn sample(rest: &[u8], snapshot: &[u8]) -> Self {
        let snapshot = (!snapshot.is_empty()).then(|| (rest.len(), Snapshot::new(snapshot)));
        Self::new(rest.into(), snapshot)
    }

    pub(super) fn encoded(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.put(&mut bytes);
        bytes
    }
}
