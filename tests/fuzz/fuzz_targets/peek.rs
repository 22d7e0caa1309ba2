//! Every peek on any bytes: no panic, and where prost decodes the message, the same values.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use prost::Message;
use yuzu_proto::agent::v1::{
    CommandRequest, CommandResponse, HeartbeatRequest, InventoryReport, RegisterRequest,
    RegisterResponse,
};
use yuzu_proto::gateway::v1::{BatchHeartbeatResponse, StreamStatusAck};
use yuzu_proto::peek::{
    BatchAnswerPeek, CommandRequestPeek, CommandResponsePeek, HeartbeatPeek, InventoryPeek,
    MAX_PLUGINS, MAX_VERDICTS, NotifyAckPeek, RegisterAnswerPeek, RegisterPeek, SendCommandPeek,
};
use yuzu_proto::server::v1::SendCommandRequest;
use yuzu_proto::verbatim::{
    HeartbeatView, InventoryView, RegisterAnswerView, RegisterView, Verbatim,
};
use yuzu_proto::wire;

fuzz_target!(|input: &[u8]| {
    commands(input);
    sessions(input);
    server_answers(input);
    views(input);
});

/// Both, or nothing when prost does not take the bytes. A peek that passes means that the bytes
/// are a message.
fn both<M: Message + Default, T>(input: &[u8], peek: Result<T, wire::WireError>) -> Option<(M, T)> {
    if peek.is_ok() {
        assert!(wire::validate(input).is_ok());
    }
    M::decode(input)
        .ok()
        .map(|full| (full, peek.expect("prost takes it")))
}

fn same_texts(peeked: &[&[u8]], full: &[String], limit: usize) {
    assert_eq!(peeked.len(), full.len().min(limit));
    assert!(
        peeked
            .iter()
            .zip(full)
            .all(|(peeked, full)| *peeked == full.as_bytes())
    );
}

fn commands(input: &[u8]) {
    if let Some((full, view)) = both::<CommandResponse, _>(input, CommandResponsePeek::peek(input))
    {
        assert_eq!(view.command_id, full.command_id.as_bytes());
        assert_eq!(view.status, full.status);
        assert_eq!(view.plugin, full.plugin.as_bytes());
    }
    if let Some((full, view)) = both::<CommandRequest, _>(input, CommandRequestPeek::peek(input)) {
        assert_eq!(view.command_id, full.command_id.as_bytes());
        assert_eq!(view.plugin, full.plugin.as_bytes());
    }
    let bytes = Bytes::copy_from_slice(input);
    let peek = SendCommandPeek::peek(&bytes);
    if let Ok(view) = &peek {
        assert!(wire::validate(&view.command).is_ok());
    }
    if let Some((full, view)) = both::<SendCommandRequest, _>(input, peek) {
        same_texts(&view.agent_ids, &full.agent_ids, usize::MAX);
        assert_eq!(view.timeout_seconds, full.timeout_seconds);
        let command = view
            .has_command
            .then(|| CommandRequest::decode(view.command));
        assert!(command.transpose().expect("prost took it inside") == full.command);
    }
}

fn sessions(input: &[u8]) {
    if let Some((full, view)) = both::<RegisterRequest, _>(input, RegisterPeek::peek(input)) {
        let info = full.info.unwrap_or_default();
        assert_eq!(view.agent_id, info.agent_id.as_bytes());
        assert_eq!(view.hostname, info.hostname.as_bytes());
        let names: Vec<_> = info.plugins.into_iter().map(|plugin| plugin.name).collect();
        same_texts(&view.plugins, &names, MAX_PLUGINS);
    }
    if let Some((full, view)) = both::<HeartbeatRequest, _>(input, HeartbeatPeek::peek(input)) {
        assert_eq!(view.session_id, full.session_id.as_bytes());
    }
    if let Some((full, view)) = both::<InventoryReport, _>(input, InventoryPeek::peek(input)) {
        assert_eq!(view.session_id, full.session_id.as_bytes());
    }
}

fn server_answers(input: &[u8]) {
    if let Some((full, view)) = both::<RegisterResponse, _>(input, RegisterAnswerPeek::peek(input))
    {
        assert_eq!(view.session_id, full.session_id.as_bytes());
        assert_eq!(view.accepted, full.accepted);
    }
    if let Some((full, view)) = both::<StreamStatusAck, _>(input, NotifyAckPeek::peek(input)) {
        assert_eq!(view.acknowledged, full.acknowledged);
    }
    if let Some((full, view)) =
        both::<BatchHeartbeatResponse, _>(input, BatchAnswerPeek::peek(input))
    {
        assert_eq!(view.acknowledged_count, full.acknowledged_count);
        assert_eq!(view.truncated, full.unknown_session_ids_truncated);
        same_texts(
            &view.unknown_session_ids,
            &full.unknown_session_ids,
            MAX_VERDICTS,
        );
    }
}

fn views(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let register = Verbatim::<RegisterView>::new(bytes.clone());
    assert_eq!(register.is_ok(), RegisterPeek::peek(input).is_ok());
    let answer = Verbatim::<RegisterAnswerView>::new(bytes.clone());
    assert_eq!(answer.is_ok(), RegisterAnswerPeek::peek(input).is_ok());
    let heartbeat = Verbatim::<HeartbeatView>::new(bytes.clone());
    assert_eq!(heartbeat.is_ok(), HeartbeatPeek::peek(input).is_ok());
    let inventory = Verbatim::<InventoryView>::new(bytes.clone());
    assert_eq!(inventory.is_ok(), InventoryPeek::peek(input).is_ok());
    if let Ok(register) = register {
        assert_eq!(register.into_bytes(), bytes);
    }
}
