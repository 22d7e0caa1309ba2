//! HTTP/2 as the listeners announce it, and frames that break it.

use prost::Message;
use yuzu_proto::agent::v1::HeartbeatRequest;
use yuzu_proto::path;
use yuzu_tests::agent::Agent;
use yuzu_tests::raw::{CallError, Request};
use yuzu_tests::testbed::{Setup, TestBed};

use super::Bystanders;
use super::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frame, GOAWAY, HEADERS,
    MAX_CONCURRENT_STREAMS, MAX_HEADER_LIST_SIZE, Peer, REFUSED_STREAM, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, literal, request_headers,
};

const KILLED: &str = "grpc_connection_killed_total";
/// What a floods sends at most before the test fails.
const GIVE_UP: u32 = 20_000;

/// Reads until the end; HTTP/2 said that this was too much.
async fn ends_with_calm(peer: &mut Peer) {
    let frames = peer.closed().await;
    let goaway = frames.iter().find(|frame| frame.kind == GOAWAY);
    if let Some(goaway) = goaway {
        assert_eq!(goaway.error_code(), ENHANCE_YOUR_CALM);
    }
    // Without one the socket was closed on bytes that were still on their way, which discards
    // the GOAWAY; the counter tells them apart from any other end.
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lsn_5_settings_announce_what_is_configured() {
    let bed = TestBed::start().await;
    for (address, streams) in [(bed.agents(), 32), (bed.operators(), 4_096)] {
        let mut peer = Peer::open(address, &[]).await;
        let settings = peer.until("SETTINGS", |frame| frame.kind == SETTINGS).await;
        let values = settings.values();
        assert!(
            values.contains(&(MAX_CONCURRENT_STREAMS, streams)),
            "{values:?}"
        );
        assert!(
            values.contains(&(MAX_HEADER_LIST_SIZE, 16_384)),
            "{values:?}"
        );
    }
    bed.stop().await;

    let setup = Setup::default().agent_listener(|listener| {
        listener.http2.max_concurrent_streams = 77;
        listener.limits.max_header_list_bytes = 20_000;
    });
    let bed = setup.start().await;
    let mut peer = Peer::open(bed.agents(), &[]).await;
    let settings = peer.until("SETTINGS", |frame| frame.kind == SETTINGS).await;
    let values = settings.values();
    assert!(values.contains(&(MAX_CONCURRENT_STREAMS, 77)), "{values:?}");
    assert!(
        values.contains(&(MAX_HEADER_LIST_SIZE, 20_000)),
        "{values:?}"
    );
    drop(peer);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lsn_5_a_stream_over_the_limit_is_refused_and_the_others_live_on() {
    let limit = |listener: &mut yuzu_gateway::config::Listener| {
        listener.http2.max_concurrent_streams = 4;
    };
    let bed = Setup::default().agent_listener(limit).start().await;
    let mut peer = Peer::open(bed.agents(), &[]).await;
    peer.round_trip(0).await;
    for stream in [1, 3, 5, 7, 9] {
        peer.send(&[Frame::request(stream, path::HEARTBEAT, &[])])
            .await;
    }
    let refused = peer
        .until("a reset", |frame| frame.kind == RST_STREAM)
        .await;
    assert_eq!((refused.stream, refused.error_code()), (9, REFUSED_STREAM));

    // Each of the four is answered, and makes room.
    for stream in [1, 3, 5, 7] {
        peer.send(&[Frame::message(stream, b"")]).await;
        let answered = peer.until("an answer", |frame| frame.kind == HEADERS).await;
        assert_eq!(
            (answered.stream, answered.flags),
            (stream, END_HEADERS | END_STREAM)
        );
    }
    peer.send(&[
        Frame::request(11, path::HEARTBEAT, &[]),
        Frame::message(11, b""),
    ])
    .await;
    let answered = peer.until("an answer", |frame| frame.kind == HEADERS).await;
    assert_eq!(answered.stream, 11);
    drop(peer);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_list_over_the_limit_is_refused_and_the_connection_lives_on() {
    let bed = TestBed::start().await;
    let bystanders = Bystanders::of(&bed).await;
    let connection = &bystanders.agent.connection;
    let fits = Request::new(path::HEARTBEAT).metadata("x-long", &[b'a'; 15_000]);
    let answer = connection.unary(fits, b"").await.unwrap();
    assert_eq!(answer.status.code, 5);
    let over = Request::new(path::HEARTBEAT).metadata("x-long", &[b'a'; 16_384]);
    match connection.unary(over, b"").await {
        Err(CallError::Http(status)) => assert_eq!(status, 431),
        other => panic!("{other:?}"),
    }
    let mut bystanders = bystanders;
    bystanders.are_well().await;
    assert_eq!(bed.metric(KILLED, &[]).await, 0.0);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_headers_than_a_header_map_holds_end_the_connection() {
    let bed = TestBed::start().await;
    let mut bystanders = Bystanders::of(&bed).await;
    let mut peer = Peer::open(bed.agents(), &[]).await;
    peer.round_trip(0).await;
    // One byte each: `accept-encoding: gzip, deflate` of the static table.
    const HEADER: u8 = 0x80 | 16;
    let mut first = request_headers(path::HEARTBEAT, &[]);
    first.resize(16_384, HEADER);
    let rest = vec![HEADER; 24_577 - 16_384];
    let frames = [
        Frame::new(HEADERS, 0, 1, first),
        Frame::new(CONTINUATION, END_HEADERS, 1, rest),
    ];
    // The other side may close in the middle of it.
    let _ = peer.try_send(&frames).await;
    ends_with_calm(&mut peer).await;
    bed.metric_becomes(KILLED, &[], 1.0).await;
    bystanders.are_well().await;
    drop(peer);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_continuation_frames_ends_the_connection() {
    let bed = TestBed::start().await;
    let mut bystanders = Bystanders::of(&bed).await;
    for payload in [Vec::new(), literal("x", "y")] {
        let before = bed.metric(KILLED, &[]).await;
        let mut peer = Peer::open(bed.agents(), &[]).await;
        peer.round_trip(0).await;
        let headers = request_headers(path::HEARTBEAT, &[]);
        peer.send(&[Frame::new(HEADERS, 0, 1, headers)]).await;
        for sent in 0.. {
            assert!(sent < GIVE_UP, "{sent} frames and still open");
            let frame = Frame::new(CONTINUATION, 0, 1, payload.clone());
            if peer.try_send(&[frame]).await.is_err() {
                break;
            }
        }
        ends_with_calm(&mut peer).await;
        bed.metric_becomes(KILLED, &[], before + 1.0).await;
    }
    let http2_flood = &[("reason", "http2_flood")];
    assert_eq!(bed.metric("listener_closed_total", http2_flood).await, 2.0);
    bystanders.are_well().await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lsn_5_streams_reset_before_they_are_accepted_end_the_connection() {
    let bed = TestBed::start().await;
    let mut bystanders = Bystanders::of(&bed).await;
    let mut peer = Peer::open(bed.agents(), &[]).await;
    peer.round_trip(0).await;
    let mut stream = 1;
    loop {
        assert!(stream < GIVE_UP, "{stream} and still open");
        let mut pairs = Vec::new();
        for _ in 0..100 {
            pairs.push(Frame::request(stream, path::HEARTBEAT, &[]));
            pairs.push(Frame::reset(stream));
            stream += 2;
        }
        if peer.try_send(&pairs).await.is_err() {
            break;
        }
    }
    ends_with_calm(&mut peer).await;
    bed.metric_becomes(KILLED, &[], 1.0).await;
    bystanders.are_well().await;
    drop(peer);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lsn_18_after_a_flood_its_source_waits_and_is_served_and_others_do_not_wait() {
    let bed = TestBed::start().await;
    let mut bystanders = Bystanders::of(&bed).await;
    let delayed = || bed.metric("listener_source_delayed_total", &[("listener", "agent")]);
    let mut peer = Peer::open(bed.agents(), &[]).await;
    let flood: Vec<_> = (0..=1_000).map(Frame::ping).collect();
    // The other side may close in the middle of it.
    let _ = peer.try_send(&flood).await;
    peer.closed().await;
    bed.metric_becomes(KILLED, &[], 1.0).await;

    let elsewhere = yuzu_tests::raw::Options {
        source: Some([127, 0, 0, 2].into()),
        ..yuzu_tests::raw::Options::default()
    };
    let other = Agent::attach_with(bed.agents(), "other", &elsewhere).await;
    other.expect("nothing holds it up");
    assert_eq!(delayed().await, 0.0);
    bed.agent("neighbour").await;
    assert_eq!(delayed().await, 1.0);
    bystanders.are_well().await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_empty_data_frames_ends_the_connection() {
    let bed = TestBed::start().await;
    let mut bystanders = Bystanders::of(&bed).await;
    let mut peer = Peer::open(bed.agents(), &[]).await;
    peer.send(&[Frame::request(1, path::HEARTBEAT, &[])]).await;
    peer.round_trip(0).await;
    for sent in 0.. {
        assert!(sent < GIVE_UP, "{sent} frames and still open");
        if peer.try_send(&[Frame::new(DATA, 0, 1, [])]).await.is_err() {
            break;
        }
    }
    ends_with_calm(&mut peer).await;
    bed.metric_becomes(KILLED, &[], 1.0).await;
    bystanders.are_well().await;
    drop(peer);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_small_frames_that_fills_the_window_is_no_flood() {
    let bed = TestBed::start().await;
    let mut peer = Peer::open(bed.agents(), &[]).await;
    // The windows are the announced ones once SETTINGS are acknowledged.
    peer.until("SETTINGS", |frame| frame.kind == SETTINGS).await;
    peer.until("the connection's window", |frame| {
        frame.kind == WINDOW_UPDATE
    })
    .await;
    peer.send(&[Frame::new(SETTINGS, ACK, 0, [])]).await;
    peer.send(&[Frame::request(1, path::HEARTBEAT, &[])]).await;
    // The session of the heartbeat is a long text that nobody minted; with its prefix the message
    // takes the whole window of the stream, 64 KiB, in frames of 16 bytes.
    let text = (64 << 10) - 5 - 4;
    let beat = HeartbeatRequest {
        session_id: "a".repeat(text),
        ..HeartbeatRequest::default()
    };
    let body = yuzu_tests::raw::frame(&beat.encode_to_vec());
    assert_eq!(body.len(), 64 << 10);
    let (body, last) = body.split_at(body.len() - 16);
    for chunk in body.chunks(1 << 14) {
        let small = chunk.chunks(16);
        let small: Vec<_> = small.map(|data| Frame::new(DATA, 0, 1, data)).collect();
        peer.send(&small).await;
    }
    peer.send(&[Frame::new(DATA, END_STREAM, 1, last)]).await;
    let answered = peer.until("an answer", |frame| frame.kind == HEADERS).await;
    assert_eq!(
        (answered.stream, answered.flags),
        (1, END_HEADERS | END_STREAM)
    );
    peer.round_trip(0).await;
    assert_eq!(bed.metric(KILLED, &[]).await, 0.0);
    drop(peer);
    bed.stop().await;
}
