//! Agents that answer and are gone in the same breath.

use prost::Message;
use yuzu_proto::agent::v1::{AgentInfo, CommandResponse, RegisterRequest, RegisterResponse};
use yuzu_proto::{SESSION_HEADER, path};
use yuzu_tests::operator::Operator;
use yuzu_tests::testbed::TestBed;

use super::frames::{DATA, Frame, Peer};

#[derive(Debug, Clone, Copy)]
enum Exit {
    Close,
    HalfCloseAndClose,
    ResetAndClose,
}

/// Registers and subscribes by hand on streams 1 and 3.
async fn subscribed(bed: &TestBed, id: &str) -> Peer {
    let mut peer = Peer::open(bed.agents(), &[]).await;
    let info = AgentInfo {
        agent_id: id.into(),
        ..AgentInfo::default()
    };
    let register = RegisterRequest {
        info: Some(info),
        ..RegisterRequest::default()
    };
    let register = register.encode_to_vec();
    peer.send(&[
        Frame::request(1, path::REGISTER, &[]),
        Frame::message(1, &register),
    ])
    .await;
    let answer = RegisterResponse::decode(&peer.answer(1).await[..]).unwrap();
    let session = [(SESSION_HEADER, answer.session_id.as_str())];
    peer.send(&[Frame::request(3, path::SUBSCRIBE, &session)])
        .await;
    peer
}

async fn answers_and_goes(bed: &TestBed, operator: &Operator, id: &str, exit: Exit) {
    let mut peer = subscribed(bed, id).await;
    peer.until("the headers of Subscribe", |frame| frame.stream == 3)
        .await;
    let sent = operator.send(&[id], super::command(id), 60).await;
    let mut fanout = sent.unwrap();
    peer.until("the command", |frame| {
        frame.stream == 3 && frame.kind == DATA
    })
    .await;
    let done = CommandResponse {
        command_id: id.into(),
        status: 1,
        ..CommandResponse::default()
    };
    let mut answer = Frame::message(3, &done.encode_to_vec());
    let mut frames = Vec::new();
    match exit {
        Exit::HalfCloseAndClose => frames.push(answer),
        Exit::Close => {
            answer.flags = 0;
            frames.push(answer);
        }
        Exit::ResetAndClose => {
            answer.flags = 0;
            frames.extend([answer, Frame::reset(3)]);
        }
    }
    peer.send(&frames).await;
    drop(peer);
    let (entries, status) = fanout.rest().await.unwrap();
    assert!(status.is_ok(), "{exit:?}: {status}");
    let outputs: Vec<_> = entries.iter().map(|e| e.response.output.as_str()).collect();
    assert_eq!(entries.len(), 1, "{exit:?}: {outputs:?}");
    assert_eq!(entries[0].response, done, "{exit:?}: {outputs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cmd_6_an_answer_right_before_the_end_of_its_agent_arrives() {
    let bed = TestBed::start().await;
    let operator = bed.operator().await;
    for round in 0..20 {
        for exit in [Exit::Close, Exit::HalfCloseAndClose, Exit::ResetAndClose] {
            answers_and_goes(&bed, &operator, &format!("{exit:?}-{round}"), exit).await;
        }
    }
}
