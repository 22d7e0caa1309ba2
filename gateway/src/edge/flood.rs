//! Counting HTTP/2 frames as they arrive, and judging whether a peer floods.
//!
//! hyper has no hook for PING, SETTINGS and RST_STREAM frames, so a reader below it counts frame
//! headers. Responsible for finding the headers in a byte stream cut anywhere, and for the rate
//! of each kind; for saying which DATA frame is not whole yet. Must never copy or hold payload.

use std::time::Duration;

use tokio::time::Instant;

/// Length of the client's connection preface.
const PREFACE: u32 = 24;
pub(super) const HEADER: usize = 9;

const TYPE_DATA: u8 = 0;
const TYPE_HEADERS: u8 = 1;
const TYPE_RST_STREAM: u8 = 3;
pub(super) const TYPE_SETTINGS: u8 = 4;
pub(super) const TYPE_PING: u8 = 6;
const TYPE_WINDOW_UPDATE: u8 = 8;
const TYPE_CONTINUATION: u8 = 9;
const FLAG_ACK: u8 = 1;
/// Of DATA.
pub(super) const FLAG_END_STREAM: u8 = 1;
/// Of DATA.
pub(super) const FLAG_PADDED: u8 = 8;

/// Frames that cost the node work and the peer next to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Costly {
    /// PING that asks for an answer.
    Ping,
    /// SETTINGS that asks for an acknowledgement.
    Settings,
    /// RST_STREAM: a stream opened and cancelled.
    Reset,
    /// Answers to PINGs, and frames that no client has to send: PRIORITY, PUSH_PROMISE, GOAWAY,
    /// unknown types.
    Idle,
}

/// What a scan found beside costly frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scanned {
    /// There was something but answers to PINGs.
    pub(super) own_words: bool,
    /// An answer to a PING or to SETTINGS began in it.
    pub(super) acknowledged: bool,
    /// The DATA frame that the bytes end in, if its header is among them.
    pub(super) unfinished: Option<Unfinished>,
}

/// A DATA frame that goes on behind the bytes that were scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unfinished {
    /// Where its payload begins; the whole header is before it.
    pub(super) payload_at: usize,
    /// Of its payload.
    pub(super) length: u32,
}

/// Finds frame headers in the bytes a client sends.
#[derive(Debug)]
pub(crate) struct FrameScanner {
    /// Bytes of preface or payload still to pass over.
    skip: u32,
    header: [u8; HEADER],
    filled: u8,
    /// What is passed over belongs to an answer to a PING.
    in_pong: bool,
    frames: u32,
}

impl Default for FrameScanner {
    fn default() -> Self {
        Self {
            skip: PREFACE,
            header: [0; HEADER],
            filled: 0,
            in_pong: false,
            frames: 0,
        }
    }
}

impl FrameScanner {
    /// Passes over `bytes`, calling `seen` for each costly frame whose header ends in them.
    pub(super) fn scan(&mut self, bytes: &[u8], mut seen: impl FnMut(Costly)) -> Scanned {
        let (mut own_words, mut acknowledged) = (false, false);
        let (mut last_data, mut at) = (None, 0);
        while at < bytes.len() {
            let left = &bytes[at..];
            if self.skip > 0 {
                let step = left.len().min(self.skip as usize);
                at += step;
                self.skip -= step as u32;
                own_words |= !self.in_pong;
                continue;
            }
            let filled = usize::from(self.filled);
            let step = left.len().min(HEADER - filled);
            self.header[filled..filled + step].copy_from_slice(&left[..step]);
            at += step;
            self.filled += step as u8;
            if usize::from(self.filled) == HEADER {
                self.filled = 0;
                self.frames = self.frames.saturating_add(1);
                let [a, b, c, kind, flags, ..] = self.header;
                self.skip = u32::from_be_bytes([0, a, b, c]);
                last_data = (kind == TYPE_DATA && step == HEADER).then_some(Unfinished {
                    payload_at: at,
                    length: self.skip,
                });
                self.in_pong = kind == TYPE_PING && flags & FLAG_ACK != 0;
                own_words |= !self.in_pong;
                acknowledged |= self.in_pong || (kind == TYPE_SETTINGS && flags & FLAG_ACK != 0);
                if let Some(costly) = classify(kind, flags) {
                    seen(costly);
                }
            }
        }
        Scanned {
            own_words,
            acknowledged,
            unfinished: last_data.filter(|_| self.skip > 0),
        }
    }

    /// Whether the preface and the first frame's header have arrived.
    pub(crate) fn spoke_http2(&self) -> bool {
        self.frames > 0
    }
}

fn classify(kind: u8, flags: u8) -> Option<Costly> {
    match kind {
        TYPE_PING if flags & FLAG_ACK == 0 => Some(Costly::Ping),
        TYPE_SETTINGS if flags & FLAG_ACK == 0 => Some(Costly::Settings),
        TYPE_RST_STREAM => Some(Costly::Reset),
        TYPE_DATA | TYPE_HEADERS | TYPE_SETTINGS | TYPE_WINDOW_UPDATE | TYPE_CONTINUATION => None,
        _ => Some(Costly::Idle),
    }
}

/// Whether HTTP/2 itself ended the connection because its peer floods: CONTINUATION, empty or tiny
/// DATA, streams reset before they were accepted, header lists far over the limit.
pub(crate) fn ended_by_http2(error: &hyper::Error) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = source {
        if let Some(error) = current.downcast_ref::<h2::Error>() {
            return error.is_library() && error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM);
        }
        source = current.source();
    }
    false
}

/// How many frames of each kind a connection may send within [`FloodGuard::WINDOW`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FloodLimits {
    /// PINGs.
    pub(crate) pings: u32,
    /// SETTINGS.
    pub(crate) settings: u32,
    /// RST_STREAMs.
    pub(crate) resets: u32,
    /// What no client has to send, answers to PINGs included.
    pub(crate) idle: u32,
}

impl FloodLimits {
    /// 500 cancelled streams in 10 s is the contract's figure. An agent PINGs once a minute and
    /// C-core adds one PING per bandwidth probe; 1,000 in 10 s is far above both. SETTINGS change
    /// at most a few times in a connection's life.
    pub(crate) const DEFAULT: Self = Self {
        pings: 1_000,
        settings: 100,
        resets: 500,
        idle: 1_000,
    };
}

/// Judges one connection's rate of costly frames, in fixed windows.
#[derive(Debug)]
pub(crate) struct FloodGuard {
    limits: FloodLimits,
    window_started: Instant,
    in_window: [u32; 4],
    total: [u64; 4],
}

impl FloodGuard {
    /// Length of a window.
    pub(crate) const WINDOW: Duration = Duration::from_secs(10);

    pub(crate) fn new(limits: FloodLimits, now: Instant) -> Self {
        Self {
            limits,
            window_started: now,
            in_window: [0; 4],
            total: [0; 4],
        }
    }

    /// Counts one frame. True: the peer is over its limit and the connection is to be closed.
    pub(crate) fn count(&mut self, frame: Costly, now: Instant) -> bool {
        if now.duration_since(self.window_started) >= Self::WINDOW {
            self.window_started = now;
            self.in_window = [0; 4];
        }
        let (index, limit) = match frame {
            Costly::Ping => (0, self.limits.pings),
            Costly::Settings => (1, self.limits.settings),
            Costly::Reset => (2, self.limits.resets),
            Costly::Idle => (3, self.limits.idle),
        };
        self.in_window[index] += 1;
        self.total[index] += 1;
        self.in_window[index] > limit
    }

    /// Frames of a kind since the connection opened.
    #[cfg(test)]
    pub(crate) fn total(&self, frame: Costly) -> u64 {
        self.total[frame as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let mut out = (payload as u32).to_be_bytes()[1..].to_vec();
        out.extend([kind, flags, 0, 0, 0, 1]);
        // Payload that looks like PING headers must not be taken for frames.
        out.extend(
            [0, 0, 8, TYPE_PING, 0, 0, 0, 0, 0]
                .iter()
                .cycle()
                .take(payload),
        );
        out
    }

    fn conversation() -> Vec<u8> {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(TYPE_SETTINGS, 0, 18));
        bytes.extend(frame(TYPE_SETTINGS, FLAG_ACK, 0));
        bytes.extend(frame(TYPE_PING, 0, 8));
        bytes.extend(frame(0, 0, 40));
        bytes.extend(frame(TYPE_PING, FLAG_ACK, 8));
        bytes.extend(frame(TYPE_RST_STREAM, 0, 4));
        bytes
    }

    #[test]
    fn finds_costly_frames_wherever_the_stream_is_cut() {
        let bytes = conversation();
        for piece in 1..bytes.len() {
            let mut scanner = FrameScanner::default();
            let mut seen = Vec::new();
            for chunk in bytes.chunks(piece) {
                scanner.scan(chunk, |frame| seen.push(frame));
            }
            assert_eq!(
                seen,
                [Costly::Settings, Costly::Ping, Costly::Idle, Costly::Reset],
                "pieces of {piece}"
            );
        }
    }

    #[test]
    fn lsn_12_answers_to_pings_are_told_from_what_a_peer_says_by_itself() {
        let mut scanner = FrameScanner::default();
        assert!(scanner.scan(&conversation(), |_| ()).own_words);
        let pong = frame(TYPE_PING, FLAG_ACK, 8);
        for chunk in pong.chunks(5) {
            assert!(!scanner.scan(chunk, |_| ()).own_words);
        }
        assert!(!scanner.scan(&pong.repeat(3), |_| ()).own_words);
        assert!(scanner.scan(&frame(TYPE_PING, 0, 8), |_| ()).own_words);
        assert!(!scanner.scan(&pong, |_| ()).own_words);
        let data = frame(0, 0, 40);
        assert!(scanner.scan(&data[..12], |_| ()).own_words);
        assert!(
            scanner.scan(&data[12..], |_| ()).own_words,
            "payload of DATA"
        );
    }

    #[test]
    fn knows_when_the_first_frame_arrived() {
        let bytes = conversation();
        let mut scanner = FrameScanner::default();
        scanner.scan(&bytes[..24 + 8], |_| ());
        assert!(!scanner.spoke_http2());
        scanner.scan(&bytes[24 + 8..24 + 9], |_| ());
        assert!(scanner.spoke_http2());
    }

    #[test]
    fn closes_at_one_over_the_limit_and_forgives_in_the_next_window() {
        let start = Instant::now();
        let limits = FloodLimits {
            pings: 3,
            settings: 1,
            resets: 2,
            idle: 2,
        };
        let mut guard = FloodGuard::new(limits, start);
        for _ in 0..3 {
            assert!(!guard.count(Costly::Ping, start));
        }
        assert!(guard.count(Costly::Ping, start));
        assert!(!guard.count(Costly::Reset, start));
        assert!(!guard.count(Costly::Reset, start));
        assert!(guard.count(Costly::Reset, start));
        assert!(!guard.count(Costly::Idle, start));
        assert!(!guard.count(Costly::Idle, start));
        assert!(guard.count(Costly::Idle, start));
        let later = start + FloodGuard::WINDOW;
        assert!(!guard.count(Costly::Ping, later));
        assert_eq!(guard.total(Costly::Ping), 5);
    }
}
