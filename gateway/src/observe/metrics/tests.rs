//! The rendered text against the contract, written out by hand.

mod at_start;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Metrics, RPC_NAMES, routes};
use at_start::AT_START;

fn rendered(metrics: &Metrics) -> String {
    String::from_utf8(metrics.reply().body.to_vec()).unwrap()
}

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
        "listener_accepted_total",
        r#"{listener="agent"}"#,
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
    ("gauge", "forward_owner_sessions", r#"{node="gw2"}"#),
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
        .listener_accepted_total
        .with_label_values(&["agent"]);
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
    metrics.forward_owner_sessions.with_label_values(&["gw2"]);

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
        ("forward_first_frame_ms", latency),
        ("fanout_target_count", fanout),
        ("fanout_dispatched_count", fanout),
        ("fanout_skipped_count", fanout),
        ("fanout_remote_dispatched_count", fanout),
        ("agent_rtt_ms", "1,2,5,10,20,50,100,200,500,1000,5000,+Inf"),
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
