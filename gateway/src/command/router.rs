//! From the targets of a SendCommand to the mailboxes of their sessions.
//!
//! Responsible for resolving agent ids (CMD-1 to CMD-3, CMD-13), for the timeout (CMD-10) and for
//! refusing work during a planned stop (CMD-16). Must never copy a command per target.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::warn;

use super::backlog::Names;
use super::callers::{CallerLimits, Callers};
use super::entries::NoAnswer;
use super::fanout::{Fanout, FanoutBody};
use super::metrics::MetricsOfCommands;
use crate::config;
use crate::observe::log::{limit, limited, safe_text};
use crate::observe::metrics::Metrics;
use crate::session::{MailboxLimits, NotDispatched, Registry, ReplySink, Session, Waiter};

const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
/// Targets resolved or dispatched before other tasks get a turn.
const TURN: usize = 32;

static BACKPRESSURE: limit::LineLimit = limit::LineLimit::per_second();

/// One command, as it goes to every target.
pub(crate) struct Command {
    /// The framed `CommandRequest`, byte for byte as the caller sent it (CMD-5).
    pub(crate) frame: Bytes,
    /// Its id; may be empty (CMD-21).
    pub(crate) id: String,
    /// Its plugin.
    pub(crate) plugin: String,
    /// Seconds, as the caller sent them.
    pub(crate) timeout_seconds: i32,
}

/// The node takes no command any more (CMD-16).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the gateway is stopping")]
pub(crate) struct Stopping;

/// Routes commands to the sessions of this node.
#[derive(Debug)]
pub(crate) struct Router {
    registry: Arc<Registry>,
    metrics: MetricsOfCommands,
    callers: Arc<Callers>,
    config: ArcSwap<config::Command>,
    stopping: AtomicBool,
    running: Arc<Running>,
}

/// Fan-outs in progress.
#[derive(Debug, Default)]
struct Running {
    count: AtomicUsize,
    ended: Notify,
}

/// Counts a fan-out while it lives.
#[derive(Debug)]
pub(crate) struct Ticket(Arc<Running>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.ended.notify_waiters();
    }
}

impl Router {
    pub(crate) fn new(
        registry: Arc<Registry>,
        metrics: Arc<Metrics>,
        config: config::Command,
    ) -> Self {
        Self {
            registry,
            metrics: MetricsOfCommands::new(metrics),
            callers: Callers::new(caller_limits(&config)),
            config: ArcSwap::from_pointee(config),
            stopping: AtomicBool::new(false),
            running: Arc::default(),
        }
    }

    /// Puts another configuration in force, for commands that come from now on.
    pub(crate) fn retune(&self, config: &config::Command) {
        self.callers.retune(caller_limits(config));
        self.config.store(Arc::new(config.clone()));
    }

    /// Sends `command` to the listed agents, or to every agent of this node when none is listed
    /// (CMD-1). Each target is sent it at most once.
    ///
    /// # Errors
    /// During a planned stop.
    pub(crate) async fn send(
        &self,
        agent_ids: &[&str],
        command: Command,
    ) -> Result<(FanoutBody, Ticket), Stopping> {
        self.running.count.fetch_add(1, Ordering::AcqRel);
        let ticket = Ticket(Arc::clone(&self.running));
        if self.stopping.load(Ordering::Acquire) {
            return Err(Stopping);
        }
        let (targets, sessions) = self.resolve(agent_ids).await;
        let id = Bytes::copy_from_slice(command.id.as_bytes());
        let metrics = self.metrics.of(&command.plugin);
        let timeout = self.timeout(command.timeout_seconds);
        let names = Names {
            targets,
            command_id: command.id,
        };
        let fanout = Fanout::new(names, metrics, &self.callers, timeout);
        // From here on a caller that leaves drops the fan-out, the targets not yet sent included.
        let body = FanoutBody::new(Arc::clone(&fanout));
        let dispatched = self.dispatch(&fanout, &sessions, &id, &command.frame).await;
        fanout.dispatched();
        self.observe(sessions.len(), dispatched);
        Ok((body, ticket))
    }

    /// The distinct targets, each with its session (CMD-1, CMD-13).
    async fn resolve(&self, agent_ids: &[&str]) -> (Vec<Arc<str>>, Vec<Option<Arc<Session>>>) {
        if agent_ids.is_empty() {
            let sessions = self.registry.all();
            let targets = sessions
                .iter()
                .map(|session| Arc::clone(session.agent_id()))
                .collect();
            return (targets, sessions.into_iter().map(Some).collect());
        }
        let mut seen = HashSet::with_capacity(agent_ids.len());
        let (mut targets, mut sessions) = (Vec::new(), Vec::new());
        for (index, id) in agent_ids.iter().enumerate() {
            take_turns(index).await;
            if !seen.insert(*id) {
                continue;
            }
            let session = self.registry.route(id);
            targets.push(match &session {
                Some(session) => Arc::clone(session.agent_id()),
                None => Arc::from(*id),
            });
            sessions.push(session);
        }
        (targets, sessions)
    }

    async fn dispatch(
        &self,
        fanout: &Arc<Fanout>,
        sessions: &[Option<Arc<Session>>],
        id: &Bytes,
        frame: &Bytes,
    ) -> usize {
        let (mut sent, mailbox) = (0, self.mailbox());
        for (index, session) in sessions.iter().enumerate() {
            take_turns(index).await;
            let target = index as u32;
            let Some(session) = session else {
                fanout.refuse(target, NoAnswer::NotConnected);
                continue;
            };
            fanout.expect(target);
            let sink = Arc::clone(fanout) as Arc<dyn ReplySink>;
            let waiter = Waiter { sink, target };
            match session.dispatch(id, frame.clone(), waiter, mailbox) {
                Ok(()) => sent += 1,
                Err(NotDispatched::Ended) => fanout.refuse(target, NoAnswer::NotConnected),
                Err(NotDispatched::Full(queued)) => {
                    self.backpressure(queued, id);
                    fanout.refuse(target, NoAnswer::Backpressure);
                }
            }
        }
        if sent > 0 {
            fanout.metrics().dispatched().inc_by(sent as u64);
        }
        sent
    }

    fn mailbox(&self) -> MailboxLimits {
        let config = self.config.load();
        MailboxLimits {
            commands: config.mailbox,
            bytes: config.mailbox_bytes,
        }
    }

    fn backpressure(&self, queued: usize, command_id: &[u8]) {
        let metrics = self.metrics.all();
        metrics.commands_dropped_backpressure_total.inc();
        metrics.stream_queue_len_distribution.observe(queued as f64);
        limited!(
            warn,
            BACKPRESSURE,
            "command {} not sent to an agent: its mailbox is full ({queued} commands wait)",
            safe_text(command_id)
        );
    }

    fn observe(&self, targets: usize, dispatched: usize) {
        let metrics = self.metrics.all();
        metrics.fanout_target_count.observe(targets as f64);
        metrics.fanout_dispatched_count.observe(dispatched as f64);
        metrics
            .fanout_skipped_count
            .observe((targets - dispatched) as f64);
        metrics.fanout_remote_dispatched_count.observe(0.0);
    }

    /// The timeout in force (CMD-10).
    fn timeout(&self, seconds: i32) -> Duration {
        match u64::try_from(seconds) {
            Ok(seconds) if seconds > 0 => Duration::from_secs(seconds).min(MAX_TIMEOUT),
            _ => self.config.load().default_timeout,
        }
    }

    /// From now on every command is refused (CMD-16, STOP-3).
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Waits until no fan-out is in progress. False: some were at `deadline`.
    pub(crate) async fn finished(&self, deadline: Instant) -> bool {
        loop {
            let ended = self.running.ended.notified();
            let mut ended = std::pin::pin!(ended);
            ended.as_mut().enable();
            let running = self.running.count.load(Ordering::Acquire);
            if running == 0 {
                return true;
            }
            if tokio::time::timeout_at(deadline, ended).await.is_err() {
                warn!(running, "commands still run at the end of their time");
                return false;
            }
        }
    }
}

fn caller_limits(config: &config::Command) -> CallerLimits {
    CallerLimits {
        buffer_bytes: config.caller_buffer_bytes,
        slow_timeout: config.slow_caller_timeout,
    }
}

async fn take_turns(index: usize) {
    if index % TURN == TURN - 1 {
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests;
