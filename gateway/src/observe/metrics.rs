//! Every metric family of the gateway, declared once.
//!
//! Responsible for names, labels, buckets and for creating each series of a closed label set at 0
//! (GEN-4). Must never be read to decide something.
//!
//! The field of a family has its name without the `yuzu_gw_` prefix.

use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

const LATENCY_MS: [f64; 11] = [
    1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 5_000.0, 10_000.0,
];
const SESSION_MS: [f64; 5] = [1_000.0, 10_000.0, 60_000.0, 300_000.0, 3_600_000.0];
const QUEUE_LEN: [f64; 5] = [10.0, 100.0, 500.0, 1_000.0, 5_000.0];
const FANOUT: [f64; 7] = [1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0, 1_000_000.0];
const PERMIT_WAIT_S: [f64; 12] = [
    0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0,
];

/// The labels `rpc_name` of upstream calls.
pub const RPC_NAMES: [&str; 5] = [
    "register",
    "inventory",
    "notify_stream",
    "guardian",
    "batch_heartbeat",
];

/// The families, registered in [`Metrics::registry`].
#[derive(Debug)]
pub struct Metrics {
    /// What `/metrics` renders.
    pub registry: Registry,
    /// Connected agents of this node (label `node`).
    pub agents_current: IntGauge,
    /// Sessions established (label `node`).
    pub agents_connected_total: IntCounter,
    /// Sessions ended (label `node`).
    pub agents_disconnected_total: IntCounter,
    /// Length of ended sessions (label `node`).
    pub agent_session_duration_ms: Histogram,
    /// Commands handed to agents; the label `plugin` has a bounded number of values (CMD-23).
    pub commands_dispatched_total: IntCounterVec,
    /// Targets without a terminal frame at the timeout.
    pub commands_timed_out_total: IntCounter,
    /// Commands refused because an agent's mailbox was full.
    pub commands_dropped_backpressure_total: IntCounter,
    /// Failed writes to an agent's stream.
    pub stream_write_errors_total: IntCounter,
    /// Mailbox length at a backpressure event.
    pub stream_queue_len_distribution: Histogram,
    /// Dispatch to terminal frame; labels `plugin` (the dispatched one), `status`.
    pub command_duration_ms: HistogramVec,
    /// Targets of a SendCommand.
    pub fanout_target_count: Histogram,
    /// Targets that were sent the command.
    pub fanout_dispatched_count: Histogram,
    /// Targets that were not.
    pub fanout_skipped_count: Histogram,
    /// Targets on other nodes.
    pub fanout_remote_dispatched_count: Histogram,
    /// Registrations refused at the edge; label `reason`.
    pub register_refused_total: IntCounterVec,
    /// Refusals by the per-connection session cap.
    pub session_limit_rejected_total: IntCounter,
    /// Owner restarts; label `outcome`.
    pub agent_owner_restarts_total: IntCounterVec,
    /// Heartbeats not admitted; label `reason`.
    pub heartbeat_rejected_total: IntCounterVec,
    /// Heartbeats of a held session on another connection; label `event`.
    pub heartbeat_session_mismatch_total: IntCounterVec,
    /// Inventory reports not admitted; label `reason`.
    pub inventory_rejected_total: IntCounterVec,
    /// Heartbeats replaced in the buffer.
    pub heartbeat_coalesced_total: IntCounter,
    /// Heartbeat data given up; label `reason`.
    pub heartbeat_buffer_dropped_total: IntCounterVec,
    /// Successful upstream calls; label `rpc_name`.
    pub upstream_rpc_duration_ms: HistogramVec,
    /// Failed upstream calls; labels `rpc_name`, `code`.
    pub upstream_rpc_errors_total: IntCounterVec,
    /// Breaker transitions; label `state`.
    pub upstream_circuit_transitions_total: IntCounterVec,
    /// The server's stream limit; 0 = unknown or unlimited.
    pub upstream_server_max_streams: IntGauge,
    /// Permits in force; label `class`.
    pub upstream_permit_limit: IntGaugeVec,
    /// Permits held; label `class`.
    pub upstream_permits_held: IntGaugeVec,
    /// Callers waiting for a permit; label `class`.
    pub upstream_permits_waiting: IntGaugeVec,
    /// Waits for a permit; label `class`.
    pub upstream_permit_wait_seconds: HistogramVec,
    /// Permits refused; labels `class`, `reason`.
    pub upstream_permit_refused_total: IntCounterVec,
    /// Calls never sent, their deadline passed in the queue; label `class`.
    pub upstream_calls_dropped_total: IntCounterVec,
    /// Guardian frames accepted for forwarding.
    pub guardian_forward_accepted_total: IntCounter,
    /// Guardian frames dropped; label `reason`.
    pub guardian_forward_dropped_total: IntCounterVec,
    /// Notices held.
    pub upstream_notify_pending: IntGauge,
    /// Notices being sent.
    pub upstream_notify_inflight: IntGauge,
    /// Cap on notices in force.
    pub upstream_notify_pending_max: IntGauge,
    /// Notices replaced while held.
    pub upstream_notify_coalesced_total: IntCounter,
    /// Failed sends held again.
    pub upstream_notify_requeued_total: IntCounter,
    /// Notices refused at admission; label `reason`.
    pub upstream_notify_dropped_total: IntCounterVec,
    /// Notices lost for good; labels `event`, `reason`.
    pub upstream_notify_lost_total: IntCounterVec,
    /// Answers `acknowledged=false`; label `event`.
    pub upstream_notify_unacknowledged_total: IntCounterVec,
    /// Request bytes discarded; label `reason`.
    pub grpc_dropped_data_bytes_total: IntCounterVec,
    /// Connections closed for holding too much or flooding.
    pub grpc_connection_killed_total: IntCounter,
    /// Requests not complete in time.
    pub grpc_recv_timeout_total: IntCounter,
    /// Open connections; label `listener`.
    pub listener_connections: IntGaugeVec,
    /// Connection ceiling in force; label `listener`.
    pub listener_connections_max: IntGaugeVec,
    /// Memory of the process; labels `node`, `type`.
    pub beam_memory_bytes: IntGaugeVec,
    /// Live tasks (label `node`).
    pub beam_process_count: IntGauge,
    /// Busy share of the runtime, 0..1 (label `node`).
    pub beam_scheduler_util: Gauge,
}

/// Registers families under one prefix. Names and labels are constants of this file, so a
/// duplicate is a programming error that every test of this module finds.
struct Families<'a> {
    registry: &'a Registry,
    node: &'a str,
}

impl Families<'_> {
    fn opts(name: &str, help: &str) -> Opts {
        Opts::new(format!("yuzu_gw_{name}"), help)
    }

    fn add<C: prometheus::core::Collector + Clone + 'static>(
        &self,
        collector: prometheus::Result<C>,
    ) -> prometheus::Result<C> {
        let collector = collector?;
        self.registry.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.add(IntCounter::with_opts(Self::opts(name, help)))
    }

    fn node_counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.add(IntCounter::with_opts(
            Self::opts(name, help).const_label("node", self.node),
        ))
    }

    fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        closed: &[&[&str]],
    ) -> prometheus::Result<IntCounterVec> {
        let family = self.add(IntCounterVec::new(Self::opts(name, help), labels))?;
        for values in closed {
            family.with_label_values(values);
        }
        Ok(family)
    }

    fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.add(IntGauge::with_opts(Self::opts(name, help)))
    }

    fn node_gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.add(IntGauge::with_opts(
            Self::opts(name, help).const_label("node", self.node),
        ))
    }

    fn gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        closed: &[&[&str]],
    ) -> prometheus::Result<IntGaugeVec> {
        let family = self.add(IntGaugeVec::new(Self::opts(name, help), labels))?;
        for values in closed {
            family.with_label_values(values);
        }
        Ok(family)
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Histogram> {
        let opts = HistogramOpts::from(Self::opts(name, help)).buckets(buckets.to_vec());
        self.add(Histogram::with_opts(opts))
    }

    fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> prometheus::Result<HistogramVec> {
        let opts = HistogramOpts::from(Self::opts(name, help)).buckets(buckets.to_vec());
        self.add(HistogramVec::new(opts, labels))
    }
}
