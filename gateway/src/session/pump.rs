//! The task of one agent session.
//!
//! The pump keeps the receiving half of the Subscribe stream and has no logic; an owner that runs
//! inside it reads frames and hands them on. An owner that dies leaves the stream open, and its
//! successor goes on with the same halves at once; one that held them itself would drop them with
//! its panic (OWNER-1, OWNER-4). Responsible for what is due when an owner dies (OWNER-3, OWNER-8,
//! OWNER-10, CMD-20) and when a session ends (SUB-9), however it ends. Must never look at a frame.

use std::convert::Infallible;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use tonic::Status;
use tracing::{debug, info, warn};

use super::clock::unix_ms;
use super::events::{Change, Event};
use super::inbound::Inbound;
use super::live::Session;
use super::owner::{Ended, OwnerContext, own};
use super::recovery::{NotRecovered, recover};
use crate::notify::{Event as NoticeEvent, Notice, NoticeKey};
use crate::observe::log::safe_text;
use crate::supervise::Intensity;

/// Restarts of one owner within [`RESTART_PERIOD`] before it gives up (OWNER-8).
const MAX_RESTARTS: usize = 3;
const RESTART_PERIOD: Duration = Duration::from_secs(60);
/// The stream's sending half has this long to deliver the end of the stream.
const FAREWELL_TIME: Duration = Duration::from_secs(5);

/// Announces a session that commands already go to, and starts its task (SUB-7).
pub(crate) fn start(session: Arc<Session>, inbound: Inbound, context: Arc<OwnerContext>) {
    // First of all, so that whatever goes wrong below ends the session.
    let mut life = SessionLife {
        session: Arc::clone(&session),
        context: Arc::clone(&context),
        connected: false,
        ended: false,
    };
    context.roster.add(&session);
    context.events.publish(Event {
        agent_id: Arc::clone(session.agent_id()),
        at_ms: unix_ms(),
        change: Change::Connected(Arc::clone(&session.session_id)),
    });
    context.metrics.agents_connected_total.inc();
    info!(
        "Agent {} connected from {}",
        safe_text(&**session.agent_id()),
        session
            .peer()
            .map_or_else(|| "unknown".to_owned(), |peer| peer.to_string()),
    );
    life.say_connected();
    let connection = Arc::clone(inbound.connection());
    connection.spawn_on(Some(session), pump(life, inbound));
}

fn notice(session: &Session, event: NoticeEvent) -> Notice {
    Notice {
        agent_id: Arc::clone(session.agent_id()),
        session_id: Arc::clone(&session.session_id),
        stream_home_id: Arc::clone(&session.stream_home_id),
        event,
        peer: session.peer(),
    }
}

/// What all notices of the session are ordered by.
pub(super) fn key_of(session: &Session) -> NoticeKey {
    notice(session, NoticeEvent::Connected).key()
}

/// Runs one owner after the other until the session is over.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps its arguments twice, for as long as the agent is connected"
)]
fn pump(mut life: SessionLife, mut inbound: Inbound) -> impl Future<Output = ()> + Send {
    async move {
        let mut restarts = Intensity::new(MAX_RESTARTS, RESTART_PERIOD);
        // Whether the owner has still to recover what its predecessor left.
        let mut recovering = false;
        let status = loop {
            let owner = live(&mut life, &mut inbound, &mut recovering);
            let died = match AssertUnwindSafe(owner).catch_unwind().await {
                Ok(Ended::Well) => break over(&life, recovering, Status::ok("")),
                Ok(Ended::With(status)) => break over(&life, recovering, status),
                Ok(Ended::NotRecovered(reason)) => {
                    life.tell(&Outcome::DisconnectedOnly(reason));
                    break Status::ok("");
                }
                Ok(Ended::Replaced) => false,
                Err(_panic) => true,
            };
            life.say_owner_died();
            if died {
                if recovering {
                    life.tell(&Outcome::DisconnectedOnly(NotRecovered::Died));
                }
                if !restarts.admit(Instant::now()) {
                    life.tell(&Outcome::GaveUp);
                    break Status::ok("");
                }
                let context = &life.context;
                context.supervisor.restarted(&context.roster);
            }
            recovering = true;
        };
        life.end(status);
        // The receiving half is held until the end is delivered: dropped before, the agent would see
        // a reset in place of the status.
        if tokio::time::timeout(FAREWELL_TIME, life.session.stream_gone())
            .await
            .is_err()
        {
            debug!("the agent did not take the end of its stream in time");
        }
    }
}

/// The session is over; with it a recovery that was not done.
fn over(life: &SessionLife, recovering: bool, status: Status) -> Status {
    if recovering {
        life.tell(&Outcome::DisconnectedOnly(NotRecovered::Ended));
    }
    status
}

/// One owner's life: it serves the stream, and recovers the session beside it if that is due.
async fn live(life: &mut SessionLife, inbound: &mut Inbound, recovering: &mut bool) -> Ended {
    let (session, context) = (Arc::clone(&life.session), Arc::clone(&life.context));
    let mut owner = pin!(own(&session, &context, inbound));
    if *recovering {
        // Boxed: few sessions ever need the room.
        let recovered = tokio::select! {
            biased;
            ended = &mut owner => return ended,
            recovered = Box::pin(recover(&session, &context)) => recovered,
        };
        if let Err(reason) = recovered {
            return Ended::NotRecovered(reason);
        }
        life.say_connected();
        *recovering = false;
        life.tell(&Outcome::Recovered);
    }
    tokio::select! {
        biased;
        ended = owner => ended,
        never = announce_again(life) => match never {},
    }
}

/// Tells CONNECTED whenever the server has taken the session in anew, while commands still go to
/// it (REPLAY-14).
async fn announce_again(life: &mut SessionLife) -> Infallible {
    loop {
        life.session.asked_to_announce().await;
        if life.context.registry.is_current(&life.session) {
            life.say_connected();
        }
    }
}

/// What became of an owner's restart (OWNER-10).
#[derive(Debug)]
enum Outcome {
    Recovered,
    DisconnectedOnly(NotRecovered),
    GaveUp,
}

/// A session from its CONNECTED to its end. Dropped without [`SessionLife::end`], its task was
/// killed.
struct SessionLife {
    session: Arc<Session>,
    context: Arc<OwnerContext>,
    /// Whether CONNECTED is the last that the server was told.
    connected: bool,
    ended: bool,
}

impl SessionLife {
    fn say_connected(&mut self) {
        self.connected = true;
        self.announce(NoticeEvent::Connected);
    }

    /// Once per CONNECTED (OWNER-3).
    fn say_disconnected(&mut self) {
        if std::mem::take(&mut self.connected) {
            self.announce(NoticeEvent::Disconnected);
        }
    }

    fn announce(&self, event: NoticeEvent) {
        self.context.notifier.send(notice(&self.session, event));
    }

    /// What is due for a dead owner, whatever its successor can do (OWNER-3, CMD-20).
    fn say_owner_died(&mut self) {
        self.session.fail_outstanding();
        self.say_disconnected();
    }

    fn tell(&self, outcome: &Outcome) {
        let agent = safe_text(&**self.session.agent_id());
        let label = match outcome {
            Outcome::Recovered => {
                info!(%agent, "session owner restarted; the agent keeps its stream and session");
                "recovered"
            }
            Outcome::DisconnectedOnly(reason) => {
                warn!(%agent, %reason, "session owner restarted; its session was not recovered");
                "disconnected_only"
            }
            Outcome::GaveUp => {
                warn!(
                    %agent,
                    "owner process restarted more than 3 times in 60 s; giving up"
                );
                "gave_up"
            }
        };
        let outcomes = &self.context.metrics.agent_owner_restarts_total;
        outcomes.with_label_values(&[label]).inc();
    }

    /// What is due when the session ends (SUB-9).
    fn end(&mut self, status: Status) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let (session, context) = (Arc::clone(&self.session), Arc::clone(&self.context));
        context.registry.end(&session);
        session.end_stream(status);
        let lasted = session.connected.elapsed().as_millis() as u64;
        context.metrics.agents_disconnected_total.inc();
        context
            .metrics
            .agent_session_duration_ms
            .observe(lasted as f64);
        self.say_disconnected();
        context.events.publish(Event {
            agent_id: Arc::clone(session.agent_id()),
            at_ms: unix_ms(),
            change: Change::Disconnected,
        });
        info!(
            "Agent {} disconnected after {lasted} ms",
            safe_text(&**session.agent_id())
        );
        context.roster.remove(&session);
    }
}

impl Drop for SessionLife {
    fn drop(&mut self) {
        self.end(Status::ok(""));
    }
}

#[cfg(test)]
mod tests;
