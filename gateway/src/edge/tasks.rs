//! The tasks of one connection, run inside the task that drives it.
//!
//! A command takes its way through the body of a stream to the connection, an answer from the
//! connection to the owner of its session. As tasks of the runtime each of them would be woken,
//! queued and perhaps moved to another core; here one wake-up of the connection runs them all.
//! Responsible for running them, for keeping a panic of one from the others, and for letting them
//! end by themselves when the connection has. Must never hold back a wake-up that comes from
//! outside.

use std::collections::VecDeque;
use std::future::Future;
use std::hint::black_box;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::FutureExt;
use futures_util::task::AtomicWaker;
use hyper::rt::Executor;
use pin_project_lite::pin_project;
use smallvec::SmallVec;

use super::connection::Connection;

type Task = Pin<Box<dyn Run>>;

/// What a task works on lies in no cache mostly by the time that it is run.
pub(crate) trait Prefetch: Send + Sync {
    /// Has the processor fetch it, without waiting for it.
    fn prefetch(&self);
}

/// A future whose first line in memory can be fetched.
trait Run: Future<Output = ()> + Send {
    fn prefetch(&self);
}

pin_project! {
    #[repr(C)]
    struct Held<F> {
        // Lies where the future begins.
        first: u8,
        #[pin]
        task: F,
    }
}

impl<F: Future<Output = ()>> Future for Held<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.project().task.poll(cx)
    }
}

impl<F: Future<Output = ()> + Send> Run for Held<F> {
    fn prefetch(&self) {
        black_box(self.first);
    }
}

/// A task that has not been run yet.
struct Newcomer {
    task: Task,
    works_on: Option<Arc<dyn Prefetch>>,
}

/// Tells the task of a connection that there is something to do, and which of its parts has. While it
/// runs anyway it is told to look once more, which costs the runtime nothing.
///
/// All of it lies in one place, which whoever wakes the connection and whoever runs it touch anyway:
/// by the time that a command comes no cache holds what belongs to one connection of thousands.
#[derive(Debug, Default)]
pub(super) struct Turn {
    task: AtomicWaker,
    /// [`RUNNING`], [`AGAIN`] and the [`Part`]s that were woken.
    state: AtomicU32,
    /// The part whose task is being polled; 0 is none.
    polled: AtomicU32,
}

/// The task is being run by [`super::drive`].
const RUNNING: u32 = 1;
/// It was woken since its last look began.
const AGAIN: u32 = 1 << 1;

/// Something that the task of a connection runs when it was woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part(u32);

impl Part {
    /// HTTP/2.
    pub(super) const SERVED: Self = Self(1 << 2);
    /// The timer of its verdict.
    pub(super) const CHECK: Self = Self(1 << 3);
    /// There are newcomers, so that their lock is left alone mostly.
    const NEWCOMERS: Self = Self(1 << 4);
    /// The first of its tasks, each of which has a part of its own as long as there are any.
    const FIRST_TASK: Self = Self(1 << 5);
    /// Shared by those for which there is no part left: woken for another they find nothing to do.
    const OTHER_TASKS: Self = Self(1 << 31);

    /// One that is not among `taken`.
    fn outside(taken: u32) -> Self {
        let below = Self::FIRST_TASK.0 - 1;
        Self(1 << (taken | below).trailing_ones().min(31))
    }
}

impl Turn {
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.task.register(cx.waker());
    }

    /// The task is to look for what concerns all of it.
    pub(super) fn wake(&self) {
        self.wake_for(0);
    }

    pub(super) fn wake_part(&self, part: Part) {
        self.wake_for(part.0);
    }

    fn wake_for(&self, parts: u32) {
        // Written even where it says so already: whoever reads it sees what it was woken for.
        let before = self.state.fetch_or(parts | AGAIN, Ordering::AcqRel);
        if before & RUNNING == 0 {
            self.task.wake();
        }
    }

    /// Has the next look find the part woken.
    pub(super) fn set(&self, part: Part) {
        self.state.fetch_or(part.0, Ordering::AcqRel);
    }

    /// Whether the part was woken since the last time.
    pub(super) fn take(&self, part: Part) -> bool {
        self.state.load(Ordering::Relaxed) & part.0 != 0
            && self.state.fetch_and(!part.0, Ordering::AcqRel) & part.0 != 0
    }

    /// The task runs.
    pub(super) fn begin(&self) {
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let begun = |state| Some((state | RUNNING) & !AGAIN);
        // It never fails.
        let _ = self.state.fetch_update(set, fetch, begun);
    }

    /// Whether the task may wait; otherwise it was woken since the last look, and still runs.
    pub(super) fn end(&self) -> bool {
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let ended = |state| (state & AGAIN == 0).then_some(state & !RUNNING);
        let may_wait = self.state.fetch_update(set, fetch, ended).is_ok();
        if !may_wait {
            self.begin();
        }
        may_wait
    }

    /// The task is not run by [`super::drive`] any more: every wake-up is the runtime's.
    fn stop(&self) {
        self.state.fetch_and(!RUNNING, Ordering::AcqRel);
    }
}

/// Tasks that the connection's own task has not taken yet; `None` while it takes none.
#[derive(Default)]
pub(super) struct Newcomers(Mutex<Option<VecDeque<Newcomer>>>);

impl std::fmt::Debug for Newcomers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Newcomers")
    }
}

impl Newcomers {
    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<Newcomer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task, when it is to be run by someone else.
    fn add(&self, newcomer: Newcomer) -> Result<(), Task> {
        match &mut *self.lock() {
            Some(newcomers) => {
                newcomers.push_back(newcomer);
                Ok(())
            }
            None => Err(newcomer.task),
        }
    }
}

impl Connection {
    /// Runs a task beside the streams of the connection. It may outlive the connection; a panic ends
    /// it alone.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_on(None, task);
    }

    /// The same, with what the task works on.
    pub(crate) fn spawn_on(
        &self,
        works_on: Option<Arc<dyn Prefetch>>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        // The hook has told of the panic.
        let task = AssertUnwindSafe(task).catch_unwind().map(drop);
        let newcomer = Newcomer {
            task: Box::pin(Held { first: 0, task }),
            works_on,
        };
        match self.newcomers().add(newcomer) {
            Ok(()) => {
                self.turn().wake_part(Part::NEWCOMERS);
            }
            Err(task) => drop(tokio::spawn(task)),
        }
    }
}

/// Where hyper runs the streams of a connection.
#[derive(Debug, Clone)]
pub(super) struct StreamExecutor(pub(super) Arc<Connection>);

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.0.spawn(stream);
    }
}

/// An agent's connection has its stream and its session, and calls that are answered at once: these lie
/// with the connection's own task.
const USUAL: usize = 2;

/// The tasks that a connection's own task runs. There are few, at most the streams that one peer may
/// have open and a session for each, so that whoever was woken is looked for one after the other.
pub(super) struct Tasks {
    waiting: SmallVec<[Waiting; USUAL]>,
    /// The parts of those that wait.
    parts: u32,
    connection: Arc<Connection>,
}

/// A task that has begun.
struct Waiting {
    task: Task,
    part: Part,
    waker: Waker,
    woken: Arc<Woken>,
    works_on: Option<Arc<dyn Prefetch>>,
}

impl Tasks {
    /// From now on tasks of this connection are run by whoever runs this.
    pub(super) fn of(connection: &Arc<Connection>) -> Self {
        *connection.newcomers().lock() = Some(VecDeque::with_capacity(1));
        Self {
            waiting: SmallVec::new(),
            parts: 0,
            connection: Arc::clone(connection),
        }
    }

    /// Runs those that were woken, and those that came, each once. `cx` is told when a newcomer has
    /// more to do.
    pub(super) fn run(&mut self, cx: &mut Context<'_>) {
        while let Some(mut newcomer) = self.newcomer() {
            // Most calls are answered at once, and need no place among those that wait.
            if newcomer.task.as_mut().poll(cx).is_pending() {
                self.wait(newcomer);
            }
        }
        // For all of them at once.
        let others = self.connection.turn().take(Part::OTHER_TASKS);
        let mut at = 0;
        while let Some(waiting) = self.waiting.get_mut(at) {
            let Waiting {
                task, part, waker, ..
            } = waiting;
            let turn = self.connection.turn();
            let is_woken = match *part {
                Part::OTHER_TASKS => others,
                part => turn.take(part),
            };
            let ended = is_woken && {
                turn.polled.store(part.0, Ordering::Relaxed);
                let polled = task.as_mut().poll(&mut Context::from_waker(waker));
                turn.polled.store(0, Ordering::Relaxed);
                polled.is_ready()
            };
            match ended {
                true => self.parts &= !self.waiting.swap_remove(at).part.0,
                false => at += 1,
            }
        }
    }

    /// The task has a place from now on. It is polled there once more, which tells it whom to wake.
    fn wait(&mut self, Newcomer { task, works_on }: Newcomer) {
        let part = Part::outside(self.parts);
        self.parts |= part.0 & !Part::OTHER_TASKS.0;
        self.connection.turn().set(part);
        let woken = Woken::of(&self.connection, part);
        self.waiting.push(Waiting {
            task,
            part,
            waker: Waker::from(Arc::clone(&woken)),
            woken,
            works_on,
        });
    }

    /// Has the processor fetch what a run touches, all at once and without waiting for it.
    pub(super) fn prefetch(&self) {
        black_box(self.connection.turn().state.load(Ordering::Relaxed));
        for Waiting {
            task,
            woken,
            works_on,
            ..
        } in &self.waiting
        {
            task.prefetch();
            black_box(woken.part.0);
            if let Some(works_on) = works_on {
                works_on.prefetch();
            }
        }
    }

    fn newcomer(&self) -> Option<Newcomer> {
        let turn = self.connection.turn();
        // Before the lock: whoever comes after it says so once more.
        if !turn.take(Part::NEWCOMERS) {
            return None;
        }
        let mut newcomers = self.connection.newcomers().lock();
        let newcomers = newcomers.as_mut()?;
        let newcomer = newcomers.pop_front();
        if !newcomers.is_empty() {
            turn.set(Part::NEWCOMERS);
        }
        newcomer
    }
}

impl Drop for Tasks {
    /// The connection has ended, perhaps by a panic: its tasks end by themselves, as those of the
    /// runtime.
    fn drop(&mut self) {
        self.connection.turn().stop();
        // Whoever comes later is a task of its own.
        let newcomers = self.connection.newcomers().lock().take();
        // Without a runtime everything ends.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let waiting = self.waiting.drain(..).map(|waiting| waiting.task);
        let newcomers = newcomers.into_iter().flatten();
        for task in waiting.chain(newcomers.map(|newcomer| newcomer.task)) {
            runtime.spawn(task);
        }
    }
}

/// Whom to wake: a task of a connection without a look at memory of its own, or any other.
#[derive(Debug, Clone)]
pub(crate) enum Sleeper {
    /// A task that its connection's own task runs.
    Part(Arc<Connection>, Part),
    /// Whoever this wakes.
    Task(Waker),
}

impl Sleeper {
    pub(crate) fn wake(self) {
        match self {
            Self::Part(connection, part) => connection.turn().wake_part(part),
            Self::Task(waker) => waker.wake(),
        }
    }

    /// Has the processor fetch what [`Self::wake`] touches, without waiting for it.
    pub(crate) fn prefetch(&self) {
        if let Self::Part(connection, _) = self {
            black_box(connection.turn().state.load(Ordering::Relaxed));
        }
    }
}

impl Connection {
    /// Whoever is being polled with `cx`. To be asked by what a task of this connection polls with its own
    /// `cx`: one that it makes for itself is not told apart from it.
    pub(crate) fn sleeper(self: &Arc<Self>, cx: &Context<'_>) -> Sleeper {
        match self.turn().polled.load(Ordering::Relaxed) {
            0 => Sleeper::Task(cx.waker().clone()),
            part => Sleeper::Part(Arc::clone(self), Part(part)),
        }
    }
}

/// Wakes the task of a connection for one of its parts.
#[derive(Debug)]
pub(super) struct Woken {
    part: Part,
    connection: Arc<Connection>,
}

impl Woken {
    pub(super) fn of(connection: &Arc<Connection>, part: Part) -> Arc<Self> {
        let connection = Arc::clone(connection);
        Arc::new(Self { part, connection })
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.connection.turn().wake_part(self.part);
    }
}

/// HTTP/2 has something to do: it is what is woken most.
impl Wake for Connection {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.turn().wake_part(Part::SERVED);
    }
}

#[cfg(test)]
mod tests;
