//! Edits leave alone what they do not name.

use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use yuzu_proto::agent::v1::{CommandResponse, RegisterRequest};
use yuzu_proto::server::v1::SendCommandResponse;
use yuzu_proto::wire::{self, WireValue};

use crate::contracts::{any_message, joined, message};
use crate::generate::any_field;

const EDITED: u32 = 6;

/// Encoded fields with their numbers; about one in three is of the edited number.
fn numbered_fields() -> impl Strategy<Value = Vec<(u32, Vec<u8>)>> {
    let number = prop_oneof![Just(EDITED), 1_u32..6, 7_u32..1000];
    vec(
        number.prop_flat_map(|number| (Just(number), any_field(Just(number)))),
        0..12,
    )
}

fn all(fields: &[(u32, Vec<u8>)]) -> Vec<u8> {
    fields.iter().flat_map(|(_, bytes)| bytes.clone()).collect()
}

fn others(fields: &[(u32, Vec<u8>)]) -> Vec<u8> {
    fields
        .iter()
        .filter(|(number, _)| *number != EDITED)
        .flat_map(|(_, bytes)| bytes.clone())
        .collect()
}

proptest! {
    #[test]
    fn cut_removes_the_field_and_nothing_else(fields in numbered_fields()) {
        let cut = wire::cut_field(&all(&fields), EDITED).expect("well-formed");
        prop_assert_eq!(&cut[..], &others(&fields)[..]);
    }

    #[test]
    fn replace_appends_the_value_and_keeps_the_rest(
        fields in numbered_fields(),
        value in vec(any::<u8>(), 1..300),
    ) {
        let replaced = wire::replace_bytes_field(&all(&fields), EDITED, &value).expect("well-formed");
        let kept = others(&fields);
        prop_assert_eq!(&replaced[..kept.len()], &kept[..]);
        let appended: Vec<_> = wire::fields(&replaced[kept.len()..]).collect::<Result<_, _>>().expect("well-formed");
        prop_assert_eq!(appended.len(), 1);
        prop_assert_eq!(appended[0].number, EDITED);
        prop_assert!(appended[0].value == WireValue::Bytes(&value));
    }

    #[test]
    fn replace_by_nothing_is_a_cut(fields in numbered_fields()) {
        let message = all(&fields);
        prop_assert_eq!(
            wire::replace_bytes_field(&message, EDITED, &[]),
            wire::cut_field(&message, EDITED)
        );
    }

    #[test]
    fn a_malformed_message_is_not_edited(message in vec(any::<u8>(), 0..64)) {
        let sound = wire::validate(&message).map(|()| true);
        prop_assert_eq!(wire::cut_field(&message, 1).map(|_| true), sound);
        prop_assert_eq!(wire::replace_bytes_field(&message, 1, b"x").map(|_| true), sound);
    }

    #[test]
    fn a_wrapped_message_comes_out_as_it_went_in(
        content in vec(any::<u8>(), 0..300),
        number in 1_u32..(1 << 29),
    ) {
        let mut wrapped = Vec::new();
        wire::put_bytes_field(&mut wrapped, number, &content);
        prop_assert_eq!(wrapped.len(), wire::bytes_field_len(number, content.len()));
        let field = wire::fields(&wrapped).next().expect("a field").expect("well-formed");
        prop_assert_eq!(field.number, number);
        prop_assert!(field.value == WireValue::Bytes(&content));
        prop_assert_eq!(&wrapped[field.payload], &content[..]);
    }

    #[test]
    fn a_written_varint_has_the_announced_length(
        value in prop_oneof![Just(0), 1..300_u64, any::<u64>()],
        number in 1_u32..(1 << 29),
    ) {
        let mut out = Vec::new();
        wire::put_varint_field(&mut out, number, value);
        prop_assert_eq!(out.len(), wire::varint_field_len(number, value));
        let read: u64 = wire::fields(&out)
            .map(|field| field.and_then(|field| field.varint()).expect("well-formed"))
            .sum();
        prop_assert_eq!(read, value);
    }
}

proptest! {
    /// Every message type, unknown fields at every level, any field of it edited.
    #[test]
    fn messages_of_the_contracts_keep_what_is_not_edited(
        (of, fields) in any_message(),
        edited in any::<prop::sample::Index>(),
        value in vec(any::<u8>(), 1..40),
    ) {
        prop_assume!(!fields.is_empty());
        let number = fields[edited.index(fields.len())].0;
        let message = joined(fields.clone());
        let kept: Vec<_> = fields.into_iter().filter(|(of, _)| *of != number).collect();
        let mut expected = joined(kept);

        let cut = wire::cut_field(&message, number).expect("well-formed");
        prop_assert_eq!(&cut[..], &expected[..]);
        prop_assert!((of.recode)(&cut).is_ok());

        let replaced = wire::replace_bytes_field(&message, number, &value).expect("well-formed");
        wire::put_bytes_field(&mut expected, number, &value);
        prop_assert_eq!(&replaced[..], &expected[..]);
    }

    /// The one edit that the gateway makes, judged by the server's decoder.
    #[test]
    fn reg_4_the_observed_peer_is_replaced_and_all_else_is_kept(
        request in message(".yuzu.agent.v1.RegisterRequest"),
        peer in prop_oneof![Just(String::new()), "[0-9a-f:.]{3,39}"],
    ) {
        let edited = wire::replace_bytes_field(&request, 6, peer.as_bytes()).expect("well-formed");
        let mut expected = RegisterRequest::decode(&request[..]).expect("valid");
        expected.gateway_observed_peer = peer;
        prop_assert!(RegisterRequest::decode(edited).is_ok_and(|decoded| decoded == expected));
    }

    /// An answer wrapped for the operator is the answer.
    #[test]
    fn cmd_6_a_wrapped_answer_is_relayed_byte_for_byte(
        answer in message(".yuzu.agent.v1.CommandResponse"),
        agent_id in "\\PC{0,40}",
    ) {
        let mut wrapped = Vec::new();
        wire::put_bytes_field(&mut wrapped, 1, agent_id.as_bytes());
        wire::put_bytes_field(&mut wrapped, 2, &answer);
        prop_assert!(wrapped.ends_with(&answer));
        let decoded = SendCommandResponse::decode(&wrapped[..]).expect("valid");
        prop_assert_eq!(decoded.agent_id, agent_id);
        let expected = CommandResponse::decode(&answer[..]).expect("valid");
        prop_assert!(decoded.response == Some(expected));
    }
}
