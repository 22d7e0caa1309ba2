//! The answers in a piece that an owner sent.
//!
//! Responsible for telling whose they are and whether they are an agent's last (CMD-7). Must never
//! change or copy one.

use yuzu_proto::peek::CommandResponsePeek;
use yuzu_proto::wire::{GRPC_PREFIX, fields};

/// Several answers have at most so many bytes together; one alone has any size.
pub(super) const MAX_TOGETHER: usize = 64 << 10;

/// One framed `SendCommandResponse`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer<'a> {
    pub(super) agent_id: &'a str,
    /// The target is terminal with it.
    pub(super) is_last: bool,
}

impl std::fmt::Debug for Answer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Answer({}, {})", self.agent_id, self.is_last)
    }
}

/// The answers of a piece; `None`: it is not made of whole ones, or of too many.
pub(super) fn answers(mut piece: &[u8]) -> Option<Vec<Answer<'_>>> {
    let mut answers = Vec::new();
    let is_small = piece.len() <= MAX_TOGETHER;
    while !piece.is_empty() {
        if !is_small && !answers.is_empty() {
            return None;
        }
        let (prefix, rest) = piece.split_first_chunk::<GRPC_PREFIX>()?;
        let len = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
        if prefix[0] != 0 {
            return None;
        }
        let (message, rest) = rest.split_at_checked(len as usize)?;
        answers.push(answer(message)?);
        piece = rest;
    }
    Some(answers)
}

fn answer(message: &[u8]) -> Option<Answer<'_>> {
    let (mut agent_id, mut response): (&[u8], &[u8]) = (&[], &[]);
    for field in fields(message) {
        let field = field.ok()?;
        match field.number {
            1 => agent_id = field.bytes().ok()?,
            2 => response = field.bytes().ok()?,
            _ => {}
        }
    }
    let peek = CommandResponsePeek::peek(response).ok()?;
    Some(Answer {
        agent_id: str::from_utf8(agent_id).ok()?,
        is_last: peek.status != 0,
    })
}
