//! The walk over any bytes: judged as prost does, fields tile the message, edits touch nothing
//! but the field that they name.

#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use yuzu_proto::wire;

// The first byte and the second choose the edit, the rest is the message.
fuzz_target!(|input: (u8, u8, &[u8])| {
    let (number, value_len, message) = input;
    let number = u32::from(number % 32) + 1;
    let value = vec![0x80; usize::from(value_len)];

    let verdict = wire::validate(message);
    assert_eq!(
        verdict.is_ok(),
        <()>::decode(message).is_ok(),
        "{verdict:?}"
    );
    let cut = wire::cut_field(message, number);
    let replaced = wire::replace_bytes_field(message, number, &value);
    if let Err(fault) = verdict {
        assert_eq!(cut, Err(fault));
        assert_eq!(replaced, Err(fault));
        return;
    }

    let mut kept = Vec::new();
    let mut at = 0;
    for field in wire::fields(message) {
        let field = field.expect("valid");
        assert_eq!(field.range.start, at);
        assert!(at < field.payload.start && field.payload.end <= field.range.end);
        at = field.range.end;
        if field.number != number {
            kept.extend_from_slice(&message[field.range]);
        }
    }
    assert_eq!(at, message.len());
    assert_eq!(cut.expect("valid"), kept);
    if !value.is_empty() {
        wire::put_bytes_field(&mut kept, number, &value);
    }
    assert_eq!(replaced.expect("valid"), kept);
});
