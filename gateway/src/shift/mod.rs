//! Agents that are asked to move to other nodes (SHIFT-1 to SHIFT-4).
//!
//! Responsible for looking at this node and the others once a second, and for carrying out what the
//! core decides. Runs in a cluster only. Must never end a stream before its grace, nor refuse a
//! newcomer: that is [`crate::shed`].

mod core;
mod mover;
mod pressure;

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::info;

use crate::cluster::Elsewhere;
use crate::config;
use crate::session::OwnerContext;
use crate::supervise::{Kept, NodeSupervisor, keep_running};
use core::{Reason, Seen, Shift};
use mover::Mover;
use pressure::Busy;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// What a node is asked about itself and the others.
pub(crate) struct Eyes {
    /// Whether its memory is short.
    pub(crate) memory: Box<dyn Fn() -> bool + Send + Sync>,
    /// Where its agents may go.
    pub(crate) elsewhere: Box<dyn Fn() -> Elsewhere + Send + Sync>,
}

/// The running task.
pub(crate) struct Shifter {
    shared: Arc<Shared>,
    task: Kept,
}

struct Shared {
    owners: Arc<OwnerContext>,
    eyes: Eyes,
    state: Mutex<State>,
    draining: AtomicBool,
    wake: Notify,
}

/// What outlives a panic of the task.
struct State {
    shift: Shift,
    mover: Mover,
    busy: Busy,
    cpu_high: f64,
    /// Why agents were being asked at the last look.
    told: Option<Reason>,
}

impl Shifter {
    /// Starts to look.
    pub(crate) fn start(config: config::Shift, owners: &Arc<OwnerContext>, eyes: Eyes) -> Self {
        let shared = Arc::new(Shared {
            owners: Arc::clone(owners),
            eyes,
            state: Mutex::new(State {
                shift: Shift::new(config),
                mover: Mover::new(&owners.registry),
                busy: Busy::default(),
                cpu_high: config.cpu_high,
                told: None,
            }),
            draining: AtomicBool::new(false),
            wake: Notify::new(),
        });
        let held = Arc::clone(&shared);
        let task = keep_running("agent shifter", move || run(Arc::clone(&held)));
        Self { shared, task }
    }

    /// Puts another configuration in force.
    pub(crate) fn retune(&self, config: config::Shift) {
        let mut state = self.shared.state();
        state.cpu_high = config.cpu_high;
        state.shift.limit(config);
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Counts its restarts at the node (GEN-3).
    pub(crate) fn supervise(&self, node: &NodeSupervisor) {
        node.watch(&self.task);
    }

    /// Asks all agents to move, until `deadline` or until none is left; at once where they have
    /// nowhere to go. Nobody is asked after it.
    pub(crate) async fn drain(&self, deadline: Instant) {
        let shared = &self.shared;
        shared.draining.store(true, Ordering::Relaxed);
        shared.wake.notify_one();
        while (shared.eyes.elsewhere)().nodes > 0 && Instant::now() < deadline {
            let look = deadline.min(Instant::now() + LOOK);
            if shared.owners.roster.emptied(look).await {
                break;
            }
        }
        self.task.stop();
    }
}

/// Looks, and looks again; never returns.
async fn run(shared: Arc<Shared>) {
    loop {
        let next = shared.look(Instant::now());
        tokio::select! {
            () = sleep_until(next) => {}
            () = shared.wake.notified() => {}
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what is due. When to look again.
    fn look(&self, now: Instant) -> Instant {
        let mut state = self.state();
        let state = &mut *state;
        state.mover.end_due(now);
        let seen = Seen {
            held: self.owners.registry.len(),
            leaving: state.mover.leaving(),
            draining: self.draining.load(Ordering::Relaxed),
            memory: (self.eyes.memory)(),
            cpu: state.is_busy(now),
            elsewhere: (self.eyes.elsewhere)(),
        };
        if let Some(ask) = state.shift.decide(now, &seen) {
            let asked = state.mover.ask(now, state.shift.grace(), ask.most);
            match asked.sessions {
                0 => state.shift.nobody_left(now),
                sessions => state.shift.asked(now, sessions),
            }
            let (metrics, reason) = (&self.owners.metrics, [ask.reason.label()]);
            let goaways = metrics.goaway_sent_total.with_label_values(&reason);
            goaways.inc_by(asked.connections as u64);
            let migrations = metrics.agent_migrations_total.with_label_values(&reason);
            migrations.inc_by(asked.sessions as u64);
        }
        state.tell(&seen);
        let times = [state.shift.next_time(now), state.mover.next_time()];
        times.into_iter().flatten().fold(now + LOOK, Instant::min)
    }
}

impl State {
    fn is_busy(&mut self, now: Instant) -> bool {
        let processors = available_parallelism().map_or(1, NonZero::get);
        let used = pressure::used();
        used.is_some_and(|used| self.busy.sample(now, used, processors, self.cpu_high))
    }

    /// One line for the beginning of a round, and one for its end.
    fn tell(&mut self, seen: &Seen) {
        let now = self.shift.under_way();
        let (sessions, nodes) = (seen.held, seen.elsewhere.nodes);
        match (std::mem::replace(&mut self.told, now), now) {
            (before, Some(reason)) if before != now => {
                info!(
                    reason = reason.label(),
                    sessions, nodes, "Shift: agents are asked to move to other nodes"
                );
            }
            (Some(reason), None) => {
                info!(
                    reason = reason.label(),
                    sessions, "Shift: no more are asked"
                );
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
