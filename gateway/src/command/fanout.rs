//! One SendCommand: its waiting answers, and the body of its response.
//!
//! Responsible for what answers still count, for giving up a caller that does not read (CMD-22)
//! and for ending the stream (CMD-8, CMD-9, CMD-15). Must never hold anything of size once its
//! caller has gone: agents that never answer keep a reference to it.

mod body;
mod feed;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;

use super::backlog::{Backlog, NoRoom, Room};
use super::callers::{CallerLimits, Callers, STALL};
use super::entries::NoAnswer;
use super::let_go;
use super::metrics::CommandMetrics;
use super::tracker::Tracker;
use crate::observe::log::{limit, limited};
use crate::session::{Reply, ReplySink};
pub(crate) use body::FanoutBody;
pub(super) use feed::Feed;

/// What other nodes still say of a call after its time, and of their own clocks: as long.
pub(super) const LINGER: Duration = Duration::from_secs(1);
/// The watchdog looks so many times within a caller's whole time, as it may become shorter.
const LOOKS: u32 = 10;

static SLOW_CALLER: limit::LineLimit = limit::LineLimit::per_second();

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

/// What became of something for the backlog.
enum TakenIn {
    Yes(Room),
    No(NoRoom),
    /// The caller has not read for too long.
    GivenUp,
}

struct State {
    backlog: Backlog,
    tracker: Tracker,
    targets: usize,
    command_id: String,
    /// Targets are still being dispatched.
    dispatching: bool,
    end: Option<End>,
    caller: Option<Waker>,
    /// Since when the caller could have taken something and did not.
    idle_since: Option<Instant>,
    /// The same, of a full backlog.
    full_since: Option<Instant>,
    /// Bytes of answers since the caller took the last piece.
    came: usize,
    /// A watchdog is on its way.
    watched: bool,
    /// Other nodes feed it, so many times.
    feeds: u32,
    /// The caller has gone.
    gone: bool,
    /// Who feeds it waits for its end.
    feeder: Option<Waker>,
    /// The way to the caller is broken: what it does not take is not its fault.
    cut_off: bool,
}

/// One SendCommand.
pub(super) struct Fanout {
    state: Mutex<State>,
    callers: Arc<Callers>,
    /// As they were at its start.
    limits: CallerLimits,
    metrics: CommandMetrics,
    started: Instant,
    deadline: Instant,
    me: Weak<Self>,
}

impl Fanout {
    /// Starts with none of its `targets` dispatched; ends `timeout` from now at the latest.
    pub(super) fn new(
        targets: usize,
        command_id: String,
        metrics: CommandMetrics,
        callers: &Arc<Callers>,
        timeout: Duration,
    ) -> Arc<Self> {
        let started = Instant::now();
        let limits = callers.limits();
        let state = State {
            backlog: Backlog::new(limits.buffer_bytes, Arc::clone(&callers.pool)),
            tracker: Tracker::new(targets),
            targets,
            command_id,
            dispatching: true,
            end: None,
            caller: None,
            idle_since: None,
            full_since: None,
            came: 0,
            watched: false,
            feeds: 0,
            gone: false,
            feeder: None,
            cut_off: false,
        };
        let fanout = Arc::new_cyclic(|me| Self {
            state: Mutex::new(state),
            callers: Arc::clone(callers),
            limits,
            metrics,
            started,
            deadline: started + timeout,
            me: Weak::clone(me),
        });
        callers.add(&fanout);
        fanout
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn metrics(&self) -> &CommandMetrics {
        &self.metrics
    }

    /// These targets are about to be sent the command.
    pub(super) fn expect(&self, targets: impl IntoIterator<Item = u32>) {
        let mut state = self.state();
        for target in targets {
            state.tracker.expect(target);
        }
    }

    /// The target was not sent the command after all, or never had a chance.
    pub(super) fn refuse(&self, target: u32, agent: &Arc<str>, reason: NoAnswer) {
        let mut state = self.state();
        state.tracker.complete(target);
        if self.is_open(&state) {
            self.note(state, agent, reason);
        }
    }

    /// The target was not sent the command after all, and somebody else will say how it ends.
    pub(super) fn forget(&self, target: u32) {
        self.state().tracker.complete(target);
    }

    /// More targets; the number of the first.
    pub(super) fn add(&self, targets: usize) -> u32 {
        let mut state = self.state();
        let first = state.targets;
        state.targets += targets;
        let targets = state.targets;
        state.tracker.extend_to(targets);
        first as u32
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
        self.is_open_at(state, Instant::now())
    }

    fn is_open_at(&self, state: &State, now: Instant) -> bool {
        state.end.is_none() && now < self.deadline
    }

    fn note(&self, mut state: MutexGuard<'_, State>, agent: &Arc<str>, reason: NoAnswer) {
        state.backlog.note(Arc::clone(agent), reason);
        let caller = state.caller.take();
        drop(state);
        wake(caller);
    }

    /// Takes the reply, or drops it because nobody wants it. Gives it back when there is no room;
    /// `owner` is woken when there may be.
    fn offer(&self, target: u32, reply: Reply, owner: Option<&Waker>) -> Result<(), Reply> {
        let now = Instant::now();
        let mut state = self.state();
        if !self.is_open_at(&state, now) || !state.tracker.is_open(target) {
            return Ok(());
        }
        match self.take_in(&mut state, target, reply.frame.len(), now, owner) {
            TakenIn::Yes(room) => state.backlog.put(room, reply.frame),
            TakenIn::No(why) => {
                drop(state);
                self.press(why);
                return Err(reply);
            }
            TakenIn::GivenUp => {
                drop(state);
                self.finish(End::SlowCaller);
                return Ok(());
            }
        }
        if reply.terminal.is_some() {
            state.tracker.complete(target);
        }
        let caller = state.caller.take();
        drop(state);
        if let Some(status) = reply.terminal {
            self.metrics.terminal(status, now - self.started);
        }
        wake(caller);
        Ok(())
    }

    /// Room in the backlog for `len` bytes from `source`; `owner` is woken when there may be some.
    fn take_in(
        &self,
        state: &mut State,
        source: u32,
        len: usize,
        now: Instant,
        owner: Option<&Waker>,
    ) -> TakenIn {
        let room = state.backlog.room(source, len);
        if owner.is_none() {
            state.came += len;
        }
        state.idle_since.get_or_insert(now);
        if self.judge_caller(state, now) {
            return TakenIn::GivenUp;
        }
        match room {
            Ok(room) => TakenIn::Yes(room),
            Err(why) => {
                if let Some(owner) = owner {
                    state.backlog.wait(source, len, why, owner);
                }
                TakenIn::No(why)
            }
        }
    }

    fn press(&self, why: NoRoom) {
        if why == NoRoom::Pool {
            self.callers.press();
        }
    }

    /// Notices that the backlog is full. True: the caller has left it so for too long.
    fn judge_caller(&self, state: &mut State, now: Instant) -> bool {
        if !state.backlog.is_full() {
            return false;
        }
        let since = *state.full_since.get_or_insert(now);
        if !std::mem::replace(&mut state.watched, true) {
            tokio::spawn(watch_caller(Weak::clone(&self.me)));
        }
        !state.cut_off && now >= since + self.limits.patience(state.came)
    }

    /// The way to the caller is broken, or another has taken its place (FWD-8): its time does not
    /// pass meanwhile, and begins anew.
    pub(super) fn cut_off(&self, is_cut_off: bool) {
        let mut state = self.state();
        state.cut_off = is_cut_off;
        // What passed it by meanwhile is no measure of how it reads.
        state.came = 0;
        let now = Instant::now();
        state.idle_since = state.idle_since.map(|_| now);
        state.full_since = state.full_since.map(|_| now);
    }

    /// When to look at the caller again; `None` when there is nothing to watch any more.
    fn look_at_caller(&self) -> Option<Instant> {
        let mut state = self.state();
        let since = match (state.end, state.full_since) {
            (None | Some(End::TimedOut), Some(since)) => since,
            _ => {
                state.watched = false;
                return None;
            }
        };
        let limits = &self.limits;
        let (until, cut_off) = (since + limits.patience(state.came), state.cut_off);
        drop(state);
        let now = Instant::now();
        let next = now + limits.slow_timeout / LOOKS;
        if cut_off {
            return Some(next);
        }
        if now < until {
            return Some(until.min(next));
        }
        self.finish(End::SlowCaller);
        None
    }

    /// Ends the fan-out: nothing is taken any more, and agents that wait for room read on. What
    /// came before the end of a caller that reads is still delivered.
    fn finish(&self, end: End) {
        let mut state = self.state();
        match state.end {
            None => {}
            // What still waits then is for a caller that reads.
            Some(End::TimedOut) if end == End::SlowCaller => {}
            Some(_) => return,
        }
        state.end = Some(end);
        let silent = state.tracker.left();
        let caller = state.caller.take();
        let (owners, dropped) = match end {
            End::Complete | End::TimedOut => (state.backlog.owners(), None),
            End::SlowCaller | End::Gone => {
                let (owners, dropped) = state.backlog.clear();
                (owners, Some(dropped))
            }
        };
        let feeder = state.feeder.take();
        drop(state);
        let_go(dropped.unwrap_or_default());
        wake(feeder);
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

    /// The bytes that wait for a caller that has taken nothing for [`STALL`] though it could.
    pub(super) fn stalled(&self, now: Instant) -> Option<usize> {
        let state = self.state();
        let since = state.idle_since?;
        let bytes = state.backlog.bytes();
        (bytes > 0 && now >= since + STALL).then_some(bytes)
    }

    /// Gives the caller up: it does not read, and the node needs the room.
    pub(super) fn give_up(&self) {
        self.finish(End::SlowCaller);
    }

    /// The node has room again.
    pub(super) fn room(&self) {
        let owners = self.state().backlog.waiting_in_line();
        wake(owners);
    }

    /// The caller has gone: what is left of this is a few bytes.
    fn abandon(&self) {
        if Instant::now() >= self.deadline {
            self.finish(End::TimedOut);
        }
        self.finish(End::Gone);
        let mut state = self.state();
        state.gone = true;
        let feeder = state.feeder.take();
        let (_, dropped) = state.backlog.clear();
        let rest = (
            std::mem::take(&mut state.command_id),
            std::mem::replace(&mut state.tracker, Tracker::new(0)),
        );
        drop(state);
        wake(feeder);
        drop(rest);
        let_go(dropped);
    }

    /// The next piece of the response body.
    fn poll_piece(&self, cx: &mut Context<'_>, mut timeout: Pin<&mut Sleep>) -> Poll<Piece> {
        let mut lingered = false;
        if timeout.as_mut().poll(cx).is_ready() {
            self.finish(End::TimedOut);
            let until = self.deadline + LINGER;
            lingered = Instant::now() >= until;
            if !lingered {
                timeout.as_mut().reset(until);
                lingered = timeout.poll(cx).is_ready();
            }
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
        let fed = state.feeds > 0 && !lingered;
        if !fed && (complete || state.end.is_some()) {
            drop(state);
            self.finish(End::Complete);
            return Poll::Ready(Piece::End(Status::ok("")));
        }
        state.caller = Some(cx.waker().clone());
        Poll::Pending
    }
}

fn take(mut state: MutexGuard<'_, State>) -> Bytes {
    let State {
        backlog,
        command_id,
        ..
    } = &mut *state;
    let (piece, owners) = backlog.take(command_id);
    state.came = 0;
    let now = Instant::now();
    state.idle_since = (!state.backlog.is_empty()).then_some(now);
    state.full_since = state.backlog.is_full().then_some(now);
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
    fn give(&self, target: u32, reply: Reply) -> Result<(), Reply> {
        self.offer(target, reply, None)
    }

    fn reply_when_room<'a>(
        &'a self,
        target: u32,
        reply: &'a Reply,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(std::future::poll_fn(move |cx| {
            match self.offer(target, reply.clone(), Some(cx.waker())) {
                Ok(()) => Poll::Ready(()),
                Err(_) => Poll::Pending,
            }
        }))
    }

    fn lost(&self, target: u32, agent: &Arc<str>) {
        let mut state = self.state();
        if self.is_open(&state) && state.tracker.complete(target) {
            self.note(state, agent, NoAnswer::AgentDisconnected);
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

#[cfg(test)]
mod tests;
