//! The restarts of all owners of the node (OWNER-9).
//!
//! Responsible for seeing that too many owners die, and for having all of them replaced then. Has
//! no task of its own, so it can not die alone. Must never decide about one session.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::error;

use super::roster::Roster;
use crate::config;
use crate::supervise::{Intensity, NodeSupervisor};

/// Counts the owners that are restarted.
#[derive(Debug)]
pub(crate) struct Supervisor {
    limits: Mutex<Limits>,
    node: NodeSupervisor,
}

#[derive(Debug)]
struct Limits {
    max: u32,
    period: Duration,
    intensity: Intensity,
}

impl Supervisor {
    pub(crate) fn new(config: &config::Session, node: NodeSupervisor) -> Self {
        let (max, period) = (config.restart_intensity, config.restart_period);
        Self {
            limits: Mutex::new(Limits {
                max,
                period,
                intensity: Intensity::new(max as usize, period),
            }),
            node,
        }
    }

    /// Puts other limits in force; restarts that were counted stay so.
    pub(crate) fn retune(&self, config: &config::Session) {
        let mut limits = self.limits();
        (limits.max, limits.period) = (config.restart_intensity, config.restart_period);
        limits
            .intensity
            .limit(config.restart_intensity as usize, config.restart_period);
    }

    fn limits(&self) -> MutexGuard<'_, Limits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An owner is restarted. One too many, and every owner is: what they all stand on may be
    /// broken. That counts as one restart of a top-level task (GEN-3).
    pub(super) fn restarted(&self, roster: &Roster) {
        let mut limits = self.limits();
        let admitted = limits.intensity.admit(Instant::now());
        let (max, period) = (limits.max, limits.period);
        drop(limits);
        if admitted {
            return;
        }
        error!(
            "session owners restarted more than {max} times in {} s; all are ended, and their \
             sessions recovered",
            period.as_secs()
        );
        self.node.restarted();
        roster.replace_owners();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::live::Control;
    use super::super::testing::{connect, registry};
    use super::*;
    use crate::edge::ConnectionKey;

    fn supervisor(node: &NodeSupervisor) -> Supervisor {
        let config = config::Session {
            restart_intensity: 2,
            restart_period: Duration::from_secs(10),
            ..config::Config::default().session
        };
        Supervisor::new(&config, node.clone())
    }

    #[tokio::test(start_paused = true)]
    async fn owner_9_one_restart_too_many_replaces_every_owner_once() {
        let (registry, roster) = (registry(), Roster::default());
        let session = connect(&registry, "agent", "s", ConnectionKey::next());
        roster.add(&session);
        let supervisor = supervisor(&NodeSupervisor::new());
        for _ in 0..2 {
            supervisor.restarted(&roster);
            assert_eq!(session.asked().now_or_never(), None);
        }
        supervisor.restarted(&roster);
        assert_eq!(session.asked().now_or_never(), Some(Control::Replace));
        assert_eq!(session.asked().now_or_never(), None, "asked for once");
        // The count has begun anew, and time passes too.
        supervisor.restarted(&roster);
        tokio::time::advance(Duration::from_secs(10)).await;
        supervisor.restarted(&roster);
        supervisor.restarted(&roster);
        assert_eq!(session.asked().now_or_never(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn reload_3_other_limits_count_what_was_counted() {
        let (registry, roster) = (registry(), Roster::default());
        let session = connect(&registry, "agent", "s", ConnectionKey::next());
        roster.add(&session);
        let supervisor = supervisor(&NodeSupervisor::new());
        let limit = |max| config::Session {
            restart_intensity: max,
            ..config::Config::default().session
        };
        supervisor.restarted(&roster);
        supervisor.retune(&limit(3));
        supervisor.restarted(&roster);
        supervisor.restarted(&roster);
        assert_eq!(session.asked().now_or_never(), None);
        supervisor.restarted(&roster);
        assert_eq!(session.asked().now_or_never(), Some(Control::Replace));
    }

    #[tokio::test(start_paused = true)]
    async fn owner_9_more_than_ten_breaches_in_60_s_give_the_node_up() {
        let node = NodeSupervisor::new();
        let supervisor = supervisor(&node);
        for breach in 1..=11 {
            assert!(node.given_up().now_or_never().is_none(), "breach {breach}");
            for _ in 0..3 {
                supervisor.restarted(&Roster::default());
            }
        }
        assert!(node.given_up().now_or_never().is_some());
    }
}
