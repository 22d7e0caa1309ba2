//! The parts of the design that could have turned out impossible, proved on sockets.

#[path = "hard_parts/answers.rs"]
mod answers;
#[path = "hard_parts/floods.rs"]
mod floods;
#[path = "hard_parts/owner.rs"]
mod owner;
#[path = "hard_parts/streams.rs"]
mod streams;

use yuzu_proto::agent::v1::{CommandRequest, CommandResponse};
use yuzu_tests::agent::Agent;
use yuzu_tests::frames;
use yuzu_tests::operator::{Fanout, Operator};

fn command(id: &str) -> CommandRequest {
    CommandRequest {
        command_id: id.into(),
        plugin: "shell".into(),
        ..CommandRequest::default()
    }
}

fn done(id: &str, output: &str) -> CommandResponse {
    CommandResponse {
        command_id: id.into(),
        status: 1,
        output: output.into(),
        ..CommandResponse::default()
    }
}

/// One command to this agent and back, on the stream it already has.
async fn serves(operator: &Operator, agent: &mut Agent, id: &str) {
    let mut fanout = operator.send(&[&agent.id], command(id), 60).await.unwrap();
    assert_eq!(agent.command().await.unwrap().message.command_id, id);
    agent.answer(&done(id, "served")).await.unwrap();
    let output = only_entry(&mut fanout).await;
    assert_eq!(output, "served");
}

/// The output of the one entry of a fan-out that ends with OK.
async fn only_entry(fanout: &mut Fanout) -> String {
    let (entries, status) = fanout.rest().await.unwrap();
    assert!(status.is_ok(), "{status}");
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries[0].response.output.clone()
}
