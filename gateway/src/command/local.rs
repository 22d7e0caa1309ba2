//! Commands for the sessions of this node.
//!
//! Responsible for putting a command into the mailbox of one session under the bounds in force
//! (CMD-17), and for the timeout (CMD-10). Must never copy a command, nor look for a session.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use smallvec::SmallVec;

use super::TURN;
use super::entries::NoAnswer;
use super::fanout::Fanout;
use super::metrics::MetricsOfCommands;
use crate::config;
use crate::edge::Sleeper;
use crate::observe::log::{limit, limited, safe_text};
use crate::session::{MailboxLimits, NotDispatched, ReplySink, Session, Waiter};

const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

static BACKPRESSURE: limit::LineLimit = limit::LineLimit::per_second();

/// See the module.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) metrics: MetricsOfCommands,
    config: ArcSwap<config::Command>,
}

/// What became of a command for one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dispatched {
    /// It lies in the mailbox, and the fan-out waits for answers.
    Yes,
    /// The mailbox is full: the fan-out has the entry.
    Full,
    /// The session has ended; the fan-out was told nothing.
    Ended,
}

impl Local {
    pub(super) fn new(metrics: MetricsOfCommands, config: config::Command) -> Self {
        Self {
            metrics,
            config: ArcSwap::from_pointee(config),
        }
    }

    pub(super) fn retune(&self, config: &config::Command) {
        self.config.store(Arc::new(config.clone()));
    }

    /// Whom a command without agent ids goes to (ADJ-5).
    pub(super) fn broadcast(&self) -> config::Broadcast {
        self.config.load().broadcast
    }

    /// The timeout in force (CMD-10).
    pub(super) fn timeout(&self, seconds: i32) -> Duration {
        match u64::try_from(seconds) {
            Ok(seconds) if seconds > 0 => Duration::from_secs(seconds).min(MAX_TIMEOUT),
            _ => self.config.load().default_timeout,
        }
    }

    /// Sends a framed command to some sessions.
    pub(super) fn round<'a>(
        &'a self,
        fanout: &'a Arc<Fanout>,
        id: &'a Bytes,
        frame: &'a Bytes,
    ) -> Round<'a> {
        Round {
            local: self,
            fanout,
            id,
            frame,
            mailbox: self.mailbox(),
            asleep: SmallVec::new(),
        }
    }

    /// The bounds in force.
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
}

/// A command on its way to some sessions. Their streams are woken some at a time, and the rest when this
/// is dropped: what waking them touches is in no cache mostly, and is fetched for all of them at once.
pub(super) struct Round<'a> {
    local: &'a Local,
    fanout: &'a Arc<Fanout>,
    id: &'a Bytes,
    frame: &'a Bytes,
    mailbox: MailboxLimits,
    asleep: SmallVec<[Sleeper; TURN]>,
}

impl Round<'_> {
    /// Sends it to one session, which the fan-out expects to answer as `target`.
    pub(super) fn dispatch(&mut self, target: u32, session: &Session) -> Dispatched {
        let sink = Arc::clone(self.fanout) as Arc<dyn ReplySink>;
        let waiter = Waiter { sink, target };
        match session.dispatch(self.id, self.frame.clone(), waiter, self.mailbox) {
            Ok(reader) => {
                self.asleep.extend(reader);
                if self.asleep.len() == TURN {
                    self.wake();
                }
                Dispatched::Yes
            }
            Err(NotDispatched::Ended) => {
                self.fanout.forget(target);
                Dispatched::Ended
            }
            Err(NotDispatched::Full(queued)) => {
                self.local.backpressure(queued, self.id);
                let reason = NoAnswer::Backpressure;
                self.fanout.refuse(target, session.agent_id(), reason);
                Dispatched::Full
            }
        }
    }

    fn wake(&mut self) {
        self.asleep.iter().for_each(Sleeper::prefetch);
        self.asleep.drain(..).for_each(Sleeper::wake);
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.wake();
    }
}
