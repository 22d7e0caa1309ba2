//! What an owner has said in one session, as far as the entry node may not have it (FWD-8).
//!
//! Responsible for keeping each frame until the entry node has confirmed it, and for the bound on
//! what is kept, which is what stops a session whose caller reads slowly (FWD-2). Pure. Must never
//! give a frame up by itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use super::lane::{TELL, WINDOW};
use super::outstanding::Foreign;
use crate::cluster::holding;

/// See the module.
#[derive(Debug)]
pub(super) struct Log {
    frames: VecDeque<Bytes>,
    bytes: usize,
    /// Frames that the entry node has.
    confirmed: u64,
    /// Frames that were given to a stream, those included.
    handed: u64,
    /// Which frames of those kept are answers to a Dispatch, counted from the first of the session.
    written: VecDeque<u64>,
    /// Bytes of all sessions of the node.
    all: Arc<AtomicUsize>,
}

impl Log {
    pub(super) fn new(all: &Arc<AtomicUsize>) -> Self {
        Self {
            frames: VecDeque::new(),
            bytes: 0,
            confirmed: 0,
            handed: 0,
            written: VecDeque::new(),
            all: Arc::clone(all),
        }
    }

    /// Whether more may be said, when all sessions together may keep `most` bytes. What the other side
    /// does not confirm at once must fit whatever the others keep.
    pub(super) fn has_room(&self, most: usize) -> bool {
        self.bytes < TELL || self.bytes < WINDOW && self.all.load(Ordering::Relaxed) < most
    }

    /// This is said; as it is to be given to a stream, which may hold it longer than this does.
    pub(super) fn push(&mut self, frame: Bytes) -> Bytes {
        let bytes = frame.len();
        self.bytes += bytes;
        let frame = holding(frame, Kept::new(bytes, &self.all));
        self.frames.push_back(frame.clone());
        frame
    }

    /// The next frame answers a Dispatch.
    pub(super) fn written(&mut self) {
        self.written.push_back(self.said());
    }

    /// Dispatches whose answers are kept.
    pub(super) fn unconfirmed(&self) -> usize {
        self.written.len()
    }

    /// Frames in all.
    fn said(&self) -> u64 {
        self.confirmed + self.frames.len() as u64
    }

    /// All of it was given to a stream.
    pub(super) fn handed(&mut self) {
        self.handed = self.said();
    }

    /// The entry node has so many frames in all. An older count says nothing new.
    ///
    /// # Errors
    /// So many were never sent.
    pub(super) fn confirm(&mut self, count: u64) -> Result<(), Foreign> {
        if count > self.handed {
            return Err(Foreign);
        }
        while self.confirmed < count {
            let len = self.frames.pop_front().map_or(0, |frame| frame.len());
            self.bytes -= len;
            self.confirmed += 1;
        }
        while self.written.front().is_some_and(|frame| *frame < count) {
            self.written.pop_front();
        }
        Ok(())
    }

    /// What the entry node may not have, in its order.
    pub(super) fn rest(&self) -> impl Iterator<Item = &Bytes> {
        self.frames.iter()
    }
}

/// Bytes of a frame, as long as it is in memory.
struct Kept {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl Kept {
    fn new(bytes: usize, all: &Arc<AtomicUsize>) -> Self {
        all.fetch_add(bytes, Ordering::Relaxed);
        Self {
            bytes,
            all: Arc::clone(all),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
