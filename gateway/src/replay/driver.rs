//! Turns verdicts into replays, and starts tasks for them while there are fewer than allowed.
//!
//! Responsible for the clock, the breaker, what is counted and said about a drip as a whole.
//! Everything it does follows an event; it never polls. Must never wait for a replay.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::Shared;
use super::flight::Flight;
use super::queue::{Aborted, CHUNK, Entry, Held, Page, Tally, Target};
use super::verdict::Verdict;
use crate::session::Session;
use crate::upstream::BreakerState;

/// What started a replay: the metric label `trigger`.
const HEARTBEAT: &str = "heartbeat";
const SERVER_LOST_STATE: &str = "server_lost_state";
const NOTIFY_LOSS: &str = "notify_loss";

/// Drives the drip; never returns.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut verdicts = shared.handed.lock().await;
    let mut breaker = shared.upstream.watch_breaker();
    loop {
        breaker.mark_unchanged();
        // One time for all: what falls due between two would be in neither.
        let now = Instant::now();
        shared.follow_breaker(now);
        while let Some(entry) = shared.take(now) {
            tokio::spawn(Flight::new(&shared, entry).fly());
        }
        let (next, may_begin_full) = shared.work(|queue| {
            queue.tick(now);
            (queue.next_time(now), queue.may_begin_full(now))
        });
        tokio::select! {
            Some(verdict) = verdicts.recv() => shared.judge(&verdict),
            () = shared.wake.notified() => {}
            // The sender lives as long as `shared`, which holds the upstream.
            _ = breaker.changed() => {}
            () = shared.notifier.replay_due(), if may_begin_full => shared.notice_lost(),
            () = sleep_until(next.unwrap_or(now)), if next.is_some() => {}
        }
    }
}

impl Shared {
    /// An open breaker ends the drip (REPLAY-18).
    fn follow_breaker(&self, now: Instant) {
        if !matches!(self.upstream.breaker_state(), BreakerState::Open { .. }) {
            return;
        }
        if let Some(aborted) = self.work(|queue| queue.abort(now)) {
            tracing::warn!(
                "Registration replay aborted: circuit open ({} agent(s) not yet re-proxied)",
                self.left_by(&aborted)
            );
        }
    }

    /// Agents that an abort left without their replay, those included that were not even queued.
    fn left_by(&self, aborted: &Aborted) -> usize {
        let mut left = aborted.waiting;
        let mut walked_to = aborted.walked_to.clone();
        while let Some(after) = walked_to.take() {
            let (agents, more) = self.registry.page(&after, CHUNK);
            left += agents.len();
            walked_to = agents
                .last()
                .filter(|_| more)
                .map(|last| Arc::clone(last.agent_id()));
        }
        left
    }

    /// The next replay to start now. A half-open breaker admits one call at a time, live
    /// registrations included; the others would be refused (BREAKER-8).
    pub(super) fn take(&self, now: Instant) -> Option<Entry> {
        let width = match self.upstream.breaker_state() {
            BreakerState::Closed => self.drip.load().width,
            BreakerState::HalfOpen => usize::from(self.upstream.admits_call()),
            BreakerState::Open { .. } => 0,
        };
        let page = |after: &str, limit: usize| -> Page {
            let (sessions, more) = self.registry.page(after, limit);
            (sessions.iter().map(|session| held(session)).collect(), more)
        };
        self.work(|queue| queue.take(width.min(queue.spread(now)), now, page))
    }

    /// Does what a verdict asks for (REPLAY-4, REPLAY-6 to REPLAY-9).
    fn judge(&self, verdict: &Verdict) {
        let named = verdict.named.len();
        if self.lock().is_stopped() {
            return;
        }
        if matches!(self.upstream.breaker_state(), BreakerState::Open { .. }) {
            self.dropped("circuit_open", named);
            tracing::debug!(
                "Registration replay: heartbeat verdict named {named} session(s) while the \
                 circuit is open; dropped"
            );
            return;
        }
        if named > 0 {
            let found: Vec<_> = verdict.named.iter().map(|id| self.find(id)).collect();
            let pause = self.pause();
            let tally = self.work(|queue| queue.name(found, Instant::now(), pause));
            self.tell(named, tally);
        }
        if verdict.shows_lost_state(self.registry.len()) && self.begin_full(SERVER_LOST_STATE) {
            tracing::info!(
                "Registration replay: the server does not know {named} of the {} session(s) of a \
                 heartbeat batch; replaying every agent",
                verdict.heartbeats
            );
        }
    }

    /// The connected agent's session with this id, which may be any bytes.
    fn find(&self, id: &Bytes) -> Option<Target> {
        let session = self.registry.find(std::str::from_utf8(id).ok()?)?;
        Some(target(&session))
    }

    fn tell(&self, named: usize, tally: Tally) {
        let Tally {
            queued,
            not_local,
            already_queued,
            within_guard,
            queue_full,
        } = tally;
        self.dropped("not_local", not_local);
        self.dropped("queue_full", queue_full);
        let line = format_args!(
            "Registration replay: heartbeat verdict named {named} session(s); queued {queued}, \
             not local {not_local}, already queued {already_queued}, within guard {within_guard}, \
             queue full {queue_full}"
        );
        if queued > 0 {
            self.triggered(HEARTBEAT);
            tracing::info!("{line}");
        } else {
            tracing::debug!("{line}");
        }
    }

    /// A CONNECTED was lost, which nothing else repairs (NOTIFY-14).
    fn notice_lost(&self) {
        if self.begin_full(NOTIFY_LOSS) {
            tracing::info!(
                "Registration replay: a CONNECTED notice was lost; replaying every agent"
            );
        }
    }

    fn begin_full(&self, trigger: &str) -> bool {
        let pause = self.pause();
        let begun = self.work(|queue| queue.begin_full(Instant::now(), pause));
        if begun {
            self.triggered(trigger);
        }
        begun
    }

    fn triggered(&self, trigger: &str) {
        let triggered = &self.metrics.registration_replay_triggered_total;
        triggered.with_label_values(&[trigger]).inc();
    }

    /// A random time, so that gateways that a server's return wakes at once do not begin together
    /// (REPLAY-11).
    fn pause(&self) -> Duration {
        let chance = getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX));
        self.drip.load().start_jitter.mul_f64(chance)
    }
}

fn held(session: &Session) -> Held {
    Held {
        target: target(session),
        since: session.connected,
    }
}

fn target(session: &Session) -> Target {
    Target {
        agent_id: Arc::clone(session.agent_id()),
        session_id: Arc::clone(&session.session_id),
    }
}

#[cfg(test)]
mod tests;
