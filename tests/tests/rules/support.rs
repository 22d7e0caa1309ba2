//! What several themes need.

use bytes::Bytes;
use prost::Message;
use std::time::Duration;
use yuzu_proto::agent::v1::command_response::Status;
use yuzu_proto::agent::v1::{CommandRequest, CommandResponse, RegisterResponse};
use yuzu_tests::agent::{Agent, Command, PATIENCE};

/// A command for the plugin `shell`.
pub(crate) fn command(id: &str) -> CommandRequest {
    CommandRequest {
        command_id: id.into(),
        plugin: "shell".into(),
        ..Default::default()
    }
}

/// A terminal answer.
pub(crate) fn success(id: &str, output: &str) -> CommandResponse {
    CommandResponse {
        command_id: id.into(),
        status: Status::Success.into(),
        output: output.into(),
        ..Default::default()
    }
}

/// A RUNNING frame.
pub(crate) fn running(id: &str, output: &str) -> CommandResponse {
    CommandResponse {
        status: Status::Running.into(),
        ..success(id, output)
    }
}

/// Takes the next command and answers it with success.
pub(crate) async fn serve_one(agent: &mut Agent) -> Command {
    let taken = agent.command().await.expect("a command");
    let answer = success(&taken.message.command_id, "done");
    agent.answer(&answer).await.expect("an open stream");
    taken
}

/// A message with fields that no contract knows appended: a varint (number 1001), bytes (1002)
/// and a fixed64 (1003).
pub(crate) fn with_unknown_fields(message: &impl Message) -> Bytes {
    let mut bytes = message.encode_to_vec();
    bytes.extend(unknown_fields());
    bytes.into()
}

/// See [`with_unknown_fields`].
pub(crate) fn unknown_fields() -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_key(1001, prost::encoding::WireType::Varint, &mut bytes);
    prost::encoding::encode_varint(u64::MAX, &mut bytes);
    prost::encoding::encode_key(1002, prost::encoding::WireType::LengthDelimited, &mut bytes);
    prost::encoding::encode_varint(9, &mut bytes);
    bytes.extend(b"tomorrow\xff");
    prost::encoding::encode_key(1003, prost::encoding::WireType::SixtyFourBit, &mut bytes);
    bytes.extend(0x0102_0304_0506_0708_u64.to_le_bytes());
    bytes
}

/// The server's answer to a Register.
pub(crate) fn accepted(session_id: &str) -> RegisterResponse {
    RegisterResponse {
        session_id: session_id.into(),
        accepted: true,
        enrollment_status: "enrolled".into(),
        ..Default::default()
    }
}

/// A session id in the form the server mints, from one digit.
pub(crate) fn session_id(digit: char) -> String {
    format!("gw-session-{}", digit.to_string().repeat(32))
}

/// Bounds a wait.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {PATIENCE:?} for {what}"),
    }
}

/// Long enough to see that something does not happen.
pub(crate) const WHILE: Duration = Duration::from_millis(150);
