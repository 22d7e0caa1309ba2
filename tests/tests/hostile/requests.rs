//! Requests that hold too much, say too much or never end.

use std::time::Duration;

use prost::Message;
use yuzu_proto::agent::v1::{HeartbeatRequest, InventoryReport};
use yuzu_proto::path;
use yuzu_server_stub::{Action, Fault, Rpc};
use yuzu_tests::agent::PATIENCE;
use yuzu_tests::raw::{Request, code, frame};
use yuzu_tests::testbed::{Setup, TestBed};

use super::Bystanders;
use super::frames::{DATA, Frame, HEADERS, Peer};

const KILLED: &str = "grpc_connection_killed_total";
const EXTRA: &[(&str, &str)] = &[("reason", "extra_request_data")];

/// Bytes that look like nothing, the same in every run.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lsn_6_a_connection_that_holds_too_much_is_killed_and_counted_once() {
    let setup = Setup::default().agent_listener(|listener| {
        listener.limits.max_connection_memory_bytes = 1 << 20;
        listener.limits.max_message_bytes = 1 << 20;
    });
    let bed = setup.start().await;
    let mut bystanders = Bystanders::of(&bed).await;
    let hoarder = bed.bare_agent("hoarder").await;
    let mut calls = Vec::new();
    // Ten requests of 200 KiB each that never end; five would fit.
    for _ in 0..10 {
        let (sender, answer) = hoarder
            .connection
            .begin_stream(&Request::new(path::REPORT_INVENTORY));
        calls.push(tokio::spawn(async move {
            let part = frame(&[0; 1 << 20]).slice(..200 << 10);
            // The connection may be killed in the middle of it.
            let _ = sender.send_raw(part).await;
            let answer = answer.await;
            drop(sender);
            answer.is_ok()
        }));
    }
    let closed = tokio::time::timeout(PATIENCE, hoarder.connection.closed()).await;
    closed.expect("the connection is killed");
    drop(calls);
    bed.metric_becomes("listener_connections", &[("listener", "agent")], 1.0)
        .await;
    assert_eq!(bed.metric(KILLED, &[]).await, 1.0);
    bystanders.are_well().await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lsn_6_what_was_answered_is_no_longer_held() {
    let setup = Setup::default().agent_listener(|listener| {
        listener.limits.max_connection_memory_bytes = 1 << 20;
    });
    let bed = setup.start().await;
    let mut bystanders = Bystanders::of(&bed).await;
    for _ in 0..20 {
        let report = InventoryReport {
            session_id: "x".repeat(200 << 10),
            ..InventoryReport::default()
        };
        let answer = bystanders
            .agent
            .inventory_raw(&report.encode_to_vec())
            .await;
        assert_eq!(answer.unwrap().status.code, code::NOT_FOUND);
    }
    bystanders.are_well().await;
    assert_eq!(bed.metric(KILLED, &[]).await, 0.0);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lsn_16_requests_of_all_connections_share_the_room_of_the_node() {
    let room = 8 << 20;
    let setup = Setup::default().gateway(|config| {
        config.memory.max_unfinished_request_bytes = room;
    });
    let bed = setup.start().await;
    let mut bystanders = Bystanders::of(&bed).await;
    let hang = Fault::new(Rpc::ProxyInventory, Action::Hang);
    bed.server.fault(hang).unwrap();
    // Each is far below the limit of its connection, and the two are nearly all that large
    // requests may hold. They are held as long as the server thinks.
    let mut hoarders = Vec::new();
    for n in 0..2 {
        let hoarder = bed.agent(&format!("hoarder-{n}")).await;
        let large = report(&hoarder.session_id, 2_800 << 10);
        hoarders.push(tokio::spawn(async move {
            hoarder.inventory_raw(&large).await.unwrap().status.code
        }));
    }
    let both = bed
        .server
        .wait_received(Rpc::ProxyInventory, 2, PATIENCE)
        .await;
    both.unwrap();
    let agent = bed.agent("large").await;
    let large = report(&agent.session_id, 1 << 20);
    let refused = agent.inventory_raw(&large).await.unwrap().status;
    assert_eq!(refused.code, code::RESOURCE_EXHAUSTED, "{refused}");
    assert_eq!(bed.metric("grpc_memory_refused_total", &[]).await, 1.0);

    // Agents register and beat, nobody's connection ends.
    bystanders.are_well().await;
    bed.agent("newcomer").await;
    assert_eq!(bed.metric(KILLED, &[]).await, 0.0);

    // What they held is free when they are answered.
    bed.server.clear_faults(None);
    bed.server.release(None);
    for hoarder in hoarders {
        assert_eq!(hoarder.await.unwrap(), code::OK);
    }
    let taken =
        async { while agent.inventory_raw(&large).await.unwrap().status.code != code::OK {} };
    tokio::time::timeout(PATIENCE, taken).await.unwrap();
    bed.stop().await;
}

fn report(session_id: &str, bytes: usize) -> Vec<u8> {
    let report = InventoryReport {
        session_id: session_id.to_owned(),
        plugin_data: [("p".to_owned(), vec![0; bytes].into())].into(),
        ..InventoryReport::default()
    };
    report.encode_to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_declared_length_reserves_nothing() {
    let bed = TestBed::start().await;
    let mut bystanders = Bystanders::of(&bed).await;
    let mut peer = Peer::open(bed.agents(), &[]).await;
    peer.round_trip(0).await;
    // 8 MiB is the limit of a message, 32 MiB that of a connection: five bytes on each of thirty
    // streams are far below both, whatever they promise.
    let streams = || (1..60).step_by(2);
    for stream in streams() {
        let headers = Frame::request(stream, path::REPORT_INVENTORY, &[]);
        let promise = Frame::new(DATA, 0, stream, [0, 0, 0x80, 0, 0]);
        peer.send(&[headers, promise]).await;
    }
    peer.round_trip(1).await;
    assert_eq!(bed.metric(KILLED, &[]).await, 0.0);
    for stream in streams() {
        peer.send(&[Frame::reset(stream)]).await;
    }
    // One byte more than the limit, or as much as the prefix can say: refused at once.
    for (stream, prefix) in [(61, [0, 0, 0x80, 0, 1]), (63, [0, 0xff, 0xff, 0xff, 0xff])] {
        let headers = Frame::request(stream, path::REPORT_INVENTORY, &[]);
        peer.send(&[headers, Frame::new(DATA, 0, stream, prefix)])
            .await;
        peer.until("the refusal", |frame| {
            frame.kind == HEADERS && frame.stream == stream
        })
        .await;
    }
    bystanders.are_well().await;
    drop(peer);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lsn_7_stalled_requests_end_with_4_and_everything_else_lives_on() {
    let patience = Duration::from_secs(1);
    let setup =
        Setup::default().agent_listener(|listener| listener.limits.request_timeout = patience);
    let bed = setup.start().await;
    let mut bystanders = Bystanders::of(&bed).await;
    let beat = HeartbeatRequest {
        session_id: bystanders.agent.session_id.clone(),
        ..HeartbeatRequest::default()
    };
    let whole = frame(&beat.encode_to_vec());
    // On the bystander's own connection: nothing, part of the prefix, part of the message, and
    // a whole message whose stream never ends.
    let mut stalled = Vec::new();
    for length in [0, 3, whole.len() - 1, whole.len()] {
        let connection = &bystanders.agent.connection;
        let (sender, answer) = connection.begin_stream(&Request::new(path::HEARTBEAT));
        let part = whole.slice(..length);
        stalled.push(tokio::spawn(async move {
            if !part.is_empty() {
                sender.send_raw(part).await.unwrap();
            }
            let status = answer.await.unwrap().finish().await.unwrap();
            drop(sender);
            status.code
        }));
    }
    for call in stalled {
        let status = tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap();
        assert_eq!(status, code::DEADLINE_EXCEEDED);
    }
    assert_eq!(bed.metric("grpc_recv_timeout_total", &[]).await, 4.0);
    bystanders.are_well().await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lsn_8_bytes_after_the_message_are_counted_and_the_call_is_answered() {
    let bed = TestBed::start().await;
    let mut bystanders = Bystanders::of(&bed).await;
    let mut expected = 0;
    // In one DATA frame with the message, and behind one that takes many.
    for (size, extra) in [
        (10, 1),
        (10, 7),
        (10, 100),
        (100_000, 13),
        (100_000, 60_000),
    ] {
        let report = InventoryReport {
            session_id: "x".repeat(size),
            ..InventoryReport::default()
        };
        let mut body = frame(&report.encode_to_vec()).to_vec();
        body.extend(vec![9; extra]);
        expected += extra;
        let call = Request::new(path::REPORT_INVENTORY).timeout(PATIENCE);
        let connection = &bystanders.agent.connection;
        let answer = connection.unary_framed(call, body.into()).await.unwrap();
        assert_eq!(answer.status.code, code::NOT_FOUND);
        let counted = bed.metric("grpc_dropped_data_bytes_total", EXTRA).await;
        assert_eq!(counted, expected as f64, "{size} and {extra}");
    }
    bystanders.are_well().await;
    bed.stop().await;
}
