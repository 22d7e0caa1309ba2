//! The planned stop: every session is told to the server before the process ends.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::Gateway;
use crate::config::Service;
use crate::edge::connection::Signal;
use crate::session::Control;

/// Most time for agents that move to other nodes (SHIFT-2).
const MOVES: Duration = Duration::from_secs(8);
/// Most time for commands in flight (STOP-3).
const COMMANDS: Duration = Duration::from_secs(3);
/// Most time for ending sessions (STOP-4).
const SESSIONS: Duration = Duration::from_secs(5);
/// Sessions and connections end in so many parts.
const PARTS: u32 = 20;
/// The next part ends without a pause when fewer notices are held: they leave 64 at a time.
const NOTICES_AHEAD: usize = 128;
/// Most time for the heartbeat flush (STOP-5).
const HEARTBEATS: Duration = Duration::from_secs(5);
/// From the first GOAWAY to the end of what is still open: about a second until the second one,
/// and 3 s more (STOP-9).
const GOAWAY: Duration = Duration::from_secs(4);

/// What a planned stop did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StopReport {
    /// Notices and heartbeats delivered after the stop began.
    pub sent: usize,
    /// Notices and heartbeats that were left when the time was over, and sessions that had not
    /// ended, whose notices would have come later.
    pub unsent: usize,
}

impl Gateway {
    /// Ends every session, tells the server, and closes (STOP-1 to STOP-7). Metrics and health
    /// answer until the very end.
    pub async fn shutdown(self) -> StopReport {
        let started = Instant::now();
        let budget = self.in_force().shutdown.flush_budget;
        let deadline = started + budget;
        self.refuse_newcomers();
        self.move_agents(started + MOVES.min(budget.mul_f64(0.4)))
            .await;
        self.router.stop();
        let finished_by = Instant::now() + COMMANDS.min(budget.mul_f64(0.3));
        tokio::join!(
            self.router.finished(finished_by),
            self.replayer.landed(finished_by)
        );
        self.end_sessions(Instant::now() + SESSIONS.min(budget.mul_f64(0.4)))
            .await;
        self.owners.events.close();
        // Agents leave while the server is told of them.
        let (_, report) = tokio::join!(self.close_listeners(deadline), self.flush(deadline));
        self.upstream.close().await;
        if let Some(cluster) = &self.cluster {
            cluster.leave();
        }
        info!(
            sent = report.sent,
            unsent = report.unsent,
            took_ms = started.elapsed().as_millis() as u64,
            "stopped"
        );
        self.health.stop().await;
        self.scrape.stop().await;
        report
    }

    /// Steps 1 and 2, all but commands. A connected agent and its commands notice nothing yet. The
    /// other nodes hear of it first: from now on agents had better go to them.
    fn refuse_newcomers(&self) {
        let held = self.owners.roster.len();
        info!(sessions = held, "planned stop: refusing new work");
        if let Some(cluster) = &self.cluster {
            cluster.drain();
        }
        self.replayer.stop();
        self.upstream.stop_accepting();
        self.notifier.prepare_stop(2 * held);
        self.tasks.shedder.stop();
        for (config, listener) in self.listeners.iter() {
            if config.serves(Service::Agent) {
                listener.stop_accepting();
            }
        }
    }

    /// In a cluster, agents are asked to go to the other nodes, and have their commands meanwhile
    /// (SHIFT-2). Those who are left then are ended with the rest of the stop.
    async fn move_agents(&self, deadline: Instant) {
        if let Some(shifter) = &self.shifter {
            shifter.drain(deadline).await;
        }
    }

    /// Step 3.
    async fn end_sessions(&self, deadline: Instant) {
        let roster = &self.owners.roster;
        let sessions = roster.begin_to_end();
        let most = deadline.saturating_duration_since(Instant::now()) / 5;
        self.in_parts(sessions, most, |session| session.ask(Control::End))
            .await;
        if !roster.emptied(deadline).await {
            warn!(left = roster.len(), "sessions did not end in time");
        }
    }

    /// Lets every connection go, and closes what has not gone in time (STOP-9).
    async fn close_listeners(&self, deadline: Instant) {
        let mut connections = Vec::new();
        for (_, listener) in self.listeners.iter() {
            listener.stop_accepting();
            connections.extend(listener.connections());
        }
        let most = GOAWAY.min(deadline.saturating_duration_since(Instant::now())) / 4;
        self.in_parts(connections, most, |connection| {
            connection.signal(Signal::Drain);
        })
        .await;
        let closed_by = (Instant::now() + GOAWAY).min(deadline);
        for (_, listener) in self.listeners.iter() {
            listener.closed(closed_by).await;
        }
    }

    /// Lets `all` end in parts, within `most`, as notices leave. Ended all at once they would keep
    /// every processor busy with each other, and the server would hear of them late.
    async fn in_parts<T>(&self, all: Vec<T>, most: Duration, end: impl Fn(&T)) {
        for part in all.chunks(all.len().div_ceil(PARTS as usize).max(1)) {
            part.iter().for_each(&end);
            let _ = timeout(most / PARTS, self.notifier.fewer_than(NOTICES_AHEAD)).await;
        }
    }

    /// Steps 4 and 5.
    async fn flush(&self, deadline: Instant) -> StopReport {
        let flush_by = (Instant::now() + HEARTBEATS).min(deadline);
        let (beats_sent, heartbeats) = self.batcher.flush(flush_by).await;
        let (notices_sent, notices) = self.notifier.flush(deadline).await;
        let sessions = self.owners.roster.len();
        if heartbeats + sessions > 0 {
            warn!(
                heartbeats,
                sessions, "Planned stop: heartbeats not sent, and sessions not ended, in time"
            );
        }
        StopReport {
            sent: beats_sent + notices_sent,
            unsent: heartbeats + notices + sessions,
        }
    }
}
