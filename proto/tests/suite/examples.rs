//! Messages worked out by hand.

use bytes::Bytes;
use yuzu_proto::peek::{
    BatchAnswerPeek, CommandRequestPeek, CommandResponsePeek, HeartbeatPeek, InventoryPeek,
    NotifyAckPeek, RegisterAnswerPeek, RegisterPeek, SendCommandPeek,
};
use yuzu_proto::verbatim::{RegisterView, Verbatim};
use yuzu_proto::wire::{self, WireError, WireValue};

#[test]
fn every_wire_type_is_read() {
    let message = [
        0x08, 0x96, 0x01, // 1: varint 150
        0x11, 1, 0, 0, 0, 0, 0, 0, 0x80, // 2: fixed64
        0x1a, 0x03, b'a', b'b', b'c', // 3: bytes
        0x25, 2, 0, 0, 0x40, // 4: fixed32
        0x2b, 0x08, 0x01, 0x33, 0x34, 0x2c, // 5: group with a varint and an empty group 6
    ];
    let fields: Vec<_> = wire::fields(&message)
        .collect::<Result<_, _>>()
        .expect("well-formed");
    let numbers: Vec<_> = fields.iter().map(|field| field.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    assert!(fields[0].value == WireValue::Varint(150));
    assert!(fields[1].value == WireValue::Fixed64(0x8000_0000_0000_0001));
    assert!(fields[2].value == WireValue::Bytes(b"abc"));
    assert!(fields[3].value == WireValue::Fixed32(0x4000_0002));
    assert!(fields[4].value == WireValue::Group(&[0x08, 0x01, 0x33, 0x34]));
    assert_eq!(
        (fields[2].range.clone(), fields[2].payload.clone()),
        (12..17, 14..17)
    );
    assert_eq!(
        (fields[4].range.clone(), fields[4].payload.clone()),
        (22..28, 23..27)
    );
}

#[test]
fn every_fault_has_its_error() {
    let faults: [(&[u8], WireError); 19] = [
        (&[0x80], WireError::Truncated),
        (&[0x08], WireError::Truncated),
        (&[0x08, 0xff], WireError::Truncated),
        (&[0x09, 1, 2, 3, 4, 5, 6, 7], WireError::Truncated),
        (&[0x0d, 1, 2, 3], WireError::Truncated),
        (&[0x0a], WireError::Truncated),
        (&[0x0b], WireError::Truncated),
        (&[0x0b, 0x10], WireError::Truncated),
        (&[0x0a, 0x01], WireError::Length),
        (
            &[
                0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
            ],
            WireError::Length,
        ),
        (
            &[
                0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02,
            ],
            WireError::Varint,
        ),
        (
            &[
                0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
            ],
            WireError::Varint,
        ),
        (&[0x00, 0x01], WireError::FieldNumber),
        (
            &[0x80, 0x80, 0x80, 0x80, 0x10, 0x01],
            WireError::FieldNumber,
        ),
        (&[0x0e], WireError::WireType),
        (&[0x0f], WireError::WireType),
        (&[0x0c], WireError::Group),
        (&[0x0b, 0x14], WireError::Group),
        (&[0x0b; 101], WireError::Group),
    ];
    for (message, error) in faults {
        assert_eq!(wire::validate(message), Err(error), "{message:02x?}");
    }
    assert_eq!(
        wire::validate(&[0xf8, 0xff, 0xff, 0xff, 0x0f, 0x01]),
        Ok(())
    );
    assert_eq!(wire::validate(&[]), Ok(()));
}

#[test]
fn the_walk_ends_at_the_first_fault() {
    let mut fields = wire::fields(&[0x08, 0x01, 0x0e, 0x08, 0x01]);
    assert!(fields.next().is_some_and(|field| field.is_ok()));
    assert!(fields.next().is_some_and(|field| field.is_err()));
    assert!(fields.next().is_none());
}

#[test]
fn replace_removes_every_occurrence_of_any_wire_type() {
    let message = [0x32, 1, b'x', 0x08, 1, 0x30, 7, 0x33, 0x34, 0x10, 2];
    assert_eq!(
        wire::replace_bytes_field(&message, 6, b"10.0.0.1").as_deref(),
        Ok(&b"\x08\x01\x10\x02\x32\x0810.0.0.1"[..])
    );
    assert_eq!(
        wire::cut_field(&message, 6).as_deref(),
        Ok(&[0x08, 1, 0x10, 2][..])
    );
}

#[test]
fn a_grpc_prefix_is_five_bytes() {
    let mut out = Vec::new();
    wire::put_grpc_prefix(&mut out, 0x0102_0304);
    assert_eq!(out, [0, 1, 2, 3, 4]);
    assert_eq!(out.len(), wire::GRPC_PREFIX);
}

#[test]
fn the_last_scalar_counts() {
    let message = b"\x0a\x01a\x10\x01\x3a\x01p\x0a\x02bc\x10\x03\x3a\x09__guard__";
    let view = CommandResponsePeek::peek(message).expect("well-formed");
    assert_eq!(
        (view.command_id, view.status, view.plugin),
        (&b"bc"[..], 3, &b"__guard__"[..])
    );
    let view = CommandRequestPeek::peek(b"\x0a\x01a\x12\x01p\x0a\x01b").expect("well-formed");
    assert_eq!((view.command_id, view.plugin), (&b"b"[..], &b"p"[..]));
}

#[test]
fn a_negative_or_oversized_int32_is_its_low_half() {
    let minus_one = b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
    assert_eq!(
        CommandResponsePeek::peek(minus_one).map(|view| view.status),
        Ok(-1)
    );
    let wide = b"\x10\x82\x80\x80\x80\x10";
    assert_eq!(
        CommandResponsePeek::peek(wide).map(|view| view.status),
        Ok(2)
    );
}

#[test]
fn a_split_info_is_merged() {
    let message = b"\x0a\x0b\x0a\x01a\x2a\x06\x0a\x01p\x0a\x01q\x0a\x0a\x12\x01h\x0a\x01b\x2a\x02\x0a\x00\x12\x01t";
    let view = RegisterPeek::peek(message).expect("well-formed");
    assert_eq!((view.agent_id, view.hostname), (&b"b"[..], &b"h"[..]));
    assert_eq!(view.plugins, [&b"q"[..], b""]);
}

#[test]
fn a_split_command_is_joined_and_a_single_one_is_not_copied() {
    let single = Bytes::from_static(b"\x0a\x02a1\x12\x03\x0a\x01c\x18\x05\x0a\x00");
    let view = SendCommandPeek::peek(&single).expect("well-formed");
    assert_eq!(view.agent_ids, [&b"a1"[..], b""]);
    assert_eq!(&view.command[..], b"\x0a\x01c");
    assert_eq!(view.command.as_ptr(), single[6..].as_ptr());
    assert_eq!((view.timeout_seconds, view.has_command), (5, true));

    let split = Bytes::from_static(b"\x12\x03\x0a\x01c\x18\x05\x12\x03\x12\x01p");
    let view = SendCommandPeek::peek(&split).expect("well-formed");
    assert_eq!(&view.command[..], b"\x0a\x01c\x12\x01p");

    let empty = Bytes::from_static(b"\x12\x00");
    let view = SendCommandPeek::peek(&empty).expect("well-formed");
    assert!(view.has_command && view.command.is_empty());
    let none = Bytes::new();
    assert!(SendCommandPeek::peek(&none).is_ok_and(|view| !view.has_command));
}

#[test]
fn two_broken_halves_make_no_command() {
    let halves = Bytes::from_static(b"\x12\x01\x0a\x12\x02\x01c");
    assert!(SendCommandPeek::peek(&halves).is_err());
}

#[test]
fn answers_and_session_ids_are_read() {
    let view = RegisterAnswerPeek::peek(b"\x0a\x02s1\x10\x01").expect("well-formed");
    assert_eq!((view.session_id, view.accepted), (&b"s1"[..], true));
    assert!(HeartbeatPeek::peek(b"\x0a\x02s1").is_ok_and(|view| view.session_id == b"s1"));
    assert!(InventoryPeek::peek(b"\x0a\x02s1").is_ok_and(|view| view.session_id == b"s1"));
    assert!(NotifyAckPeek::peek(b"\x08\x80\x02").is_ok_and(|view| view.acknowledged));
    assert!(NotifyAckPeek::peek(b"").is_ok_and(|view| !view.acknowledged));
    let view = BatchAnswerPeek::peek(b"\x08\x03\x12\x01a\x12\x01b\x18\x01").expect("well-formed");
    assert_eq!((view.acknowledged_count, view.truncated), (3, true));
    assert_eq!(view.unknown_session_ids, [&b"a"[..], b"b"]);
}

#[test]
fn a_known_field_of_another_wire_type_is_refused() {
    let text_as_varint: &[u8] = b"\x08\x01";
    let number_as_text: &[u8] = b"\x12\x00";
    let refused = Some(WireError::WireType);
    assert_eq!(CommandResponsePeek::peek(text_as_varint).err(), refused);
    assert_eq!(CommandResponsePeek::peek(number_as_text).err(), refused);
    assert_eq!(CommandRequestPeek::peek(text_as_varint).err(), refused);
    assert_eq!(RegisterPeek::peek(text_as_varint).err(), refused);
    assert_eq!(RegisterPeek::peek(b"\x0a\x02\x28\x01").err(), refused);
    assert_eq!(RegisterAnswerPeek::peek(number_as_text).err(), refused);
    assert_eq!(HeartbeatPeek::peek(text_as_varint).err(), refused);
    assert_eq!(InventoryPeek::peek(text_as_varint).err(), refused);
    assert_eq!(
        SendCommandPeek::peek(&Bytes::from_static(b"\x10\x01")).err(),
        refused
    );
    assert_eq!(NotifyAckPeek::peek(b"\x0a\x00").err(), refused);
    assert_eq!(BatchAnswerPeek::peek(b"\x0a\x00").err(), refused);
}

#[test]
fn lists_are_collected_to_their_limit() {
    let ids = b"\x12\x01a".repeat(8200);
    let view = BatchAnswerPeek::peek(&ids).expect("well-formed");
    assert_eq!(view.unknown_session_ids.len(), 8192);

    let plugins = b"\x2a\x03\x0a\x01p".repeat(1030);
    let mut message = Vec::new();
    wire::put_bytes_field(&mut message, 1, &plugins);
    let view = RegisterPeek::peek(&message).expect("well-formed");
    assert_eq!(view.plugins.len(), 1024);
}

#[test]
fn log_5_a_verbatim_message_prints_its_name_and_length_only() {
    let message = Bytes::from_static(b"\x0a\x08\x0a\x06secret\x12\x06secret");
    let verbatim = Verbatim::<RegisterView>::new(message.clone()).expect("well-formed");
    assert_eq!(format!("{verbatim:?}"), "RegisterRequest(18 bytes)");
    assert_eq!(&verbatim.view().agent_id[..], b"secret");
    assert_eq!(verbatim.into_bytes(), message);
    let any = Verbatim::<()>::new(message).expect("well-formed");
    assert_eq!(format!("{any:?}"), "message(18 bytes)");
    assert_eq!(
        Verbatim::<()>::new(Bytes::from_static(b"\x0a")).err(),
        Some(WireError::Truncated)
    );
}
