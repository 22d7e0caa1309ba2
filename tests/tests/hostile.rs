//! Peers that break the rules of the socket and of HTTP/2, and what it costs them.

#[path = "hostile/connections.rs"]
mod connections;
#[path = "hostile/http2.rs"]
mod http2;
#[path = "hostile/last_words.rs"]
mod last_words;
#[path = "hostile/requests.rs"]
mod requests;

use yuzu_proto::agent::v1::{CommandRequest, CommandResponse};
use yuzu_tests::agent::Agent;
use yuzu_tests::frames;
use yuzu_tests::operator::Operator;
use yuzu_tests::testbed::TestBed;

fn command(id: &str) -> CommandRequest {
    CommandRequest {
        command_id: id.into(),
        plugin: "shell".into(),
        ..CommandRequest::default()
    }
}

/// An agent and an operator that must notice nothing.
struct Bystanders {
    agent: Agent,
    operator: Operator,
    commands: usize,
}

impl Bystanders {
    async fn of(bed: &TestBed) -> Self {
        Self {
            agent: bed.agent("bystander").await,
            operator: bed.operator().await,
            commands: 0,
        }
    }

    /// One heartbeat, and one command there and back on the stream that was there before.
    async fn are_well(&mut self) {
        self.commands += 1;
        let id = format!("well-{}", self.commands);
        let answer = self.agent.heartbeat().await.unwrap();
        assert!(answer.status.is_ok(), "{}", answer.status);
        let sent = self.operator.send(&["bystander"], command(&id), 60).await;
        let mut fanout = sent.unwrap();
        assert_eq!(self.agent.command().await.unwrap().message.command_id, id);
        let done = CommandResponse {
            command_id: id,
            status: 1,
            ..CommandResponse::default()
        };
        self.agent.answer(&done).await.unwrap();
        let (entries, status) = fanout.rest().await.unwrap();
        assert!(status.is_ok(), "{status}");
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].response, done);
    }
}
