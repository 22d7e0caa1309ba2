//! Large DATA frames, handed on in pieces as they arrive.
//!
//! h2 keeps a frame in its read buffer until all of it is there, and keeps the buffer as large as
//! the largest frame for the connection's life: an agent whose Register comes in one frame of 9 KB
//! would cost 8 KiB more for ever after. Responsible for giving such a frame a shorter length and
//! its rest frames of their own: the payload, its order and the end of the stream stay what they
//! were. Pure. Must never touch another frame, or one whose length h2 has to refuse.

use super::flood::{FLAG_END_STREAM, FLAG_PADDED, HEADER, Unfinished};

/// Payload of a piece. With its header half of the buffer that h2 begins with, so that one that
/// is cut anywhere fits into it.
const PIECE: u32 = (4 << 10) - HEADER as u32;
/// Longest payload that a peer may send in one frame (SETTINGS_MAX_FRAME_SIZE as it stands).
const LONGEST: u32 = 16 << 10;
const LENGTH: std::ops::Range<usize> = 0..3;
const FLAGS: usize = 4;

/// What is left of the DATA frame that is being cut.
#[derive(Debug, Default)]
pub(super) struct Cutter {
    /// Payload of the present piece that has not come yet, while there are others behind it.
    piece: u32,
    /// Payload behind the present piece.
    rest: u32,
    /// Flags of the frame as it came.
    flags: u8,
    /// Of the present piece.
    header: [u8; HEADER],
    /// Bytes of `header` that are still to be handed on.
    due: u8,
}

impl Cutter {
    /// Cuts the DATA frame that begins in `bytes` and goes on behind them, if it is long.
    pub(super) fn cut(&mut self, bytes: &mut [u8], frame: Unfinished) {
        let Unfinished { payload_at, length } = frame;
        let here = (bytes.len() - payload_at) as u32;
        let Some(header) = bytes[..payload_at].last_chunk_mut() else {
            return;
        };
        self.flags = header[FLAGS];
        if self.flags & FLAG_PADDED != 0 || !(PIECE + 1..=LONGEST).contains(&length) {
            return;
        }
        let first = here.max(PIECE);
        if first >= length {
            return;
        }
        self.rest = length - first;
        self.head(header, first);
        self.header = *header;
        self.piece = first - here;
        self.turn();
    }

    /// How much may be read before [`Cutter::due`] has more; `None`: as much as there is.
    pub(super) fn room(&self) -> Option<usize> {
        (self.rest > 0).then_some(self.piece as usize)
    }

    /// So many bytes have been read, [`Cutter::room`] at most.
    pub(super) fn passed(&mut self, bytes: usize) {
        self.piece = self.piece.saturating_sub(bytes as u32);
        self.turn();
    }

    /// The header, or what is left of it, that has to be handed on before anything is read.
    pub(super) fn due(&self) -> &[u8] {
        &self.header[HEADER - usize::from(self.due)..]
    }

    /// So much of [`Cutter::due`] was handed on.
    pub(super) fn handed_on(&mut self, bytes: usize) {
        self.due = self.due.saturating_sub(bytes as u8);
    }

    /// Behind a piece the next one begins.
    fn turn(&mut self) {
        if self.piece > 0 || self.rest == 0 {
            return;
        }
        self.piece = self.rest.min(PIECE);
        self.rest -= self.piece;
        let mut header = self.header;
        self.head(&mut header, self.piece);
        self.header = header;
        self.due = HEADER as u8;
    }

    /// Makes `header` that of a piece, which ends the stream if the frame did and it is the last.
    fn head(&self, header: &mut [u8; HEADER], length: u32) {
        header[LENGTH].copy_from_slice(&length.to_be_bytes()[1..]);
        header[FLAGS] = match self.rest {
            0 => self.flags,
            _ => self.flags & !FLAG_END_STREAM,
        };
    }
}

#[cfg(test)]
mod tests;
