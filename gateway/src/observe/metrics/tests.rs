//! The rendered text against the contract, written out by hand.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Metrics, RPC_NAMES, routes};

fn rendered(metrics: &Metrics) -> String {
    String::from_utf8(metrics.reply().body.to_vec()).unwrap()
}

/// Every family of the contract that is alive in this build and has a series from the start, in
/// the order of the contract: type, name, and the label sets that exist at 0.
const AT_START: &[(&str, &str, &[&str])] = &[
    ("gauge", "agents_current", &[r#"{node="gw1"}"#]),
    ("counter", "agents_connected_total", &[r#"{node="gw1"}"#]),
    ("counter", "agents_disconnected_total", &[r#"{node="gw1"}"#]),
    (
        "histogram",
        "agent_session_duration_ms",
        &[r#"{node="gw1"}"#],
    ),
    (
        "counter",
        "grpc_origin_ignored_total",
        &[
            r#"{mode="proxy_protocol",reason="untrusted_source"}"#,
            r#"{mode="proxy_protocol",reason="no_claim"}"#,
            r#"{mode="proxy_protocol",reason="bad_claim"}"#,
            r#"{mode="forwarded_for",reason="untrusted_source"}"#,
            r#"{mode="forwarded_for",reason="no_claim"}"#,
            r#"{mode="forwarded_for",reason="bad_claim"}"#,
        ],
    ),
    (
        "counter",
        "listener_closed_total",
        &[
            r#"{reason="no_preface"}"#,
            r#"{reason="idle"}"#,
            r#"{reason="unregistered"}"#,
            r#"{reason="answer_not_taken"}"#,
            r#"{reason="unauthorized"}"#,
            r#"{reason="over_budget"}"#,
            r#"{reason="pings"}"#,
            r#"{reason="settings"}"#,
            r#"{reason="resets"}"#,
            r#"{reason="idle_frames"}"#,
            r#"{reason="http2_flood"}"#,
        ],
    ),
    ("counter", "grpc_memory_refused_total", &[""]),
    ("gauge", "cluster_peers_resolved", &[r#"{node="gw1"}"#]),
    ("gauge", "cluster_peers_connected", &[r#"{node="gw1"}"#]),
    (
        "counter",
        "cluster_connect_failures_total",
        &[
            r#"{reason="resolve"}"#,
            r#"{reason="connect"}"#,
            r#"{reason="timeout"}"#,
            r#"{reason="tls"}"#,
            r#"{reason="refused"}"#,
            r#"{reason="protocol"}"#,
            r#"{reason="version"}"#,
            r#"{reason="secret"}"#,
            r#"{reason="unexpected_node"}"#,
            r#"{reason="name_taken"}"#,
            r#"{reason="direction"}"#,
            r#"{reason="too_many"}"#,
            r#"{reason="left"}"#,
        ],
    ),
    (
        "counter",
        "cluster_datagrams_rejected_total",
        &[
            r#"{reason="malformed"}"#,
            r#"{reason="forged"}"#,
            r#"{reason="replayed"}"#,
            r#"{reason="stale"}"#,
            r#"{reason="too_many_senders"}"#,
        ],
    ),
    ("counter", "cluster_address_cap_exceeded_total", &[""]),
    ("gauge", "adjacency_agents", &[r#"{node="all"}"#]),
    ("counter", "adjacency_resync_total", &[""]),
    ("counter", "adjacency_full_total", &[""]),
    ("gauge", "adjacency_lag_ms", &[""]),
    ("gauge", "config_generation", &[""]),
    ("gauge", "config_last_reload_failed", &[""]),
    ("gauge", "memory_shedding_active", &[""]),
    ("counter", "memory_shedding_suspensions_total", &[""]),
    (
        "counter",
        "memory_shedding_transition_failures_total",
        &[r#"{action="suspend"}"#, r#"{action="resume"}"#],
    ),
    (
        "gauge",
        "memory_shedding_transition_failing",
        &[r#"{action="suspend"}"#, r#"{action="resume"}"#],
    ),
    ("gauge", "memory_shedding_high_water_bytes", &[""]),
    ("gauge", "memory_shedding_low_water_bytes", &[""]),
    ("gauge", "memory_shedding_inactive", &[""]),
    ("counter", "commands_timed_out_total", &[""]),
    ("counter", "commands_dropped_backpressure_total", &[""]),
    ("counter", "command_slow_callers_total", &[""]),
    ("counter", "command_answers_unplaced_total", &[""]),
    ("counter", "stream_write_errors_total", &[""]),
    ("histogram", "stream_queue_len_distribution", &[""]),
    ("histogram", "fanout_target_count", &[""]),
    ("histogram", "fanout_dispatched_count", &[""]),
    ("histogram", "fanout_skipped_count", &[""]),
    ("histogram", "fanout_remote_dispatched_count", &[""]),
    (
        "counter",
        "register_refused_total",
        &[r#"{reason="agent_id_length"}"#],
    ),
    ("counter", "session_limit_rejected_total", &[""]),
    (
        "counter",
        "agent_owner_restarts_total",
        &[
            r#"{outcome="recovered"}"#,
            r#"{outcome="disconnected_only"}"#,
            r#"{outcome="gave_up"}"#,
        ],
    ),
    (
        "counter",
        "heartbeat_rejected_total",
        &[
            r#"{reason="unknown_session"}"#,
            r#"{reason="no_connection"}"#,
            r#"{reason="registry_unavailable"}"#,
        ],
    ),
    (
        "counter",
        "heartbeat_session_mismatch_total",
        &[r#"{event="security"}"#],
    ),
    (
        "counter",
        "inventory_rejected_total",
        &[
            r#"{reason="unknown_session"}"#,
            r#"{reason="no_connection"}"#,
            r#"{reason="registry_unavailable"}"#,
            r#"{reason="connection_mismatch"}"#,
        ],
    ),
    ("counter", "heartbeat_coalesced_total", &[""]),
    (
        "counter",
        "heartbeat_buffer_dropped_total",
        &[
            r#"{reason="buffer_full"}"#,
            r#"{reason="snapshot_oversize"}"#,
            r#"{reason="snapshot_evicted"}"#,
            r#"{reason="heartbeat_oversize"}"#,
            r#"{reason="heartbeat_invalid"}"#,
            r#"{reason="chunk_rejected"}"#,
        ],
    ),
    ("counter", "heartbeat_unknown_truncated_total", &[""]),
    (
        "counter",
        "heartbeat_verdict_dropped_total",
        &[
            r#"{reason="malformed"}"#,
            r#"{reason="not_local"}"#,
            r#"{reason="circuit_open"}"#,
            r#"{reason="queue_full"}"#,
        ],
    ),
    (
        "counter",
        "upstream_rpc_errors_total",
        &[
            r#"{code="encode",rpc_name="register"}"#,
            r#"{code="encode",rpc_name="inventory"}"#,
            r#"{code="encode",rpc_name="notify_stream"}"#,
            r#"{code="encode",rpc_name="guardian"}"#,
            r#"{code="exception",rpc_name="register"}"#,
            r#"{code="exception",rpc_name="inventory"}"#,
            r#"{code="exception",rpc_name="notify_stream"}"#,
            r#"{code="exception",rpc_name="guardian"}"#,
            r#"{code="exception",rpc_name="batch_heartbeat"}"#,
        ],
    ),
    (
        "counter",
        "upstream_circuit_transitions_total",
        &[
            r#"{state="closed"}"#,
            r#"{state="open"}"#,
            r#"{state="half_open"}"#,
        ],
    ),
    ("gauge", "upstream_server_max_streams", &[""]),
    ("gauge", "upstream_permit_limit", CLASSES),
    ("gauge", "upstream_permits_held", CLASSES),
    ("gauge", "upstream_permits_waiting", CLASSES),
    (
        "counter",
        "upstream_permit_refused_total",
        &[
            r#"{class="register",reason="queue_full"}"#,
            r#"{class="register",reason="deadline"}"#,
            r#"{class="register",reason="stopping"}"#,
            r#"{class="inventory",reason="queue_full"}"#,
            r#"{class="inventory",reason="deadline"}"#,
            r#"{class="inventory",reason="stopping"}"#,
            r#"{class="replay",reason="queue_full"}"#,
            r#"{class="replay",reason="deadline"}"#,
            r#"{class="replay",reason="stopping"}"#,
        ],
    ),
    ("counter", "upstream_calls_dropped_total", CLASSES),
    ("counter", "registration_replay_total", &[""]),
    (
        "gauge",
        "registration_replay_queue_depth",
        &[r#"{node="gw1"}"#],
    ),
    (
        "counter",
        "registration_replay_triggered_total",
        &[
            r#"{trigger="heartbeat"}"#,
            r#"{trigger="server_lost_state"}"#,
            r#"{trigger="notify_loss"}"#,
        ],
    ),
    ("gauge", "upstream_slow", &[""]),
    ("gauge", "upstream_backpressure_duty_cycle", &[""]),
    (
        "gauge",
        "upstream_lane_saturated",
        &[
            r#"{lane="permits"}"#,
            r#"{lane="notify"}"#,
            r#"{lane="guardian"}"#,
        ],
    ),
    ("counter", "guardian_forward_accepted_total", &[""]),
    (
        "counter",
        "guardian_forward_dropped_total",
        &[r#"{reason="circuit_open"}"#, r#"{reason="at_capacity"}"#],
    ),
    ("gauge", "upstream_notify_pending", &[""]),
    ("gauge", "upstream_notify_inflight", &[""]),
    ("gauge", "upstream_notify_pending_hwm", &[""]),
    ("gauge", "upstream_notify_pending_max", &[""]),
    ("counter", "upstream_notify_coalesced_total", &[""]),
    ("counter", "upstream_notify_requeued_total", &[""]),
    (
        "counter",
        "upstream_notify_dropped_total",
        &[r#"{reason="at_capacity"}"#, r#"{reason="unknown"}"#],
    ),
    (
        "counter",
        "upstream_notify_lost_total",
        &[
            r#"{event="connected",reason="evicted"}"#,
            r#"{event="connected",reason="at_capacity"}"#,
            r#"{event="connected",reason="rejected"}"#,
            r#"{event="connected",reason="crashed"}"#,
            r#"{event="connected",reason="shutdown"}"#,
            r#"{event="connected",reason="unacknowledged"}"#,
            r#"{event="disconnected",reason="evicted"}"#,
            r#"{event="disconnected",reason="at_capacity"}"#,
            r#"{event="disconnected",reason="rejected"}"#,
            r#"{event="disconnected",reason="crashed"}"#,
            r#"{event="disconnected",reason="shutdown"}"#,
            r#"{event="disconnected",reason="unacknowledged"}"#,
        ],
    ),
    (
        "counter",
        "upstream_notify_unacknowledged_total",
        &[r#"{event="connected"}"#, r#"{event="disconnected"}"#],
    ),
    ("gauge", "upstream_notify_unacked_keys", &[""]),
    ("gauge", "upstream_notify_unacked_slow_keys", &[""]),
    (
        "counter",
        "upstream_notify_unacked_ended_total",
        &[
            r#"{outcome="superseded"}"#,
            r#"{outcome="acknowledged"}"#,
            r#"{outcome="session_ended"}"#,
            r#"{outcome="window_expired"}"#,
            r#"{outcome="shutdown"}"#,
            r#"{outcome="lost"}"#,
        ],
    ),
    (
        "counter",
        "agent_identity_rejected_total",
        &[
            r#"{reason="no_certificate"}"#,
            r#"{reason="bad_certificate"}"#,
            r#"{reason="revoked"}"#,
            r#"{reason="identity_mismatch"}"#,
        ],
    ),
    (
        "counter",
        "mgmt_auth_rejected_total",
        &[
            r#"{reason="internal_error"}"#,
            r#"{reason="no_pins_configured"}"#,
            r#"{reason="no_pins_resolved"}"#,
            r#"{reason="pin_mismatch"}"#,
            r#"{reason="missing_server_auth_eku"}"#,
            r#"{reason="bad_peer_cert"}"#,
            r#"{reason="bad_pin_config"}"#,
            r#"{reason="no_uri_san"}"#,
            r#"{reason="identity_mismatch"}"#,
            r#"{reason="identity_unresolved"}"#,
            r#"{reason="revoked"}"#,
        ],
    ),
    (
        "counter",
        "mgmt_auth_admitted_total",
        &[r#"{method="identity"}"#, r#"{method="pin"}"#],
    ),
    ("counter", "mgmt_auth_pin_unresolved_total", &[""]),
    ("gauge", "mgmt_pin_rotated_timestamp_seconds", &[""]),
    (
        "counter",
        "grpc_dropped_data_bytes_total",
        &[
            r#"{reason="extra_request_data"}"#,
            r#"{reason="stream_ended"}"#,
        ],
    ),
    ("counter", "grpc_connection_killed_total", &[""]),
    ("counter", "grpc_recv_timeout_total", &[""]),
    ("gauge", "beam_process_count", &[r#"{node="gw1"}"#]),
    ("gauge", "beam_scheduler_util", &[r#"{node="gw1"}"#]),
];

const CLASSES: &[&str] = &[
    r#"{class="register"}"#,
    r#"{class="inventory"}"#,
    r#"{class="replay"}"#,
];

/// Families that get a series when something is named: a plugin, a listener, a call, a sample.
const LATER: &[(&str, &str, &str)] = &[
    (
        "counter",
        "cluster_events_total",
        r#"{event="node_up",node="gw2"}"#,
    ),
    ("counter", "commands_dispatched_total", r#"{plugin="p"}"#),
    (
        "histogram",
        "command_duration_ms",
        r#"{plugin="p",status="SUCCESS"}"#,
    ),
    (
        "histogram",
        "upstream_rpc_duration_ms",
        r#"{rpc_name="register"}"#,
    ),
    (
        "histogram",
        "upstream_permit_wait_seconds",
        r#"{class="register"}"#,
    ),
    (
        "counter",
        "listener_proxy_header_failures_total",
        r#"{kind="timeout",listener="agent"}"#,
    ),
    (
        "counter",
        "listener_source_refused_total",
        r#"{listener="agent"}"#,
    ),
    (
        "counter",
        "listener_source_delayed_total",
        r#"{listener="agent"}"#,
    ),
    (
        "counter",
        "upstream_tls_handshake_failures_total",
        r#"{kind="unknown_ca",rpc_name="register"}"#,
    ),
    (
        "gauge",
        "cert_expiry_timestamp_seconds",
        r#"{name="agent",role="listener"}"#,
    ),
    (
        "gauge",
        "cert_file_readable",
        r#"{name="agent",role="listener"}"#,
    ),
    (
        "counter",
        "listener_tls_handshake_failures_total",
        r#"{kind="other",listener="agent"}"#,
    ),
    ("gauge", "listener_connections", r#"{listener="agent"}"#),
    ("gauge", "listener_connections_max", r#"{listener="agent"}"#),
    ("gauge", "beam_memory_bytes", r#"{node="gw1",type="total"}"#),
    (
        "gauge",
        "upstream_endpoint_active",
        r#"{endpoint="server:50055"}"#,
    ),
];

fn line_of_type(kind: &str, name: &str) -> String {
    format!("# TYPE yuzu_gw_{name} {kind}")
}

/// The lines of a text that are neither help nor a part of a histogram other than its count.
fn series(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter(|line| !line.starts_with("# HELP"))
        .filter(|line| !line.contains("_bucket{"))
        .filter(|line| {
            let name = line.split(['{', ' ']).next().unwrap();
            !name.ends_with("_sum")
        })
        .map(str::to_owned)
        .collect()
}

fn expected(kind: &str, name: &str, labels: &[&str]) -> Vec<String> {
    let count = if kind == "histogram" { "_count" } else { "" };
    let mut lines = vec![line_of_type(kind, name)];
    lines.extend(
        labels
            .iter()
            .map(|set| format!("yuzu_gw_{name}{count}{set} 0")),
    );
    lines
}

#[test]
fn gen_4_every_series_of_a_closed_label_set_exists_at_zero() {
    let metrics = Metrics::new("gw1").unwrap();
    let want: BTreeSet<String> = AT_START
        .iter()
        .flat_map(|(kind, name, labels)| expected(kind, name, labels))
        .collect();
    let have = series(&rendered(&metrics));
    let missing: Vec<_> = want.difference(&have).collect();
    let extra: Vec<_> = have.difference(&want).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "missing {missing:#?}, extra {extra:#?}"
    );
}

#[test]
fn families_with_open_label_sets_have_the_labels_of_the_contract() {
    let metrics = Metrics::new("gw1").unwrap();
    metrics.commands_dispatched_total.with_label_values(&["p"]);
    metrics
        .command_duration_ms
        .with_label_values(&["p", "SUCCESS"]);
    metrics
        .upstream_rpc_duration_ms
        .with_label_values(&["register"]);
    metrics
        .upstream_permit_wait_seconds
        .with_label_values(&["register"]);
    metrics
        .listener_proxy_header_failures_total
        .with_label_values(&["agent", "timeout"]);
    metrics
        .listener_source_refused_total
        .with_label_values(&["agent"]);
    metrics
        .listener_source_delayed_total
        .with_label_values(&["agent"]);
    metrics
        .upstream_endpoint_active
        .with_label_values(&["server:50055"]);
    metrics
        .upstream_tls_handshake_failures_total
        .with_label_values(&["register", "unknown_ca"]);
    for family in [
        &metrics.cert_expiry_timestamp_seconds,
        &metrics.cert_file_readable,
    ] {
        family.with_label_values(&["listener", "agent"]);
    }
    metrics
        .listener_tls_handshake_failures_total
        .with_label_values(&["agent", "other"]);
    metrics.listener_connections.with_label_values(&["agent"]);
    metrics
        .listener_connections_max
        .with_label_values(&["agent"]);
    metrics.beam_memory_bytes.with_label_values(&["total"]);
    metrics
        .cluster_events_total
        .with_label_values(&["node_up", "gw2"]);

    let want: BTreeSet<String> = AT_START
        .iter()
        .map(|(kind, name, labels)| expected(kind, name, labels))
        .chain(
            LATER
                .iter()
                .map(|(kind, name, labels)| expected(kind, name, &[labels])),
        )
        .flatten()
        .collect();
    assert_eq!(series(&rendered(&metrics)), want);
}

fn buckets(text: &str, name: &str) -> Vec<String> {
    text.lines()
        .filter(|line| line.starts_with(&format!("yuzu_gw_{name}_bucket{{")))
        .map(|line| {
            let from = line.find("le=\"").unwrap() + 4;
            line[from..].split('"').next().unwrap().to_owned()
        })
        .collect()
}

#[test]
fn histograms_have_the_buckets_of_the_contract() {
    let metrics = Metrics::new("gw1").unwrap();
    metrics
        .command_duration_ms
        .with_label_values(&["p", "SUCCESS"]);
    metrics
        .upstream_rpc_duration_ms
        .with_label_values(&["register"]);
    metrics
        .upstream_permit_wait_seconds
        .with_label_values(&["register"]);
    let text = rendered(&metrics);

    let latency = "1,5,10,25,50,100,250,500,1000,5000,10000,+Inf";
    let fanout = "1,10,100,1000,10000,100000,1000000,+Inf";
    for (name, want) in [
        (
            "agent_session_duration_ms",
            "1000,10000,60000,300000,3600000,+Inf",
        ),
        ("stream_queue_len_distribution", "10,100,500,1000,5000,+Inf"),
        ("command_duration_ms", latency),
        ("upstream_rpc_duration_ms", latency),
        ("fanout_target_count", fanout),
        ("fanout_dispatched_count", fanout),
        ("fanout_skipped_count", fanout),
        ("fanout_remote_dispatched_count", fanout),
        (
            "upstream_permit_wait_seconds",
            "0.001,0.005,0.01,0.05,0.1,0.25,0.5,1,2.5,5,10,25,+Inf",
        ),
    ] {
        assert_eq!(buckets(&text, name).join(","), want, "{name}");
    }
}

#[test]
fn help_is_plain_ascii_and_never_empty() {
    let metrics = Metrics::new("gw1").unwrap();
    let text = rendered(&metrics);
    let mut seen = 0;
    for line in text.lines().filter(|line| line.starts_with("# HELP ")) {
        let help = line.splitn(4, ' ').nth(3).unwrap_or_default();
        assert!(
            help.len() > 5 && help.bytes().all(|byte| (32..127).contains(&byte)),
            "{line}"
        );
        seen += 1;
    }
    assert_eq!(seen, AT_START.len());
}

#[test]
fn the_node_name_is_escaped() {
    let metrics = Metrics::new("a\"b\\c\nd").unwrap();
    assert!(rendered(&metrics).contains(r#"agents_current{node="a\"b\\c\nd"} 0"#));
}

#[test]
fn rpc_names_are_those_of_the_contract() {
    assert_eq!(
        RPC_NAMES.join(","),
        "register,inventory,notify_stream,guardian,batch_heartbeat"
    );
}

#[test]
fn metrics_are_served_as_prometheus_text() {
    let metrics = Arc::new(Metrics::new("gw1").unwrap());
    let routes = routes(metrics.clone());
    metrics.commands_timed_out_total.inc_by(3);
    let reply = routes.call("/metrics").unwrap();
    assert_eq!(reply.status, 200);
    assert_eq!(reply.content_type, "text/plain; version=0.0.4");
    let text = std::str::from_utf8(&reply.body).unwrap();
    assert!(text.contains("\nyuzu_gw_commands_timed_out_total 3\n"));
}
