//! The entries the gateway makes itself, in place of an agent's answer.
//!
//! Responsible for their exact bytes: the server matches the outputs (CMD-3, CMD-4, CMD-17). Must
//! never carry text of a command or an agent.

use bytes::{Bytes, BytesMut};
use prost::Message;
use yuzu_proto::agent::v1::CommandResponse;
use yuzu_proto::agent::v1::command_response::Status;
use yuzu_proto::server::v1::SendCommandResponse;
use yuzu_proto::wire::{GRPC_PREFIX, put_grpc_prefix};

/// Why a target has no answer of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// This node does not hold the agent; nothing was sent (CMD-3).
    NotConnected,
    /// The agent was lost before its terminal frame (CMD-4).
    AgentDisconnected,
    /// The agent's mailbox is full; nothing was sent (CMD-17).
    Backpressure,
}

impl NoAnswer {
    fn output(self) -> &'static str {
        match self {
            Self::NotConnected => "not_connected",
            Self::AgentDisconnected => "agent_disconnected",
            Self::Backpressure => "backpressure",
        }
    }

    /// The framed entry of `agent_id` for the command `command_id`.
    pub(crate) fn frame(self, agent_id: &str, command_id: &str) -> Bytes {
        let entry = SendCommandResponse {
            agent_id: agent_id.to_owned(),
            response: Some(CommandResponse {
                command_id: command_id.to_owned(),
                status: Status::Failure as i32,
                output: self.output().to_owned(),
                exit_code: -1,
                ..CommandResponse::default()
            }),
        };
        let len = entry.encoded_len();
        let mut out = BytesMut::with_capacity(GRPC_PREFIX + len);
        put_grpc_prefix(&mut out, len);
        entry.encode_raw(&mut out);
        out.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cmd_3_cmd_4_cmd_17_entries_have_the_exact_shape() {
        for (reason, output) in [
            (NoAnswer::NotConnected, "not_connected"),
            (NoAnswer::AgentDisconnected, "agent_disconnected"),
            (NoAnswer::Backpressure, "backpressure"),
        ] {
            let frame = reason.frame("agent-1", "c-7");
            let entry = SendCommandResponse::decode(&frame[GRPC_PREFIX..]).unwrap();
            assert_eq!(entry.agent_id, "agent-1");
            let response = entry.response.unwrap();
            assert_eq!(response.command_id, "c-7");
            assert_eq!((response.status, response.exit_code), (2, -1));
            assert_eq!(response.output, output);
        }
    }
}
