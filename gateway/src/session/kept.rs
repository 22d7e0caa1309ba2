//! The Register of an agent, kept for replays.
//!
//! Responsible for holding it in memory that fits. Requests that pass through are of every size, and
//! an allocator gives each the next of its sizes, a quarter apart at most: one that stays among
//! thousands that leave wastes its rest, and holds the pages that they shared. Must never show a
//! byte of it, nor look at one.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

/// A page: only the last piece may waste anything.
const PIECE: usize = 4 << 10;

/// See the module. Clones share it.
#[derive(Clone)]
pub(crate) struct Kept(Arc<[Box<[u8]>]>);

impl Kept {
    /// In bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|piece| piece.len()).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of it, copied.
    pub(crate) fn bytes(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.len());
        self.0
            .iter()
            .for_each(|piece| bytes.extend_from_slice(piece));
        bytes.freeze()
    }
}

impl From<&[u8]> for Kept {
    fn from(request: &[u8]) -> Self {
        Self(request.chunks(PIECE).map(Box::from).collect())
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_13_what_is_kept_comes_back_byte_for_byte() {
        for len in [0, 1, PIECE - 1, PIECE, PIECE + 1, 9_054] {
            let request: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let kept = Kept::from(&*request);
            assert_eq!((kept.len(), kept.is_empty()), (len, len == 0));
            assert_eq!(kept.bytes(), request);
            assert_eq!(format!("{kept:?}"), format!("Kept({len} bytes)"));
        }
    }
}
