//! The entries the gateway makes itself, in place of an agent's answer.
//!
//! Responsible for their exact bytes: the server matches the outputs (CMD-3, CMD-4, CMD-17). Must
//! never carry text of a command or an agent.

use bytes::BytesMut;
use yuzu_proto::agent::v1::command_response::Status;
use yuzu_proto::wire::{
    GRPC_PREFIX, bytes_field_len, put_bytes_field, put_grpc_prefix, put_varint_field,
    varint_field_len,
};

/// `CommandResponse.status` and `exit_code` of every entry, as they go on the wire.
const STATUS: u64 = Status::Failure as u64;
const EXIT_CODE: u64 = -1_i64 as u64;

/// Why a target has no answer of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// This node does not hold the agent; nothing was sent (CMD-3).
    NotConnected,
    /// The agent was lost before its terminal frame (CMD-4).
    AgentDisconnected,
    /// The agent's mailbox is full; nothing was sent (CMD-17).
    Backpressure,
    /// The node that holds the agent was lost; whether the command was carried out is not known
    /// (FWD-6).
    OutcomeUnknown,
}

impl NoAnswer {
    fn output(self) -> &'static str {
        match self {
            Self::NotConnected => "not_connected",
            Self::AgentDisconnected => "agent_disconnected",
            Self::Backpressure => "backpressure",
            Self::OutcomeUnknown => "outcome_unknown",
        }
    }

    /// Bytes of the framed entry of `agent_id` for the command `command_id`.
    pub(super) fn len(self, agent_id: &str, command_id: &str) -> usize {
        let response = self.response_len(command_id);
        GRPC_PREFIX + bytes_field_len(1, agent_id.len()) + bytes_field_len(2, response)
    }

    fn response_len(self, command_id: &str) -> usize {
        bytes_field_len(1, command_id.len())
            + varint_field_len(2, STATUS)
            + bytes_field_len(3, self.output().len())
            + varint_field_len(4, EXIT_CODE)
    }

    /// Writes the framed entry; `out` grows by [`Self::len`]. Written when the caller takes it: an
    /// entry that waits costs a few bytes, however long the ids are.
    pub(super) fn put(self, out: &mut BytesMut, agent_id: &str, command_id: &str) {
        let len = self.len(agent_id, command_id);
        out.reserve(len);
        put_grpc_prefix(out, len - GRPC_PREFIX);
        put_bytes_field(out, 1, agent_id.as_bytes());
        let mut response = BytesMut::with_capacity(self.response_len(command_id));
        put_bytes_field(&mut response, 1, command_id.as_bytes());
        put_varint_field(&mut response, 2, STATUS);
        put_bytes_field(&mut response, 3, self.output().as_bytes());
        put_varint_field(&mut response, 4, EXIT_CODE);
        put_bytes_field(out, 2, &response);
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use yuzu_proto::server::v1::SendCommandResponse;

    use super::*;

    #[test]
    fn cmd_3_cmd_4_cmd_17_fwd_6_entries_have_the_exact_shape() {
        for (reason, output) in [
            (NoAnswer::NotConnected, "not_connected"),
            (NoAnswer::AgentDisconnected, "agent_disconnected"),
            (NoAnswer::Backpressure, "backpressure"),
            (NoAnswer::OutcomeUnknown, "outcome_unknown"),
        ] {
            let mut frame = BytesMut::new();
            reason.put(&mut frame, "agent-1", "c-7");
            assert_eq!(frame.len(), reason.len("agent-1", "c-7"));
            assert_eq!(frame[0], 0);
            let declared = u32::from_be_bytes(frame[1..5].try_into().unwrap()) as usize;
            assert_eq!(declared, frame.len() - GRPC_PREFIX);
            let entry = SendCommandResponse::decode(&frame[GRPC_PREFIX..]).unwrap();
            assert_eq!(entry.agent_id, "agent-1");
            let response = entry.response.unwrap();
            assert_eq!(response.command_id, "c-7");
            assert_eq!((response.status, response.exit_code), (2, -1));
            assert_eq!(response.output, output);
        }
    }
}
