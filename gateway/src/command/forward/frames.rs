//! The frames of a forwarded session, as they go on the wire.
//!
//! Responsible for their prefix and for carrying answers with one copy. Must never know what a frame
//! does.

use bytes::{Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, decode_varint, encode_key, encode_varint};
use yuzu_proto::node::v1::ForwardFrame;
pub(super) use yuzu_proto::node::v1::forward_frame::Kind;
use yuzu_proto::wire::{GRPC_PREFIX, bytes_field_len, fields, put_bytes_field, put_grpc_prefix};

use crate::edge::grpc;

/// The version of this part of the contract that is spoken here.
pub(super) const VERSION: u32 = 1;

/// What an owner says but answers: the positions of the targets of a Dispatch are the most.
const MAX_WORD: usize = 64 << 10;

/// `ForwardFrame.dispatch`.
const DISPATCH: u32 = 3;
/// `ForwardDispatch.agent_ids`.
const AGENT_IDS: u32 = 2;
/// `ForwardFrame.answers`.
const ANSWERS: u32 = 6;
/// Its key on the wire.
const ANSWERS_KEY: u8 = (ANSWERS << 3) as u8 | WireType::LengthDelimited as u8;
/// `ForwardAnswers.entries`.
const ENTRIES: u32 = 1;

/// A framed message.
pub(super) fn encode(kind: Kind) -> Bytes {
    let frame = ForwardFrame { kind: Some(kind) };
    grpc::frame(&frame.encode_to_vec())
}

/// The framed message of these answers.
pub(super) fn encode_answers(entries: &[u8]) -> Bytes {
    let inner = bytes_field_len(ENTRIES, entries.len());
    let len = bytes_field_len(ANSWERS, inner);
    let mut out = BytesMut::with_capacity(GRPC_PREFIX + len);
    put_grpc_prefix(&mut out, len);
    encode_key(ANSWERS, WireType::LengthDelimited, &mut out);
    encode_varint(inner as u64, &mut out);
    put_bytes_field(&mut out, ENTRIES, entries);
    debug_assert_eq!(out.len(), GRPC_PREFIX + len);
    out.freeze()
}

/// What an owner says in a message; `None` as well when it is larger than any but answers.
pub(super) fn decode_of_owner(message: Bytes) -> Option<Kind> {
    match message.len() <= MAX_WORD || is_answers(&message) {
        true => decode(message),
        false => None,
    }
}

/// What an entry node says in a message; `None` as well when it names more than `most` agents.
pub(super) fn decode_of_entry(message: Bytes, most: usize) -> Option<Kind> {
    match agents(&message)? <= most {
        true => decode(message),
        false => None,
    }
}

/// The agents that a message names, counted before there is room made for each.
fn agents(message: &[u8]) -> Option<usize> {
    let mut count = 0;
    for field in fields(message) {
        let field = field.ok()?;
        if field.number != DISPATCH {
            continue;
        }
        for field in fields(field.bytes().ok()?) {
            count += usize::from(field.ok()?.number == AGENT_IDS);
        }
    }
    Some(count)
}

/// Whether answers are all that the message says: those are not copied when it is decoded.
fn is_answers(message: &[u8]) -> bool {
    let Some((&ANSWERS_KEY, mut rest)) = message.split_first() else {
        return false;
    };
    decode_varint(&mut rest).is_ok_and(|len| len == rest.len() as u64)
}

/// What a message says; `None`: it is no frame, or one of a later version.
pub(super) fn decode(message: Bytes) -> Option<Kind> {
    ForwardFrame::decode(message).ok()?.kind
}

#[cfg(test)]
mod tests {
    use yuzu_proto::node::v1::{ForwardAnswers, ForwardDispatch, ForwardWritten};

    use super::*;

    #[test]
    fn fwd_4_answers_cross_byte_for_byte() {
        for len in [1, 127, 128, 70_000] {
            let entries = Bytes::from(vec![7; len]);
            let answers = ForwardAnswers {
                entries: entries.clone(),
            };
            let framed = encode_answers(&entries);
            assert_eq!(
                framed,
                encode(Kind::Answers(answers.clone())),
                "{len} bytes"
            );
            let message = framed.slice(GRPC_PREFIX..);
            assert_eq!(decode_of_owner(message), Some(Kind::Answers(answers)));
        }
    }

    #[test]
    fn fwd_2_only_answers_are_large() {
        let written = |positions| {
            Kind::Written(ForwardWritten {
                moved: vec![7; positions],
            })
        };
        let message = |kind| encode(kind).slice(GRPC_PREFIX..);
        // As many as a Dispatch has targets.
        let all = ForwardWritten {
            moved: (0..2_048).collect(),
        };
        let all = Kind::Written(all);
        assert_eq!(decode_of_owner(message(all.clone())), Some(all));
        let large = message(written(MAX_WORD));
        assert_eq!(decode_of_owner(large.clone()), None);
        // Nor may answers go before it.
        let mut behind = BytesMut::from(&encode_answers(b"x")[GRPC_PREFIX..]);
        behind.extend_from_slice(&large);
        assert_eq!(decode_of_owner(behind.freeze()), None);
    }

    #[test]
    fn fwd_2_a_dispatch_names_so_many_agents_however_often_it_is_there() {
        let dispatch = |agents| {
            let dispatch = Kind::Dispatch(ForwardDispatch {
                command: Some(Bytes::from_static(b"x")),
                agent_ids: vec![String::new(); agents],
            });
            encode(dispatch).slice(GRPC_PREFIX..)
        };
        assert!(decode_of_entry(dispatch(3), 3).is_some());
        assert_eq!(decode_of_entry(dispatch(4), 3), None);
        let twice = [dispatch(2), dispatch(2)].concat();
        assert!(decode_of_entry(twice.clone().into(), 4).is_some());
        assert_eq!(decode_of_entry(twice.into(), 3), None);
    }
}
