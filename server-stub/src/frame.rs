//! Where HTTP/2 frames begin and end in a stream of bytes.
//!
//! Responsible for following frame headers over arbitrary cuts, and for the two SETTINGS frames
//! the stub itself needs. Must never look into a payload.

/// Length of a frame header.
pub(crate) const HEADER_LEN: usize = 9;
/// Length of the client's connection preface.
pub(crate) const PREFACE_LEN: usize = 24;

const TYPE_HEADERS: u8 = 1;
const TYPE_SETTINGS: u8 = 4;
const TYPE_PUSH_PROMISE: u8 = 5;
const TYPE_PING: u8 = 6;
const TYPE_CONTINUATION: u8 = 9;
const FLAG_ACK: u8 = 1;
const FLAG_END_HEADERS: u8 = 4;
const SETTING_MAX_CONCURRENT_STREAMS: u16 = 3;

/// A frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) len: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Header {
    pub(crate) fn parse(bytes: &[u8; HEADER_LEN]) -> Header {
        let len = usize::from(bytes[0]) << 16 | usize::from(bytes[1]) << 8 | usize::from(bytes[2]);
        let stream = u32::from_be_bytes([bytes[5] & 0x7f, bytes[6], bytes[7], bytes[8]]);
        Header {
            len,
            kind: bytes[3],
            flags: bytes[4],
            stream,
        }
    }

    pub(crate) fn is_settings(self) -> bool {
        self.kind == TYPE_SETTINGS && self.flags & FLAG_ACK == 0
    }

    pub(crate) fn is_settings_ack(self) -> bool {
        self.kind == TYPE_SETTINGS && self.flags & FLAG_ACK != 0
    }

    pub(crate) fn is_ping(self) -> bool {
        self.kind == TYPE_PING && self.flags & FLAG_ACK == 0
    }

    /// The stream that this frame opens, if it begins a header block; trailers do as well.
    pub(crate) fn headers_of(self) -> Option<u32> {
        (self.kind == TYPE_HEADERS).then_some(self.stream)
    }

    /// Header blocks may not be interrupted until their last frame.
    fn opens_block(self) -> bool {
        matches!(
            self.kind,
            TYPE_HEADERS | TYPE_PUSH_PROMISE | TYPE_CONTINUATION
        ) && self.flags & FLAG_END_HEADERS == 0
    }
}

/// A SETTINGS frame that carries nothing but the stream limit.
pub(crate) fn stream_limit_settings(limit: u32) -> [u8; HEADER_LEN + 6] {
    let mut frame = [0; HEADER_LEN + 6];
    frame[2] = 6;
    frame[3] = TYPE_SETTINGS;
    frame[9..11].copy_from_slice(&SETTING_MAX_CONCURRENT_STREAMS.to_be_bytes());
    frame[11..].copy_from_slice(&limit.to_be_bytes());
    frame
}

/// Follows a byte stream frame by frame.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tracker {
    header: [u8; HEADER_LEN],
    filled: usize,
    payload_left: usize,
    in_block: bool,
}

impl Tracker {
    /// Another frame may be put here.
    pub(crate) fn at_boundary(&self) -> bool {
        self.filled == 0 && self.payload_left == 0 && !self.in_block
    }

    /// The next bytes belong to a payload, not to a header.
    pub(crate) fn in_payload(&self) -> bool {
        self.payload_left > 0
    }

    /// Takes bytes up to the end of the current header or payload. Returns how many it took, and
    /// the header when that became complete.
    pub(crate) fn step(&mut self, bytes: &[u8]) -> (usize, Option<Header>) {
        if self.payload_left > 0 {
            let took = self.payload_left.min(bytes.len());
            self.payload_left -= took;
            return (took, None);
        }
        let took = (HEADER_LEN - self.filled).min(bytes.len());
        self.header[self.filled..self.filled + took].copy_from_slice(&bytes[..took]);
        self.filled += took;
        if self.filled < HEADER_LEN {
            return (took, None);
        }
        let header = Header::parse(&self.header);
        self.filled = 0;
        self.payload_left = header.len;
        self.in_block = header.opens_block();
        (took, Some(header))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

    #[test]
    fn a_boundary_is_found_over_any_cut() {
        for cut in 0..=PING.len() {
            let mut tracker = Tracker::default();
            for part in [&PING[..cut], &PING[cut..]] {
                let mut done = 0;
                while done < part.len() {
                    done += tracker.step(&part[done..]).0;
                }
            }
            assert!(tracker.at_boundary(), "cut at {cut}");
        }
    }

    #[test]
    fn a_header_block_is_one_unit() {
        // HEADERS of 2 bytes without END_HEADERS, CONTINUATION of 1 byte with it, then a PING.
        let mut bytes = vec![0, 0, 2, 1, 0, 0, 0, 0, 1, 7, 7];
        bytes.extend([0, 0, 1, 9, 4, 0, 0, 0, 1, 7]);
        bytes.extend(PING);
        let (mut tracker, mut done, mut boundaries) = (Tracker::default(), 0, Vec::new());
        while done < bytes.len() {
            done += tracker.step(&bytes[done..]).0;
            if tracker.at_boundary() {
                boundaries.push(done);
            }
        }
        assert_eq!(boundaries, [21, 38]);
    }

    #[test]
    fn the_stream_limit_frame_is_as_in_the_http2_standard() {
        let frame = stream_limit_settings(0x0102_0304);
        assert_eq!(frame, [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3, 4]);
    }
}
