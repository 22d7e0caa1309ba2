//! Room in memory that several streams share.
//!
//! Responsible for the count and its limit. Must never know what the bytes are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    held: Arc<AtomicUsize>,
    limit: Arc<AtomicUsize>,
}

/// Bytes of one of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    room: Room,
    bytes: usize,
}

impl Room {
    /// Room for `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            held: Arc::default(),
            limit: Arc::new(AtomicUsize::new(limit)),
        }
    }

    /// From now on there is room for `limit` bytes. What is over it stays.
    pub(crate) fn retune(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// A share without a byte.
    pub(crate) fn share(&self) -> Share {
        Share {
            room: self.clone(),
            bytes: 0,
        }
    }

    /// Bytes of all shares.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

impl Share {
    /// Has so many bytes from now on. False: there is no room for them, and it has what it had. One
    /// that is larger than the room finds it when nobody else has any.
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        let held = &self.room.held;
        let Some(more) = bytes.checked_sub(self.bytes) else {
            held.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
            self.bytes = bytes;
            return true;
        };
        if more == 0 {
            return true;
        }
        let before = held.fetch_add(more, Ordering::Relaxed);
        let others = before - self.bytes;
        let fits = others == 0 || before + more <= self.room.limit.load(Ordering::Relaxed);
        match fits {
            true => self.bytes = bytes,
            false => drop(held.fetch_sub(more, Ordering::Relaxed)),
        }
        fits
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fwd_5_shares_find_room_until_there_is_none_and_a_large_one_alone() {
        let room = Room::new(10);
        let (mut one, mut two) = (room.share(), room.share());
        assert!(one.resize(6) && two.resize(4));
        assert!(!two.resize(5));
        assert!(one.resize(2) && two.resize(8));
        drop(one);
        assert!(two.resize(50), "alone");
        assert!(!room.share().resize(1));
        assert_eq!(room.held(), 50);
        room.retune(100);
        assert!(room.share().resize(50));
        assert!(two.resize(0));
        assert_eq!(room.held(), 0);
    }
}
