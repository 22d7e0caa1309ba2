//! Cutting gRPC messages out of DATA frames.
//!
//! Responsible for the five-byte prefix: the compression flag and the length are judged before
//! anything is reserved, so a peer that declares a large message and sends five bytes costs five
//! bytes. Must never decode a message.

use bytes::{Buf, Bytes, BytesMut};
use yuzu_proto::wire::GRPC_PREFIX;

/// Why a stream of messages can not be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// The declared length is over the listener's limit.
    #[error("message of {declared} bytes is over the limit of {limit} bytes")]
    TooLarge {
        /// Bytes declared by the prefix.
        declared: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The message is compressed; neither direction compresses.
    #[error("compressed messages are not supported")]
    Compressed,
    /// The first byte is neither 0 nor 1.
    #[error("the message prefix is malformed")]
    BadPrefix,
}

impl From<FrameError> for tonic::Status {
    fn from(error: FrameError) -> Self {
        let code = match error {
            FrameError::TooLarge { .. } => tonic::Code::ResourceExhausted,
            FrameError::Compressed => tonic::Code::Unimplemented,
            FrameError::BadPrefix => tonic::Code::Internal,
        };
        Self::new(code, error.to_string())
    }
}

/// Collects chunks and hands out whole messages, in order.
#[derive(Debug)]
pub(crate) struct Deframer {
    limit: usize,
    /// The chunk being read; whole messages are sliced out of it without a copy.
    chunk: Bytes,
    /// The start of a message that goes on in a later chunk.
    partial: BytesMut,
}

impl Deframer {
    /// Messages of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            chunk: Bytes::new(),
            partial: BytesMut::new(),
        }
    }

    /// From now on messages have at most `limit` bytes.
    pub(crate) fn limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Adds a chunk. [`Self::next`] must have returned `None` before.
    pub(crate) fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.chunk.is_empty());
        self.chunk = chunk;
    }

    /// The next whole message, or `None` when more bytes are needed.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, FrameError> {
        if !self.partial.is_empty() {
            return self.next_from_partial();
        }
        match self.declared(&self.chunk)? {
            Some(len) if self.chunk.len() >= GRPC_PREFIX + len => {
                self.chunk.advance(GRPC_PREFIX);
                Ok(Some(self.chunk.split_to(len)))
            }
            declared => {
                let whole = GRPC_PREFIX + declared.unwrap_or(0);
                // Not doubled again and again, and no more than twice what the peer has sent.
                if whole <= 2 * self.chunk.len() {
                    self.partial.reserve(whole);
                }
                self.partial.extend_from_slice(&self.chunk);
                self.chunk = Bytes::new();
                Ok(None)
            }
        }
    }

    fn next_from_partial(&mut self) -> Result<Option<Bytes>, FrameError> {
        let missing = GRPC_PREFIX.saturating_sub(self.partial.len());
        self.take_from_chunk(missing);
        let Some(len) = self.declared(&self.partial)? else {
            return Ok(None);
        };
        let missing = (GRPC_PREFIX + len).saturating_sub(self.partial.len());
        self.take_from_chunk(missing);
        if self.partial.len() < GRPC_PREFIX + len {
            return Ok(None);
        }
        let mut message = std::mem::take(&mut self.partial);
        message.advance(GRPC_PREFIX);
        Ok(Some(message.freeze()))
    }

    fn take_from_chunk(&mut self, wanted: usize) {
        let step = wanted.min(self.chunk.len());
        self.partial.extend_from_slice(&self.chunk[..step]);
        self.chunk.advance(step);
        if self.chunk.is_empty() {
            // An empty slice would still hold the whole receive buffer.
            self.chunk = Bytes::new();
        }
    }

    fn declared(&self, bytes: &[u8]) -> Result<Option<usize>, FrameError> {
        let Some((prefix, _)) = bytes.split_first_chunk::<GRPC_PREFIX>() else {
            return Ok(None);
        };
        match prefix[0] {
            0 => {}
            1 => return Err(FrameError::Compressed),
            _ => return Err(FrameError::BadPrefix),
        }
        let declared = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        if declared > self.limit {
            return Err(FrameError::TooLarge {
                declared,
                limit: self.limit,
            });
        }
        Ok(Some(declared))
    }

    /// Bytes of the whole message that is unfinished here, as far as it has said; else 0.
    pub(crate) fn awaited(&self) -> usize {
        self.declared(&self.partial).ok().flatten().unwrap_or(0)
    }

    /// Bytes of an unfinished message that are here.
    pub(crate) fn held(&self) -> usize {
        self.partial.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(messages: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        for message in messages {
            out.push(0);
            out.extend((message.len() as u32).to_be_bytes());
            out.extend(*message);
        }
        out
    }

    fn drain(deframer: &mut Deframer, out: &mut Vec<Bytes>) {
        while let Some(message) = deframer.next().unwrap() {
            out.push(message);
        }
    }

    #[test]
    fn messages_come_out_whole_wherever_the_chunks_are_cut() {
        let messages: [&[u8]; 4] = [b"one", b"", b"a longer message", b"x"];
        let bytes = framed(&messages);
        for piece in 1..=bytes.len() {
            let mut deframer = Deframer::new(16);
            let mut out = Vec::new();
            for chunk in bytes.chunks(piece) {
                deframer.push(Bytes::copy_from_slice(chunk));
                drain(&mut deframer, &mut out);
            }
            assert_eq!(out, messages, "pieces of {piece}");
            assert_eq!(deframer.held(), 0);
        }
    }

    #[test]
    fn a_declared_length_over_the_limit_is_refused_before_it_is_held() {
        let mut deframer = Deframer::new(1024);
        deframer.push(Bytes::from_static(&[0, 0, 0, 4, 1]));
        assert_eq!(
            deframer.next(),
            Err(FrameError::TooLarge {
                declared: 1025,
                limit: 1024
            })
        );
        assert_eq!(
            tonic::Status::from(deframer.next().unwrap_err()).code() as i32,
            8
        );
        assert_eq!(deframer.held(), 0);
    }

    #[test]
    fn the_limit_itself_is_accepted() {
        let mut deframer = Deframer::new(4);
        deframer.push(framed(&[b"four"]).into());
        assert_eq!(deframer.next().unwrap().unwrap(), "four");
    }

    #[test]
    fn a_message_of_which_half_is_here_gets_its_room_at_once_and_another_does_not() {
        let bytes = framed(&[&[7; 1_000]]);
        let room_after = |sent: usize| {
            let mut deframer = Deframer::new(1_000);
            deframer.push(Bytes::copy_from_slice(&bytes[..sent]));
            assert_eq!(deframer.next(), Ok(None));
            deframer.partial.capacity()
        };
        assert_eq!(room_after(503), 1_005);
        assert!(room_after(502) < 1_005);
        assert!(room_after(5) < 100);
    }

    #[test]
    fn compressed_and_malformed_prefixes_are_errors() {
        for (flag, error) in [(1, FrameError::Compressed), (2, FrameError::BadPrefix)] {
            let mut deframer = Deframer::new(1024);
            deframer.push(Bytes::copy_from_slice(&[flag, 0, 0, 0, 0]));
            assert_eq!(deframer.next(), Err(error));
        }
    }
}
