//! What one `BatchHeartbeatRequest` may hold, and how it looks on the wire.
//!
//! Responsible for the size of a batch and for parts of a heartbeat that would make a whole batch
//! unusable: they are cut, so that one agent can't silence the others. Every other byte is the
//! agent's own.

use bytes::{Bytes, BytesMut};
use prost::Message;
use yuzu_proto::agent::v1::HeartbeatRequest;
use yuzu_proto::wire::{bytes_field_len, cut_field, put_bytes_field};

use super::buffer::{Entry, HEARTBEATS};

/// Largest batch, encoded (HB-3).
pub(crate) const MAX_CHUNK: usize = 3 << 20;

const GATEWAY_NODE: u32 = 2;
const STATUS_TAGS: u32 = 3;
const SNAPSHOT: u32 = 4;

/// A heartbeat made fit for a batch: what is left of it, and the reasons for what is not, by
/// their metric label.
pub(crate) struct Fit {
    pub(crate) heartbeat: Option<Bytes>,
    pub(crate) given_up: Vec<&'static str>,
}

/// Copies a heartbeat. Over 3 MiB it loses its snapshot (HB-6), then its tags (HB-7); tags that
/// no decoder accepts are cut (HB-8). What is unusable even then is given up whole.
pub(crate) fn fit(heartbeat: &[u8]) -> Fit {
    let mut given_up = Vec::new();
    let mut bytes = Bytes::copy_from_slice(heartbeat);
    for (field, reason) in [
        (SNAPSHOT, "snapshot_oversize"),
        (STATUS_TAGS, "heartbeat_oversize"),
    ] {
        if bytes_field_len(HEARTBEATS, bytes.len()) > MAX_CHUNK {
            cut(&mut bytes, field, reason, &mut given_up);
        }
    }
    if !decodes(&bytes) {
        cut(&mut bytes, STATUS_TAGS, "heartbeat_invalid", &mut given_up);
    }
    let usable = decodes(&bytes) && bytes_field_len(HEARTBEATS, bytes.len()) <= MAX_CHUNK;
    if !usable && !given_up.contains(&"heartbeat_invalid") {
        given_up.push("heartbeat_invalid");
    }
    Fit {
        heartbeat: usable.then_some(bytes),
        given_up,
    }
}

fn cut(bytes: &mut Bytes, field: u32, reason: &'static str, given_up: &mut Vec<&'static str>) {
    // Malformed bytes stay as they are; they do not decode and are given up.
    if let Ok(rest) = cut_field(bytes, field)
        && rest.len() < bytes.len()
    {
        *bytes = rest;
        given_up.push(reason);
    }
}

fn decodes(bytes: &Bytes) -> bool {
    HeartbeatRequest::decode(bytes.clone()).is_ok()
}

/// The encoded `BatchHeartbeatRequest`.
pub(crate) fn encode(entries: &[Entry], node: &str) -> Bytes {
    let size = entries.iter().map(Entry::encoded_len).sum::<usize>()
        + bytes_field_len(GATEWAY_NODE, node.len());
    let mut batch = BytesMut::with_capacity(size);
    for entry in entries {
        put_bytes_field(&mut batch, HEARTBEATS, &entry.heartbeat);
    }
    put_bytes_field(&mut batch, GATEWAY_NODE, node.as_bytes());
    batch.freeze()
}

#[cfg(test)]
mod tests {
    use yuzu_proto::gateway::v1::BatchHeartbeatRequest;

    use super::*;

    fn heartbeat(tag: &[u8], snapshot: usize) -> Vec<u8> {
        let mut entry = Vec::new();
        put_bytes_field(&mut entry, 1, b"k");
        put_bytes_field(&mut entry, 2, tag);
        let mut heartbeat = Vec::new();
        put_bytes_field(&mut heartbeat, 1, b"gw-session-1");
        put_bytes_field(&mut heartbeat, STATUS_TAGS, &entry);
        if snapshot > 0 {
            put_bytes_field(&mut heartbeat, SNAPSHOT, &vec![b'x'; snapshot]);
        }
        put_bytes_field(&mut heartbeat, 99, b"a field of tomorrow");
        heartbeat
    }

    fn bare() -> Vec<u8> {
        let mut heartbeat = Vec::new();
        put_bytes_field(&mut heartbeat, 1, b"gw-session-1");
        put_bytes_field(&mut heartbeat, 99, b"a field of tomorrow");
        heartbeat
    }

    #[test]
    fn an_ordinary_heartbeat_keeps_every_byte() {
        let heartbeat = heartbeat(b"v", 1_000);
        let fit = fit(&heartbeat);
        assert_eq!(fit.heartbeat.unwrap(), heartbeat);
        assert!(fit.given_up.is_empty());
    }

    #[test]
    fn hb_6_a_heartbeat_too_large_by_its_snapshot_loses_it() {
        let fit = fit(&heartbeat(b"v", MAX_CHUNK));
        assert_eq!(fit.heartbeat.unwrap(), heartbeat(b"v", 0));
        assert_eq!(fit.given_up, ["snapshot_oversize"]);
    }

    #[test]
    fn hb_7_a_heartbeat_too_large_without_its_snapshot_loses_its_tags() {
        let fit = fit(&heartbeat(&vec![b'v'; MAX_CHUNK], 0));
        assert_eq!(fit.heartbeat.unwrap(), bare());
        assert_eq!(fit.given_up, ["heartbeat_oversize"]);
    }

    #[test]
    fn hb_8_tags_that_do_not_decode_are_cut() {
        let fit = fit(&heartbeat(b"\xff\xfe", 0));
        assert_eq!(fit.heartbeat.unwrap(), bare());
        assert_eq!(fit.given_up, ["heartbeat_invalid"]);
    }

    #[test]
    fn hb_8_what_is_no_message_is_given_up() {
        for broken in [&b"\x0a\x05ab"[..], b"\xff", b"\x0a\x01\xff"] {
            let fit = fit(broken);
            assert!(fit.heartbeat.is_none());
            assert_eq!(fit.given_up, ["heartbeat_invalid"]);
        }
    }

    #[test]
    fn a_batch_holds_the_heartbeats_bytes_and_the_node() {
        let entries: Vec<_> = (0..2)
            .map(|place| Entry {
                place,
                heartbeat: heartbeat(b"v", 3).into(),
            })
            .collect();
        let batch = encode(&entries, "yuzu_gw@gw1");
        let mut expected = Vec::new();
        for _ in 0..2 {
            put_bytes_field(&mut expected, 1, &heartbeat(b"v", 3));
        }
        put_bytes_field(&mut expected, 2, b"yuzu_gw@gw1");
        assert_eq!(batch, expected);
        let batch = BatchHeartbeatRequest::decode(batch).unwrap();
        assert_eq!(batch.heartbeats.len(), 2);
        assert_eq!(batch.gateway_node, "yuzu_gw@gw1");
    }
}
