//! The restarts of all top-level tasks of one node, added up.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::intensity::Intensity;
use super::keep::Kept;

/// Restarts of top-level tasks within [`RESTART_PERIOD`] before the node is given up (GEN-3).
pub(super) const MAX_RESTARTS: usize = 10;
pub(super) const RESTART_PERIOD: Duration = Duration::from_secs(60);

/// Counts the restarts of a node's top-level tasks; clones share one count.
#[derive(Debug, Clone)]
pub(crate) struct NodeSupervisor {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    intensity: Mutex<Intensity>,
    given_up: watch::Sender<bool>,
}

impl NodeSupervisor {
    pub(crate) fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                intensity: Mutex::new(Intensity::new(MAX_RESTARTS, RESTART_PERIOD)),
                given_up: watch::Sender::new(false),
            }),
        }
    }

    /// Counts one restart.
    pub(crate) fn restarted(&self) {
        let shared = &self.shared;
        let mut intensity = shared
            .intensity
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !intensity.admit(Instant::now()) && !shared.given_up.send_replace(true) {
            tracing::error!(
                "top-level tasks restarted more than {MAX_RESTARTS} times in {} s; giving up",
                RESTART_PERIOD.as_secs()
            );
        }
    }

    /// Counts the restarts of `task` from its start on, until it ends.
    pub(crate) fn watch(&self, task: &Kept) {
        let (mut restarts, node) = (task.restarts(), self.clone());
        tokio::spawn(async move {
            let mut counted = 0;
            loop {
                let restarted = *restarts.borrow_and_update();
                (counted..restarted).for_each(|_| node.restarted());
                counted = restarted;
                if restarts.changed().await.is_err() {
                    return;
                }
            }
        });
    }

    /// Waits until there were too many.
    pub(crate) async fn given_up(&self) {
        let mut given_up = self.shared.given_up.subscribe();
        // An error would say that the sender is gone, which lives here.
        let _ = given_up.wait_for(|given_up| *given_up).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::keep_running;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn gen_3_the_restarts_of_all_tasks_count_together() {
        let node = NodeSupervisor::new();
        let tasks: Vec<_> = ["one", "other"]
            .map(|name| keep_running(name, || async { panic!("on purpose") }))
            .into();
        let started = Instant::now();
        tasks.iter().for_each(|task| node.watch(task));
        node.given_up().await;
        // Neither of them has used up its own.
        assert!(tasks.iter().all(|task| !task.is_finished()));
        // Both panic every 100 ms: the eleventh is the sixth of one of them.
        assert_eq!(started.elapsed(), Duration::from_millis(500));
    }

    #[tokio::test(start_paused = true)]
    async fn gen_3_ten_restarts_within_60_s_are_borne() {
        let node = NodeSupervisor::new();
        for _ in 0..10 {
            node.restarted();
        }
        tokio::time::advance(RESTART_PERIOD).await;
        for _ in 0..10 {
            node.restarted();
        }
        assert!(node.given_up().now_or_never().is_none());
        node.restarted();
        node.given_up().await;
    }
}
