//! One SendCommand: its waiting answers, and the body of its response.
//!
//! Responsible for the order of each agent's answers, for the bound on answers that wait for the
//! caller (CMD-22) and for ending the stream (CMD-8, CMD-9, CMD-15). Must never block an agent for
//! longer than a caller may stay silent.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, sleep, timeout_at};
use tonic::Status;
use tracing::info;

use super::entries::NoAnswer;
use super::metrics::CommandMetrics;
use super::tracker::Tracker;
use crate::edge::grpc;
use crate::session::{Reply, ReplySink};

/// Small answers that wait together leave in one DATA frame of about this size.
const COALESCE: usize = 32 << 10;
/// Answers held by paused agents, in caller buffers: over it the caller is given up at once.
const PARKED_BUFFERS: usize = 3;

/// Bounds of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallerLimits {
    /// Answers waiting, in bytes.
    pub(crate) buffer_bytes: usize,
    /// A caller may leave that full without reading for this long.
    pub(crate) slow_timeout: Duration,
}

/// How a fan-out ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Every target is terminal, or the timeout passed.
    Done,
    /// The caller did not read.
    SlowCaller,
    /// The caller left.
    Gone,
}

enum Item {
    Reply(Bytes),
    NoAnswer(u32, NoAnswer),
}

struct State {
    queue: VecDeque<Item>,
    tracker: Tracker,
    /// Targets are still being dispatched.
    dispatching: bool,
    end: Option<End>,
    caller: Option<Waker>,
    last_taken: Instant,
}

/// One SendCommand.
pub(crate) struct Fanout {
    state: Mutex<State>,
    /// Bytes that may still wait, one permit each; whoever waits for room is served in turn.
    room: Semaphore,
    parked: AtomicUsize,
    limits: CallerLimits,
    targets: Vec<Arc<str>>,
    command_id: String,
    metrics: CommandMetrics,
    started: Instant,
}

impl Fanout {
    /// Starts with no target dispatched.
    pub(crate) fn new(
        targets: Vec<Arc<str>>,
        command_id: String,
        metrics: CommandMetrics,
        limits: CallerLimits,
    ) -> Arc<Self> {
        let now = Instant::now();
        let limits = CallerLimits {
            buffer_bytes: limits.buffer_bytes.clamp(1, u32::MAX as usize >> 3),
            ..limits
        };
        let state = State {
            queue: VecDeque::new(),
            tracker: Tracker::new(targets.len()),
            dispatching: true,
            end: None,
            caller: None,
            last_taken: now,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            room: Semaphore::new(limits.buffer_bytes),
            parked: AtomicUsize::new(0),
            limits,
            targets,
            command_id,
            metrics,
            started: now,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn metrics(&self) -> &CommandMetrics {
        &self.metrics
    }

    /// The target is about to be sent the command.
    pub(crate) fn expect(&self, target: u32) {
        self.state().tracker.expect(target);
    }

    /// The target was not sent the command after all, or never had a chance.
    pub(crate) fn refuse(&self, target: u32, reason: NoAnswer) {
        let mut state = self.state();
        state.tracker.complete(target);
        self.enqueue(state, Item::NoAnswer(target, reason));
    }

    /// Every target was dispatched or refused.
    pub(crate) fn dispatched(&self) {
        let mut state = self.state();
        state.dispatching = false;
        let caller = state.caller.take();
        drop(state);
        if let Some(caller) = caller {
            caller.wake();
        }
    }

    fn enqueue(&self, mut state: MutexGuard<'_, State>, item: Item) {
        if state.end.is_some() {
            return;
        }
        state.queue.push_back(item);
        let caller = state.caller.take();
        drop(state);
        if let Some(caller) = caller {
            caller.wake();
        }
    }

    /// Bytes of room a reply takes; one larger than the whole buffer passes alone.
    fn weight(&self, reply: &Reply) -> u32 {
        reply.frame.len().min(self.limits.buffer_bytes) as u32
    }

    /// Enters a reply whose room was taken.
    fn accept(&self, target: u32, reply: &Reply) {
        let mut state = self.state();
        if !state.tracker.is_open(target) || state.end.is_some() {
            drop(state);
            self.room.add_permits(self.weight(reply) as usize);
            return;
        }
        if let Some(status) = reply.terminal {
            state.tracker.complete(target);
            self.metrics.terminal(status, self.started.elapsed());
        }
        self.enqueue(state, Item::Reply(reply.frame.clone()));
    }

    /// Ends the fan-out: nothing is taken any more, what waits is dropped, paused agents read on.
    fn finish(&self, end: End) {
        let mut state = self.state();
        if state.end.is_some() {
            return;
        }
        state.end = Some(end);
        if end != End::Done {
            state.queue = VecDeque::new();
        }
        let caller = state.caller.take();
        drop(state);
        self.room.close();
        if end == End::SlowCaller {
            info!("a caller did not read its answers in time; its fan-out is dropped");
        }
        if let Some(caller) = caller {
            caller.wake();
        }
    }

    /// When a caller that reads nothing more is given up.
    fn patience_ends(&self) -> Instant {
        self.state().last_taken + self.limits.slow_timeout
    }

    async fn wait_for_room(&self, target: u32, reply: &Reply) {
        let waiting_since = Instant::now();
        loop {
            let until = self
                .patience_ends()
                .max(waiting_since + self.limits.slow_timeout);
            match timeout_at(until, self.room.acquire_many(self.weight(reply))).await {
                Ok(Ok(room)) => {
                    room.forget();
                    return self.accept(target, reply);
                }
                Ok(Err(_closed)) => return,
                Err(_) if Instant::now() >= self.patience_ends() => {
                    return self.finish(End::SlowCaller);
                }
                Err(_) => {}
            }
        }
    }

    /// The next piece of the response body.
    fn poll_piece(&self, cx: &mut Context<'_>, timeout: Pin<&mut Sleep>) -> Poll<Piece> {
        let mut state = self.state();
        if state.end == Some(End::SlowCaller) {
            return Poll::Ready(Piece::End(Status::resource_exhausted(
                "the caller did not read its answers in time",
            )));
        }
        if !state.queue.is_empty() {
            state.last_taken = Instant::now();
            let (data, room) = self.pop_together(&mut state);
            let open = state.end.is_none();
            drop(state);
            if open {
                self.room.add_permits(room);
            }
            return Poll::Ready(Piece::Data(data));
        }
        let complete = !state.dispatching && state.tracker.left() == 0;
        if complete || state.end.is_some() {
            drop(state);
            self.finish(End::Done);
            return Poll::Ready(Piece::End(Status::ok("")));
        }
        if timeout.poll(cx).is_ready() {
            let silent = state.tracker.left();
            drop(state);
            self.metrics.timed_out(silent);
            self.finish(End::Done);
            return Poll::Ready(Piece::End(Status::ok("")));
        }
        state.caller = Some(cx.waker().clone());
        Poll::Pending
    }

    fn pop_together(&self, state: &mut State) -> (Bytes, usize) {
        let (first, mut room) = match state.queue.pop_front() {
            Some(item) => self.encode(&item),
            None => return (Bytes::new(), 0),
        };
        if first.len() >= COALESCE || state.queue.is_empty() {
            return (first, room);
        }
        let mut together = BytesMut::with_capacity(COALESCE);
        together.extend_from_slice(&first);
        while let Some(item) = state.queue.pop_front() {
            let (next, taken) = self.encode(&item);
            if together.len() + next.len() > COALESCE {
                state.queue.push_front(item);
                break;
            }
            room += taken;
            together.extend_from_slice(&next);
        }
        (together.freeze(), room)
    }

    /// The bytes of an item, and the room it gives back.
    fn encode(&self, item: &Item) -> (Bytes, usize) {
        match item {
            Item::Reply(frame) => (frame.clone(), frame.len().min(self.limits.buffer_bytes)),
            Item::NoAnswer(target, reason) => {
                let agent_id = self.targets.get(*target as usize).map_or("", |id| id);
                (reason.frame(agent_id, &self.command_id), 0)
            }
        }
    }
}

impl ReplySink for Fanout {
    fn try_reply(&self, target: u32, reply: &Reply) -> bool {
        match self.room.try_acquire_many(self.weight(reply)) {
            Ok(room) => {
                room.forget();
                self.accept(target, reply);
                true
            }
            Err(tokio::sync::TryAcquireError::Closed) => true,
            Err(tokio::sync::TryAcquireError::NoPermits) => false,
        }
    }

    fn reply_when_room<'a>(
        &'a self,
        target: u32,
        reply: &'a Reply,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            let parked = Parked::new(&self.parked, reply.frame.len());
            if parked.total > self.limits.buffer_bytes * PARKED_BUFFERS + reply.frame.len() {
                return self.finish(End::SlowCaller);
            }
            self.wait_for_room(target, reply).await;
        })
    }

    fn lost(&self, target: u32) {
        let mut state = self.state();
        if state.tracker.complete(target) {
            self.enqueue(state, Item::NoAnswer(target, NoAnswer::AgentDisconnected));
        }
    }

    fn is_over(&self) -> bool {
        self.state().end.is_some()
    }
}

/// Bytes that a paused agent holds for this caller.
struct Parked<'a> {
    counter: &'a AtomicUsize,
    bytes: usize,
    total: usize,
}

impl<'a> Parked<'a> {
    fn new(counter: &'a AtomicUsize, bytes: usize) -> Self {
        let total = counter.fetch_add(bytes, Ordering::Relaxed) + bytes;
        Self {
            counter,
            bytes,
            total,
        }
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(self.bytes, Ordering::Relaxed);
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
    /// Ends at `timeout` from now, whatever is left (CMD-9).
    pub(crate) fn new(fanout: Arc<Fanout>, timeout: Duration) -> Self {
        Self {
            fanout,
            timeout: Box::pin(sleep(timeout)),
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
        self.fanout.finish(End::Gone);
    }
}
