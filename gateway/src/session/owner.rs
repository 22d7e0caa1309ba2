//! The task of one agent session: the pump, and the owner that runs inside it.
//!
//! The pump keeps the receiving half of the Subscribe stream and has no logic; the owner reads
//! frames from it and hands them on. An owner that panics leaves the stream open and is started
//! again on the same halves; one that held them itself would drop them with its panic (OWNER-1).
//! Responsible for what is due when a session ends (SUB-9), however it ends. Must never decode
//! more of a frame than its command id, status and plugin.

use std::convert::Infallible;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::Instant;
use tonic::Status;
use tracing::{debug, error, info, warn};
use yuzu_proto::GUARDIAN_PLUGIN;
use yuzu_proto::peek::CommandResponsePeek;
use yuzu_proto::wire::{GRPC_PREFIX, bytes_field_len, put_bytes_field, put_grpc_prefix};

use super::clock::unix_ms;
use super::events::{Change, Event, Events};
use super::live::{Control, Session};
use super::registry::Registry;
use super::replies::{Reply, Waiter};
use super::roster::Roster;
use crate::edge::connection::{Charge, Connection};
use crate::edge::deframe::Deframer;
use crate::notify::{Event as NoticeEvent, Notice, Notifier};
use crate::observe::log::safe_text;
use crate::observe::metrics::Metrics;
use crate::upstream::Upstream;

/// Restarts of one owner within [`RESTART_PERIOD`] before it gives up (OWNER-8).
const MAX_RESTARTS: usize = 3;
const RESTART_PERIOD: Duration = Duration::from_secs(60);
/// Frames of a stream that is gone that are still looked at; its receive window holds few more.
const LAST_FRAMES: usize = 1_024;
/// The stream's sending half has this long to deliver the end of the stream.
const FAREWELL_TIME: Duration = Duration::from_secs(5);

/// What every owner of the node works with.
pub(crate) struct OwnerContext {
    pub(crate) registry: Arc<Registry>,
    pub(crate) roster: Roster,
    pub(crate) events: Arc<Events>,
    pub(crate) notifier: Notifier,
    pub(crate) upstream: Upstream,
    pub(crate) metrics: Arc<Metrics>,
}

impl fmt::Debug for OwnerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerContext")
    }
}

/// The receiving half of a Subscribe stream.
pub(crate) struct Inbound {
    body: Incoming,
    deframer: Deframer,
    charge: Charge,
}

impl Inbound {
    pub(crate) fn new(body: Incoming, connection: &Arc<Connection>) -> Self {
        let deframer = Deframer::new(connection.limits().max_message_bytes);
        connection.session_began();
        Self {
            body,
            deframer,
            charge: Charge::new(connection),
        }
    }

    /// The agent's next frame; `None` when it half-closed. Nothing is lost when the future is
    /// dropped.
    ///
    /// # Errors
    /// The status the stream ends with: cancelled when it was reset or its connection lost, else
    /// what is wrong with the bytes.
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            let message = self.deframer.next()?;
            self.charge
                .set(self.deframer.held())
                .map_err(|over| Status::resource_exhausted(over.to_string()))?;
            if message.is_some() {
                return Ok(message);
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(_)) => return Err(Status::cancelled("the stream was reset")),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.deframer.push(data);
                    }
                }
            }
        }
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        self.charge.connection().session_ended(Instant::now());
    }
}

/// How an owner's life ended.
enum Ended {
    /// The agent half-closed, or the gateway ends the session: OK.
    Well,
    /// The stream is gone or its bytes were wrong.
    With(Status),
}

/// Announces a session that commands already go to, and starts its task (SUB-7).
pub(crate) fn start(session: Arc<Session>, inbound: Inbound, context: Arc<OwnerContext>) {
    // First of all, so that whatever goes wrong below ends the session.
    let farewell = Farewell {
        session: Arc::clone(&session),
        context: Arc::clone(&context),
        said: false,
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
    announce(&session, &context, NoticeEvent::Connected);
    tokio::spawn(pump(farewell, inbound));
}

fn announce(session: &Session, context: &OwnerContext, event: NoticeEvent) {
    context.notifier.send(notice(session, event));
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

async fn pump(mut farewell: Farewell, mut inbound: Inbound) {
    let mut restarts = Restarts::default();
    let mut owed = false;
    let Farewell {
        session, context, ..
    } = &farewell;
    let status = loop {
        let life = async {
            tokio::select! {
                biased;
                ended = own(session, context, &mut inbound) => ended,
                never = announce_again(session, context, &mut owed) => match never {},
            }
        };
        match AssertUnwindSafe(life).catch_unwind().await {
            Ok(Ended::Well) => break Status::ok(""),
            Ok(Ended::With(status)) => break status,
            Err(_panic) => {
                if !recover(session, context, &mut restarts) {
                    break Status::ok("");
                }
                owed = true;
            }
        }
    };
    farewell.say(status);
    // The receiving half is held until the end is delivered: dropped before, the agent would see
    // a reset in place of the status.
    if tokio::time::timeout(FAREWELL_TIME, farewell.session.stream_gone())
        .await
        .is_err()
    {
        debug!("the agent did not take the end of its stream in time");
    }
}

/// What is due after a panic of the owner (OWNER-3, OWNER-5, CMD-20). False: it gives up.
fn recover(session: &Session, context: &OwnerContext, restarts: &mut Restarts) -> bool {
    session.fail_outstanding();
    let outcomes = &context.metrics.agent_owner_restarts_total;
    if restarts.admit(Instant::now()) {
        error!("session owner panicked; restarted on its open stream");
        announce(session, context, NoticeEvent::Disconnected);
        outcomes.with_label_values(&["recovered"]).inc();
        true
    } else {
        warn!(
            agent = %safe_text(&**session.agent_id()),
            "owner process restarted more than 3 times in 60 s; giving up"
        );
        outcomes.with_label_values(&["gave_up"]).inc();
        false
    }
}

/// Tells the CONNECTED that is owed after a recovery, once its DISCONNECTED is settled: sooner it
/// would take the place of that one (OWNER-5, NOTIFY-3). From then on tells it whenever the server
/// has taken the session in anew, while commands still go to it (REPLAY-14).
async fn announce_again(session: &Session, context: &OwnerContext, owed: &mut bool) -> Infallible {
    if *owed {
        let key = notice(session, NoticeEvent::Connected).key();
        context.notifier.settled(&key).await;
        announce(session, context, NoticeEvent::Connected);
        *owed = false;
    }
    loop {
        session.asked_to_announce().await;
        if context.registry.is_current(session) {
            announce(session, context, NoticeEvent::Connected);
        }
    }
}

/// The recent restarts of one owner.
#[derive(Debug, Default)]
struct Restarts(Vec<Instant>);

impl Restarts {
    fn admit(&mut self, now: Instant) -> bool {
        self.0.retain(|at| now.duration_since(*at) < RESTART_PERIOD);
        self.0.push(now);
        self.0.len() <= MAX_RESTARTS
    }
}

/// The owner: reads frames in their order and hands each on (SUB-12).
async fn own(session: &Session, context: &OwnerContext, inbound: &mut Inbound) -> Ended {
    loop {
        // An agent that sends without end must not keep its thread from other agents.
        tokio::task::coop::consume_budget().await;
        let next = tokio::select! {
            biased;
            control = session.asked() => return leave(control, session, context, inbound).await,
            next = inbound.next() => next,
        };
        let frame = match next {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ended::Well,
            Err(status) => return Ended::With(status),
        };
        let mut delivery = pin!(deliver(session, context, frame));
        let asked = tokio::select! {
            biased;
            delivered = &mut delivery => match delivered {
                Ok(()) => continue,
                Err(status) => return Ended::With(status),
            },
            control = session.asked() => control,
        };
        if asked == Control::StreamGone {
            // The answer came before the stream went.
            let _ = tokio::time::timeout(FAREWELL_TIME, delivery).await;
        }
        return leave(asked, session, context, inbound).await;
    }
}

/// Ends as asked. What an agent sent before its stream went is still an answer: it may have closed
/// right after it.
async fn leave(
    control: Control,
    session: &Session,
    context: &OwnerContext,
    inbound: &mut Inbound,
) -> Ended {
    match control {
        Control::End => Ended::Well,
        Control::StreamGone => {
            let last = last_words(session, context, inbound);
            let _ = tokio::time::timeout(FAREWELL_TIME, last).await;
            Ended::With(Status::cancelled("the stream was reset"))
        }
        #[cfg(feature = "fault-injection")]
        Control::Panic => panic!("injected fault"),
    }
}

async fn last_words(session: &Session, context: &OwnerContext, inbound: &mut Inbound) {
    for _ in 0..LAST_FRAMES {
        let Some(Ok(Some(frame))) = inbound.next().now_or_never() else {
            return;
        };
        if deliver(session, context, frame).await.is_err() {
            return;
        }
    }
}

async fn deliver(session: &Session, context: &OwnerContext, frame: Bytes) -> Result<(), Status> {
    let peek = CommandResponsePeek::peek(&frame)
        .map_err(|error| Status::internal(format!("malformed CommandResponse: {error}")))?;
    if peek.command_id.is_empty() && peek.plugin == GUARDIAN_PLUGIN.as_bytes() {
        context
            .upstream
            .forward_guardian(session.agent_id(), &frame);
        return Ok(());
    }
    let terminal = (peek.status != 0).then_some(peek.status);
    let waiters = session.waiters(peek.command_id, terminal.is_some());
    if waiters.is_empty() {
        debug!("frame of a command nobody waits for dropped");
        return Ok(());
    }
    let reply = Reply {
        frame: as_answer(session.agent_id(), &frame),
        terminal,
    };
    // The copy is what may have to wait: the agent's buffer goes back at once.
    drop(frame);
    hand_over(&waiters, &reply).await;
    Ok(())
}

/// Gives the reply to everyone who waits for it, in turn. Dropped before its end, it tells the
/// callers that a terminal frame did not reach that the agent is lost (CMD-4): nobody else does,
/// the mailbox has forgotten them.
async fn hand_over(waiters: &[Waiter], reply: &Reply) {
    let mut unreached = Unreached(match reply.terminal {
        Some(_) => waiters,
        None => &[],
    });
    for Waiter { sink, target } in waiters {
        if !sink.try_reply(*target, reply) {
            sink.reply_when_room(*target, reply).await;
        }
    }
    unreached.0 = &[];
}

struct Unreached<'a>(&'a [Waiter]);

impl Drop for Unreached<'_> {
    fn drop(&mut self) {
        for Waiter { sink, target } in self.0 {
            sink.lost(*target);
        }
    }
}

/// The agent's frame, unchanged, as a framed `SendCommandResponse` of `agent_id`.
pub(super) fn as_answer(agent_id: &str, frame: &[u8]) -> Bytes {
    let len = bytes_field_len(1, agent_id.len()) + bytes_field_len(2, frame.len());
    let mut out = BytesMut::with_capacity(GRPC_PREFIX + len);
    put_grpc_prefix(&mut out, len);
    put_bytes_field(&mut out, 1, agent_id.as_bytes());
    put_bytes_field(&mut out, 2, frame);
    out.freeze()
}

/// What is due when the session ends (SUB-9), also when its task is dropped.
struct Farewell {
    session: Arc<Session>,
    context: Arc<OwnerContext>,
    said: bool,
}

impl Farewell {
    fn say(&mut self, status: Status) {
        if std::mem::replace(&mut self.said, true) {
            return;
        }
        let Self {
            session, context, ..
        } = self;
        context.registry.end(session);
        session.end_stream(status);
        let lasted = session.connected.elapsed().as_millis() as u64;
        context.metrics.agents_disconnected_total.inc();
        context
            .metrics
            .agent_session_duration_ms
            .observe(lasted as f64);
        announce(session, context, NoticeEvent::Disconnected);
        context.events.publish(Event {
            agent_id: Arc::clone(session.agent_id()),
            at_ms: unix_ms(),
            change: Change::Disconnected,
        });
        info!(
            "Agent {} disconnected after {lasted} ms",
            safe_text(&**session.agent_id())
        );
        context.roster.remove(session);
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        self.say(Status::ok(""));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use prost::Message;
    use yuzu_proto::agent::v1::CommandResponse;
    use yuzu_proto::server::v1::SendCommandResponse;

    use super::super::testing::Caller;
    use super::*;

    #[test]
    fn cmd_6_the_agents_bytes_are_wrapped_unchanged() {
        let response = CommandResponse {
            command_id: "c-1".into(),
            status: 1,
            output: "done".into(),
            ..Default::default()
        };
        let mut frame = response.encode_to_vec();
        // Field 1999, which no contract knows.
        put_bytes_field(&mut frame, 1999, b"tomorrow");
        let answer = as_answer("agent-1", &frame);
        assert_eq!(answer[0], 0);
        let declared = u32::from_be_bytes(answer[1..5].try_into().unwrap()) as usize;
        assert_eq!(declared, answer.len() - GRPC_PREFIX);
        let decoded = SendCommandResponse::decode(&answer[GRPC_PREFIX..]).unwrap();
        assert_eq!(decoded.agent_id, "agent-1");
        assert_eq!(decoded.response.unwrap(), response);
        assert!(answer.ends_with(&frame));
    }

    #[test]
    fn cmd_4_a_terminal_frame_that_reached_nobody_loses_the_agent_for_its_callers() {
        for (terminal, lost) in [(Some(1), vec![2, 3]), (None, vec![])] {
            let (quick, slow) = (Arc::new(Caller::default()), Arc::new(Caller::default()));
            slow.full.store(true, Ordering::Relaxed);
            let waiters = [quick.waiter(1), slow.waiter(2), slow.waiter(3)];
            let reply = Reply {
                frame: Bytes::from_static(b"frame"),
                terminal,
            };
            let mut waiting = Box::pin(hand_over(&waiters, &reply));
            assert!(waiting.as_mut().now_or_never().is_none());
            drop(waiting);
            assert_eq!(quick.replies.lock().unwrap().len(), 1);
            assert_eq!(*slow.lost.lock().unwrap(), lost);
        }
    }

    #[test]
    fn cmd_6_a_frame_that_reached_everyone_loses_nobody() {
        let caller = Arc::new(Caller::default());
        let reply = Reply {
            frame: Bytes::from_static(b"frame"),
            terminal: Some(1),
        };
        hand_over(&[caller.waiter(1), caller.waiter(2)], &reply)
            .now_or_never()
            .unwrap();
        assert_eq!(caller.replies.lock().unwrap().len(), 2);
        assert!(caller.lost.lock().unwrap().is_empty());
    }

    #[test]
    fn owner_8_the_fourth_restart_within_60_s_gives_up() {
        let start = Instant::now();
        let mut restarts = Restarts::default();
        for _ in 0..3 {
            assert!(restarts.admit(start));
        }
        assert!(!restarts.admit(start + Duration::from_secs(59)));
        let mut restarts = Restarts::default();
        for second in [0, 30, 50, 60, 90] {
            assert!(
                restarts.admit(start + Duration::from_secs(second)),
                "restart at {second} s"
            );
        }
    }
}
