//! What other nodes feed into a fan-out.
//!
//! Responsible for answers that come in pieces, of many agents each, under the bounds of a caller
//! that does not read (CMD-22), and for keeping the stream open while there may be more. Must never
//! count an answer: the node that holds its agent has (FWD-4).

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio::time::Instant;

use super::super::entries::NoAnswer;
use super::{End, Fanout, LINGER, TakenIn, wake};

/// The right to feed a fan-out; it does not end before this is dropped, or its caller has gone.
pub(in crate::command) struct Feed(Arc<Fanout>);

impl Feed {
    pub(in crate::command) fn new(fanout: &Arc<Fanout>) -> Self {
        fanout.state().feeds += 1;
        Self(Arc::clone(fanout))
    }

    /// Of its targets that are on this node.
    pub(in crate::command) fn fanout(&self) -> &Arc<Fanout> {
        &self.0
    }

    /// Takes a piece that came over the `lane`th session, or drops it because nobody wants it. False:
    /// there is no room; `waker` is woken when there may be.
    pub(in crate::command) fn offer(&self, lane: usize, piece: &Bytes, waker: &Waker) -> bool {
        let fanout = &*self.0;
        let mut state = fanout.state();
        let now = Instant::now();
        if fanout.is_late(now) || state.gone || !matches!(state.end, None | Some(End::TimedOut)) {
            return true;
        }
        // Lanes are told apart from targets, which are counted from 0.
        let source = u32::MAX - lane as u32;
        match fanout.take_in(&mut state, source, piece.len(), now, Some(waker)) {
            TakenIn::Yes(room) => {
                state.backlog.put(room, piece.clone());
                state.came += piece.len();
                let caller = state.caller.take();
                drop(state);
                wake(caller);
                true
            }
            TakenIn::No(why) => {
                drop(state);
                fanout.press(why);
                false
            }
            TakenIn::GivenUp => {
                drop(state);
                fanout.finish(End::SlowCaller);
                true
            }
        }
    }

    /// A target has no answer of its own.
    pub(in crate::command) fn refuse(&self, target: u32, agent: &Arc<str>, reason: NoAnswer) {
        self.0.refuse(target, agent, reason);
    }

    /// Whether the call's time is over, and that which owners have to say so.
    pub(in crate::command) fn is_late(&self) -> bool {
        self.0.is_late(Instant::now())
    }

    /// Waits until nothing is wanted any more.
    pub(in crate::command) fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.state();
        if state.gone || matches!(state.end, Some(End::SlowCaller | End::Gone | End::Complete)) {
            return Poll::Ready(());
        }
        state.feeder = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Fanout {
    /// What comes now would keep its caller past its time for as long as more comes.
    fn is_late(&self, now: Instant) -> bool {
        now >= self.deadline + LINGER
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.feeds -= 1;
        let caller = state.caller.take();
        drop(state);
        wake(caller);
    }
}
