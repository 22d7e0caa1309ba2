//! Floods of frames that cost a peer nothing end that peer's connection, and only that one.

use yuzu_proto::path;
use yuzu_tests::testbed::TestBed;

use super::frames::{Frame, Peer};
use super::serves;

/// Frames of each kind that a connection may send within 10 s, by the edge's own limits.
const PINGS: u64 = 1_000;
const SETTINGS: u64 = 100;
const RESETS: u64 = 500;

/// What is sent in one write. Answers are read in between, so that no socket buffer decides.
const BATCH: u64 = 20;
/// Far over every limit: a test that gets here has found no limit.
const GIVE_UP: u64 = 5_000;

const KILLED: &str = "grpc_connection_killed_total";

async fn open(bed: &TestBed) -> Peer {
    let mut peer = Peer::open(bed.agents(), &[]).await;
    peer.round_trip(0).await;
    peer
}

/// Sends batches until the other side closes; how many frames it took, `frames_each` a batch.
async fn until_killed(
    peer: &mut Peer,
    mut sent: u64,
    mut batch: impl FnMut(u64) -> Vec<Frame>,
) -> u64 {
    while sent < GIVE_UP {
        sent += BATCH;
        // The other side may close in the middle of it.
        if peer.try_send(&batch(sent)).await.is_err() || !answered(peer, sent).await {
            return sent;
        }
    }
    panic!("{sent} frames and still open");
}

/// Whether a PING is answered; none: the connection has ended.
async fn answered(peer: &mut Peer, number: u64) -> bool {
    let ping = Frame::ping(u64::MAX - number);
    let pong = Frame::pong(&ping);
    if peer.try_send(&[ping]).await.is_err() {
        return false;
    }
    loop {
        match peer.next().await {
            None => return false,
            Some(frame) if frame == pong => return true,
            Some(_) => {}
        }
    }
}

fn pings(number: u64) -> Vec<Frame> {
    // Each batch is followed by one more PING, see `answered`.
    (1..BATCH)
        .map(|n| Frame::ping(number * BATCH + n))
        .collect()
}

fn settings(_: u64) -> Vec<Frame> {
    (0..BATCH).map(|_| Frame::settings(&[])).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_are_counted_per_connection_and_end_only_that_one() {
    let bed = TestBed::start().await;
    let operator = bed.operator().await;
    let mut agent = bed.agent("bystander").await;
    let mut flood = open(&bed).await;
    let mut moderate = open(&bed).await;

    // Together over the limit, each alone far below it.
    for n in 0..PINGS * 3 / 5 {
        flood.round_trip(n).await;
        moderate.round_trip(n).await;
    }
    assert_eq!(bed.metric(KILLED, &[]).await, 0.0);

    let sent = until_killed(&mut flood, PINGS * 3 / 5, pings).await;
    assert!(sent >= PINGS, "killed after {sent}");
    bed.metric_becomes(KILLED, &[], 1.0).await;
    let pings = &[("reason", "pings")];
    assert_eq!(bed.metric("listener_closed_total", pings).await, 1.0);
    moderate.round_trip(PINGS).await;
    serves(&operator, &mut agent, "after").await;
    drop((flood, moderate));
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_are_counted_per_connection_and_end_only_that_one() {
    let bed = TestBed::start().await;
    let operator = bed.operator().await;
    let mut agent = bed.agent("bystander").await;
    let mut flood = open(&bed).await;
    let mut moderate = open(&bed).await;
    for peer in [&mut flood, &mut moderate] {
        for _ in 0..3 {
            peer.send(&settings(0)).await;
            peer.round_trip(0).await;
        }
    }
    assert_eq!(bed.metric(KILLED, &[]).await, 0.0);

    let sent = until_killed(&mut flood, 3 * BATCH, settings).await;
    // The SETTINGS that opened the connection count as well.
    assert!(sent >= SETTINGS, "killed after {sent}");
    bed.metric_becomes(KILLED, &[], 1.0).await;
    moderate.round_trip(1).await;
    serves(&operator, &mut agent, "after").await;
    drop((flood, moderate));
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lsn_5_streams_accepted_and_reset_are_counted_and_end_only_that_connection() {
    let bed = TestBed::start().await;
    let operator = bed.operator().await;
    let mut agent = bed.agent("bystander").await;
    let mut flood = open(&bed).await;
    let mut sent = 0;
    loop {
        sent += 1;
        assert!(sent < GIVE_UP, "{sent} streams and still open");
        let stream = sent as u32 * 2 - 1;
        // The answer to the PING says that the stream was accepted, one at a time: a reset before
        // that is another flood, which HTTP/2 itself ends.
        let opened = Frame::request(stream, path::HEARTBEAT, &[]);
        if flood.try_send(&[opened]).await.is_err() || !answered(&mut flood, sent).await {
            break;
        }
        if flood.try_send(&[Frame::reset(stream)]).await.is_err() {
            break;
        }
    }
    assert!(sent >= RESETS, "killed after {sent}");
    bed.metric_becomes(KILLED, &[], 1.0).await;
    let resets = &[("reason", "resets")];
    assert_eq!(bed.metric("listener_closed_total", resets).await, 1.0);
    serves(&operator, &mut agent, "after").await;
    drop(flood);
    bed.stop().await;
}
