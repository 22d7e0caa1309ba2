//! Edits leave alone what they do not name.

use proptest::collection::vec;
use proptest::prelude::*;
use yuzu_proto::wire::{self, WireValue};

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
