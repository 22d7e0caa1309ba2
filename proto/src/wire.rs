//! Encoded protobuf messages: reading their fields, and editing them, without decoding them.
//!
//! Responsible for the walk over a message ([`fields`]), for the check that bytes are a message
//! at all ([`validate`]), for the two edits that a relay may need ([`replace_bytes_field`],
//! [`cut_field`]), and for writing single fields and gRPC frame prefixes.
//!
//! What is accepted is what `prost` accepts when it skips unknown fields: varints of at most
//! 10 bytes that fit 64 bits, field numbers 1 to 2^29-1, groups that are closed by their own
//! number and nest at most [`MAX_GROUP_DEPTH`] deep.
//!
//! Must never panic, recurse or allocate by what the input says, and must never change a byte
//! outside the field that an edit names.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{
    MAX_TAG, MIN_TAG, WireType, decode_varint, encode_key, encode_varint, encoded_len_varint,
    key_len,
};

/// How many groups may be open at once.
pub const MAX_GROUP_DEPTH: usize = 100;

/// Size in bytes of the prefix of a gRPC message: the compression flag and the length.
pub const GRPC_PREFIX: usize = 5;

/// Why bytes are not a message, or not the message that was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message ends inside a tag, a varint, a fixed-width value or an open group.
    #[error("message ends inside a field")]
    Truncated,
    /// A varint is longer than 10 bytes or does not fit 64 bits.
    #[error("varint out of range")]
    Varint,
    /// A field number is 0 or above 2^29-1.
    #[error("field number out of range")]
    FieldNumber,
    /// A wire type is unknown, or is not the one that the contract gives the field.
    #[error("unexpected wire type")]
    WireType,
    /// A group ends that was not started, or groups nest deeper than [`MAX_GROUP_DEPTH`].
    #[error("group unmatched or nested too deep")]
    Group,
    /// A length is larger than what is left of the message.
    #[error("length exceeds the message")]
    Length,
}

/// The value of a field, as it stands on the wire.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WireValue<'a> {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 1, little endian.
    Fixed64(u64),
    /// Wire type 5, little endian.
    Fixed32(u32),
    /// Wire type 2: string, bytes, message or packed numbers; the content without the length.
    Bytes(&'a [u8]),
    /// Wire types 3 and 4: the content between the two tags, checked to be well-formed fields.
    Group(&'a [u8]),
}

/// One field of a message.
///
/// Has no `Debug`: the content may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Field<'a> {
    /// Field number, 1 to 2^29-1.
    pub number: u32,
    /// The value.
    pub value: WireValue<'a>,
    /// Where the whole field stands in the message, tag included.
    pub range: Range<usize>,
    /// Where the value's bytes stand in the message: the content for [`WireValue::Bytes`] and
    /// [`WireValue::Group`], the encoded number for the others.
    pub payload: Range<usize>,
}

impl<'a> Field<'a> {
    /// The content of a length-delimited field.
    ///
    /// # Errors
    /// [`WireError::WireType`] when the field has another wire type.
    pub fn bytes(&self) -> Result<&'a [u8], WireError> {
        match self.value {
            WireValue::Bytes(content) => Ok(content),
            _ => Err(WireError::WireType),
        }
    }

    /// The value of a varint field. An `int32` or an enum is its low 32 bits, a `bool` is whether
    /// it is not 0.
    ///
    /// # Errors
    /// [`WireError::WireType`] when the field has another wire type.
    pub fn varint(&self) -> Result<u64, WireError> {
        match self.value {
            WireValue::Varint(value) => Ok(value),
            _ => Err(WireError::WireType),
        }
    }
}

/// The fields of a message in the order of the wire; made by [`fields`].
///
/// Yields an error at the first byte that is not part of a well-formed field, and nothing after.
#[derive(Clone)]
pub struct Fields<'a> {
    message: &'a [u8],
    at: usize,
}

/// Walks the fields of `message`. Costs nothing for the content of length-delimited fields, which
/// are not looked into.
pub fn fields(message: &[u8]) -> Fields<'_> {
    Fields { message, at: 0 }
}

/// Checks that `message` is a sequence of well-formed fields.
///
/// # Errors
/// The first fault found.
pub fn validate(message: &[u8]) -> Result<(), WireError> {
    fields(message).try_for_each(|field| field.map(|_| ()))
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.message.len() {
            return None;
        }
        let field = field_at(self.message, self.at);
        self.at = match &field {
            Ok(field) => field.range.end,
            Err(_) => self.message.len(),
        };
        Some(field)
    }
}

impl std::iter::FusedIterator for Fields<'_> {}

#[inline]
fn field_at(message: &[u8], start: usize) -> Result<Field<'_>, WireError> {
    let (number, wire_type, after_key) = key_at(message, start)?;
    let (value, payload, end) = match wire_type {
        WireType::Varint => {
            let (value, end) = varint_at(message, after_key)?;
            (WireValue::Varint(value), after_key..end, end)
        }
        WireType::SixtyFourBit => {
            let (value, end) = fixed_at(message, after_key)?;
            (
                WireValue::Fixed64(u64::from_le_bytes(value)),
                after_key..end,
                end,
            )
        }
        WireType::ThirtyTwoBit => {
            let (value, end) = fixed_at(message, after_key)?;
            (
                WireValue::Fixed32(u32::from_le_bytes(value)),
                after_key..end,
                end,
            )
        }
        WireType::LengthDelimited => {
            let payload = delimited_at(message, after_key)?;
            let end = payload.end;
            (WireValue::Bytes(&message[payload.clone()]), payload, end)
        }
        WireType::StartGroup => {
            let (payload, end) = group_at(message, after_key, number)?;
            (WireValue::Group(&message[payload.clone()]), payload, end)
        }
        WireType::EndGroup => return Err(WireError::Group),
    };
    Ok(Field {
        number,
        value,
        range: start..end,
        payload,
    })
}

/// The content of the group `number` that was opened before `start`, and the group's end.
#[cold]
fn group_at(message: &[u8], start: usize, number: u32) -> Result<(Range<usize>, usize), WireError> {
    let mut open = [0_u32; MAX_GROUP_DEPTH];
    open[0] = number;
    let mut depth = 1;
    let mut at = start;
    loop {
        let (number, wire_type, after_key) = key_at(message, at)?;
        if wire_type == WireType::EndGroup {
            depth -= 1;
            if open[depth] != number {
                return Err(WireError::Group);
            }
            if depth == 0 {
                return Ok((start..at, after_key));
            }
            at = after_key;
            continue;
        }
        // Any field counts at this depth, not only a group: prost refuses both.
        if depth == MAX_GROUP_DEPTH {
            return Err(WireError::Group);
        }
        at = match wire_type {
            WireType::Varint => varint_at(message, after_key)?.1,
            WireType::SixtyFourBit => fixed_at::<8>(message, after_key)?.1,
            WireType::ThirtyTwoBit => fixed_at::<4>(message, after_key)?.1,
            WireType::LengthDelimited => delimited_at(message, after_key)?.end,
            WireType::StartGroup | WireType::EndGroup => {
                open[depth] = number;
                depth += 1;
                after_key
            }
        };
    }
}

#[inline]
fn key_at(message: &[u8], at: usize) -> Result<(u32, WireType, usize), WireError> {
    let (key, end) = varint_at(message, at)?;
    let number = match u32::try_from(key >> 3) {
        Ok(number @ MIN_TAG..=MAX_TAG) => number,
        _ => return Err(WireError::FieldNumber),
    };
    let wire_type = WireType::try_from(key & 7).map_err(|_| WireError::WireType)?;
    Ok((number, wire_type, end))
}

#[inline]
fn varint_at(message: &[u8], at: usize) -> Result<(u64, usize), WireError> {
    let rest = &message[at..];
    let mut unread = rest;
    match decode_varint(&mut unread) {
        Ok(value) => Ok((value, message.len() - unread.len())),
        Err(_) if rest.len() < 10 && rest.iter().all(|byte| *byte >= 0x80) => {
            Err(WireError::Truncated)
        }
        Err(_) => Err(WireError::Varint),
    }
}

#[inline]
fn fixed_at<const N: usize>(message: &[u8], at: usize) -> Result<([u8; N], usize), WireError> {
    let value = message[at..]
        .first_chunk::<N>()
        .ok_or(WireError::Truncated)?;
    Ok((*value, at + N))
}

#[inline]
fn delimited_at(message: &[u8], at: usize) -> Result<Range<usize>, WireError> {
    let (len, start) = varint_at(message, at)?;
    let left = message.len() - start;
    match usize::try_from(len) {
        Ok(len) if len <= left => Ok(start..start + len),
        _ => Err(WireError::Length),
    }
}

/// `message` with every occurrence of field `number` removed, whatever its wire type, and the
/// field appended once with `value`. An empty `value` only removes: in proto3 an absent string is
/// the empty string.
///
/// Everything else keeps its bytes and its order.
///
/// # Errors
/// When `message` is malformed.
pub fn replace_bytes_field(message: &[u8], number: u32, value: &[u8]) -> Result<Bytes, WireError> {
    if value.is_empty() {
        return cut_field(message, number);
    }
    let mut out = BytesMut::with_capacity(message.len() + bytes_field_len(number, value.len()));
    copy_without(message, number, &mut out)?;
    put_bytes_field(&mut out, number, value);
    Ok(out.freeze())
}

/// `message` with every occurrence of field `number` removed, whatever its wire type.
///
/// Everything else keeps its bytes and its order.
///
/// # Errors
/// When `message` is malformed.
pub fn cut_field(message: &[u8], number: u32) -> Result<Bytes, WireError> {
    let mut out = BytesMut::with_capacity(message.len());
    copy_without(message, number, &mut out)?;
    Ok(out.freeze())
}

fn copy_without(message: &[u8], number: u32, out: &mut BytesMut) -> Result<(), WireError> {
    let mut kept_from = 0;
    for field in fields(message) {
        let field = field?;
        if field.number == number {
            out.put_slice(&message[kept_from..field.range.start]);
            kept_from = field.range.end;
        }
    }
    out.put_slice(&message[kept_from..]);
    Ok(())
}

/// Encoded size in bytes of a length-delimited field with a content of `len` bytes: tag, length
/// and content.
#[must_use]
pub const fn bytes_field_len(number: u32, len: usize) -> usize {
    key_len(number) + encoded_len_varint(len as u64) + len
}

/// Writes a length-delimited field; an empty `value` is written too, so that a message field is
/// present. `out` must have room for [`bytes_field_len`].
pub fn put_bytes_field<B: BufMut>(out: &mut B, number: u32, value: &[u8]) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(value.len() as u64, out);
    out.put_slice(value);
}

/// Encoded size in bytes of what [`put_varint_field`] writes: 0 for a `value` of 0.
#[must_use]
pub const fn varint_field_len(number: u32, value: u64) -> usize {
    if value == 0 {
        0
    } else {
        key_len(number) + encoded_len_varint(value)
    }
}

/// Writes a varint field, or nothing for 0, which is the default in proto3. A negative `int32`
/// goes in sign-extended to 64 bits. `out` must have room for [`varint_field_len`].
pub fn put_varint_field<B: BufMut>(out: &mut B, number: u32, value: u64) {
    if value != 0 {
        encode_key(number, WireType::Varint, out);
        encode_varint(value, out);
    }
}

/// Writes the prefix of an uncompressed gRPC message of `len` bytes; `out` must have room for
/// [`GRPC_PREFIX`].
///
/// # Panics
/// When `len` does not fit 32 bits. Every listener's message limit is far below.
pub fn put_grpc_prefix<B: BufMut>(out: &mut B, len: usize) {
    let len = u32::try_from(len).expect("a grpc message is shorter than 4 GiB");
    out.put_u8(0);
    out.put_u32(len);
}
