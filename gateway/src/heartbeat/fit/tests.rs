use proptest::prelude::*;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use yuzu_proto::agent::v1::HeartbeatRequest;
use yuzu_proto::gateway::v1::BatchHeartbeatRequest;
use yuzu_proto::wire::put_varint_field;

use super::*;

const LARGEST: usize = (3 << 20) - 20;
const SESSION: &[u8] = b"gw-session-1";

fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut field = Vec::new();
    put_bytes_field(&mut field, number, content);
    field
}

fn tag(key: &[u8], value: &[u8]) -> Vec<u8> {
    field(STATUS_TAGS, &[field(1, key), field(2, value)].concat())
}

/// A heartbeat of these fields, and one that no contract knows.
fn heartbeat(fields: &[Vec<u8>]) -> Vec<u8> {
    let tomorrow = field(99, b"a field of tomorrow");
    [field(SESSION_ID, SESSION), fields.concat(), tomorrow].concat()
}

fn encoded(fit: &Fit) -> Vec<u8> {
    fit.heartbeat.as_ref().expect("a heartbeat").encoded()
}

/// What is left of the fields, and what is not.
fn fitted(fields: &[Vec<u8>]) -> (Vec<u8>, Vec<Loss>) {
    let fit = fit(&heartbeat(fields), LARGEST);
    (encoded(&fit), fit.lost)
}

fn unsendable(message: &[u8]) {
    let fit = fit(message, LARGEST);
    assert!(fit.heartbeat.is_none());
    assert_eq!(fit.lost, [Loss::HeartbeatInvalid]);
}

/// How a server reads a batch of it.
fn received(heartbeat: &[u8]) -> HeartbeatRequest {
    let batch = field(1, heartbeat);
    let batch = BatchHeartbeatRequest::decode(&batch[..]).expect("a readable batch");
    batch.heartbeats.into_iter().next().unwrap()
}

#[test]
fn an_ordinary_heartbeat_keeps_every_byte() {
    for snapshot in [vec![], field(SNAPSHOT, &[b'x'; 1_000])] {
        let message = heartbeat(&[tag(b"k", b"v"), snapshot, tag(b"l", "\u{fffd}é".as_bytes())]);
        let fit = fit(&message, LARGEST);
        assert_eq!(encoded(&fit), message);
        assert_eq!(fit.lost, []);
    }
}

#[test]
fn the_last_of_several_snapshots_counts_as_protobuf_says() {
    let first = field(SNAPSHOT, b"first");
    let second = field(SNAPSHOT, b"second");
    let (left, lost) = fitted(&[first.clone(), tag(b"k", b"v"), second.clone()]);
    assert_eq!(left, heartbeat(&[tag(b"k", b"v"), second]));
    assert_eq!(lost, []);
    // An empty one says the same as none.
    let (left, lost) = fitted(&[first, field(SNAPSHOT, b"")]);
    assert_eq!(left, heartbeat(&[]));
    assert_eq!(lost, []);
}

#[test]
fn hb_6_a_heartbeat_too_large_by_its_snapshot_loses_it() {
    let bare = heartbeat(&[tag(b"k", b"v")]).len();
    // One byte of tag and four of length.
    let most = LARGEST - bare - 5;
    for (snapshot, lost) in [(most, None), (most + 1, Some(Loss::SnapshotOversize))] {
        let snapshot = field(SNAPSHOT, &vec![b'x'; snapshot]);
        let (left, losses) = fitted(&[tag(b"k", b"v"), snapshot]);
        assert_eq!(left.len(), if lost.is_some() { bare } else { LARGEST });
        assert_eq!(losses, Vec::from_iter(lost));
    }
}

#[test]
fn hb_7_a_heartbeat_too_large_without_its_snapshot_loses_its_tags() {
    let snapshot = field(SNAPSHOT, &[b'x'; 1_000]);
    let large = field(98, &vec![b'u'; LARGEST - 2_000]);
    let tag = tag(b"k", &[b'v'; 3_000]);
    let (left, lost) = fitted(&[tag, snapshot.clone(), large.clone()]);
    assert_eq!(left, heartbeat(&[snapshot, large]));
    assert_eq!(lost, [Loss::HeartbeatOversize]);
}

#[test]
fn hb_7_more_than_512_tags_are_cut() {
    let tags = |count: usize| -> Vec<_> {
        let keys = (0..count).map(|n| n.to_string());
        keys.map(|key| tag(key.as_bytes(), b"v")).collect()
    };
    assert_eq!(fitted(&tags(512)), (heartbeat(&tags(512)), vec![]));
    let oversize = vec![Loss::HeartbeatOversize];
    assert_eq!(fitted(&tags(513)), (heartbeat(&[]), oversize));
}

#[test]
fn hb_7_a_key_or_value_over_64_kib_cuts_all_tags() {
    let (most, over) = (vec![b'x'; 65_536], vec![b'x'; 65_537]);
    let other = tag(b"k", b"v");
    for tags in [
        [tag(&most, b"v"), other.clone()],
        [tag(b"k", &most), other.clone()],
    ] {
        assert_eq!(fitted(&tags), (heartbeat(&tags), vec![]));
    }
    for tags in [[tag(&over, b"v"), other.clone()], [tag(b"k", &over), other]] {
        let oversize = vec![Loss::HeartbeatOversize];
        assert_eq!(fitted(&tags), (heartbeat(&[]), oversize));
    }
}

#[test]
fn hb_7_more_than_256_kib_of_tags_are_cut() {
    let value = |len: usize| tag(b"k", &vec![b'v'; len]);
    // Five keys of one byte; 262,144 bytes in all.
    let most = [
        value(60_000),
        value(60_000),
        value(60_000),
        value(60_000),
        value(22_139),
    ];
    assert_eq!(fitted(&most), (heartbeat(&most), vec![]));
    let mut over = most;
    over[4] = value(22_140);
    let oversize = vec![Loss::HeartbeatOversize];
    assert_eq!(fitted(&over), (heartbeat(&[]), oversize));
}

#[test]
fn hb_7_bounds_are_checked_before_anything_is_repaired() {
    let invalid = tag(b"k", &vec![0xff; 5 << 20]);
    let oversize = vec![Loss::HeartbeatOversize];
    assert_eq!(fitted(&[invalid]), (heartbeat(&[]), oversize));
    let invalid = tag(b"k", &[0xff; 65_537]);
    let oversize = vec![Loss::HeartbeatOversize];
    assert_eq!(fitted(&[invalid]), (heartbeat(&[]), oversize));
}

#[test]
fn hb_8_bytes_that_are_no_text_become_replacement_characters() {
    let snapshot = field(SNAPSHOT, b"\xff is fine here");
    let inner = field(7, b"\xff unknown in a tag");
    let broken = [field(1, b"k\xff"), inner.clone(), field(2, b"\xffv\xfe")].concat();
    let sent = [
        tag(b"a", b"whole"),
        field(STATUS_TAGS, &broken),
        snapshot.clone(),
        tag(b"z", b"v"),
    ];
    let repaired = [
        field(1, "k\u{fffd}".as_bytes()),
        inner,
        field(2, "\u{fffd}v\u{fffd}".as_bytes()),
    ];
    let expected = [
        tag(b"a", b"whole"),
        field(STATUS_TAGS, &repaired.concat()),
        snapshot,
        tag(b"z", b"v"),
    ];
    let (left, lost) = fitted(&sent);
    assert_eq!(left, heartbeat(&expected));
    assert_eq!(lost, [Loss::HeartbeatInvalid]);
    assert_eq!(
        received(&left).status_tags["k\u{fffd}"],
        "\u{fffd}v\u{fffd}"
    );
}

#[test]
fn hb_8_tags_that_grow_too_large_by_repair_are_cut() {
    let large = field(98, &vec![b'u'; LARGEST - 70_000]);
    let sent = [tag(b"k", &[0xff; 60_000]), large.clone()];
    let (left, lost) = fitted(&sent);
    assert_eq!(left, heartbeat(&[large]));
    assert_eq!(lost, [Loss::HeartbeatOversize]);
}

#[test]
fn hb_8_tags_that_are_none_are_removed() {
    let mut number = Vec::new();
    put_varint_field(&mut number, STATUS_TAGS, 7);
    let mut key = Vec::new();
    put_varint_field(&mut key, 1, 7);
    for broken in [
        number,
        field(STATUS_TAGS, b"\xff"),
        field(STATUS_TAGS, &key),
    ] {
        let (left, lost) = fitted(&[tag(b"k", b"v"), broken]);
        assert_eq!(left, heartbeat(&[tag(b"k", b"v")]));
        assert_eq!(lost, [Loss::HeartbeatInvalid]);
    }
}

#[test]
fn hb_8_a_heartbeat_without_a_readable_session_id_is_dropped() {
    unsendable(b"");
    unsendable(&field(SESSION_ID, b""));
    unsendable(&field(SESSION_ID, b"\xff"));
    let overruled = [field(SESSION_ID, b"\xff"), field(SESSION_ID, SESSION)];
    unsendable(&overruled.concat());
    let mut number = Vec::new();
    put_varint_field(&mut number, SESSION_ID, 7);
    unsendable(&number);
}

#[test]
fn hb_8_what_no_server_could_read_is_dropped() {
    unsendable(b"\xff");
    unsendable(b"\x0a\x05ab");
    unsendable(&heartbeat(&[field(SENT_AT, b"\xff")]));
    unsendable(&heartbeat(&[field(SENT_AT, &field(1, b"no number"))]));
    let mut number = Vec::new();
    put_varint_field(&mut number, SNAPSHOT, 7);
    unsendable(&heartbeat(&[number]));
    unsendable(&heartbeat(&[field(98, &vec![b'u'; LARGEST])]));
}

#[test]
fn hb_8_what_only_some_servers_read_is_dropped() {
    // Field 5 as a varint, its tag in five bytes and in six.
    let padded = |bytes: usize| {
        let mut field = vec![0xa8];
        field.resize(bytes - 1, 0x80);
        field.extend([0, 1]);
        field
    };
    let (left, lost) = fitted(&[padded(5)]);
    assert_eq!((left, lost), (heartbeat(&[padded(5)]), vec![]));
    unsendable(&heartbeat(&[padded(6)]));
    // Field 5 of one byte, its length in six.
    unsendable(&heartbeat(&[b"\x2a\x81\x80\x80\x80\x80\x00x".to_vec()]));
    let nested = |depth: usize| [vec![0x2b; depth], vec![0x2c; depth]].concat();
    let (left, lost) = fitted(&[nested(4)]);
    assert_eq!((left, lost), (heartbeat(&[nested(4)]), vec![]));
    unsendable(&heartbeat(&[nested(5)]));
}

/// A well-formed field that the contract does not know.
fn unknown_field() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![5_u32..20, Just(1 << 20), Just((1 << 29) - 1)];
    let value = prop_oneof![
        any::<u64>().prop_map(|value| {
            let mut bytes = Vec::new();
            encode_varint(value, &mut bytes);
            (WireType::Varint, bytes)
        }),
        any::<[u8; 8]>().prop_map(|bytes| (WireType::SixtyFourBit, bytes.to_vec())),
        any::<[u8; 4]>().prop_map(|bytes| (WireType::ThirtyTwoBit, bytes.to_vec())),
        prop::collection::vec(any::<u8>(), 0..200).prop_map(|content| {
            let mut bytes = Vec::new();
            encode_varint(content.len() as u64, &mut bytes);
            bytes.extend(content);
            (WireType::LengthDelimited, bytes)
        }),
        any::<u64>().prop_map(|value| {
            let mut bytes = Vec::new();
            put_varint_field(&mut bytes, 1, value);
            (WireType::StartGroup, bytes)
        }),
    ];
    (number, value).prop_map(|(number, (wire_type, value))| {
        let mut field = Vec::new();
        encode_key(number, wire_type, &mut field);
        field.extend(value);
        if wire_type == WireType::StartGroup {
            encode_key(number, WireType::EndGroup, &mut field);
        }
        field
    })
}

/// The fields of a heartbeat that needs no edit, in any order.
fn sound_heartbeat() -> impl Strategy<Value = Vec<u8>> {
    let known = (
        "[a-z0-9-]{1,50}",
        prop::option::of(any::<u64>()),
        prop::collection::vec((".{0,20}", ".{0,20}"), 0..5),
        prop::option::of(prop::collection::vec(any::<u8>(), 1..500)),
    );
    let unknown = prop::collection::vec(unknown_field(), 0..6);
    let fields = (known, unknown).prop_map(|((session, sent_at, tags, snapshot), mut fields)| {
        fields.push(field(SESSION_ID, session.as_bytes()));
        fields.extend(sent_at.map(|at| {
            let mut timestamp = Vec::new();
            put_varint_field(&mut timestamp, 1, at);
            field(SENT_AT, &timestamp)
        }));
        fields.extend(tags.iter().map(|(k, v)| tag(k.as_bytes(), v.as_bytes())));
        fields.extend(snapshot.map(|snapshot| field(SNAPSHOT, &snapshot)));
        fields
    });
    fields
        .prop_shuffle()
        .prop_map(|fields: Vec<Vec<u8>>| fields.concat())
}

proptest! {
    #[test]
    fn an_unedited_heartbeat_with_unknown_fields_keeps_every_byte(message in sound_heartbeat()) {
        let fit = fit(&message, LARGEST);
        prop_assert_eq!(encoded(&fit), message);
        prop_assert_eq!(fit.lost, []);
    }

    /// Whatever an agent sends: what goes into a batch can be read there, is no larger than
    /// allowed, and fits as it is.
    #[test]
    fn hb_8_what_passes_can_be_read_in_a_batch(
        message in sound_heartbeat(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        largest in 50_usize..2_000,
    ) {
        let mut message = message;
        for (at, byte) in damage {
            let at = at.index(message.len());
            message[at] = byte;
        }
        if let Some(left) = fit(&message, largest).heartbeat {
            let left = left.encoded();
            prop_assert!(left.len() <= largest);
            prop_assert!(!received(&left).session_id.is_empty());
            let again = fit(&left, largest);
            prop_assert_eq!(again.lost, []);
            prop_assert_eq!(again.heartbeat.unwrap().encoded(), left);
        }
    }
}
