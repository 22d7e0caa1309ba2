//! The seam between a session and whoever waits for its answers.
//!
//! Responsible for the shape of an answer and of a waiting caller. Must never hold an answer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

/// One frame of an agent, ready to be sent to a caller.
#[derive(Clone)]
pub(crate) struct Reply {
    /// A gRPC-framed `SendCommandResponse`; the agent's bytes inside are unchanged.
    pub(crate) frame: Bytes,
    /// The status number when the frame ends the command at this agent (CMD-7).
    pub(crate) terminal: Option<i32>,
}

/// Takes the answers of one SendCommand.
pub(crate) trait ReplySink: Send + Sync {
    /// Takes the reply if there is room, or if nobody wants it any more.
    ///
    /// # Errors
    /// The reply: there is no room.
    fn give(&self, target: u32, reply: Reply) -> Result<(), Reply>;

    /// The same with a reply that others wait for as well. False: there is no room.
    fn try_reply(&self, target: u32, reply: &Reply) -> bool {
        self.give(target, reply.clone()).is_ok()
    }

    /// Takes the reply as soon as there is room, or the caller has been given up (CMD-22).
    fn reply_when_room<'a>(
        &'a self,
        target: u32,
        reply: &'a Reply,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

    /// The session of this agent ended before a terminal frame (CMD-4). Never waits.
    fn lost(&self, target: u32, agent: &Arc<str>);

    /// Whether answers are still wanted.
    fn is_over(&self) -> bool;
}

/// A caller that waits for the answers of one agent to one command.
#[derive(Clone)]
pub(crate) struct Waiter {
    /// Where the answers go.
    pub(crate) sink: Arc<dyn ReplySink>,
    /// Which target of that SendCommand this agent is.
    pub(crate) target: u32,
}

/// All who wait for one command of an agent. Nearly always that is one; CMD-12 allows several.
#[derive(Clone)]
pub(crate) enum Waiters {
    One(Waiter),
    Many(Vec<Waiter>),
}

impl Waiters {
    pub(super) fn add(&mut self, waiter: Waiter) {
        match self {
            Self::Many(list) => list.push(waiter),
            Self::One(first) => *self = Self::Many(vec![first.clone(), waiter]),
        }
    }

    pub(crate) fn as_slice(&self) -> &[Waiter] {
        match self {
            Self::One(waiter) => std::slice::from_ref(waiter),
            Self::Many(list) => list,
        }
    }

    /// How many; the mailbox bounds them.
    pub(super) fn count(&self) -> u32 {
        self.as_slice().len() as u32
    }

    /// Drops callers that left; false when none is left.
    pub(super) fn sweep(&mut self) -> bool {
        match self {
            Self::One(waiter) => !waiter.sink.is_over(),
            Self::Many(list) => {
                list.retain(|waiter| !waiter.sink.is_over());
                !list.is_empty()
            }
        }
    }
}
