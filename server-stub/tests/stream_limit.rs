//! The HTTP/2 stream limit, read from the wire.

mod common;

use bytes::Bytes;
use common::raw::{ACK, PING, RST_STREAM, RawPeer, SETTINGS};
use common::*;
use yuzu_proto::agent::v1::InventoryReport;
use yuzu_server_stub::{Action, Fault, Rpc, State, StubConfig, StubServer};

const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];

async fn limit_in_force(server: &StubServer, limit: u32) {
    let in_force = |state: &State| {
        state
            .connections()
            .iter()
            .all(|view| view.stream_limit == limit)
            .then_some(())
    };
    server
        .wait_for("the acknowledgement of a stream limit", SOON, in_force)
        .await
        .unwrap();
}

async fn announced(peer: &mut RawPeer) -> u32 {
    let frame = peer.expect(|frame| frame.stream_limit().is_some()).await;
    peer.send(SETTINGS, ACK, 0, &[]).await;
    frame.stream_limit().unwrap()
}

async fn still_alive(peer: &mut RawPeer, token: [u8; 8]) {
    peer.send(PING, 0, 0, &token).await;
    let pong = peer
        .expect(|frame| frame.kind == PING && frame.flags == ACK)
        .await;
    assert_eq!(pong.payload, token);
}

#[tokio::test]
async fn the_limit_is_announced_and_can_be_changed_on_a_live_connection() {
    let (server, _) = start().await;
    let mut peer = RawPeer::connect(&server).await;
    assert_eq!(announced(&mut peer).await, 128);
    still_alive(&mut peer, *b"before..").await;
    for limit in [7, 60, 0] {
        server.set_stream_limit(limit);
        assert_eq!(announced(&mut peer).await, limit);
        still_alive(&mut peer, *b"after...").await;
    }
    server.drop_connections();
    let gone = |state: &State| state.connections().is_empty().then_some(());
    server
        .wait_for("the end of the connections", SOON, gone)
        .await
        .unwrap();
    server.set_stream_limit(33);
    let mut next = RawPeer::connect(&server).await;
    assert_eq!(announced(&mut next).await, 33);
    still_alive(&mut next, *b"new.....").await;
    server.set_stream_limit(500);
    assert_eq!(
        announced(&mut next).await,
        33,
        "never more than it began with"
    );
    assert_eq!(server.view(|state| state.connections()[0].pings), 1);
}

#[tokio::test]
async fn streams_above_a_lowered_limit_are_refused_once_it_is_acknowledged() {
    let server = StubServer::start(StubConfig::default()).await.unwrap();
    server
        .fault(Fault::new(Rpc::ProxyInventory, Action::Hang))
        .unwrap();
    let mut peer = RawPeer::connect(&server).await;
    announced(&mut peer).await;
    server.set_stream_limit(2);
    peer.expect(|frame| frame.stream_limit() == Some(2)).await;
    let path = Rpc::ProxyInventory.path();
    for stream in [1, 3, 5] {
        peer.call(stream, path).await;
    }
    server
        .wait_received(Rpc::ProxyInventory, 3, SOON)
        .await
        .unwrap();
    peer.send(SETTINGS, ACK, 0, &[]).await;
    limit_in_force(&server, 2).await;
    peer.call(7, path).await;
    let reset = peer.expect(|frame| frame.kind == RST_STREAM).await;
    assert_eq!(
        (reset.stream, reset.payload.as_slice()),
        (7, REFUSED_STREAM.as_slice())
    );
    assert_eq!(server.release(None), 3);
    let idle = |state: &State| (state.connections()[0].streams == 0).then_some(());
    server
        .wait_for("the end of the old streams", SOON, idle)
        .await
        .unwrap();
    peer.call(9, path).await;
    server
        .wait_received(Rpc::ProxyInventory, 4, SOON)
        .await
        .unwrap();
    let view = server.view(|state| state.connections()[0].clone());
    assert_eq!((view.max_streams, view.refused_streams), (3, 1));
}

#[tokio::test]
async fn changing_the_limit_under_load_breaks_no_answer() {
    let (server, client) = start().await;
    let large = Bytes::from(vec![0x42; 200_000]);
    // Field 2 of InventoryAck, as one string of 200,000 bytes.
    let mut message = vec![0x12, 0xc0, 0x9a, 0x0c];
    message.extend(&large);
    let answer = Action::Answer(Bytes::from(message));
    server
        .fault(Fault::new(Rpc::ProxyInventory, answer))
        .unwrap();
    let calls: Vec<_> = (0..300)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.proxy_inventory(InventoryReport::default()).await })
        })
        .collect();
    for round in 1..=30 {
        server
            .wait_received(Rpc::ProxyInventory, round * 10, SOON)
            .await
            .unwrap();
        server.set_stream_limit(if round % 2 == 0 { 128 } else { 40 });
    }
    for call in calls {
        let ack = call.await.unwrap().unwrap().into_inner();
        assert_eq!(ack.need_full[0].as_bytes(), large);
    }
    limit_in_force(&server, 128).await;
    assert_eq!(server.view(State::connections_accepted), 1);
}
