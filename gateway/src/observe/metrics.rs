//! Every metric family of the gateway, declared once.
//!
//! Responsible for names, labels, buckets and for creating each series of a closed label set at 0
//! (GEN-4). Must never be read to decide something.
//!
//! The field of a family has its name without the prefix `yuzu_gw_`, and its documentation is its
//! HELP text. A family is listed when the gateway keeps it up to date, never before.

mod families;
mod plugins;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use prometheus::{
    Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, TEXT_FORMAT,
    TextEncoder,
};

use families::{Families, families};
pub use plugins::{MAX_PLUGINS, OTHER, PluginLabels};

use super::http::{Reply, Routes};

const LATENCY_MS: &[f64] = &[
    1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 5_000.0, 10_000.0,
];
const RTT_MS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 5_000.0,
];
const SESSION_MS: &[f64] = &[1_000.0, 10_000.0, 60_000.0, 300_000.0, 3_600_000.0];
const QUEUE_LEN: &[f64] = &[10.0, 100.0, 500.0, 1_000.0, 5_000.0];
const FANOUT: &[f64] = &[1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0, 1_000_000.0];
const PERMIT_WAIT_S: &[f64] = &[
    0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0,
];

/// The values of the label `rpc_name` of upstream calls.
pub const RPC_NAMES: [&str; 5] = [
    "register",
    "inventory",
    "notify_stream",
    "guardian",
    "batch_heartbeat",
];
const PERMIT_CLASSES: &[&str] = &["register", "inventory", "replay"];
const NOTICE_EVENTS: &[&str] = &["connected", "disconnected"];

families! {
    /// The families, registered in [`Metrics::registry`].
    pub struct Metrics;

    /// Connected agents of this node, updated every gauge interval
    agents_current: IntGauge = node_gauge();
    /// Agent sessions established
    agents_connected_total: IntCounter = node_counter();
    /// Agent sessions ended
    agents_disconnected_total: IntCounter = node_counter();
    /// Length of ended agent sessions in milliseconds
    agent_session_duration_ms: Histogram = node_histogram(SESSION_MS);
    /// Commands written to agents, by dispatched plugin (at most 64 values, then other)
    commands_dispatched_total: IntCounterVec = counters(&["plugin"], &[]);
    /// Command targets without a terminal frame at the timeout
    commands_timed_out_total: IntCounter = counter();
    /// Commands dropped because the outbound queue of the agent was full
    commands_dropped_backpressure_total: IntCounter = counter();
    /// Callers given up because they did not read their answers
    command_slow_callers_total: IntCounter = counter();
    /// Large answers received without a place after a second
    command_answers_unplaced_total: IntCounter = counter();
    /// Failed writes to an agent stream
    stream_write_errors_total: IntCounter = counter();
    /// Outbound queue length of an agent at a backpressure event
    stream_queue_len_distribution: Histogram = histogram(QUEUE_LEN);
    /// Time from dispatch to the terminal frame in milliseconds, by dispatched plugin and status
    command_duration_ms: HistogramVec = histograms(&["plugin", "status"], LATENCY_MS);
    /// Targets of a SendCommand
    fanout_target_count: Histogram = histogram(FANOUT);
    /// Targets of a SendCommand that were sent the command
    fanout_dispatched_count: Histogram = histogram(FANOUT);
    /// Targets of a SendCommand that were not sent the command
    fanout_skipped_count: Histogram = histogram(FANOUT);
    /// Targets of a SendCommand that are held by other gateway nodes
    fanout_remote_dispatched_count: Histogram = histogram(FANOUT);
    /// Registrations refused at the edge
    register_refused_total: IntCounterVec = counters(&["reason"], &[&["agent_id_length"]]);
    /// Sessions refused by the per-connection cap
    session_limit_rejected_total: IntCounter = counter();
    /// Restarts of the task that owns an agent session
    agent_owner_restarts_total: IntCounterVec =
        counters(&["outcome"], &[&["recovered"], &["disconnected_only"], &["gave_up"]]);

    /// Heartbeats not admitted
    heartbeat_rejected_total: IntCounterVec = counters(
        &["reason"],
        &[&["unknown_session"], &["no_connection"], &["registry_unavailable"]]
    );
    /// Heartbeats for a held session that came over another connection
    heartbeat_session_mismatch_total: IntCounterVec = counters(&["event"], &[&["security"]]);
    /// Inventory reports not admitted
    inventory_rejected_total: IntCounterVec = counters(
        &["reason"],
        &[
            &["unknown_session"],
            &["no_connection"],
            &["registry_unavailable"],
            &["connection_mismatch"],
        ]
    );
    /// Heartbeats replaced by a newer one of the same session before they were sent
    heartbeat_coalesced_total: IntCounter = counter();
    /// Heartbeats, or parts of them, given up before they reached the server
    heartbeat_buffer_dropped_total: IntCounterVec = counters(
        &["reason"],
        &[
            &["buffer_full"],
            &["snapshot_oversize"],
            &["snapshot_evicted"],
            &["heartbeat_oversize"],
            &["heartbeat_invalid"],
            &["chunk_rejected"],
        ]
    );
    /// Heartbeat answers that listed a part of the unknown sessions only
    heartbeat_unknown_truncated_total: IntCounter = counter();
    /// Sessions named in heartbeat answers that were not queued for replay
    heartbeat_verdict_dropped_total: IntCounterVec = counters(
        &["reason"],
        &[&["malformed"], &["not_local"], &["circuit_open"], &["queue_full"]]
    );

    /// Duration of successful calls to the server in milliseconds
    upstream_rpc_duration_ms: HistogramVec = histograms(&["rpc_name"], LATENCY_MS);
    /// Failed calls to the server, by call and status code or error class
    upstream_rpc_errors_total: IntCounterVec = counters(
        &["rpc_name", "code"],
        &[
            &["register", "encode"],
            &["inventory", "encode"],
            &["notify_stream", "encode"],
            &["guardian", "encode"],
            &["register", "exception"],
            &["inventory", "exception"],
            &["notify_stream", "exception"],
            &["guardian", "exception"],
            &["batch_heartbeat", "exception"],
        ]
    );
    /// Calls that found no connection because TLS to the server failed, by call and alert
    upstream_tls_handshake_failures_total: IntCounterVec = counters(&["rpc_name", "kind"], &[]);
    /// Transitions of the circuit breaker, by the state entered
    upstream_circuit_transitions_total: IntCounterVec =
        counters(&["state"], &[&["closed"], &["open"], &["half_open"]]);
    /// Concurrent streams the server allows; 0 means unknown or unlimited
    upstream_server_max_streams: IntGauge = gauge();
    /// 1 for the endpoint that calls go to, 0 for the others and while there is no connection
    upstream_endpoint_active: IntGaugeVec = gauges("endpoint", &[]);
    /// Permits in force
    upstream_permit_limit: IntGaugeVec = gauges("class", PERMIT_CLASSES);
    /// Permits held
    upstream_permits_held: IntGaugeVec = gauges("class", PERMIT_CLASSES);
    /// Callers waiting for a permit
    upstream_permits_waiting: IntGaugeVec = gauges("class", PERMIT_CLASSES);
    /// Time a caller waited for its permit in seconds
    upstream_permit_wait_seconds: HistogramVec = histograms(&["class"], PERMIT_WAIT_S);
    /// Callers refused a permit
    upstream_permit_refused_total: IntCounterVec = counter_grid(
        ["class", "reason"],
        PERMIT_CLASSES,
        &["queue_full", "deadline", "stopping"]
    );
    /// Calls never sent because their deadline passed while they waited
    upstream_calls_dropped_total: IntCounterVec =
        counters(&["class"], &[&["register"], &["inventory"], &["replay"]]);
    /// Total registration replay attempts by the drip, any outcome
    registration_replay_total: IntCounter = counter();
    /// Registration replays waiting for their turn
    registration_replay_queue_depth: IntGauge = node_gauge();
    /// Registration replays started, by what started them
    registration_replay_triggered_total: IntCounterVec =
        counters(&["trigger"], &[&["heartbeat"], &["server_lost_state"], &["notify_loss"]]);
    /// 1 while calls to the server were held back in half of the last minute or more
    upstream_slow: IntGauge = gauge();
    /// Share of the last minute in which calls to the server were held back, 0 to 1
    upstream_backpressure_duty_cycle: Gauge = ratio();
    /// 1 when the lane was full at the latest sample
    upstream_lane_saturated: IntGaugeVec = gauges("lane", &["permits", "notify", "guardian"]);
    /// Guardian frames accepted for forwarding
    guardian_forward_accepted_total: IntCounter = counter();
    /// Guardian frames dropped
    guardian_forward_dropped_total: IntCounterVec =
        counters(&["reason"], &[&["circuit_open"], &["at_capacity"]]);

    /// Stream status notices held
    upstream_notify_pending: IntGauge = gauge();
    /// Stream status notices being sent
    upstream_notify_inflight: IntGauge = gauge();
    /// Most stream status notices held over the last one to two minutes
    upstream_notify_pending_hwm: IntGauge = gauge();
    /// Cap on held stream status notices in force
    upstream_notify_pending_max: IntGauge = gauge();
    /// Stream status notices replaced while they were held
    upstream_notify_coalesced_total: IntCounter = counter();
    /// Stream status notices held again after a failed send
    upstream_notify_requeued_total: IntCounter = counter();
    /// Stream status notices refused at admission
    upstream_notify_dropped_total: IntCounterVec =
        counters(&["reason"], &[&["at_capacity"], &["unknown"]]);
    /// Stream status notices lost for good
    upstream_notify_lost_total: IntCounterVec = counter_grid(
        ["event", "reason"],
        NOTICE_EVENTS,
        &["evicted", "at_capacity", "rejected", "crashed", "shutdown", "unacknowledged"]
    );
    /// Stream status notices the server answered with acknowledged=false
    upstream_notify_unacknowledged_total: IntCounterVec =
        counters(&["event"], &[&["connected"], &["disconnected"]]);
    /// Stream status notices the server did not record, to be sent again
    upstream_notify_unacked_keys: IntGauge = gauge();
    /// Those of them in the slow phase
    upstream_notify_unacked_slow_keys: IntGauge = gauge();
    /// How stream status notices that the server did not record ended
    upstream_notify_unacked_ended_total: IntCounterVec = counters(
        &["outcome"],
        &[
            &["superseded"],
            &["acknowledged"],
            &["session_ended"],
            &["window_expired"],
            &["shutdown"],
            &["lost"],
        ]
    );

    /// Calls of agents refused because of their certificate, where identities are enforced
    agent_identity_rejected_total: IntCounterVec = counters(
        &["reason"],
        &[&["no_certificate"], &["bad_certificate"], &["revoked"], &["identity_mismatch"]]
    );
    /// Management calls refused because of their peer
    mgmt_auth_rejected_total: IntCounterVec = counters(
        &["reason"],
        &[
            &["internal_error"],
            &["no_pins_configured"],
            &["no_pins_resolved"],
            &["pin_mismatch"],
            &["missing_server_auth_eku"],
            &["bad_peer_cert"],
            &["bad_pin_config"],
            &["no_uri_san"],
            &["identity_mismatch"],
            &["identity_unresolved"],
            &["revoked"],
        ]
    );
    /// Management calls admitted, by what admitted their peer
    mgmt_auth_admitted_total: IntCounterVec =
        counters(&["method"], &[&["identity"], &["pin"]]);
    /// Management calls judged while a configured pin has never had a key
    mgmt_auth_pin_unresolved_total: IntCounter = counter();
    /// Unix time at which a pin file last brought another key; 0 means not since the start
    mgmt_pin_rotated_timestamp_seconds: IntGauge = gauge();
    /// Unix time at which the first certificate of a file ends
    cert_expiry_timestamp_seconds: IntGaugeVec = labelled_gauges(&["role", "name"]);
    /// 1 while a certificate file can be read
    cert_file_readable: IntGaugeVec = labelled_gauges(&["role", "name"]);
    /// Request bytes discarded
    grpc_dropped_data_bytes_total: IntCounterVec =
        counters(&["reason"], &[&["extra_request_data"], &["stream_ended"]]);
    /// Calls whose claim about their origin was not used
    grpc_origin_ignored_total: IntCounterVec = counter_grid(
        ["mode", "reason"],
        &["proxy_protocol", "forwarded_for"],
        &["untrusted_source", "no_claim", "bad_claim"]
    );
    /// Connections without a usable PROXY header
    listener_proxy_header_failures_total: IntCounterVec =
        counters(&["listener", "kind"], &[]);
    /// Connections closed because they held too much memory, flooded or left answers untaken
    grpc_connection_killed_total: IntCounter = counter();
    /// Requests refused because unfinished requests of all connections hold too much memory
    grpc_memory_refused_total: IntCounter = counter();
    /// Requests that were not complete in time
    grpc_recv_timeout_total: IntCounter = counter();
    /// Connections taken since the start
    listener_accepted_total: IntCounterVec = counters(&["listener"], &[]);
    /// Connections closed at once because their source address had too many
    listener_source_refused_total: IntCounterVec = counters(&["listener"], &[]);
    /// Connections that waited because their source address had just flooded
    listener_source_delayed_total: IntCounterVec = counters(&["listener"], &[]);
    /// Connections closed by the gateway, by the rule that ended them
    listener_closed_total: IntCounterVec = counters(
        &["reason"],
        &[
            &["no_preface"],
            &["idle"],
            &["ping_not_answered"],
            &["unregistered"],
            &["answer_not_taken"],
            &["unauthorized"],
            &["over_budget"],
            &["pings"],
            &["settings"],
            &["resets"],
            &["idle_frames"],
            &["http2_flood"],
        ]
    );
    /// TLS handshakes of peers that failed
    listener_tls_handshake_failures_total: IntCounterVec = counters(&["listener", "kind"], &[]);
    /// Open connections
    listener_connections: IntGaugeVec = gauges("listener", &[]);
    /// Ceiling on open connections in force
    listener_connections_max: IntGaugeVec = gauges("listener", &[]);

    /// Addresses of other gateways that the seeds have at the latest look
    cluster_peers_resolved: IntGauge = node_gauge();
    /// Other gateways that this one hears of, or addresses of its seeds where those are more
    cluster_peers_expected: IntGauge = node_gauge();
    /// Other gateways that this one has a proven connection with
    cluster_peers_connected: IntGauge = node_gauge();
    /// Other gateways that were not linked, by reason
    cluster_connect_failures_total: IntCounterVec = counters(
        &["reason"],
        &[
            &["resolve"],
            &["connect"],
            &["timeout"],
            &["tls"],
            &["refused"],
            &["protocol"],
            &["version"],
            &["secret"],
            &["unexpected_node"],
            &["name_taken"],
            &["direction"],
            &["too_many"],
            &["left"],
        ]
    );
    /// Datagrams of other gateways that were refused
    cluster_datagrams_rejected_total: IntCounterVec = counters(
        &["reason"],
        &[
            &["malformed"],
            &["version"],
            &["forged"],
            &["replayed"],
            &["stale"],
            &["misaddressed"],
            &["too_many_senders"],
        ]
    );
    /// Addresses of seeds that were one too many in the life of the process
    cluster_address_cap_exceeded_total: IntCounter = counter();
    /// Other gateways that came or went (at most 256 nodes, then other)
    cluster_events_total: IntCounterVec = counters(&["event", "node"], &[]);

    /// 1 while no public gateway of the cluster is alive and stays
    cluster_no_live_public_node: IntGauge = gauge();

    /// Agents of other gateways that this one knows to be there, of all of them together
    adjacency_agents: IntGaugeVec = gauges("node", &["all"]);
    /// Shards of agents that this gateway asked another for again, having noticed a difference
    adjacency_resync_total: IntCounter = counter();
    /// Messages of other gateways with agents for which this one has no room
    adjacency_full_total: IntCounter = counter();
    /// Age of the oldest change to this gateway's agents that another gateway has not confirmed
    adjacency_lag_ms: IntGauge = gauge();

    /// GOAWAYs by which this gateway asked agents to move, one for each connection
    goaway_sent_total: IntCounterVec = counters(
        &["reason"],
        &[&["draining"], &["memory"], &["cpu"], &["imbalance"]]
    );
    /// Agents that this gateway asked to move
    agent_migrations_total: IntCounterVec = counters(
        &["reason"],
        &[&["draining"], &["memory"], &["cpu"], &["imbalance"]]
    );

    /// Round trips between this gateway and agents in milliseconds
    agent_rtt_ms: Histogram = histogram(RTT_MS);

    /// Forwarded sessions that this gateway has open to others
    forward_sessions: IntGauge = gauge();
    /// Those of them to each other gateway; only with observe.metrics_per_peer
    forward_owner_sessions: IntGaugeVec = gauges("node", &[]);
    /// Forwarded sessions that this gateway serves for others
    forwarded_sessions: IntGauge = gauge();
    /// Commands for agents of other gateways that ended, one for each agent
    forward_requests_total: IntCounterVec = counters(
        &["outcome"],
        &[
            &["ok"],
            &["not_connected"],
            &["outcome_unknown"],
            &["agent_disconnected"],
            &["moved"],
            &["rejected"],
        ]
    );
    /// Bytes of frames sent to the owners of forwarded commands
    forward_bytes_out_total: IntCounter = counter();
    /// Bytes of frames received from the owners of forwarded commands
    forward_bytes_in_total: IntCounter = counter();
    /// Bytes of forwarded commands that are not written yet, and of answers in hand
    forward_inflight_bytes: IntGauge = gauge();
    /// Attempts to forward that found a bound reached
    forward_rejected_total: IntCounterVec = counters(
        &["limit"],
        &[&["max_sessions"], &["max_sessions_per_owner"], &["max_inflight_bytes"], &["owner"]]
    );
    /// Forwarded sessions whose stream broke, by what became of them
    forward_resumes_total: IntCounterVec = counters(&["outcome"], &[&["resumed"], &["lost"]]);
    /// Time from a forwarded command to the owner's first answer in milliseconds, for each session
    forward_first_frame_ms: Histogram = histogram(LATENCY_MS);
    /// Forwarded sessions that this gateway refused to serve
    forwarded_refused_total: IntCounterVec = counters(
        &["reason"],
        &[
            &["unauthenticated"],
            &["version"],
            &["hop"],
            &["second_marker"],
            &["no_marker"],
            &["malformed"],
            &["stopping"],
            &["limit"],
            &["unknown_session"],
        ]
    );

    /// Reloads of the configuration that took effect
    config_generation: IntGauge = gauge();
    /// 1 while the last reload of the configuration was refused
    config_last_reload_failed: IntGauge = gauge();

    /// 1 while new agents are refused for want of memory
    memory_shedding_active: IntGauge = gauge();
    /// Times that refusing began
    memory_shedding_suspensions_total: IntCounter = counter();
    /// Failed attempts to close or open agent listeners
    memory_shedding_transition_failures_total: IntCounterVec =
        counters(&["action"], &[&["suspend"], &["resume"]]);
    /// Agent listeners that are not closed or opened as they should be
    memory_shedding_transition_failing: IntGaugeVec = gauges("action", &["suspend", "resume"]);
    /// Agents are refused above so many bytes
    memory_shedding_high_water_bytes: IntGauge = gauge();
    /// Agents are admitted again at so many bytes
    memory_shedding_low_water_bytes: IntGauge = gauge();
    /// 1 when shedding is enabled and no memory limit is known
    memory_shedding_inactive: IntGauge = gauge();

    /// Resident anonymous memory of the process in bytes
    beam_memory_bytes: IntGaugeVec = node_gauges("type");
    /// Live tasks of the runtime
    beam_process_count: IntGauge = node_gauge();
    /// Busy share of the runtime's workers since the last sample, 0 to 1
    beam_scheduler_util: Gauge = node_ratio();
}

/// `/metrics` in the text format of Prometheus, rendered on a thread that carries no agents.
pub fn routes(metrics: Arc<Metrics>) -> Routes {
    Routes::new().get_heavy("/metrics", move || metrics.reply())
}

impl Metrics {
    fn reply(&self) -> Reply {
        match TextEncoder::new().encode_to_string(&self.registry.gather()) {
            Ok(text) => Reply {
                status: StatusCode::OK,
                content_type: TEXT_FORMAT,
                body: Bytes::from(text),
            },
            Err(error) => Reply {
                status: StatusCode::INTERNAL_SERVER_ERROR,
                content_type: "text/plain",
                body: Bytes::from(error.to_string()),
            },
        }
    }
}
