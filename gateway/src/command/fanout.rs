//! One SendCommand: its waiting answers, and the body of its response.
//!
//! Responsible for what answers still count, for giving up a caller that does not read (CMD-22)
//! and for ending the stream (CMD-8, CMD-9, CMD-15). Must never hold anything of size once its
//! caller has gone: agents that never answer keep a reference to it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;

use super::backlog::{Backlog, Names};
use super::entries::NoAnswer;
use super::metrics::CommandMetrics;
use super::tracker::Tracker;
use crate::edge::grpc;
use crate::observe::log::{limit, limited};
use crate::session::{Reply, ReplySink};

/// A caller has its whole time for so many bytes of answers since it took the last piece, or for
/// four times its buffer where that is more. Of twice as many it has half the time, and so on: what
/// it costs is the bytes that wait and how long they do.
const FLOOD: usize = 32 << 20;
/// The watchdog looks so many times within a caller's whole time, as it may become shorter.
const LOOKS: u32 = 10;

static SLOW_CALLER: limit::LineLimit = limit::LineLimit::per_second();

/// Bounds of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallerLimits {
    /// Answers waiting, in bytes.
    pub(super) buffer_bytes: usize,
    /// A caller may leave that full without reading for this long.
    pub(super) slow_timeout: Duration,
}

/// How a fan-out ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Every target is terminal (CMD-8).
    Complete,
    /// The timeout passed (CMD-9).
    TimedOut,
    /// The caller did not read (CMD-22).
    SlowCaller,
    /// The caller left (CMD-15).
    Gone,
}

struct State {
    backlog: Backlog,
    tracker: Tracker,
    names: Names,
    /// Targets are still being dispatched.
    dispatching: bool,
    end: Option<End>,
    caller: Option<Waker>,
    /// Since when the caller could have taken something from a full backlog and did not.
    full_since: Option<Instant>,
    /// Bytes of answers since the caller took the last piece.
    came: usize,
    /// A watchdog is on its way.
    watched: bool,
}

/// One SendCommand.
pub(super) struct Fanout {
    state: Mutex<State>,
    limits: CallerLimits,
    metrics: CommandMetrics,
    started: Instant,
    deadline: Instant,
    me: Weak<Self>,
}

impl Fanout {
    /// Starts with no target dispatched; ends `timeout` from now at the latest.
    pub(super) fn new(
        names: Names,
        metrics: CommandMetrics,
        limits: CallerLimits,
        timeout: Duration,
    ) -> Arc<Self> {
        let started = Instant::now();
        let state = State {
            backlog: Backlog::new(limits.buffer_bytes),
            tracker: Tracker::new(names.targets.len()),
            names,
            dispatching: true,
            end: None,
            caller: None,
            full_since: None,
            came: 0,
            watched: false,
        };
        Arc::new_cyclic(|me| Self {
            state: Mutex::new(state),
            limits,
            metrics,
            started,
            deadline: started + timeout,
            me: Weak::clone(me),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn metrics(&self) -> &CommandMetrics {
        &self.metrics
    }

    /// The target is about to be sent the command.
    pub(super) fn expect(&self, target: u32) {
        self.state().tracker.expect(target);
    }

    /// The target was not sent the command after all, or never had a chance.
    pub(super) fn refuse(&self, target: u32, reason: NoAnswer) {
        let mut state = self.state();
        state.tracker.complete(target);
        if self.is_open(&state) {
            self.queue(state, |backlog| backlog.note(target, reason));
        }
    }

    /// Every target was dispatched or refused.
    pub(super) fn dispatched(&self) {
        let mut state = self.state();
        state.dispatching = false;
        let caller = state.caller.take();
        drop(state);
        wake(caller);
    }

    /// Whether answers still count. What comes after the timeout does not, also when nobody has
    /// looked at the clock yet (CMD-9).
    fn is_open(&self, state: &State) -> bool {
        state.end.is_none() && Instant::now() < self.deadline
    }

    fn queue(&self, mut state: MutexGuard<'_, State>, add: impl FnOnce(&mut Backlog)) {
        add(&mut state.backlog);
        let caller = state.caller.take();
        drop(state);
        wake(caller);
    }

    /// Takes the reply, or drops it because nobody wants it. False: there is no room; `owner` is
    /// woken when there may be.
    fn offer(&self, target: u32, reply: &Reply, owner: Option<&Waker>) -> bool {
        let mut state = self.state();
        if !self.is_open(&state) || !state.tracker.is_open(target) {
            return true;
        }
        let taken = state.backlog.offer(target, &reply.frame);
        if owner.is_none() {
            state.came += reply.frame.len();
        }
        if self.judge_caller(&mut state) {
            drop(state);
            self.finish(End::SlowCaller);
            return true;
        }
        if !taken {
            if let Some(owner) = owner {
                state.backlog.wait(target, owner);
            }
            return false;
        }
        if reply.terminal.is_some() {
            state.tracker.complete(target);
        }
        let caller = state.caller.take();
        drop(state);
        if let Some(status) = reply.terminal {
            self.metrics.terminal(status, self.started.elapsed());
        }
        wake(caller);
        true
    }

    /// How long a caller may leave the backlog full after `came` bytes.
    fn patience(&self, came: usize) -> Duration {
        let flood = FLOOD.max(self.limits.buffer_bytes.saturating_mul(4));
        let share = flood as f64 / came.max(flood) as f64;
        self.limits.slow_timeout.mul_f64(share)
    }

    /// Notices that the backlog is full. True: the caller has left it so for too long.
    fn judge_caller(&self, state: &mut State) -> bool {
        if !state.backlog.is_full() {
            return false;
        }
        let now = Instant::now();
        let since = *state.full_since.get_or_insert(now);
        if !std::mem::replace(&mut state.watched, true) {
            tokio::spawn(watch_caller(Weak::clone(&self.me)));
        }
        now >= since + self.patience(state.came)
    }

    /// When to look at the caller again; `None` when there is nothing to watch any more.
    fn look_at_caller(&self) -> Option<Instant> {
        let mut state = self.state();
        let (None, Some(since)) = (state.end, state.full_since) else {
            state.watched = false;
            return None;
        };
        let until = since + self.patience(state.came);
        drop(state);
        let now = Instant::now();
        if now < until {
            return Some(until.min(now + self.limits.slow_timeout / LOOKS));
        }
        self.finish(End::SlowCaller);
        None
    }

    /// Ends the fan-out: nothing is taken any more, and agents that wait for room read on. What
    /// came before the end of a caller that reads is still delivered.
    fn finish(&self, end: End) {
        let mut state = self.state();
        if state.end.is_some() {
            return;
        }
        state.end = Some(end);
        let silent = state.tracker.left();
        let owners = state.backlog.owners();
        let caller = state.caller.take();
        let dropped = match end {
            End::Complete | End::TimedOut => None,
            End::SlowCaller | End::Gone => Some(std::mem::take(&mut state.backlog)),
        };
        drop(state);
        drop(dropped);
        match end {
            End::TimedOut => self.metrics.timed_out(silent),
            End::SlowCaller => {
                self.metrics.slow_caller();
                limited!(
                    warn,
                    SLOW_CALLER,
                    "a caller did not read its answers in time; its fan-out is dropped"
                );
            }
            End::Complete | End::Gone => {}
        }
        wake(owners);
        wake(caller);
    }

    /// The caller has gone: what is left of this is a few bytes.
    fn abandon(&self) {
        if Instant::now() >= self.deadline {
            self.finish(End::TimedOut);
        }
        self.finish(End::Gone);
        let mut state = self.state();
        let rest = (
            std::mem::take(&mut state.backlog),
            std::mem::replace(&mut state.tracker, Tracker::new(0)),
            std::mem::take(&mut state.names),
        );
        drop(state);
        drop(rest);
    }

    /// The next piece of the response body.
    fn poll_piece(&self, cx: &mut Context<'_>, timeout: Pin<&mut Sleep>) -> Poll<Piece> {
        if timeout.poll(cx).is_ready() {
            self.finish(End::TimedOut);
        }
        let mut state = self.state();
        if state.end == Some(End::SlowCaller) {
            return Poll::Ready(Piece::End(Status::resource_exhausted(
                "the caller did not read its answers in time",
            )));
        }
        if !state.backlog.is_empty() {
            return Poll::Ready(Piece::Data(take(state)));
        }
        let complete = !state.dispatching && state.tracker.left() == 0;
        if complete || state.end.is_some() {
            drop(state);
            self.finish(End::Complete);
            return Poll::Ready(Piece::End(Status::ok("")));
        }
        state.caller = Some(cx.waker().clone());
        Poll::Pending
    }
}

fn take(mut state: MutexGuard<'_, State>) -> Bytes {
    let State { backlog, names, .. } = &mut *state;
    let (piece, owners) = backlog.take(names);
    state.came = 0;
    state.full_since = state.backlog.is_full().then(Instant::now);
    drop(state);
    wake(owners);
    piece
}

fn wake(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        waker.wake();
    }
}

/// Gives the caller up when its patience ends; there is one for a fan-out, and only while its
/// backlog is full.
async fn watch_caller(fanout: Weak<Fanout>) {
    while let Some(until) = fanout.upgrade().and_then(|fanout| fanout.look_at_caller()) {
        sleep_until(until).await;
    }
}

impl ReplySink for Fanout {
    fn try_reply(&self, target: u32, reply: &Reply) -> bool {
        self.offer(target, reply, None)
    }

    fn reply_when_room<'a>(
        &'a self,
        target: u32,
        reply: &'a Reply,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(std::future::poll_fn(move |cx| {
            if self.offer(target, reply, Some(cx.waker())) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        }))
    }

    fn lost(&self, target: u32) {
        let mut state = self.state();
        if self.is_open(&state) && state.tracker.complete(target) {
            self.queue(state, |backlog| {
                backlog.note(target, NoAnswer::AgentDisconnected);
            });
        }
    }

    fn is_over(&self) -> bool {
        let state = self.state();
        !self.is_open(&state)
    }
}

enum Piece {
    Data(Bytes),
    End(Status),
}

/// The body of a SendCommand response. Dropped, it drops the fan-out (CMD-15).
pub(crate) struct FanoutBody {
    fanout: Arc<Fanout>,
    timeout: Pin<Box<Sleep>>,
    done: bool,
}

impl FanoutBody {
    pub(super) fn new(fanout: Arc<Fanout>) -> Self {
        Self {
            timeout: Box::pin(sleep_until(fanout.deadline)),
            fanout,
            done: false,
        }
    }
}

impl Body for FanoutBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let me = &mut *self;
        if me.done {
            return Poll::Ready(None);
        }
        me.fanout.poll_piece(cx, me.timeout.as_mut()).map(|piece| {
            Some(Ok(match piece {
                Piece::Data(data) => Frame::data(data),
                Piece::End(status) => {
                    me.done = true;
                    Frame::trailers(grpc::trailers(&status))
                }
            }))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }
}

impl Drop for FanoutBody {
    fn drop(&mut self) {
        self.fanout.abandon();
    }
}

#[cfg(test)]
mod tests;
