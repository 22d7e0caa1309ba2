use prost::Message;
use yuzu_proto::agent::v1::HeartbeatRequest;
use yuzu_proto::gateway::v1::BatchHeartbeatRequest;

use super::*;

fn heartbeat(session: usize, snapshot: usize) -> Vec<u8> {
    let heartbeat = HeartbeatRequest {
        session_id: session.to_string(),
        fleet_snapshot_json: vec![b'x'; snapshot].into(),
        ..HeartbeatRequest::default()
    };
    heartbeat.encode_to_vec()
}

fn filled<'a>(tail: &'a Tail, heartbeats: &[Vec<u8>]) -> Chunk<'a> {
    let mut chunk = Chunk::new(tail, 100);
    for (slot, heartbeat) in heartbeats.iter().enumerate() {
        let heartbeat = Heartbeat::sample(heartbeat, b"");
        assert!(chunk.add(slot as u32, 7, &heartbeat));
    }
    chunk
}

/// The sessions of a part, which its tickets must name as well.
fn sessions(part: &Part) -> Vec<u32> {
    let batch = BatchHeartbeatRequest::decode(part.message()).unwrap();
    assert_eq!(batch.gateway_node, "yuzu_gw@gw1");
    let named = batch.heartbeats.iter().map(|h| h.session_id.parse());
    let named: Vec<u32> = named.map(Result::unwrap).collect();
    let slots: Vec<_> = part.tickets().iter().map(|ticket| ticket.slot).collect();
    assert_eq!(named, slots);
    assert_eq!(part.len(), slots.len());
    slots
}

#[test]
fn a_batch_holds_the_heartbeats_bytes_and_the_node() {
    let tail = Tail::new("yuzu_gw@gw1".into());
    let heartbeats = [heartbeat(0, 3), heartbeat(1, 0)];
    let part = filled(&tail, &heartbeats).seal().unwrap();
    let mut expected = Vec::new();
    for heartbeat in &heartbeats {
        put_bytes_field(&mut expected, 1, heartbeat);
    }
    put_bytes_field(&mut expected, 2, b"yuzu_gw@gw1");
    assert_eq!(part.message(), expected);
    assert!(Chunk::new(&tail, 100).seal().is_none());
}

#[test]
fn hb_3_a_batch_is_full_at_3145728_bytes_as_encoded() {
    let tail = Tail::new("yuzu_gw@gw1".into());
    // 13 bytes of node; the first takes 1 + 4 + 2_000_000, the other 1 + 3 and its own.
    let first = Heartbeat::sample(&vec![b'x'; 2_000_000], b"");
    let left = 3_145_728 - 13 - 2_000_005 + 1 - 4;
    for (rest, fits) in [(left, true), (left + 1, false)] {
        let mut chunk = Chunk::new(&tail, 0);
        assert!(chunk.add(0, 0, &first));
        let second = Heartbeat::sample(&vec![b'x'; rest], b"");
        assert_eq!(chunk.add(1, 1, &second), fits, "{rest}");
        let size = chunk.seal().unwrap().message().len();
        assert_eq!(size, if fits { 3_145_728 } else { 2_000_017 });
    }
}

#[test]
fn hb_3_the_largest_heartbeat_fills_a_batch_alone() {
    for node in ["", "yuzu_gw@gw1", &"n".repeat(255)] {
        let tail = Tail::new(node.into());
        let largest = tail.largest_heartbeat();
        let mut chunk = Chunk::new(&tail, 0);
        assert!(!chunk.add(0, 0, &Heartbeat::sample(&vec![0; largest + 1], b"")));
        assert!(chunk.add(0, 0, &Heartbeat::sample(&vec![0; largest], b"")));
        assert_eq!(chunk.seal().unwrap().message().len(), MAX_CHUNK);
    }
}

#[test]
fn hb_5_halves_hold_what_the_whole_held() {
    let tail = Tail::new("yuzu_gw@gw1".into());
    let heartbeats: Vec<_> = (0..5).map(|n| heartbeat(n, n * 100)).collect();
    let whole = filled(&tail, &heartbeats).seal().unwrap();
    assert_eq!(sessions(&whole), [0, 1, 2, 3, 4]);
    let [first, second] = whole.halves();
    assert_eq!(sessions(&first), [0, 1]);
    assert_eq!(sessions(&second), [2, 3, 4]);
    let [first, second] = second.halves();
    assert_eq!(sessions(&first), [2]);
    assert_eq!(sessions(&second), [3, 4]);
    assert!(second.tickets().iter().all(|ticket| ticket.version == 7));
}
