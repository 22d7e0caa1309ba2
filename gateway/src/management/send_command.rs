//! SendCommand: hands the caller's bytes to the router and streams the answers.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use tonic::Status;
use yuzu_proto::peek::{CommandRequestPeek, SendCommandPeek};

use super::{ManagementService, check_agent_ids};
use crate::command::{Command, FanoutBody, MAX_COMMAND, Ticket};
use crate::edge::connection::Connection;
use crate::edge::{Response, grpc};

impl ManagementService {
    /// The command goes on byte for byte (CMD-5).
    pub(super) async fn send_command(
        &self,
        message: Bytes,
        connection: &Arc<Connection>,
        caller: String,
    ) -> Result<Response, Status> {
        let peek = SendCommandPeek::peek(&message).map_err(grpc::malformed)?;
        if !peek.has_command {
            return Err(Status::invalid_argument("the field command is missing"));
        }
        check_agent_ids(peek.agent_ids.len())?;
        check_size(peek.command.len())?;
        let command = CommandRequestPeek::peek(&peek.command).map_err(grpc::malformed)?;
        let command = Command {
            frame: grpc::frame(&peek.command),
            id: text(command.command_id)?.to_owned(),
            plugin: text(command.plugin)?.to_owned(),
            timeout_seconds: peek.timeout_seconds,
            caller,
        };
        let agent_ids = peek
            .agent_ids
            .iter()
            .map(|id| text(id))
            .collect::<Result<Vec<_>, _>>()?;
        let sent = self.router.send(&agent_ids, command).await;
        let (body, ticket) = sent.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(grpc::stream(Ticketed {
            body,
            connection: Arc::clone(connection),
            _ticket: ticket,
        }))
    }
}

/// A larger command would end the stream of every agent that gets it (CMD-24).
fn check_size(bytes: usize) -> Result<(), Status> {
    if bytes <= MAX_COMMAND {
        return Ok(());
    }
    Err(Status::resource_exhausted(format!(
        "the command has {bytes} bytes; agents accept at most {MAX_COMMAND}"
    )))
}

fn text(bytes: &[u8]) -> Result<&str, Status> {
    std::str::from_utf8(bytes)
        .map_err(|_| Status::internal("the request holds text that is not UTF-8"))
}

/// A fan-out that a planned stop waits for.
struct Ticketed {
    body: FanoutBody,
    connection: Arc<Connection>,
    _ticket: Ticket,
}

impl Body for Ticketed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let watched = |frame: Frame<Bytes>| frame.map_data(|data| self.connection.watch(data));
        Poll::Ready(frame.map(|frame| frame.map(watched)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
