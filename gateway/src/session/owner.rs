//! The owner: the logic of one agent's stream.
//!
//! Responsible for handing the agent's frames on in their order and for doing what is asked of it
//! meanwhile. It holds nothing that must outlive a panic: that is [`super::pump`]. Must never decode
//! more of a frame than its command id, status and plugin.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tonic::Status;
use tracing::debug;
use yuzu_proto::GUARDIAN_PLUGIN;
use yuzu_proto::peek::CommandResponsePeek;
use yuzu_proto::wire::{GRPC_PREFIX, bytes_field_len, put_bytes_field, put_grpc_prefix};

use super::arriving::Arriving;
use super::events::Events;
use super::inbound::Inbound;
use super::live::{Control, Session};
use super::recovery::{NotRecovered, Recovery};
use super::registry::Registry;
use super::replies::{Reply, ReplySink, Waiter, Waiters};
use super::roster::Roster;
use super::supervisor::Supervisor;
use crate::notify::Notifier;
use crate::observe::metrics::Metrics;
use crate::upstream::Upstream;

/// Frames of a stream that is gone that are still looked at; its receive window holds few more.
const LAST_FRAMES: usize = 1_024;
/// An answer that came before its stream went has this long to reach its callers.
const LAST_WORDS_TIME: Duration = Duration::from_secs(5);

/// What every owner of the node works with.
pub(crate) struct OwnerContext {
    pub(crate) registry: Arc<Registry>,
    pub(crate) roster: Roster,
    pub(crate) events: Arc<Events>,
    pub(crate) notifier: Notifier,
    pub(crate) upstream: Upstream,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) supervisor: Supervisor,
    pub(crate) recovery: Recovery,
    pub(crate) arriving: Arriving,
}

impl fmt::Debug for OwnerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerContext")
    }
}

/// How an owner's life ended.
pub(super) enum Ended {
    /// The agent half-closed, or the gateway ends the session: OK.
    Well,
    /// The stream is gone or its bytes were wrong.
    With(Status),
    /// All owners end (OWNER-9); the session goes on under another.
    Replaced,
    /// The session can not be taken over from the last owner (OWNER-7).
    NotRecovered(NotRecovered),
}

/// Reads frames in their order and hands each on (SUB-12).
pub(super) async fn own(session: &Session, context: &OwnerContext, inbound: &mut Inbound) -> Ended {
    loop {
        // An agent that sends without end must not keep its thread from other agents.
        tokio::task::coop::consume_budget().await;
        let next = tokio::select! {
            biased;
            // Boxed, here and below: an owner leaves once, and lives long.
            control = session.asked() => {
                if control == Control::LetGo {
                    inbound.let_go();
                    continue;
                }
                return Box::pin(leave(control, session, context, inbound)).await;
            }
            next = inbound.next() => next,
        };
        let (frame, _place) = match next {
            Ok(Some(next)) => next,
            Ok(None) => return Ended::Well,
            Err(status) => return Ended::With(status),
        };
        let mut waiting = match deliver(session, context, frame) {
            Ok(None) => continue,
            Ok(Some(waiting)) => waiting,
            Err(status) => return Ended::With(status),
        };
        let asked = loop {
            let asked = tokio::select! {
                biased;
                () = &mut waiting => break None,
                control = session.asked() => control,
            };
            match asked {
                Control::LetGo => inbound.let_go(),
                asked => break Some(asked),
            }
        };
        let Some(asked) = asked else { continue };
        if asked == Control::StreamGone {
            // The answer came before the stream went.
            let _ = tokio::time::timeout(LAST_WORDS_TIME, waiting).await;
        }
        return Box::pin(leave(asked, session, context, inbound)).await;
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
        // `own` lets go itself, and goes on.
        Control::End | Control::LetGo => Ended::Well,
        Control::Replace => Ended::Replaced,
        Control::StreamGone => {
            let last = last_words(session, context, inbound);
            let _ = tokio::time::timeout(LAST_WORDS_TIME, last).await;
            Ended::With(Status::cancelled("the stream was reset"))
        }
        #[cfg(feature = "fault-injection")]
        Control::Panic => panic!("injected fault"),
    }
}

async fn last_words(session: &Session, context: &OwnerContext, inbound: &mut Inbound) {
    for _ in 0..LAST_FRAMES {
        let Some(frame) = inbound.last() else {
            return;
        };
        match deliver(session, context, frame) {
            Ok(None) => {}
            Ok(Some(waiting)) => waiting.await,
            Err(_) => return,
        }
    }
}

/// A reply that not everyone has room for. Boxed: few wait, and an owner lives long.
type Waiting<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Hands a frame on; `None`: whoever waits for it has it.
fn deliver<'a>(
    session: &'a Session,
    context: &OwnerContext,
    frame: Bytes,
) -> Result<Option<Waiting<'a>>, Status> {
    let peek = CommandResponsePeek::peek(&frame)
        .map_err(|error| Status::internal(format!("malformed CommandResponse: {error}")))?;
    if peek.command_id.is_empty() && peek.plugin == GUARDIAN_PLUGIN.as_bytes() {
        context
            .upstream
            .forward_guardian(session.agent_id(), &frame);
        return Ok(None);
    }
    let terminal = (peek.status != 0).then_some(peek.status);
    let Some(waiters) = session.waiters(peek.command_id, terminal.is_some()) else {
        debug!("frame of a command nobody waits for dropped");
        return Ok(None);
    };
    let reply = Reply {
        frame: as_answer(session.agent_id(), &frame),
        terminal,
    };
    // The copy is what may have to wait: the agent's buffer goes back at once.
    drop(frame);
    let mut hand_over = HandOver::new(session.agent_id(), waiters, reply);
    match hand_over.go_on() {
        true => Ok(None),
        false => Ok(Some(Box::pin(hand_over.finish()))),
    }
}

/// A reply on its way to everyone who waits for it, one after the other. Dropped before its end, it
/// tells the callers that a terminal frame did not reach that the agent is lost (CMD-4): nobody
/// else does, the mailbox has forgotten them.
struct HandOver<'a> {
    agent: &'a Arc<str>,
    waiters: Waiters,
    reply: Reply,
    /// Whose turn it is.
    next: usize,
}

impl<'a> HandOver<'a> {
    fn new(agent: &'a Arc<str>, waiters: Waiters, reply: Reply) -> Self {
        Self {
            agent,
            waiters,
            reply,
            next: 0,
        }
    }

    /// Gives the reply to those who have room. False: the next one has none.
    fn go_on(&mut self) -> bool {
        let waiters = self.waiters.as_slice();
        while let Some(Waiter { sink, target }) = waiters.get(self.next) {
            let is_last = self.next + 1 == waiters.len();
            let given = match is_last {
                // Never shared: nearly every reply has one caller.
                true => give(sink, *target, &mut self.reply),
                false => sink.try_reply(*target, &self.reply),
            };
            if !given {
                return false;
            }
            self.next += 1;
        }
        true
    }

    async fn finish(mut self) {
        while !self.go_on() {
            let Waiter { sink, target } = &self.waiters.as_slice()[self.next];
            sink.reply_when_room(*target, &self.reply).await;
            self.next += 1;
        }
    }
}

impl Drop for HandOver<'_> {
    fn drop(&mut self) {
        if self.reply.terminal.is_some() {
            for Waiter { sink, target } in &self.waiters.as_slice()[self.next..] {
                sink.lost(*target, self.agent);
            }
        }
    }
}

/// Gives the reply away. False: there is no room, and it stays.
fn give(sink: &Arc<dyn ReplySink>, target: u32, reply: &mut Reply) -> bool {
    let whole = Reply {
        frame: std::mem::take(&mut reply.frame),
        terminal: reply.terminal,
    };
    match sink.give(target, whole) {
        Ok(()) => true,
        Err(back) => {
            *reply = back;
            false
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

#[cfg(test)]
mod tests;
