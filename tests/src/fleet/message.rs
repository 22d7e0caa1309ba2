//! The messages an agent sends, encoded and framed.

use crate::raw::frame_message;
use bytes::Bytes;
use prost::Message;
use std::time::{SystemTime, UNIX_EPOCH};
use yuzu_proto::agent::v1::{
    AgentInfo, CommandResponse, HeartbeatRequest, InventoryReport, RegisterRequest,
    command_response::Status,
};
use yuzu_proto::common::v1::{Platform, PluginInfo, Timestamp};

/// A Register of this length at least, see [`filled`].
pub(crate) fn register(enrollment_token: &str, bytes: usize, agent_id: &str) -> Bytes {
    let request = RegisterRequest {
        info: Some(AgentInfo {
            agent_id: agent_id.into(),
            hostname: format!("{agent_id}.example"),
            platform: Some(Platform {
                os: "linux".into(),
                arch: "x86_64".into(),
                version: "6.12".into(),
            }),
            agent_version: "0.15.0".into(),
            plugins: ["shell", "inventory"].map(plugin).into(),
            ..AgentInfo::default()
        }),
        enrollment_token: enrollment_token.into(),
        ..RegisterRequest::default()
    };
    frame_message(&filled(request, bytes))
}

/// A request of this length at least, by what it tells of its last plugin; it may be a few bytes
/// longer, since lengths take bytes too.
fn filled(mut request: RegisterRequest, bytes: usize) -> RegisterRequest {
    let missing = bytes.saturating_sub(request.encoded_len());
    let plugins = request.info.iter_mut().flat_map(|info| &mut info.plugins);
    if let (Some(last), true) = (plugins.last(), missing > 0) {
        last.description = "d".repeat(missing);
        let over = request.encoded_len().saturating_sub(bytes);
        let plugins = request.info.iter_mut().flat_map(|info| &mut info.plugins);
        if let Some(last) = plugins.last() {
            last.description.truncate(missing.saturating_sub(over));
        }
    }
    request
}

fn plugin(name: &str) -> PluginInfo {
    PluginInfo {
        name: name.into(),
        version: "1.0.0".into(),
        ..PluginInfo::default()
    }
}

pub(crate) fn heartbeat(session_id: &str) -> Bytes {
    frame_message(&HeartbeatRequest {
        session_id: session_id.into(),
        sent_at: Some(now()),
        status_tags: [("load".to_owned(), "0.1".to_owned())].into(),
        ..HeartbeatRequest::default()
    })
}

pub(super) fn inventory(session_id: &str, bytes: usize) -> Bytes {
    frame_message(&InventoryReport {
        session_id: session_id.into(),
        collected_at: Some(now()),
        plugin_data: [("inventory".to_owned(), vec![b'i'; bytes].into())].into(),
        ..InventoryReport::default()
    })
}

pub(super) fn guardian(bytes: usize) -> Bytes {
    frame_message(&CommandResponse {
        plugin: yuzu_proto::GUARDIAN_PLUGIN.into(),
        status: Status::Success.into(),
        sent_at: Some(now()),
        payload: vec![b'g'; bytes].into(),
        ..CommandResponse::default()
    })
}

/// The `number`th RUNNING frame of a command, from 1.
pub(super) fn running(command_id: &str, number: u32) -> Bytes {
    answer(command_id, Status::Running, format!("frame {number}"))
}

pub(crate) fn success(command_id: &str, output: &str) -> Bytes {
    answer(command_id, Status::Success, output.into())
}

fn answer(command_id: &str, status: Status, output: String) -> Bytes {
    frame_message(&CommandResponse {
        command_id: command_id.into(),
        status: status.into(),
        output,
        sent_at: Some(now()),
        ..CommandResponse::default()
    })
}

fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp {
        millis_epoch: i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_is_as_long_as_it_is_to_be() {
        let request = RegisterRequest {
            info: Some(AgentInfo {
                agent_id: "agent-1".into(),
                plugins: vec![plugin("shell")],
                ..AgentInfo::default()
            }),
            ..RegisterRequest::default()
        };
        let own = request.encoded_len();
        for wanted in [200, 9_054] {
            assert_eq!(filled(request.clone(), wanted).encoded_len(), wanted);
        }
        assert_eq!(filled(request, 0).encoded_len(), own);
    }
}
