//! The metrics of commands, resolved once per SendCommand.
//!
//! Responsible for the bounded label `plugin` (CMD-23) and for keeping label lookups off the path
//! of each answer. Must never be read to decide something.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{Histogram, IntCounter};

use crate::observe::metrics::Metrics;

/// Makes [`CommandMetrics`].
#[derive(Debug)]
pub(crate) struct MetricsOfCommands {
    metrics: Arc<Metrics>,
}

/// The series of one dispatched plugin.
#[derive(Debug)]
pub(crate) struct CommandMetrics {
    metrics: Arc<Metrics>,
    plugin: Arc<str>,
    /// By the status of the terminal frame: SUCCESS, FAILURE, TIMEOUT, REJECTED.
    success: Histogram,
}

impl MetricsOfCommands {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics }
    }

    /// The series of `plugin`, or of `other` when there are too many plugins.
    pub(crate) fn of(&self, plugin: &str) -> CommandMetrics {
        let plugin = self.metrics.plugins.label(plugin);
        let family = &self.metrics.command_duration_ms;
        let success = family.with_label_values(&[&*plugin, "SUCCESS"]);
        CommandMetrics {
            metrics: Arc::clone(&self.metrics),
            plugin,
            success,
        }
    }

    pub(crate) fn all(&self) -> &Metrics {
        &self.metrics
    }
}

impl CommandMetrics {
    /// Commands written to agents, of this plugin.
    pub(crate) fn dispatched(&self) -> IntCounter {
        self.metrics
            .commands_dispatched_total
            .with_label_values(&[&*self.plugin])
    }

    /// A terminal frame came after `took` (CMD-18).
    pub(crate) fn terminal(&self, status: i32, took: Duration) {
        let ms = took.as_secs_f64() * 1_000.0;
        let status = match status {
            1 => return self.success.observe(ms),
            2 => "FAILURE",
            3 => "TIMEOUT",
            4 => "REJECTED",
            _ => "other",
        };
        let family = &self.metrics.command_duration_ms;
        family
            .with_label_values(&[&*self.plugin, status])
            .observe(ms);
    }

    /// Targets without a terminal frame at the timeout (CMD-9).
    pub(crate) fn timed_out(&self, targets: usize) {
        self.metrics.commands_timed_out_total.inc_by(targets as u64);
    }

    /// The caller was given up (CMD-22).
    pub(crate) fn slow_caller(&self) {
        self.metrics.command_slow_callers_total.inc();
    }
}
