//! Which connections are taken, kept and closed.

use std::time::Duration;

use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_proto::{SESSION_HEADER, path};
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::raw::{Connection, Options};
use yuzu_tests::testbed::{Setup, TestBed};

use super::Bystanders;
use super::frames::{
    ACK, DATA, END_HEADERS, Frame, GOAWAY, HEADERS, PING, PREFACE, Peer, request_headers,
};

const OPEN: &str = "listener_connections";
const AGENTS: &[(&str, &str)] = &[("listener", "agent")];

/// Long enough that a busy machine still answers a PING in time.
const IDLE: Duration = Duration::from_secs(2);

async fn bed_with_idle_timeout() -> TestBed {
    let setup = Setup::default().agent_listener(|listener| listener.http2.idle_timeout = IDLE);
    setup.start().await
}

/// A client that answers PINGs and sends none.
fn quiet() -> Options {
    Options {
        keepalive: None,
        ..Options::default()
    }
}

/// Lets the idle timeout pass: a connection that begins now is closed for it.
async fn idle_time_passes(bed: &TestBed) {
    let idle = Connection::open(bed.agents(), &quiet()).await.unwrap();
    closes(&idle).await;
}

async fn closes(connection: &Connection) {
    let closed = tokio::time::timeout(PATIENCE, connection.closed()).await;
    closed.expect("the connection is closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_1_is_closed_at_once() {
    let bed = TestBed::start().await;
    let mut bystanders = Bystanders::of(&bed).await;
    for address in [bed.agents(), bed.operators()] {
        for request in ["GET / HTTP/1.1\r\nhost: gateway\r\n\r\n", "GET /\r\n", "P"] {
            let mut peer = Peer::dial(address).await;
            peer.write(request.as_bytes()).await.unwrap();
            if request == "P" {
                // A preface may begin like this.
                peer.write(b"OST / HTTP/1.1\r\n\r\n").await.unwrap();
            }
            peer.closed().await;
        }
    }
    bed.metric_becomes(OPEN, AGENTS, 1.0).await;
    bystanders.are_well().await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lsn_3_a_preface_that_is_not_completed_is_closed() {
    let bed = bed_with_idle_timeout().await;
    let mut bystanders = Bystanders::of(&bed).await;
    // Nothing, half of it, all of it without a frame, and half of the first frame's header.
    let mut whole = PREFACE.to_vec();
    whole.extend([0, 0, 0, 4]);
    for length in [0, PREFACE.len() / 2, PREFACE.len(), whole.len()] {
        let mut peer = Peer::dial(bed.agents()).await;
        peer.write(&whole[..length]).await.unwrap();
        peer.closed().await;
    }
    bed.metric_becomes(OPEN, AGENTS, 1.0).await;
    assert_eq!(closed_by(&bed, "no_preface").await, 4.0);
    bystanders.are_well().await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noise_after_the_preface_harms_nobody() {
    let bed = TestBed::start().await;
    let mut bystanders = Bystanders::of(&bed).await;
    let mut noise = super::requests::Noise::new(7);
    for _ in 0..200 {
        let mut peer = Peer::open(bed.agents(), &[]).await;
        // The other side may close in the middle of it.
        let _ = peer.write(&noise.bytes(4_096)).await;
    }
    bed.metric_becomes(OPEN, AGENTS, 1.0).await;
    bystanders.are_well().await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lsn_4_an_idle_connection_is_told_and_closed_though_it_answers_pings() {
    let bed = bed_with_idle_timeout().await;
    let mut peer = Peer::open(bed.agents(), &[]).await;
    let (mut answers, mut farewells) = (0, Vec::new());
    // Without a stream it is asked nothing, so that its answers are to nobody.
    let mut pace = tokio::time::interval(IDLE / 10);
    loop {
        let frame = tokio::select! {
            frame = peer.receive() => frame,
            _ = pace.tick() => {
                answers += 1;
                // The other side may have closed since.
                let _ = peer.try_send(&[Frame::pong(&Frame::ping(answers))]).await;
                continue;
            }
        };
        match frame {
            Some(frame) if frame.kind == GOAWAY => farewells.push(frame.error_code()),
            Some(_) => {}
            None => break,
        }
    }
    assert!(answers > 5, "too few answers prove nothing");
    assert!(!farewells.is_empty(), "closed without a GOAWAY");
    assert!(farewells.iter().all(|code| *code == 0), "{farewells:?}");
    drop(peer);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lsn_4_any_byte_keeps_a_connection_without_streams() {
    let bed = bed_with_idle_timeout().await;
    let mut peer = Peer::open(bed.agents(), &[]).await;
    let talk = async {
        // Well under the limit on PINGs, well over what the idle timeout asks for.
        let mut pace = tokio::time::interval(IDLE / 20);
        for number in 0.. {
            pace.tick().await;
            peer.round_trip(number).await;
        }
    };
    let twice = async {
        idle_time_passes(&bed).await;
        idle_time_passes(&bed).await;
    };
    tokio::select! {
        () = talk => unreachable!("it goes on for ever"),
        () = twice => {}
    }
    peer.round_trip(u64::MAX).await;
    drop(peer);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lsn_12_a_quiet_stream_is_kept_alive() {
    let bed = bed_with_idle_timeout().await;
    let mut agent = Agent::connect_with(bed.agents(), "bystander", &quiet())
        .await
        .unwrap();
    agent.register().await.unwrap();
    agent.subscribe().await.unwrap();
    let mut bystanders = Bystanders {
        agent,
        operator: bed.operator().await,
        commands: 0,
    };
    bystanders.are_well().await;
    idle_time_passes(&bed).await;
    idle_time_passes(&bed).await;
    bystanders.are_well().await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lsn_12_a_dead_peer_with_a_stream_is_noticed() {
    let bed = bed_with_idle_timeout().await;
    let mut peer = Peer::open(bed.agents(), &[]).await;
    let register = bed.bare_agent("dead").await.register_request();
    let register = prost::Message::encode_to_vec(&register);
    peer.send(&[
        Frame::request(1, path::REGISTER, &[]),
        Frame::message(1, &register),
    ])
    .await;
    let answer: yuzu_proto::agent::v1::RegisterResponse =
        prost::Message::decode(&peer.answer(1).await[..]).unwrap();
    let session = answer.session_id;
    peer.send(&[Frame::request(
        3,
        path::SUBSCRIBE,
        &[(SESSION_HEADER, &session)],
    )])
    .await;
    peer.until("the headers of the stream", |frame| {
        frame.kind == HEADERS && frame.stream == 3
    })
    .await;
    bed.notice(Event::Connected, &session).await;

    // From here on the peer answers no PING.
    let last_words = peer.closed().await;
    let asked = |frame: &Frame| frame.kind == PING && frame.flags & ACK == 0;
    assert!(last_words.iter().any(asked), "closed without being asked");
    assert_eq!(closed_by(&bed, "ping_not_answered").await, 1.0);
    bed.notice(Event::Disconnected, &session).await;

    // Its agent comes back on another connection.
    bed.agent("dead").await;
    drop(peer);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lsn_2_over_the_ceiling_newcomers_wait_and_get_in_when_another_leaves() {
    let setup = Setup::default().agent_listener(|listener| listener.limits.max_connections = 3);
    let bed = setup.start().await;
    assert_eq!(bed.metric("listener_connections_max", AGENTS).await, 3.0);
    let mut bystanders = Bystanders::of(&bed).await;
    let leaver = bed.agent("leaver").await;
    let _stayer = bed.agent("stayer").await;

    // The handshake of TCP is the kernel's, so they connect; nobody reads what they send.
    let mut newcomers = Vec::new();
    for n in 0..3 {
        let address = bed.agents();
        newcomers.push(tokio::spawn(async move {
            Agent::attach(address, &format!("newcomer-{n}")).await
        }));
    }
    for _ in 0..5 {
        bystanders.are_well().await;
    }
    assert_eq!(bed.metric(OPEN, AGENTS).await, 3.0);
    assert!(newcomers.iter().all(|newcomer| !newcomer.is_finished()));

    // One leaves, one gets in; and so on.
    leaver.connection.cut();
    let mut inside = Vec::new();
    for _ in 0..3 {
        let any = futures_util::future::select_all(newcomers);
        let (arrived, _, rest) = tokio::time::timeout(PATIENCE, any).await.unwrap();
        let arrived = arrived.unwrap().unwrap();
        assert!(rest.iter().all(|waiting| !waiting.is_finished()));
        bystanders.are_well().await;
        arrived.connection.cut();
        inside.push(arrived.id);
        newcomers = rest;
        if newcomers.is_empty() {
            break;
        }
    }
    inside.sort();
    assert_eq!(inside, ["newcomer-0", "newcomer-1", "newcomer-2"]);
    bed.stop().await;
}

/// Connections closed so far by this rule.
async fn closed_by(bed: &TestBed, reason: &str) -> f64 {
    bed.metric("listener_closed_total", &[("reason", reason)])
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_never_end_keep_no_connection_without_a_session() {
    let setup = Setup::default().agent_listener(|listener| {
        listener.limits.unregistered_timeout = Duration::from_secs(1);
    });
    let bed = setup.start().await;
    let mut bystanders = Bystanders::of(&bed).await;

    // Half of a HEADERS frame.
    let mut half = Peer::open(bed.agents(), &[]).await;
    let block = request_headers(path::REGISTER, &[]);
    let mut frame = (block.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([HEADERS, END_HEADERS, 0, 0, 0, 1]);
    frame.extend(&block[..block.len() / 2]);
    half.write(&frame).await.unwrap();
    // As many streams as are allowed, without a byte.
    let mut stalled = Peer::open(bed.agents(), &[]).await;
    let streams: Vec<_> = (0..32)
        .map(|n| Frame::request(2 * n + 1, path::REGISTER, &[]))
        .collect();
    stalled.send(&streams).await;
    // 4 MiB, a byte at a time.
    let mut slow = Peer::open(bed.agents(), &[]).await;
    slow.send(&[
        Frame::request(1, path::REGISTER, &[]),
        Frame::new(DATA, 0, 1, [0, 0, 0x40, 0, 0]),
    ])
    .await;
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    loop {
        tokio::select! {
            frame = slow.receive() => if frame.is_none() { break },
            // The other side may have closed since.
            _ = pace.tick() => { let _ = slow.try_send(&[Frame::new(DATA, 0, 1, [0])]).await; }
        }
    }
    half.closed().await;
    stalled.closed().await;
    assert_eq!(closed_by(&bed, "unregistered").await, 3.0);
    assert_eq!(bed.metric("grpc_connection_killed_total", &[]).await, 0.0);
    bed.metric_becomes(OPEN, AGENTS, 1.0).await;
    bystanders.are_well().await;
    bed.stop().await;
}
