//! What counts as a message is what prost takes for one.

use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use yuzu_proto::wire;

use crate::generate::any_field;

/// prost's verdict: a message without any known field skips everything.
fn prost_accepts(message: &[u8]) -> bool {
    <()>::decode(message).is_ok()
}

/// Small numbers, so that a random end of a group often meets its start.
fn fields_in_a_row() -> impl Strategy<Value = Vec<u8>> {
    vec(any_field(1_u32..4), 0..6).prop_map(|fields| fields.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn random_bytes_never_panic_and_are_judged_as_prost_does(message in vec(any::<u8>(), 0..64)) {
        prop_assert_eq!(wire::validate(&message).is_ok(), prost_accepts(&message));
    }

    /// Bytes as they often stand in tags and lengths come much further than random ones.
    #[test]
    fn likely_bytes_are_judged_as_prost_does(
        message in vec(prop_oneof![0_u8..0x20, 0x80_u8..0x84, any::<u8>()], 0..64)
    ) {
        prop_assert_eq!(wire::validate(&message).is_ok(), prost_accepts(&message));
    }

    #[test]
    fn well_formed_fields_are_accepted(message in fields_in_a_row()) {
        prop_assert_eq!(wire::validate(&message), Ok(()));
        prop_assert!(prost_accepts(&message));
    }

    #[test]
    fn a_damaged_message_is_judged_as_prost_does(
        message in fields_in_a_row(),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<bool>(),
    ) {
        prop_assume!(!message.is_empty());
        let mut message = message;
        let place = place.index(message.len());
        if cut {
            message.truncate(place);
        } else {
            message[place] = byte;
        }
        prop_assert_eq!(wire::validate(&message).is_ok(), prost_accepts(&message));
    }

    #[test]
    fn groups_may_nest_as_deep_as_in_prost(depth in 95_usize..106, filling in any::<bool>()) {
        let mut message = vec![0x0b; depth];
        if filling {
            message.extend([0x08, 0x01]);
        }
        message.extend(vec![0x0c; depth]);
        prop_assert_eq!(wire::validate(&message).is_ok(), prost_accepts(&message));
    }

    #[test]
    fn fields_tile_the_message(message in fields_in_a_row()) {
        let mut at = 0;
        for field in wire::fields(&message) {
            let field = field.expect("well-formed");
            prop_assert_eq!(field.range.start, at);
            prop_assert!(field.range.start < field.payload.start);
            prop_assert!(field.payload.end <= field.range.end);
            at = field.range.end;
        }
        prop_assert_eq!(at, message.len());
    }
}
