use std::sync::atomic::Ordering;

use prost::Message;
use yuzu_proto::agent::v1::CommandResponse;
use yuzu_proto::server::v1::SendCommandResponse;

use super::super::testing::Caller;
use futures_util::FutureExt;

use super::*;

#[test]
fn cmd_6_the_agents_bytes_are_wrapped_unchanged() {
    let response = CommandResponse {
        command_id: "c-1".into(),
        status: 1,
        output: "done".into(),
        ..Default::default()
    };
    let mut frame = response.encode_to_vec();
    // Field 1999, which no contract knows.
    put_bytes_field(&mut frame, 1999, b"tomorrow");
    let answer = as_answer("agent-1", &frame);
    assert_eq!(answer[0], 0);
    let declared = u32::from_be_bytes(answer[1..5].try_into().unwrap()) as usize;
    assert_eq!(declared, answer.len() - GRPC_PREFIX);
    let decoded = SendCommandResponse::decode(&answer[GRPC_PREFIX..]).unwrap();
    assert_eq!(decoded.agent_id, "agent-1");
    assert_eq!(decoded.response.unwrap(), response);
    assert!(answer.ends_with(&frame));
}

#[test]
fn cmd_4_a_terminal_frame_that_reached_nobody_loses_the_agent_for_its_callers() {
    for (terminal, lost) in [(Some(1), vec![2, 3]), (None, vec![])] {
        let (quick, slow) = (Arc::new(Caller::default()), Arc::new(Caller::default()));
        slow.full.store(true, Ordering::Relaxed);
        let waiters = vec![quick.waiter(1), slow.waiter(2), slow.waiter(3)];
        let reply = Reply {
            frame: Bytes::from_static(b"frame"),
            terminal,
        };
        let (agent, waiters) = (Arc::from("agent"), Waiters::Many(waiters));
        let mut waiting = Box::pin(HandOver::new(&agent, waiters, reply).finish());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(waiting);
        assert_eq!(quick.replies.lock().unwrap().len(), 1);
        assert_eq!(*slow.lost.lock().unwrap(), lost);
    }
}

#[test]
fn cmd_6_a_frame_that_reached_everyone_loses_nobody() {
    let caller = Arc::new(Caller::default());
    let reply = Reply {
        frame: Bytes::from_static(b"frame"),
        terminal: Some(1),
    };
    let waiters = vec![caller.waiter(1), caller.waiter(2)];
    let (agent, waiters) = (Arc::from("agent"), Waiters::Many(waiters));
    assert!(HandOver::new(&agent, waiters, reply).go_on());
    assert_eq!(caller.replies.lock().unwrap().len(), 2);
    assert!(caller.lost.lock().unwrap().is_empty());
}
