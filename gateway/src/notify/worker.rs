//! Sends what the store holds: in order up to the connection, then each answer on a task of its own.
//!
//! Responsible for asking the breaker, for the order in which notices leave, for the probe's
//! deadline, the clock, and for what a call's end means to the notice, the breaker and the log.
//! Must never wait for a send: only for a connection that is being made, and for other events
//! meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::time::{Instant, sleep_until};
use yuzu_proto::gateway::v1::StreamStatusAck;

use super::Shared;
use super::desk::{Fact, Loss, Sent, Stage};
use super::notice::Notice;
use super::unacked::Wait;
use crate::observe::log::{limit, limited, safe_text};
use crate::upstream::{Begun, CallError, NoticeAdmission, Upstream, Verdict};

/// How a notice's send ended.
enum Outcome {
    Delivered,
    /// The server did not record it (UNACK-1).
    Unacknowledged,
    Failed(CallError),
}

/// Sends until the planned stop is over.
pub(super) async fn run(shared: Arc<Shared>) {
    shared.sender.is_named().await;
    let mut breaker = shared.upstream.watch_breaker();
    // Started, and not handed to the connection yet; as many as may be in flight.
    let mut leaving = VecDeque::new();
    loop {
        breaker.mark_unchanged();
        // One time for both: what falls due between two would be in neither.
        let now = Instant::now();
        while let Some(flight) = start_one(&shared, now) {
            leaving.push_back(flight);
        }
        let (stage, next) = shared.work(|desk| {
            let facts = desk.tick(now);
            ((desk.stage(), desk.next_time(now)), facts)
        });
        if stage == Stage::Over && leaving.is_empty() {
            return;
        }
        tokio::select! {
            () = hand_over(&shared.upstream, &mut leaving), if !leaving.is_empty() => {}
            () = shared.wake.notified() => {}
            // The sender lives as long as `shared`, which holds the upstream.
            _ = breaker.changed() => {}
            () = sleep_until(next.unwrap_or(now)), if next.is_some() => {}
        }
    }
}

/// Starts one send, if one may start now.
fn start_one(shared: &Arc<Shared>, now: Instant) -> Option<Flight> {
    let stage = {
        let desk = shared.lock();
        if desk.is_drained() {
            shared.drained.send_replace(true);
        }
        if !desk.may_start(now) {
            return None;
        }
        desk.stage()
    };
    let admission = match stage {
        Stage::Normal => Some(shared.upstream.admit_notice()?),
        Stage::Final | Stage::Over => None,
    };
    let notice = shared.work(|desk| desk.start(now, &shared.is_held))?;
    Some(Flight::new(shared, notice, admission, now))
}

/// Hands the requests to the connection, first come first served, by this one task: on the wire
/// they are in the order in which they were started. Waits only while a connection is being made,
/// each of them no longer than its own deadline. Cancelled in that wait, it has lost nothing.
async fn hand_over(upstream: &Upstream, leaving: &mut VecDeque<Flight>) {
    while let Some(first) = leaving.front() {
        let begun = upstream.begin_notice(&first.request, first.until).await;
        if let Some(flight) = leaving.pop_front() {
            tokio::spawn(flight.finish(begun));
        }
    }
}

/// A notice on its way. Dropped without a result, it counts as crashed.
struct Flight {
    shared: Arc<Shared>,
    notice: Option<Notice>,
    admission: Option<NoticeAdmission>,
    request: Bytes,
    until: Instant,
    /// Its deadline as a probe, when that is what ends it.
    probe_limit: Option<Duration>,
    probe: bool,
}

impl Flight {
    fn new(
        shared: &Arc<Shared>,
        notice: Notice,
        admission: Option<NoticeAdmission>,
        now: Instant,
    ) -> Self {
        let probe = admission.as_ref().is_some_and(NoticeAdmission::is_probe);
        let usual = shared.upstream.rpc_timeout();
        let probe_limit = Some(shared.probe_timeout()).filter(|limit| probe && *limit < usual);
        Self {
            shared: Arc::clone(shared),
            request: shared.sender.encode(&notice),
            notice: Some(notice),
            admission,
            until: now + probe_limit.unwrap_or(usual),
            probe_limit,
            probe,
        }
    }

    async fn finish(mut self, begun: Begun) {
        let result = self.shared.upstream.finish_notice(begun).await;
        if let (Some(limit), Err(CallError::Timeout)) = (self.probe_limit, &result) {
            tracing::warn!(
                limit_ms = limit.as_millis() as u64,
                "stream status probe did not answer within its deadline"
            );
        }
        self.land(match result.map(StreamStatusAck::decode) {
            Ok(Ok(ack)) if ack.acknowledged => Outcome::Delivered,
            Ok(Ok(_)) => Outcome::Unacknowledged,
            Ok(Err(_)) => Outcome::Failed(CallError::Answer("not a message of this call")),
            Err(error) => Outcome::Failed(error),
        });
    }

    fn land(&mut self, outcome: Outcome) {
        let Some(notice) = self.notice.take() else {
            return;
        };
        let (shared, probe, event) = (&self.shared, self.probe, notice.event);
        // The stop cuts what has no answer in its time, and says so itself (STOP-7): the server did not fail.
        let cut = shared.lock().stage() == Stage::Over && matches!(outcome, Outcome::Failed(_));
        // Before the notice is held again, so that the breaker knows when that is asked for.
        if let Some(admission) = self.admission.take() {
            admission.settle(if cut {
                Verdict::Neutral
            } else {
                verdict(&outcome)
            });
        }
        let agent = Arc::clone(&notice.agent_id);
        match &outcome {
            Outcome::Failed(_) if cut => {}
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
        Outcome::Failed(CallError::TooManyStreams | CallError::Unprocessed(_)) => Sent::NoStream,
        Outcome::Failed(error) if error.request_fault() => Sent::Lost(Loss::Rejected),
        Outcome::Failed(_) => Sent::Failed,
    }
}

fn log_failure(agent: &str, event: &str, error: &CallError, probe: bool) {
    let agent = safe_text(agent);
    match error {
        // Told by the client, at a limited rate: many come at once, and nothing was sent.
        CallError::TooManyStreams | CallError::Unprocessed(_) => {}
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
