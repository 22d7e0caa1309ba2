//! Refusing agents when memory is short, and admitting them again.
//!
//! Responsible for sampling this process's memory and for closing and opening the sockets of the
//! agent listeners (SHED). Must never touch an open connection, nor a listener that serves
//! management.

mod core;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tracing::{info, warn};

use crate::config::{self, Marks, Memory, Plan, Service};
use crate::edge::listener::RunningListener;
use crate::observe::metrics::Metrics;
use crate::supervise::{Kept, NodeSupervisor, keep_running};
use crate::tuning::Pace;
use core::{Change, Say, Shedder, Trouble};

/// Listeners with what they serve.
pub(crate) type Listeners = Arc<Vec<(config::Listener, RunningListener)>>;

/// The running shedder. Dropped, it stops and leaves the listeners as they are. `None` where no
/// listener may be closed.
#[derive(Debug)]
pub(crate) struct MemoryShedder(Option<Running>);

#[derive(Debug)]
struct Running {
    task: Kept,
    rules: Arc<Rules>,
    metrics: Arc<Metrics>,
}

/// What is in force.
#[derive(Debug)]
struct Rules {
    pace: Pace,
    plan: Mutex<Plan>,
    /// Whether agents are refused.
    shedding: AtomicBool,
}

impl Rules {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn marks(&self) -> Option<Marks> {
        match *self.plan() {
            Plan::Active(marks) => Some(marks),
            Plan::Disabled | Plan::Inactive => None,
        }
    }
}

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
        let plan = memory.shedding.plan(memory.limit);
        let rules = Arc::new(Rules {
            pace: Pace::new(memory.shedding.interval),
            plan: Mutex::new(plan),
            shedding: AtomicBool::new(false),
        });
        say(memory, plan, metrics);
        let (listeners, counted) = (Arc::clone(listeners), Arc::clone(metrics));
        let (held, used) = (Arc::clone(&rules), Arc::new(used));
        let task = keep_running("memory shedder", move || {
            let suspended = listeners
                .iter()
                .any(|(_, listener)| listener.is_suspended());
            let shed = Shed {
                shedder: Shedder::new(held.marks(), suspended),
                resuming: Trouble::default(),
                rules: Arc::clone(&held),
                listeners: Arc::clone(&listeners),
                metrics: Arc::clone(&counted),
            };
            shed.run(Arc::clone(&used))
        });
        Self(Some(Running {
            task,
            rules,
            metrics: Arc::clone(metrics),
        }))
    }

    /// Compares with the marks of `memory` from the next sample on. Without any, or switched off,
    /// closed listeners are opened.
    pub(crate) fn retune(&self, memory: &Memory) {
        let Some(running) = &self.0 else { return };
        running.rules.pace.set(memory.shedding.interval);
        let plan = memory.shedding.plan(memory.limit);
        let before = std::mem::replace(&mut *running.rules.plan(), plan);
        if before != plan {
            say(memory, plan, &running.metrics);
        }
    }

    /// Whether memory is short now.
    pub(crate) fn is_shedding(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let rules = self.0.as_ref().map(|running| Arc::clone(&running.rules));
        move || {
            let rules = rules.as_ref();
            rules.is_some_and(|rules| rules.shedding.load(Ordering::Relaxed))
        }
    }

    /// Counts its restarts at the node (GEN-3).
    pub(crate) fn supervise(&self, node: &NodeSupervisor) {
        if let Some(running) = &self.0 {
            node.watch(&running.task);
        }
    }

    /// Stops it (STOP-3).
    pub(crate) fn stop(&self) {
        if let Some(running) = &self.0 {
            running.task.stop();
        }
    }
}

/// Shows a plan in the log and in the gauges (SHED-8, SHED-11).
fn say(memory: &Memory, plan: Plan, metrics: &Metrics) {
    let marks = match plan {
        Plan::Disabled => {
            info!("memory shedding is switched off");
            None
        }
        Plan::Inactive => {
            warn!("gateway memory shedding is inactive: memory_limit_unknown");
            None
        }
        Plan::Active(marks) => {
            say_active(memory, marks);
            Some(marks)
        }
    };
    let inactive = &metrics.memory_shedding_inactive;
    inactive.set(i64::from(plan == Plan::Inactive));
    let (high, low) = marks.map_or((0, 0), |marks| (gauge(marks.high), gauge(marks.low)));
    metrics.memory_shedding_high_water_bytes.set(high);
    metrics.memory_shedding_low_water_bytes.set(low);
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
    rules: Arc<Rules>,
    listeners: Listeners,
    metrics: Arc<Metrics>,
}

impl Shed {
    async fn run(mut self, used: Arc<impl Fn() -> Option<u64> + Send + Sync>) {
        let mut ticks = self.rules.pace.ticks();
        loop {
            ticks.tick().await;
            let marks = self.rules.marks();
            self.shedder.compare_with(marks);
            if marks.is_none() && !self.shedder.is_shedding() {
                continue;
            }
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
        self.rules.shedding.store(shedding, Ordering::Relaxed);
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
                        self.rules.pace.every().as_millis()
                    );
                }
            }
            Say::WorksAgain => info!("agent listener(s) resumed"),
        }
    }
}

#[cfg(test)]
mod tests;
