//! One `BatchHeartbeatRequest`: what fits, and its halves.
//!
//! Responsible for the size on the wire, to the byte (HB-3). A batch keeps its encoded bytes until
//! it is settled, whatever becomes of the entries they were copied from. Must never look into a
//! heartbeat.

use bytes::Bytes;
use prost::encoding::{WireType, encode_key, encode_varint};
use yuzu_proto::wire::{bytes_field_len, put_bytes_field};

use super::message::Heartbeat;
use crate::gateways::{MAX_NAME, Names};

/// Largest batch, encoded.
pub(super) const MAX_CHUNK: usize = 3 << 20;

const HEARTBEATS: u32 = 1;
const GATEWAY_NODE: u32 = 2;

/// What every batch of this node ends with, the name of a gateway, and what that leaves for
/// heartbeats.
pub(super) struct Tail {
    names: Names,
    room: usize,
}

impl Tail {
    pub(super) fn new(names: Names) -> Self {
        let name = match names.is_private() {
            true => MAX_NAME,
            false => names.of_node().len(),
        };
        let room = MAX_CHUNK - bytes_field_len(GATEWAY_NODE, name);
        Self { names, room }
    }

    /// Waits until the name can be given (VIS-3).
    pub(super) async fn is_named(&self) {
        self.names.known().await;
    }

    fn put(&self, batch: &mut Vec<u8>) {
        let name = self.names.of_node();
        put_bytes_field(batch, GATEWAY_NODE, name.as_bytes());
    }

    /// The largest encoded heartbeat that a batch can hold.
    pub(super) fn largest_heartbeat(&self) -> usize {
        self.room - (bytes_field_len(HEARTBEATS, self.room) - self.room)
    }
}

/// Which version of which entry of the buffer a batch holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) slot: u32,
    /// Its size in the batch.
    len: u32,
    pub(super) version: u64,
}

/// A batch that is being filled.
pub(super) struct Chunk<'a> {
    tail: &'a Tail,
    message: Vec<u8>,
    tickets: Vec<Ticket>,
}

impl<'a> Chunk<'a> {
    /// With room for about `expected` bytes to begin with.
    pub(super) fn new(tail: &'a Tail, expected: usize) -> Self {
        Self {
            tail,
            message: Vec::with_capacity(expected.min(MAX_CHUNK)),
            tickets: Vec::new(),
        }
    }

    /// Adds a heartbeat; false when it does not fit any more.
    pub(super) fn add(&mut self, slot: u32, version: u64, heartbeat: &Heartbeat) -> bool {
        let len = bytes_field_len(HEARTBEATS, heartbeat.len());
        if self.message.len() + len > self.tail.room {
            return false;
        }
        encode_key(HEARTBEATS, WireType::LengthDelimited, &mut self.message);
        encode_varint(heartbeat.len() as u64, &mut self.message);
        heartbeat.put(&mut self.message);
        self.tickets.push(Ticket {
            slot,
            len: len as u32,
            version,
        });
        true
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.message.len()
    }

    /// The batch; `None` when there is nothing in it.
    pub(super) fn seal(mut self) -> Option<Part> {
        self.tail.put(&mut self.message);
        (!self.tickets.is_empty()).then(|| Part {
            message: self.message.into(),
            tickets: self.tickets,
        })
    }
}

/// A batch, or a part of one that was refused.
pub(super) struct Part {
    message: Bytes,
    tickets: Vec<Ticket>,
}

impl Part {
    /// Heartbeats in it, at least one.
    pub(super) fn len(&self) -> usize {
        self.tickets.len()
    }

    /// The encoded `BatchHeartbeatRequest`.
    pub(super) fn message(&self) -> Bytes {
        self.message.clone()
    }

    /// What it holds, oldest first.
    pub(super) fn tickets(&self) -> &[Ticket] {
        &self.tickets
    }

    /// Both halves; the second is the larger one. There must be two heartbeats or more.
    pub(super) fn halves(self) -> [Part; 2] {
        let size = |tickets: &[Ticket]| tickets.iter().map(|ticket| ticket.len as usize).sum();
        let mut first = self.tickets;
        let (heartbeats, tail) = self.message.split_at(size(&first));
        let second = first.split_off(first.len() / 2);
        let (front, back) = heartbeats.split_at(size(&first));
        let part = |heartbeats: &[u8], tickets| Part {
            message: [heartbeats, tail].concat().into(),
            tickets,
        };
        [part(front, first), part(back, second)]
    }
}

#[cfg(test)]
impl Tail {
    /// Of a node without a name whose batches hold `room` bytes.
    pub(super) fn of_room(room: usize) -> Self {
        let names = Names::public("");
        Self { names, room }
    }
}

#[cfg(test)]
mod tests;
