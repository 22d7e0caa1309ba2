//! Sends what the store holds, each notice on a task of its own.
//!
//! Responsible for asking the breaker, for the ten slots, the probe's deadline and for counting
//! how each send ended. Must never wait for a send.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use tokio::time::timeout;
use yuzu_proto::gateway::v1::StreamStatusAck;

use super::notice::Notice;
use super::store::{Landed, Sent};
use super::{Shared, Stage};
use crate::observe::log::safe_text;
use crate::upstream::{CallError, NOTICES_IN_FLIGHT, NoticeAdmission, Verdict};

/// Sends out at once during the final send (STOP-6).
const FINAL_WIDTH: usize = 64;

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
        while start_one(&shared) {}
        if shared.lock().stage == Stage::Over {
            return;
        }
        tokio::select! {
            () = shared.wake.notified() => {}
            // The sender lives as long as `shared`, which holds the upstream.
            _ = breaker.changed() => {}
        }
    }
}

/// Starts one send; false when none may start now.
fn start_one(shared: &Arc<Shared>) -> bool {
    let stage = {
        let held = shared.lock();
        let (width, stage) = match held.stage {
            Stage::Normal => (NOTICES_IN_FLIGHT, Stage::Normal),
            Stage::Final => (FINAL_WIDTH, Stage::Final),
            Stage::Over => return false,
        };
        if stage == Stage::Final && held.store.held() + held.store.in_flight() == 0 {
            shared.drained.send_replace(true);
        }
        if held.store.held() == 0 || held.store.in_flight() >= width {
            return false;
        }
        stage
    };
    let admission = match stage {
        Stage::Normal => match shared.upstream.admit_notice() {
            Some(admission) => Some(admission),
            None => return false,
        },
        Stage::Final | Stage::Over => None,
    };
    let Some(notice) = ({
        let mut held = shared.lock();
        let notice = held.store.take();
        shared.gauge(&held.store);
        notice
    }) else {
        return false;
    };
    let flight = Flight {
        shared: Arc::clone(shared),
        notice: Some(notice),
    };
    tokio::spawn(flight.send(admission));
    true
}

/// A notice on its way. Dropped without a result, it is lost and counted (NOTIFY-11).
struct Flight {
    shared: Arc<Shared>,
    notice: Option<Notice>,
}

impl Flight {
    async fn send(mut self, admission: Option<NoticeAdmission>) {
        let Some(notice) = &self.notice else { return };
        let request = self.shared.sender.encode(notice);
        let probe = admission.as_ref().is_some_and(NoticeAdmission::is_probe);
        let outcome = self.call(request, probe).await;
        if let Some(admission) = admission {
            admission.settle(verdict(&outcome));
        }
        if let Some(notice) = self.notice.take() {
            land(&self.shared, notice, outcome);
        }
    }

    async fn call(&self, request: Bytes, probe: bool) -> Outcome {
        let call = self.shared.upstream.notify(request);
        let limit = self.shared.probe_timeout;
        let result = match probe {
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
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(notice) = self.notice.take() {
            land(&self.shared, notice, Outcome::Failed(CallError::Crashed));
        }
    }
}

/// What it means to the breaker. On this lane a full connection counts as any other failure
/// (PERMIT-11), or a notice would be sent in a circle.
fn verdict(outcome: &Outcome) -> Verdict {
    match outcome {
        Outcome::Delivered => Verdict::Success,
        Outcome::Unacknowledged => Verdict::Neutral,
        Outcome::Failed(CallError::TooManyStreams) => Verdict::Failure,
        Outcome::Failed(error) => error.verdict(),
    }
}

fn land(shared: &Shared, notice: Notice, outcome: Outcome) {
    let event = notice.event;
    if let Outcome::Failed(error) = &outcome {
        tracing::warn!(
            agent = %safe_text(&*notice.agent_id),
            event = event.label(),
            reason = %error,
            "Failed to notify stream status"
        );
    }
    let mut held = shared.lock();
    let stage = held.stage;
    let (sent, lost) = match &outcome {
        Outcome::Delivered => (Sent::Delivered, None),
        Outcome::Unacknowledged => (Sent::Over, Some("unacknowledged")),
        Outcome::Failed(CallError::Crashed) => (Sent::Over, Some("crashed")),
        Outcome::Failed(error) if error.request_fault() => (Sent::Over, Some("rejected")),
        Outcome::Failed(_) if stage == Stage::Normal => (Sent::Failed, None),
        Outcome::Failed(_) => (Sent::Over, Some("shutdown")),
    };
    let landed = held.store.land(notice, sent);
    if stage == Stage::Final {
        match lost {
            None => held.sent += 1,
            Some(_) => held.unsent += 1,
        }
    }
    shared.gauge(&held.store);
    drop(held);
    if matches!(outcome, Outcome::Unacknowledged) {
        let refused = &shared.metrics.upstream_notify_unacknowledged_total;
        refused.with_label_values(&[event.label()]).inc();
    }
    match (lost, landed) {
        // Counted when the final send was given up.
        (Some(_), _) if stage == Stage::Over => {}
        (Some(reason), _) => shared.lost(event, reason),
        (None, Landed::Done) => {}
        (None, Landed::Requeued) => shared.metrics.upstream_notify_requeued_total.inc(),
        (None, Landed::Superseded) => shared.metrics.upstream_notify_coalesced_total.inc(),
    }
    shared.wake.notify_one();
    shared.left.notify_waiters();
}
