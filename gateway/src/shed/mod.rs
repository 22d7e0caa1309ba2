//! Refusing agents when memory is short, and admitting them again.
//!
//! Responsible for sampling this process's memory and for closing and opening the sockets of the
//! agent listeners (SHED). Must never touch an open connection, nor a listener that serves
//! management.

mod core;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::config::{self, Marks, Memory, Plan, Service};
use crate::edge::listener::RunningListener;
use crate::observe::metrics::Metrics;
use crate::supervise::{Kept, NodeSupervisor, keep_running};
use core::{Change, Say, Shedder, Trouble};

/// Listeners with what they serve.
pub(crate) type Listeners = Arc<Vec<(config::Listener, RunningListener)>>;

/// The running shedder. Dropped, it stops and leaves the listeners as they are.
#[derive(Debug)]
pub(crate) struct MemoryShedder(Option<Kept>);

impl MemoryShedder {
    /// Starts to sample `used`, the memory of this process in bytes.
    pub(crate) fn start(
        memory: &Memory,
        listeners: &Listeners,
        metrics: &Arc<Metrics>,
        used: impl Fn() -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        say_combined(listeners);
        if !listeners.iter().any(|(config, _)| may_shed(config)) {
            return Self(None);
        }
        let marks = match memory.shedding.plan(memory.limit) {
            Plan::Disabled => return Self(None),
            Plan::Inactive => {
                metrics.memory_shedding_inactive.set(1);
                warn!("gateway memory shedding is inactive: memory_limit_unknown");
                return Self(None);
            }
            Plan::Active(marks) => marks,
        };
        say_active(memory, marks);
        metrics
            .memory_shedding_high_water_bytes
            .set(gauge(marks.high));
        metrics
            .memory_shedding_low_water_bytes
            .set(gauge(marks.low));
        let (listeners, metrics) = (Arc::clone(listeners), Arc::clone(metrics));
        let (every, used) = (memory.shedding.interval, Arc::new(used));
        Self(Some(keep_running("memory shedder", move || {
            let suspended = listeners
                .iter()
                .any(|(_, listener)| listener.is_suspended());
            let shed = Shed {
                shedder: Shedder::new(marks, suspended),
                resuming: Trouble::default(),
                every,
                listeners: Arc::clone(&listeners),
                metrics: Arc::clone(&metrics),
            };
            shed.run(Arc::clone(&used))
        })))
    }

    /// Counts its restarts at the node (GEN-3).
    pub(crate) fn supervise(&self, node: &NodeSupervisor) {
        if let Some(task) = &self.0 {
            node.watch(task);
        }
    }

    /// Stops it (STOP-3).
    pub(crate) fn stop(&self) {
        if let Some(task) = &self.0 {
            task.stop();
        }
    }
}

fn may_shed(listener: &config::Listener) -> bool {
    listener.serves(Service::Agent) && !listener.serves(Service::Management)
}

/// LSN-15.
fn say_combined(listeners: &Listeners) {
    for (config, _) in listeners.iter() {
        if config.serves(Service::Agent) && config.serves(Service::Management) {
            warn!(
                listener = %config.name,
                "serves agents and management: it is never closed when memory is short"
            );
        }
    }
}

fn say_active(memory: &Memory, marks: Marks) {
    let Marks { high, low } = marks;
    match memory.limit {
        Some(limit) => info!(
            high,
            low,
            limit = limit.bytes,
            origin = %limit.origin,
            "memory shedding: agents are refused above the high mark"
        ),
        None => info!(
            high,
            low, "memory shedding: agents are refused above the high mark; no limit is known"
        ),
    }
}

fn gauge(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

struct Shed {
    shedder: Shedder,
    resuming: Trouble,
    every: Duration,
    listeners: Listeners,
    metrics: Arc<Metrics>,
}

impl Shed {
    async fn run(mut self, used: Arc<impl Fn() -> Option<u64> + Send + Sync>) {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // A sample that fails changes nothing.
            if let Some(used) = used() {
                self.tick(used).await;
            }
        }
    }

    async fn tick(&mut self, used: u64) {
        let change = self.shedder.sample(used);
        if change == Some(Change::Began) {
            self.metrics.memory_shedding_suspensions_total.inc();
            warn!(
                used,
                "memory is above the high mark: new agents are refused"
            );
        }
        let shedding = self.shedder.is_shedding();
        self.metrics.memory_shedding_active.set(shedding.into());
        if shedding {
            self.suspend().await;
        } else {
            self.resume();
        }
        if change == Some(Change::Ended) {
            info!(used, "memory is at the low mark: agents are admitted again");
        }
    }

    fn agents(&self) -> impl Iterator<Item = &RunningListener> {
        let agents = self.listeners.iter().filter(|(config, _)| may_shed(config));
        agents.map(|(_, listener)| listener)
    }

    async fn suspend(&self) {
        for listener in self.agents() {
            listener.suspend().await;
        }
    }

    /// Opens what is closed; what fails is tried again at the next tick (SHED-9).
    fn resume(&mut self) {
        let mut failed: Vec<(String, io::Error)> = Vec::new();
        for (config, listener) in self.listeners.iter().filter(|(config, _)| may_shed(config)) {
            if let Err(error) = listener.resume() {
                failed.push((config.name.clone(), error));
            }
        }
        let (count, action) = (failed.len(), &["resume"]);
        let metrics = &self.metrics;
        let failures = &metrics.memory_shedding_transition_failures_total;
        failures.with_label_values(action).inc_by(count as u64);
        let failing = &metrics.memory_shedding_transition_failing;
        failing.with_label_values(action).set(count as i64);
        match self.resuming.attempt(count > 0, Instant::now()) {
            Say::Nothing => {}
            Say::Failed => {
                for (listener, error) in failed {
                    warn!(
                        listener,
                        %error,
                        "could not resume agent listener(s), retrying every {} ms",
                        self.every.as_millis()
                    );
                }
            }
            Say::WorksAgain => info!("agent listener(s) resumed"),
        }
    }
}

#[cfg(test)]
mod tests;
