//! What the stub received, and how its calls ended.
//!
//! Responsible for a bounded memory of requests per RPC (entries and bytes) and for counters that
//! never forget. Must never show request contents in `Debug`.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;

use bytes::Bytes;
use prost::{DecodeError, Message as _};
use tokio::time::Instant;
use yuzu_proto::agent::v1::{InventoryReport, RegisterRequest};
use yuzu_proto::gateway::v1::{
    BatchHeartbeatRequest, ForwardGuardianRequest, StreamStatusNotification,
};

use crate::rpc::Rpc;

/// A request as it came in.
#[derive(Clone)]
pub struct Received {
    /// Number of the request over all RPCs, from 1.
    pub seq: u64,
    /// When the whole message was there.
    pub at: Instant,
    /// The RPC.
    pub rpc: Rpc,
    /// Connection it came on ([`crate::ConnectionView::id`]).
    pub connection: u64,
    /// The gateway's address.
    pub peer: SocketAddr,
    /// `grpc-timeout` as sent.
    pub grpc_timeout: Option<String>,
    /// `x-yuzu-session-id` as sent; not UTF-8 becomes U+FFFD.
    pub presented_session: Option<String>,
    /// Names of metadata keys besides those and the ones gRPC itself uses.
    pub other_metadata: Vec<String>,
    /// The message, byte for byte.
    pub raw: Bytes,
}

/// A request, decoded.
#[derive(Clone, PartialEq)]
pub enum Message {
    /// Of ProxyRegister.
    Register(Box<RegisterRequest>),
    /// Of BatchHeartbeat.
    Heartbeats(BatchHeartbeatRequest),
    /// Of ProxyInventory.
    Inventory(InventoryReport),
    /// Of NotifyStreamStatus.
    StreamStatus(StreamStatusNotification),
    /// Of ForwardGuardianMessage.
    Guardian(Box<ForwardGuardianRequest>),
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Message::Register(_) => "Register",
            Message::Heartbeats(_) => "Heartbeats",
            Message::Inventory(_) => "Inventory",
            Message::StreamStatus(_) => "StreamStatus",
            Message::Guardian(_) => "Guardian",
        })
    }
}

impl Message {
    /// Decodes a request of this RPC.
    ///
    /// # Errors
    /// The bytes are not such a message.
    pub fn decode(rpc: Rpc, raw: Bytes) -> Result<Message, DecodeError> {
        Ok(match rpc {
            Rpc::ProxyRegister => Message::Register(Box::new(RegisterRequest::decode(raw)?)),
            Rpc::BatchHeartbeat => Message::Heartbeats(BatchHeartbeatRequest::decode(raw)?),
            Rpc::ProxyInventory => Message::Inventory(InventoryReport::decode(raw)?),
            Rpc::NotifyStreamStatus => {
                Message::StreamStatus(StreamStatusNotification::decode(raw)?)
            }
            Rpc::ForwardGuardianMessage => {
                Message::Guardian(Box::new(ForwardGuardianRequest::decode(raw)?))
            }
        })
    }
}

impl Received {
    /// The request, decoded.
    ///
    /// # Errors
    /// The bytes are not a message of this RPC.
    pub fn message(&self) -> Result<Message, DecodeError> {
        Message::decode(self.rpc, self.raw.clone())
    }

    /// The request, if it is a registration.
    #[must_use]
    pub fn register(&self) -> Option<RegisterRequest> {
        match self.message() {
            Ok(Message::Register(request)) => Some(*request),
            _ => None,
        }
    }

    /// The request, if it is a batch of heartbeats.
    #[must_use]
    pub fn heartbeats(&self) -> Option<BatchHeartbeatRequest> {
        match self.message() {
            Ok(Message::Heartbeats(request)) => Some(request),
            _ => None,
        }
    }

    /// The request, if it is an inventory report.
    #[must_use]
    pub fn inventory(&self) -> Option<InventoryReport> {
        match self.message() {
            Ok(Message::Inventory(request)) => Some(request),
            _ => None,
        }
    }

    /// The request, if it is a notice.
    #[must_use]
    pub fn stream_status(&self) -> Option<StreamStatusNotification> {
        match self.message() {
            Ok(Message::StreamStatus(request)) => Some(request),
            _ => None,
        }
    }

    /// The request, if it is a Guardian frame.
    #[must_use]
    pub fn guardian(&self) -> Option<ForwardGuardianRequest> {
        match self.message() {
            Ok(Message::Guardian(request)) => Some(*request),
            _ => None,
        }
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Received(#{} {}, {} bytes)",
            self.seq,
            self.rpc,
            self.raw.len()
        )
    }
}

/// How the calls of one RPC went. Only `in_flight` and `hung` ever go down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests received whole.
    pub received: u64,
    /// Bytes of their messages.
    pub bytes: u64,
    /// Not answered yet.
    pub in_flight: u64,
    /// Most at once.
    pub max_in_flight: u64,
    /// Held by a hang rule now.
    pub hung: u64,
    /// Answered OK with a message that accepts, receives or acknowledges, scripted bytes included.
    pub ok: u64,
    /// Answered OK with `accepted=false`, `received=false` or `acknowledged=false`.
    pub refused: u64,
    /// Answered with another status.
    pub failed: u64,
    /// Given up by the caller, or lost with its connection, before the answer.
    pub cancelled: u64,
    /// Ended by a rule that resets the stream, drops the connection or answers garbage.
    pub broken: u64,
    /// Calls on which at least one rule fired.
    pub faulted: u64,
    /// Messages that could not be decoded; they end with 13.
    pub undecodable: u64,
    /// Requests no longer kept.
    pub forgotten: u64,
}

/// Kept requests of one RPC.
pub(crate) struct Ring {
    kept: VecDeque<Received>,
    bytes: usize,
    max_entries: usize,
    max_bytes: usize,
}

/// What an entry costs besides its message.
const ENTRY_COST: usize = 256;

impl Ring {
    pub(crate) fn new(max_entries: usize, max_bytes: usize) -> Self {
        Ring {
            kept: VecDeque::new(),
            bytes: 0,
            max_entries,
            max_bytes,
        }
    }

    /// Keeps an entry; returns how many were dropped for it.
    pub(crate) fn push(&mut self, received: Received) -> u64 {
        self.bytes += received.raw.len() + ENTRY_COST;
        self.kept.push_back(received);
        let mut dropped = 0;
        while self.kept.len() > self.max_entries || self.bytes > self.max_bytes {
            let Some(oldest) = self.kept.pop_front() else {
                break;
            };
            self.bytes -= oldest.raw.len() + ENTRY_COST;
            dropped += 1;
        }
        dropped
    }

    pub(crate) fn clear(&mut self) {
        self.kept.clear();
        self.bytes = 0;
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Received> + ExactSizeIterator {
        self.kept.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(seq: u64, len: usize) -> Received {
        Received {
            seq,
            at: Instant::now(),
            rpc: Rpc::ProxyInventory,
            connection: 1,
            peer: SocketAddr::from(([127, 0, 0, 1], 1)),
            grpc_timeout: None,
            presented_session: None,
            other_metadata: Vec::new(),
            raw: Bytes::from(vec![0; len]),
        }
    }

    #[test]
    fn the_oldest_entries_go_first_by_count_and_by_bytes() {
        let mut ring = Ring::new(3, 3 * ENTRY_COST + 100);
        assert_eq!(
            (1..=5).map(|seq| ring.push(received(seq, 10))).sum::<u64>(),
            2
        );
        assert_eq!(ring.iter().map(|r| r.seq).collect::<Vec<_>>(), [3, 4, 5]);
        assert_eq!(ring.push(received(6, 80 + ENTRY_COST)), 2);
        assert_eq!(ring.iter().map(|r| r.seq).collect::<Vec<_>>(), [5, 6]);
    }

    #[test]
    fn debug_shows_sizes_only() {
        let mut entry = received(7, 4);
        entry.raw = Bytes::from_static(b"secr");
        entry.presented_session = Some("gw-session-x".into());
        assert_eq!(format!("{entry:?}"), "Received(#7 ProxyInventory, 4 bytes)");
    }
}
