//! The planned stop: every session is told to the server before the process ends.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::Gateway;

/// Most time for commands in flight (STOP-3).
const COMMANDS: Duration = Duration::from_secs(3);
/// Most time for ending sessions (STOP-4).
const SESSIONS: Duration = Duration::from_secs(5);
/// Most time for the heartbeat flush (STOP-5).
const HEARTBEATS: Duration = Duration::from_secs(5);
/// Open streams have this long after the second GOAWAY, about a second after the first (STOP-9).
const GOAWAY: Duration = Duration::from_secs(4);

/// What a planned stop did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StopReport {
    /// Notices and heartbeats delivered after the stop began.
    pub sent: usize,
    /// What was left when the time was over.
    pub unsent: usize,
}

impl Gateway {
    /// Ends every session, tells the server, and closes (STOP-2 to STOP-7). Metrics and health
    /// answer until the very end.
    pub async fn shutdown(self) -> StopReport {
        let started = Instant::now();
        let budget = self.config.shutdown.flush_budget;
        let deadline = started + budget;
        info!("planned stop: refusing new work");
        self.replayer.stop();
        self.upstream.stop_accepting();
        self.router.stop();
        self.tasks.shedder.stop();
        for (_, listener) in self.listeners.iter() {
            listener.stop_accepting();
        }
        let finished_by = started + COMMANDS.min(budget.mul_f64(0.3));
        tokio::join!(
            self.router.finished(finished_by),
            self.replayer.landed(finished_by)
        );
        self.end_sessions(Instant::now() + SESSIONS.min(budget.mul_f64(0.4)))
            .await;
        self.owners.events.close();
        for (_, listener) in self.listeners.iter() {
            listener.drain();
        }
        let flush_by = (Instant::now() + HEARTBEATS).min(deadline);
        let heartbeats = self.batcher.flush(flush_by).await;
        let notices = self.notifier.flush(deadline).await;
        let (sent, unsent) = notices;
        let closed_by = (Instant::now() + GOAWAY).min(deadline);
        for (_, listener) in self.listeners.iter() {
            listener.closed(closed_by).await;
        }
        self.tasks.sweeper.abort();
        self.upstream.close().await;
        let report = StopReport {
            sent: sent + heartbeats.0,
            unsent: unsent + heartbeats.1,
        };
        let took_ms = started.elapsed().as_millis() as u64;
        match report.unsent {
            0 => info!(sent = report.sent, took_ms, "stopped"),
            unsent => warn!(
                sent = report.sent,
                unsent, took_ms, "stopped with something unsent"
            ),
        }
        self.health.stop().await;
        self.scrape.stop().await;
        report
    }

    async fn end_sessions(&self, deadline: Instant) {
        let roster = &self.owners.roster;
        roster.end_all();
        if !roster.emptied(deadline).await {
            warn!(left = roster.len(), "sessions did not end in time");
        }
    }
}
