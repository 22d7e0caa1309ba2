//! A peek sees what a full decode by prost sees.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use yuzu_proto::agent::v1::{
    CommandRequest, CommandResponse, HeartbeatRequest, InventoryReport, RegisterRequest,
    RegisterResponse,
};
use yuzu_proto::gateway::v1::{BatchHeartbeatResponse, ForwardGuardianAck, StreamStatusAck};
use yuzu_proto::peek::{
    BatchAnswerPeek, CommandRequestPeek, CommandResponsePeek, HeartbeatPeek, InventoryPeek,
    NotifyAckPeek, RegisterAnswerPeek, RegisterPeek, SendCommandPeek,
};
use yuzu_proto::server::v1::SendCommandRequest;
use yuzu_proto::verbatim::{
    HeartbeatView, InventoryView, RegisterAnswerView, RegisterView, Verbatim,
};
use yuzu_proto::wire;

use crate::contracts::{any_message, joined, message};

/// Random bytes that are often close to a message: a message of any type, whole or damaged.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let damaged = (
        any_message(),
        any::<prop::sample::Index>(),
        any::<u8>(),
        any::<bool>(),
    )
        .prop_map(|((_, fields), place, byte, cut)| {
            let mut bytes = joined(fields);
            if !bytes.is_empty() {
                let place = place.index(bytes.len());
                if cut {
                    bytes.truncate(place);
                } else {
                    bytes[place] = byte;
                }
            }
            bytes
        });
    prop_oneof![
        vec(any::<u8>(), 0..200),
        damaged,
        any_message().prop_map(|(_, fields)| joined(fields)),
    ]
}

/// Whether `peek` and prost agree on bytes that prost takes.
fn agrees<M: Message + Default, T: PartialEq>(
    bytes: &[u8],
    peek: Result<T, wire::WireError>,
    expected: impl Fn(&M) -> T,
) -> bool {
    match M::decode(bytes) {
        Ok(decoded) => peek.is_ok_and(|peeked| peeked == expected(&decoded)),
        Err(_) => true,
    }
}

fn command_response(bytes: &[u8]) -> bool {
    let peek = CommandResponsePeek::peek(bytes)
        .map(|view| (view.command_id.to_vec(), view.status, view.plugin.to_vec()));
    agrees::<CommandResponse, _>(bytes, peek, |full| {
        (
            full.command_id.clone().into_bytes(),
            full.status,
            full.plugin.clone().into_bytes(),
        )
    })
}

fn command_request(bytes: &[u8]) -> bool {
    let peek = CommandRequestPeek::peek(bytes)
        .map(|view| (view.command_id.to_vec(), view.plugin.to_vec()));
    agrees::<CommandRequest, _>(bytes, peek, |full| {
        (
            full.command_id.clone().into_bytes(),
            full.plugin.clone().into_bytes(),
        )
    })
}

fn register(bytes: &[u8]) -> bool {
    let expected = |full: &RegisterRequest| {
        let info = full.info.clone().unwrap_or_default();
        let names: Vec<_> = info
            .plugins
            .into_iter()
            .map(|plugin| plugin.name.into_bytes())
            .collect();
        (
            info.agent_id.into_bytes(),
            info.hostname.into_bytes(),
            names,
        )
    };
    let peek = RegisterPeek::peek(bytes).map(|view| {
        let names: Vec<_> = view.plugins.iter().map(|name| name.to_vec()).collect();
        (view.agent_id.to_vec(), view.hostname.to_vec(), names)
    });
    let owned = Verbatim::<RegisterView>::new(Bytes::copy_from_slice(bytes)).map(|message| {
        let view = message.view();
        let names: Vec<_> = view.plugins.iter().map(|name| name.to_vec()).collect();
        (view.agent_id.to_vec(), view.hostname.to_vec(), names)
    });
    peek == owned && agrees(bytes, peek, expected)
}

fn register_answer(bytes: &[u8]) -> bool {
    let peek =
        RegisterAnswerPeek::peek(bytes).map(|view| (view.session_id.to_vec(), view.accepted));
    let owned = Verbatim::<RegisterAnswerView>::new(Bytes::copy_from_slice(bytes))
        .map(|message| (message.view().session_id.to_vec(), message.view().accepted));
    peek == owned
        && agrees::<RegisterResponse, _>(bytes, peek, |full| {
            (full.session_id.clone().into_bytes(), full.accepted)
        })
}

fn heartbeat(bytes: &[u8]) -> bool {
    let peek = HeartbeatPeek::peek(bytes).map(|view| view.session_id.to_vec());
    let owned = Verbatim::<HeartbeatView>::new(Bytes::copy_from_slice(bytes))
        .map(|message| message.view().session_id.to_vec());
    peek == owned
        && agrees::<HeartbeatRequest, _>(bytes, peek, |full| full.session_id.clone().into_bytes())
}

fn inventory(bytes: &[u8]) -> bool {
    let peek = InventoryPeek::peek(bytes).map(|view| view.session_id.to_vec());
    let owned = Verbatim::<InventoryView>::new(Bytes::copy_from_slice(bytes))
        .map(|message| message.view().session_id.to_vec());
    peek == owned
        && agrees::<InventoryReport, _>(bytes, peek, |full| full.session_id.clone().into_bytes())
}

fn send_command(bytes: &[u8]) -> bool {
    let bytes = Bytes::copy_from_slice(bytes);
    // The command as bytes cannot be compared with a decoded one, but its decoded form can.
    let peek = SendCommandPeek::peek(&bytes).map(|view| {
        let ids: Vec<_> = view.agent_ids.iter().map(|id| id.to_vec()).collect();
        let command = view
            .has_command
            .then(|| CommandRequest::decode(view.command).ok());
        (ids, command, view.timeout_seconds)
    });
    agrees::<SendCommandRequest, _>(&bytes, peek, |full| {
        let ids = full
            .agent_ids
            .iter()
            .map(|id| id.clone().into_bytes())
            .collect();
        (ids, full.command.clone().map(Some), full.timeout_seconds)
    })
}

fn acks(bytes: &[u8]) -> bool {
    let peek = NotifyAckPeek::peek(bytes).map(|view| view.acknowledged);
    agrees::<StreamStatusAck, _>(bytes, peek, |full| full.acknowledged)
        && agrees::<ForwardGuardianAck, _>(bytes, peek, |full| full.acknowledged)
}

fn batch_answer(bytes: &[u8]) -> bool {
    let peek = BatchAnswerPeek::peek(bytes).map(|view| {
        let ids: Vec<_> = view
            .unknown_session_ids
            .iter()
            .map(|id| id.to_vec())
            .collect();
        (view.acknowledged_count, ids, view.truncated)
    });
    agrees::<BatchHeartbeatResponse, _>(bytes, peek, |full| {
        let ids = full
            .unknown_session_ids
            .iter()
            .map(|id| id.clone().into_bytes())
            .collect();
        (
            full.acknowledged_count,
            ids,
            full.unknown_session_ids_truncated,
        )
    })
}

/// Checks a peek on valid messages of its type, and on anything.
macro_rules! peeks_agree {
    ($($test:ident: $check:ident on $message:literal;)+) => {
        proptest! {
            $(#[test]
            fn $test(valid in message($message), other in hostile()) {
                prop_assert!(wire::validate(&valid).is_ok());
                prop_assert!($check(&valid));
                prop_assert!($check(&other));
            })+
        }
    };
}

peeks_agree! {
    command_responses: command_response on ".yuzu.agent.v1.CommandResponse";
    command_requests: command_request on ".yuzu.agent.v1.CommandRequest";
    registrations: register on ".yuzu.agent.v1.RegisterRequest";
    verdicts_on_registrations: register_answer on ".yuzu.agent.v1.RegisterResponse";
    heartbeats: heartbeat on ".yuzu.agent.v1.HeartbeatRequest";
    inventories: inventory on ".yuzu.agent.v1.InventoryReport";
    dispatches: send_command on ".yuzu.server.v1.SendCommandRequest";
    notice_acks: acks on ".yuzu.gateway.v1.StreamStatusAck";
    batch_answers: batch_answer on ".yuzu.gateway.v1.BatchHeartbeatResponse";
}

proptest! {
    /// What `agrees` rests on: the generated messages are ones that prost takes.
    #[test]
    fn generated_messages_are_valid((of, fields) in any_message()) {
        prop_assert!((of.recode)(&joined(fields)).is_ok());
    }
}
