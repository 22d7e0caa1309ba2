//! A connection whose answers nobody takes is closed; one that only stays silent is not.

use std::time::Duration;

use prost::Message;
use yuzu_proto::agent::v1::{AgentInfo, HeartbeatRequest, RegisterRequest, RegisterResponse};
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_proto::server::v1::{SendCommandRequest, WatchEventsRequest};
use yuzu_proto::{SESSION_HEADER, path};
use yuzu_tests::testbed::{Setup, TestBed};

use super::frames::{ACK, DATA, Frame, HEADERS, INITIAL_WINDOW_SIZE, Peer, SETTINGS};
use super::{command, done, serves};

/// How long an answer may wait here. Short, and long enough for a busy machine to take its own.
const PATIENCE_OF_THE_GATEWAY: Duration = Duration::from_secs(1);

async fn bed() -> TestBed {
    let setup = Setup::default().gateway(|config| {
        for listener in &mut config.listeners {
            listener.limits.request_timeout = PATIENCE_OF_THE_GATEWAY;
        }
    });
    setup.start().await
}

/// A peer whose streams begin with a window of this many bytes.
async fn peer_with_window(address: std::net::SocketAddr, window: u32) -> Peer {
    let mut peer = Peer::open(address, &[(INITIAL_WINDOW_SIZE, window)]).await;
    peer.round_trip(0).await;
    peer
}

async fn set_window(peer: &mut Peer, window: u32) {
    peer.send(&[Frame::settings(&[(INITIAL_WINDOW_SIZE, window)])])
        .await;
    peer.until("the acknowledgement", |frame| {
        frame.kind == SETTINGS && frame.flags == ACK
    })
    .await;
}

fn register_request(id: &str) -> Vec<u8> {
    let info = AgentInfo {
        agent_id: id.into(),
        ..AgentInfo::default()
    };
    let request = RegisterRequest {
        info: Some(info),
        ..RegisterRequest::default()
    };
    request.encode_to_vec()
}

async fn call(peer: &mut Peer, stream: u32, path: &str, message: &[u8]) {
    let request = Frame::request(stream, path, &[]);
    peer.send(&[request, Frame::message(stream, message)]).await;
}

/// Registers on stream 1 and subscribes on stream 3; the session.
async fn attach(peer: &mut Peer, id: &str) -> String {
    call(peer, 1, path::REGISTER, &register_request(id)).await;
    let answer = RegisterResponse::decode(&peer.answer(1).await[..]).unwrap();
    assert!(answer.accepted);
    subscribe(peer, &answer.session_id).await;
    answer.session_id
}

async fn subscribe(peer: &mut Peer, session: &str) {
    let request = Frame::request(3, path::SUBSCRIBE, &[(SESSION_HEADER, session)]);
    peer.send(&[request]).await;
    peer.until("the headers of the stream", |frame| {
        frame.kind == HEADERS && frame.stream == 3
    })
    .await;
}

fn data_bytes(frames: &[Frame], stream: u32) -> usize {
    let data = frames
        .iter()
        .filter(|f| f.kind == DATA && f.stream == stream);
    data.map(|frame| frame.payload.len()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_register_answer_nobody_takes_closes_the_connection() {
    let bed = bed().await;
    let operator = bed.operator().await;
    let mut agent = bed.agent("bystander").await;
    for window in [0, 1] {
        let mut peer = peer_with_window(bed.agents(), window).await;
        call(&mut peer, 1, path::REGISTER, &register_request("stuck")).await;
        let received = peer.closed().await;
        assert_eq!(data_bytes(&received, 1), window as usize);
        serves(&operator, &mut agent, &format!("window-{window}")).await;
    }
    bed.metric_becomes("grpc_connection_killed_total", &[], 2.0)
        .await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_answer_nobody_takes_closes_the_connection_and_ends_its_session() {
    let bed = bed().await;
    for window in [0, 1] {
        let mut peer = peer_with_window(bed.agents(), 65_535).await;
        let session = attach(&mut peer, "stuck").await;
        set_window(&mut peer, window).await;
        let beat = HeartbeatRequest {
            session_id: session.clone(),
            ..HeartbeatRequest::default()
        };
        call(&mut peer, 5, path::HEARTBEAT, &beat.encode_to_vec()).await;
        let received = peer.closed().await;
        assert_eq!(data_bytes(&received, 5), window as usize);
        bed.notice(Event::Disconnected, &session).await;
    }
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_answers_nobody_takes_close_the_operators_connection() {
    let bed = bed().await;
    let operator = bed.operator().await;
    let mut agent = bed.agent("agent").await;
    for window in [0, 1] {
        let id = format!("window-{window}");
        let request = SendCommandRequest {
            agent_ids: vec!["agent".into()],
            command: Some(command(&id)),
            timeout_seconds: 3_600,
        };
        let mut peer = peer_with_window(bed.operators(), window).await;
        call(&mut peer, 1, path::SEND_COMMAND, &request.encode_to_vec()).await;
        assert_eq!(agent.command().await.unwrap().message.command_id, id);
        agent.answer(&done(&id, "nobody takes this")).await.unwrap();
        let received = peer.closed().await;
        assert_eq!(data_bytes(&received, 1), window as usize);
        serves(&operator, &mut agent, "after").await;
    }
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_nobody_takes_closes_the_watchers_connection() {
    let bed = bed().await;
    let mut peer = peer_with_window(bed.operators(), 1).await;
    let request = WatchEventsRequest::default().encode_to_vec();
    call(&mut peer, 1, path::WATCH_EVENTS, &request).await;
    peer.until("the headers of the stream", |frame| {
        frame.kind == HEADERS && frame.stream == 1
    })
    .await;
    bed.agent("new").await;
    assert_eq!(data_bytes(&peer.closed().await, 1), 1);
    bed.stop().await;
}

/// Lets the gateway's patience pass: a connection that was opened now is closed for it.
async fn patience_passes(bed: &TestBed) {
    let mut stuck = peer_with_window(bed.agents(), 0).await;
    call(&mut stuck, 1, path::REGISTER, &register_request("stuck")).await;
    stuck.closed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lsn_7_an_idle_subscribe_stream_behind_a_small_window_stays() {
    let bed = bed().await;
    let operator = bed.operator().await;
    let mut peer = peer_with_window(bed.agents(), 65_535).await;
    call(&mut peer, 1, path::REGISTER, &register_request("quiet")).await;
    let answer = RegisterResponse::decode(&peer.answer(1).await[..]).unwrap();
    set_window(&mut peer, 0).await;
    subscribe(&mut peer, &answer.session_id).await;

    patience_passes(&bed).await;
    peer.round_trip(1).await;

    // A command is no answer: an agent that does not read costs its mailbox, not its session.
    let mut fanout = operator
        .send(&["quiet"], command("waits"), 60)
        .await
        .unwrap();
    bed.metric_becomes("commands_dispatched_total", &[("plugin", "shell")], 1.0)
        .await;
    patience_passes(&bed).await;
    peer.round_trip(2).await;

    peer.send(&[Frame::window_update(3, 65_535)]).await;
    peer.until("the command", |frame| {
        frame.kind == DATA && frame.stream == 3
    })
    .await;
    let answer = yuzu_tests::raw::frame_message(&done("waits", "at last"));
    peer.send(&[Frame::new(DATA, 0, 3, &answer[..])]).await;
    assert_eq!(super::only_entry(&mut fanout).await, "at last");
    drop(peer);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_waits_for_a_slow_agent_is_not_closed() {
    let bed = bed().await;
    let operator = bed.operator().await;
    let mut agent = bed.agent("slow").await;
    let watch = operator.watch(&[]).await.unwrap();
    let mut fanout = operator.send(&["slow"], command("slow"), 60).await.unwrap();
    agent.command().await.unwrap();
    patience_passes(&bed).await;
    patience_passes(&bed).await;
    agent.answer(&done("slow", "done")).await.unwrap();
    assert_eq!(super::only_entry(&mut fanout).await, "done");
    drop(watch);
    bed.stop().await;
}
