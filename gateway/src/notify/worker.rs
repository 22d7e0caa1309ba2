//! Sends what the store holds, each notice on a task of its own.
//!
//! Responsible for asking the breaker, for the probe's deadline, the clock, and for what a call's
//! end means to the notice, the breaker and the log. Must never wait for a send.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use tokio::time::{Instant, sleep_until, timeout};
use yuzu_proto::gateway::v1::StreamStatusAck;

use super::Shared;
use super::desk::{Fact, Loss, Sent, Stage};
use super::notice::Notice;
use super::unacked::Wait;
use crate::observe::log::{limit, limited, safe_text};
use crate::upstream::{CallError, NoticeAdmission, Verdict};

/// How a notice's send ended.
enum Outcome {
    Delivered,
    /// The server did not record it (UNACK-1).
    Unacknowledged,
    Failed(CallError),
}

/// Sends until the planned stop is over.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut breaker = shared.upstream.watch_breaker();
    loop {
        breaker.mark_unchanged();
        // One time for both: what falls due between two would be in neither.
        let now = Instant::now();
        while start_one(&shared, now) {}
        let (stage, next) = shared.work(|desk| {
            let facts = desk.tick(now);
            ((desk.stage(), desk.next_time(now)), facts)
        });
        if stage == Stage::Over {
            return;
        }
        tokio::select! {
            () = shared.wake.notified() => {}
            // The sender lives as long as `shared`, which holds the upstream.
            _ = breaker.changed() => {}
            () = sleep_until(next.unwrap_or(now)), if next.is_some() => {}
        }
    }
}

/// Starts one send; false when none may start now.
fn start_one(shared: &Arc<Shared>, now: Instant) -> bool {
    let stage = {
        let desk = shared.lock();
        if desk.is_drained() {
            shared.drained.send_replace(true);
        }
        if !desk.may_start(now) {
            return false;
        }
        desk.stage()
    };
    let admission = match stage {
        Stage::Normal => match shared.upstream.admit_notice() {
            Some(admission) => Some(admission),
            None => return false,
        },
        Stage::Final | Stage::Over => None,
    };
    let Some(notice) = shared.work(|desk| desk.start(now, &shared.is_held)) else {
        return false;
    };
    tokio::spawn(Flight::new(shared, notice, admission).send());
    true
}

/// A notice on its way. Dropped without a result, it counts as crashed.
struct Flight {
    shared: Arc<Shared>,
    notice: Option<Notice>,
    admission: Option<NoticeAdmission>,
    probe: bool,
}

impl Flight {
    fn new(shared: &Arc<Shared>, notice: Notice, admission: Option<NoticeAdmission>) -> Self {
        Self {
            shared: Arc::clone(shared),
            notice: Some(notice),
            probe: admission.as_ref().is_some_and(NoticeAdmission::is_probe),
            admission,
        }
    }

    async fn send(mut self) {
        let Some(notice) = &self.notice else { return };
        let request = self.shared.sender.encode(notice);
        let outcome = self.call(request).await;
        self.land(outcome);
    }

    async fn call(&self, request: Bytes) -> Outcome {
        let call = self.shared.upstream.notify(request);
        let limit = self.shared.probe_timeout;
        let result = match self.probe {
            false => call.await,
            true => timeout(limit, call).await.unwrap_or_else(|_| {
                tracing::warn!(
                    limit_ms = limit.as_millis() as u64,
                    "stream status probe did not answer within its deadline"
                );
                Err(CallError::Timeout)
            }),
        };
        match result.map(StreamStatusAck::decode) {
            Ok(Ok(ack)) if ack.acknowledged => Outcome::Delivered,
            Ok(Ok(_)) => Outcome::Unacknowledged,
            Ok(Err(_)) => Outcome::Failed(CallError::Answer("not a message of this call")),
            Err(error) => Outcome::Failed(error),
        }
    }

    fn land(&mut self, outcome: Outcome) {
        let Some(notice) = self.notice.take() else {
            return;
        };
        // Before the notice is held again, so that the breaker knows when that is asked for.
        if let Some(admission) = self.admission.take() {
            admission.settle(verdict(&outcome));
        }
        let (shared, probe, event) = (&self.shared, self.probe, notice.event);
        let agent = Arc::clone(&notice.agent_id);
        match &outcome {
            Outcome::Failed(error) => log_failure(&agent, event.label(), error, probe),
            Outcome::Unacknowledged => shared
                .metrics
                .upstream_notify_unacknowledged_total
                .with_label_values(&[event.label()])
                .inc(),
            Outcome::Delivered => {}
        }
        let again = shared.work(|desk| {
            let facts = desk.land(notice, sent(&outcome, probe), Instant::now(), chance());
            let again = facts.iter().find_map(|fact| match fact {
                Fact::Again(wait) => Some(*wait),
                _ => None,
            });
            (again, facts)
        });
        shared.wake.notify_one();
        shared.left.notify_waiters();
        if let Some(wait) = again {
            limited!(
                warn,
                limit::NOTICE_UNACKNOWLEDGED,
                "{}",
                not_recorded(event.label(), &agent, wait)
            );
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.land(Outcome::Failed(CallError::Crashed));
    }
}

/// What it means to the breaker.
fn verdict(outcome: &Outcome) -> Verdict {
    match outcome {
        Outcome::Delivered => Verdict::Success,
        Outcome::Unacknowledged => Verdict::Neutral,
        Outcome::Failed(error) => error.verdict(),
    }
}

/// What it means to the notice. A probe that crashed failed as any other.
fn sent(outcome: &Outcome, probe: bool) -> Sent {
    match outcome {
        Outcome::Delivered => Sent::Acknowledged,
        Outcome::Unacknowledged => Sent::Unacknowledged,
        Outcome::Failed(CallError::Crashed) if !probe => Sent::Lost(Loss::Crashed),
        Outcome::Failed(CallError::TooManyStreams) => Sent::NoStream,
        Outcome::Failed(error) if error.request_fault() => Sent::Lost(Loss::Rejected),
        Outcome::Failed(_) => Sent::Failed,
    }
}

fn log_failure(agent: &str, event: &str, error: &CallError, probe: bool) {
    let agent = safe_text(agent);
    match error {
        // Told by the client, at a limited rate: many come at once, and nothing was sent.
        CallError::TooManyStreams => {}
        CallError::Encode if probe => tracing::warn!(
            "Evicted held stream status notification for {agent}: it cannot be encoded \
             (encode:{error}); the circuit breaker is not affected"
        ),
        _ => tracing::warn!(%agent, event, reason = %error, "Failed to notify stream status"),
    }
}

/// The line of UNACK-10.
fn not_recorded(event: &str, agent: &str, wait: Wait) -> String {
    let Wait {
        refusals,
        over,
        delay,
    } = wait;
    format!(
        "Server did not record the {event} stream status notice for {} (acknowledged=false; \
         refused {refusals} time(s) over {} ms); sending it again in {} ms",
        safe_text(agent),
        over.as_millis(),
        delay.as_millis()
    )
}

/// A random number in `0.0..=1.0`.
fn chance() -> f64 {
    getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests;
