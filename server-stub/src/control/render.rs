//! The state of a stub in JSON.
//!
//! Responsible for showing everything a developer asks for but tokens, CSRs, certificates,
//! parameters, outputs and payloads, which appear as sizes.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::config::Enrolment;
use crate::connection::ConnectionView;
use crate::directory::{Route, RouteState};
use crate::faults::{Action, FaultView};
use crate::records::{Counts, Message, Received};
use crate::rpc::Rpc;
use crate::state::State;

/// Heartbeats of one batch that are shown.
const MAX_HEARTBEATS: usize = 20;

pub(crate) const ROUTE_STATES: [RouteState; 3] = [
    RouteState::Registered,
    RouteState::Connected,
    RouteState::Disconnected,
];

pub(crate) fn route_state(state: RouteState) -> &'static str {
    match state {
        RouteState::Registered => "registered",
        RouteState::Connected => "connected",
        RouteState::Disconnected => "disconnected",
    }
}

pub(crate) fn enrolment(enrolment: &Enrolment) -> &'static str {
    match enrolment {
        Enrolment::Open => "open",
        Enrolment::Tokens(_) => "tokens",
        Enrolment::Pending => "pending",
        Enrolment::Denied => "denied",
    }
}

pub(crate) fn state(addr: SocketAddr, uptime: Duration, state: &State) -> Value {
    let of = |wanted: RouteState| state.routes().filter(|route| route.state == wanted).count();
    let agents: Map<String, Value> = ROUTE_STATES
        .map(|wanted| (route_state(wanted).to_owned(), json!(of(wanted))))
        .into_iter()
        .collect();
    let rpcs: Map<String, Value> = Rpc::ALL
        .map(|rpc| (rpc.name().to_owned(), counts(state.counts(rpc))))
        .into_iter()
        .collect();
    json!({
        "listen": addr.to_string(),
        "uptime_seconds": uptime.as_secs(),
        "enrolment": enrolment(state.enrolment()),
        "stream_limit": state.stream_limit(),
        "agents": agents,
        "known_sessions": state.known_sessions(),
        "in_flight": state.in_flight(),
        "max_in_flight": state.max_in_flight(),
        "rpcs": rpcs,
        "unknown_methods": state.unknown_methods(),
        "connections_accepted": state.connections_accepted(),
        "connections_refused": state.connections_refused(),
        "connections": state.connections().iter().map(connection).collect::<Vec<_>>(),
        "faults": state.faults().count(),
    })
}

fn counts(counts: &Counts) -> Value {
    json!({
        "received": counts.received,
        "bytes": counts.bytes,
        "in_flight": counts.in_flight,
        "max_in_flight": counts.max_in_flight,
        "hung": counts.hung,
        "ok": counts.ok,
        "refused": counts.refused,
        "failed": counts.failed,
        "cancelled": counts.cancelled,
        "broken": counts.broken,
        "faulted": counts.faulted,
        "undecodable": counts.undecodable,
        "forgotten": counts.forgotten,
    })
}

fn connection(view: &ConnectionView) -> Value {
    json!({
        "id": view.id,
        "peer": view.peer.to_string(),
        "streams": view.streams,
        "max_streams": view.max_streams,
        "stream_limit": view.stream_limit,
        "refused_streams": view.refused_streams,
        "pings": view.pings,
    })
}

/// A page of routes by agent id; `next` is the cursor of the following page or null.
pub(crate) fn routes(
    state: &State,
    wanted: Option<RouteState>,
    after: Option<&str>,
    limit: usize,
) -> Value {
    let fits = |route: &&Route| {
        wanted.is_none_or(|wanted| route.state == wanted)
            && after.is_none_or(|after| *route.agent_id > *after)
    };
    let mut page: Vec<&Route> = state.routes().filter(fits).collect();
    page.sort_unstable_by(|a, b| a.agent_id.cmp(&b.agent_id));
    let more = page.len() > limit;
    page.truncate(limit);
    let next = page.last().filter(|_| more).map(|route| &*route.agent_id);
    json!({ "next": next, "routes": page.iter().map(|r| route(r)).collect::<Vec<_>>() })
}

fn route(route: &Route) -> Value {
    json!({
        "agent_id": &*route.agent_id,
        "session_id": &*route.session_id,
        "state": route_state(route.state),
        "gateway_node": route.gateway_node,
        "stream_home_id": route.stream_home_id,
        "peer_addr": route.peer_addr,
        "wire_capabilities": route.wire_capabilities,
        "cluster_id": route.cluster_id,
    })
}

pub(crate) fn fault(view: &FaultView) -> Value {
    let rule = &view.fault;
    let action = match &rule.action {
        Action::Status(code, message) => json!({ "status": *code as i32, "message": message }),
        action => json!(format!("{action:?}")),
    };
    json!({
        "id": view.id.0,
        "rpc": rule.rpc.name(),
        "action": action,
        "after": rule.after,
        "every": rule.every,
        "times": rule.times,
        "agent_id": rule.filter.agent_id,
        "event": rule.filter.event.map(|event| event.as_str_name()),
        "replay": rule.filter.replay,
        "with_effect": rule.with_effect,
        "matched": view.matched,
        "fired": view.fired,
    })
}

pub(crate) fn received(entry: &Received, started: Instant, raw: bool) -> Value {
    let mut shown = json!({
        "seq": entry.seq,
        "at_ms": u64::try_from((entry.at - started).as_millis()).unwrap_or(u64::MAX),
        "connection": entry.connection,
        "peer": entry.peer.to_string(),
        "grpc_timeout": entry.grpc_timeout,
        "presented_session": entry.presented_session,
        "other_metadata": entry.other_metadata,
        "bytes": entry.raw.len(),
        "message": entry.message().ok().as_ref().map(message),
    });
    if raw {
        shown["raw_hex"] = hex(&entry.raw).into();
    }
    shown
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

fn message(message: &Message) -> Value {
    match message {
        Message::Register(request) => {
            let info = request.info.clone().unwrap_or_default();
            let platform = info.platform.unwrap_or_default();
            json!({
                "agent_id": info.agent_id,
                "hostname": info.hostname,
                "os": platform.os,
                "arch": platform.arch,
                "agent_version": info.agent_version,
                "plugins": info.plugins.iter().map(|plugin| &plugin.name).collect::<Vec<_>>(),
                "gateway_observed_peer": request.gateway_observed_peer,
                "enrollment_token_bytes": request.enrollment_token.len(),
                "machine_certificate_bytes": request.machine_certificate.len(),
                "csr_bytes": request.csr_pem.len(),
            })
        }
        Message::Heartbeats(batch) => {
            let beats = batch.heartbeats.iter().take(MAX_HEARTBEATS).map(|beat| {
                json!({
                    "session_id": beat.session_id,
                    "tags": beat.status_tags.len(),
                    "snapshot_bytes": beat.fleet_snapshot_json.len(),
                })
            });
            json!({
                "gateway_node": batch.gateway_node,
                "heartbeats": batch.heartbeats.len(),
                "first": beats.collect::<Vec<_>>(),
            })
        }
        Message::Inventory(report) => {
            let sizes: Map<String, Value> = report
                .plugin_data
                .iter()
                .map(|(plugin, data)| (plugin.clone(), data.len().into()))
                .collect();
            json!({
                "session_id": report.session_id,
                "plugin_bytes": sizes,
                "content_hashes": report.content_hashes.len(),
            })
        }
        Message::StreamStatus(notice) => json!({
            "agent_id": notice.agent_id,
            "session_id": notice.session_id,
            "event": notice.event,
            "peer_addr": notice.peer_addr,
            "gateway_node": notice.gateway_node,
            "wire_capabilities": notice.wire_capabilities,
            "cluster_id": notice.cluster_id,
            "stream_home_id": notice.stream_home_id,
        }),
        Message::Guardian(request) => {
            let frame = request.response.clone().unwrap_or_default();
            json!({
                "agent_id": request.agent_id,
                "command_id": frame.command_id,
                "plugin": frame.plugin,
                "action": frame.action,
                "status": frame.status,
                "output_bytes": frame.output.len(),
                "payload_bytes": frame.payload.len(),
            })
        }
    }
}
