//! The gRPC message frame: a flag byte, a big-endian length of four bytes, the message.
//!
//! Responsible for building frames and for cutting a byte stream into messages. Must never copy
//! a message that arrived in one piece.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// Length of the prefix in front of every message.
pub const PREFIX_BYTES: usize = 5;

/// Puts the prefix in front of an encoded message.
///
/// # Panics
/// If the message is longer than `u32::MAX` bytes, which no test sends.
pub fn frame(message: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    put_prefix(&mut out, message.len());
    out.put_slice(message);
    out.freeze()
}

/// Encodes a message with its prefix.
///
/// # Panics
/// If the message is longer than `u32::MAX` bytes, which no test sends.
pub fn frame_message(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + length);
    put_prefix(&mut out, length);
    message.encode_raw(&mut out);
    out.freeze()
}

fn put_prefix(out: &mut BytesMut, length: usize) {
    out.put_u8(0);
    out.put_u32(u32::try_from(length).expect("a message under 4 GiB"));
}

/// Cuts received DATA into messages.
///
/// Holds at most one incomplete message and the chunk it was last given; the sum is bounded by
/// the limit given to [`FrameReader::new`].
#[derive(Debug)]
pub struct FrameReader {
    chunk: Bytes,
    partial: BytesMut,
    limit: usize,
}

/// Why received bytes are not gRPC messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The compressed flag is set; nothing on these hops compresses.
    #[error("a compressed message arrived")]
    Compressed,
    /// A message is longer than the reader's limit.
    #[error("a message of {0} bytes is over the limit")]
    TooLong(usize),
}

impl FrameReader {
    /// A reader that refuses messages of more than `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            chunk: Bytes::new(),
            partial: BytesMut::new(),
            limit,
        }
    }

    /// Gives the reader the next chunk. Only to be called after [`FrameReader::take_message`] said
    /// `None`, so that chunks do not pile up.
    pub fn push(&mut self, chunk: Bytes) {
        debug_assert!(
            self.chunk.is_empty(),
            "take all messages before the next chunk"
        );
        self.chunk = chunk;
    }

    /// The next complete message, or `None` when more bytes are needed.
    pub fn take_message(&mut self) -> Result<Option<Bytes>, FrameError> {
        if self.partial.is_empty() {
            if let Some(length) = self.length_of(&self.chunk)? {
                let total = PREFIX_BYTES + length;
                if self.chunk.len() >= total {
                    let mut message = self.chunk.split_to(total);
                    message.advance(PREFIX_BYTES);
                    return Ok(Some(message));
                }
            }
            if self.chunk.is_empty() {
                return Ok(None);
            }
        }
        let missing_prefix = PREFIX_BYTES.saturating_sub(self.partial.len());
        self.take(missing_prefix);
        let Some(length) = self.length_of(&self.partial)? else {
            return Ok(None);
        };
        let missing = PREFIX_BYTES + length - self.partial.len();
        self.partial.reserve(missing);
        self.take(missing);
        if self.partial.len() < PREFIX_BYTES + length {
            return Ok(None);
        }
        let mut message = std::mem::take(&mut self.partial).freeze();
        message.advance(PREFIX_BYTES);
        Ok(Some(message))
    }

    /// Whether bytes of an incomplete message are held.
    pub fn is_mid_message(&self) -> bool {
        !self.partial.is_empty() || !self.chunk.is_empty()
    }

    fn take(&mut self, bytes: usize) {
        let bytes = bytes.min(self.chunk.len());
        self.partial.put(self.chunk.split_to(bytes));
    }

    fn length_of(&self, bytes: &[u8]) -> Result<Option<usize>, FrameError> {
        let Some(prefix) = bytes.first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        if prefix[0] != 0 {
            return Err(FrameError::Compressed);
        }
        let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        if length > self.limit {
            return Err(FrameError::TooLong(length));
        }
        Ok(Some(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_frame_is_flag_length_message() {
        assert_eq!(&frame(b"abc")[..], &[0, 0, 0, 0, 3, b'a', b'b', b'c']);
        assert_eq!(&frame(b"")[..], &[0, 0, 0, 0, 0]);
    }

    #[test]
    fn refuses_compressed_and_too_long() {
        let mut reader = FrameReader::new(3);
        reader.push(Bytes::from_static(&[1, 0, 0, 0, 0]));
        assert_eq!(reader.take_message(), Err(FrameError::Compressed));
        let mut reader = FrameReader::new(3);
        reader.push(Bytes::from_static(&[0, 0, 0, 0, 4]));
        assert_eq!(reader.take_message(), Err(FrameError::TooLong(4)));
    }

    proptest! {
        #[test]
        fn messages_survive_any_cutting(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..12),
            cuts in proptest::collection::vec(1_usize..17, 1..40),
        ) {
            let mut stream = BytesMut::new();
            for message in &messages {
                stream.put(frame(message));
            }
            let mut stream = stream.freeze();
            let mut cuts = cuts.iter().cycle();
            let mut reader = FrameReader::new(40);
            let mut got = Vec::new();
            while !stream.is_empty() {
                let cut = (*cuts.next().unwrap()).min(stream.len());
                reader.push(stream.split_to(cut));
                while let Some(message) = reader.take_message().unwrap() {
                    got.push(message.to_vec());
                }
            }
            prop_assert!(!reader.is_mid_message());
            prop_assert_eq!(got, messages);
        }
    }
}
