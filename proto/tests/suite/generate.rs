//! Random wire data: single fields of every wire type, groups and nesting included.

use bytes::BufMut;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::encoding::{WireType, encode_key, encode_varint};

/// One encoded field of the given numbers, of any wire type.
pub(crate) fn any_field(
    number: impl Strategy<Value = u32> + Clone + 'static,
) -> BoxedStrategy<Vec<u8>> {
    let leaf = (number.clone(), leaf_value()).prop_map(|(number, value)| value.encode(number));
    leaf.boxed()
        .prop_recursive(4, 24, 4, move |inner| {
            (number.clone(), vec(inner, 0..4), any::<bool>()).prop_map(
                |(number, content, group)| {
                    let content = content.concat();
                    if group {
                        Value::Group(content)
                    } else {
                        Value::Bytes(content)
                    }
                    .encode(number)
                },
            )
        })
        .boxed()
}

#[derive(Debug, Clone)]
enum Value {
    Varint(u64, u8),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(Vec<u8>),
    Group(Vec<u8>),
}

fn leaf_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        (prop_oneof![Just(0), 0..300_u64, any::<u64>()], 0..4_u8)
            .prop_map(|(value, padding)| Value::Varint(value, padding)),
        any::<u64>().prop_map(Value::Fixed64),
        any::<u32>().prop_map(Value::Fixed32),
        vec(any::<u8>(), 0..40).prop_map(Value::Bytes),
        vec(any::<u8>(), 120..300).prop_map(Value::Bytes),
    ]
}

impl Value {
    fn encode(self, number: u32) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Varint(value, padding) => {
                encode_key(number, WireType::Varint, &mut out);
                put_padded_varint(&mut out, value, padding);
            }
            Self::Fixed64(value) => {
                encode_key(number, WireType::SixtyFourBit, &mut out);
                out.put_u64_le(value);
            }
            Self::Fixed32(value) => {
                encode_key(number, WireType::ThirtyTwoBit, &mut out);
                out.put_u32_le(value);
            }
            Self::Bytes(content) => {
                encode_key(number, WireType::LengthDelimited, &mut out);
                encode_varint(content.len() as u64, &mut out);
                out.extend(content);
            }
            Self::Group(content) => {
                encode_key(number, WireType::StartGroup, &mut out);
                out.extend(content);
                encode_key(number, WireType::EndGroup, &mut out);
            }
        }
        out
    }
}

/// A varint with up to `padding` bytes more than it needs, which decoders accept: a relay that
/// re-encoded it would not give the same bytes.
pub(crate) fn put_padded_varint(out: &mut Vec<u8>, value: u64, padding: u8) {
    let start = out.len();
    encode_varint(value, out);
    for _ in 0..padding {
        if out.len() - start < 10 {
            *out.last_mut().expect("a varint has a byte") |= 0x80;
            out.push(0);
        }
    }
}
