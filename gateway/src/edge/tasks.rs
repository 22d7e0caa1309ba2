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
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

use futures_util::FutureExt;
use futures_util::task::AtomicWaker;
use hyper::rt::Executor;

use super::connection::Connection;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tells the task of a connection that there is something to do. While it runs anyway it is told
/// to look once more, which costs the runtime nothing.
#[derive(Debug, Default)]
pub(super) struct Turn {
    task: AtomicWaker,
    state: AtomicU8,
    /// Whether there may be newcomers, so that their lock is left alone mostly.
    newcomers: AtomicBool,
}

/// The states of a [`Turn`].
const IDLE: u8 = 0;
const RUNNING: u8 = 1;
const WOKEN: u8 = 2;

impl Turn {
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.task.register(cx.waker());
    }

    pub(super) fn wake(&self) {
        // Written even where it says so already: whoever reads it sees what it was woken for.
        let woken = |state| (state != IDLE).then_some(WOKEN);
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        if self.state.fetch_update(set, fetch, woken).is_err() {
            self.task.wake();
        }
    }

    /// The task runs.
    pub(super) fn begin(&self) {
        self.state.swap(RUNNING, Ordering::AcqRel);
    }

    /// Whether the task may wait; otherwise it was woken since the last look, and still runs.
    pub(super) fn end(&self) -> bool {
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        match self.state.compare_exchange(RUNNING, IDLE, set, fetch) {
            Ok(_) => true,
            Err(_) => {
                self.begin();
                false
            }
        }
    }

    /// The task is not run by [`super::drive`] any more: every wake-up is the runtime's.
    fn stop(&self) {
        self.state.store(IDLE, Ordering::Release);
    }
}

/// Tasks that the connection's own task has not taken yet; `None` while it takes none.
#[derive(Default)]
pub(super) struct Newcomers(Mutex<Option<VecDeque<Task>>>);

impl std::fmt::Debug for Newcomers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Newcomers")
    }
}

impl Newcomers {
    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<Task>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task, when it is to be run by someone else.
    fn add(&self, task: Task) -> Result<(), Task> {
        match &mut *self.lock() {
            Some(newcomers) => {
                newcomers.push_back(task);
                Ok(())
            }
            None => Err(task),
        }
    }
}

impl Connection {
    /// Runs a task beside the streams of the connection. It may outlive the connection; a panic ends
    /// it alone.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        // The hook has told of the panic.
        let task = AssertUnwindSafe(task).catch_unwind().map(drop);
        match self.newcomers().add(Box::pin(task)) {
            Ok(()) => {
                self.turn().newcomers.store(true, Ordering::Release);
                self.turn().wake();
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

/// The tasks that a connection's own task runs. There are few, at most the streams that one peer may
/// have open and a session for each, so that whoever was woken is looked for one after the other.
pub(super) struct Tasks {
    waiting: Vec<Waiting>,
    connection: Arc<Connection>,
}

/// A task that has begun.
struct Waiting {
    task: Task,
    woken: Arc<Woken>,
    waker: Waker,
}

impl Tasks {
    /// From now on tasks of this connection are run by whoever runs this.
    pub(super) fn of(connection: &Arc<Connection>) -> Self {
        *connection.newcomers().lock() = Some(VecDeque::with_capacity(1));
        Self {
            waiting: Vec::new(),
            connection: Arc::clone(connection),
        }
    }

    /// Runs those that were woken, and those that came, each once. `cx` is told when a newcomer has
    /// more to do.
    pub(super) fn run(&mut self, cx: &mut Context<'_>) {
        while let Some(mut newcomer) = self.newcomer() {
            // Most calls are answered at once, and need no place among those that wait.
            if newcomer.as_mut().poll(cx).is_pending() {
                // It is polled there once more, which tells it whom to wake from now on.
                let woken = Woken::of(&self.connection);
                self.waiting.push(Waiting {
                    task: newcomer,
                    waker: Waker::from(Arc::clone(&woken)),
                    woken,
                });
            }
        }
        let mut at = 0;
        while let Some(Waiting { task, woken, waker }) = self.waiting.get_mut(at) {
            let ended = woken.take() && {
                let cx = &mut Context::from_waker(waker);
                task.as_mut().poll(cx).is_ready()
            };
            match ended {
                true => drop(self.waiting.swap_remove(at)),
                false => at += 1,
            }
        }
    }

    fn newcomer(&self) -> Option<Task> {
        let some = &self.connection.turn().newcomers;
        if !some.load(Ordering::Acquire) {
            return None;
        }
        // Before the lock: whoever comes after it says so once more.
        some.store(false, Ordering::Relaxed);
        let mut newcomers = self.connection.newcomers().lock();
        let newcomer = newcomers.as_mut()?.pop_front();
        some.fetch_or(newcomer.is_some(), Ordering::Relaxed);
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
        for task in waiting.chain(newcomers.into_iter().flatten()) {
            runtime.spawn(task);
        }
    }
}

/// Wakes the task of a connection, and says what for.
#[derive(Debug)]
pub(super) struct Woken {
    woken: AtomicBool,
    connection: Arc<Connection>,
}

impl Woken {
    /// It was woken: nobody has looked yet.
    pub(super) fn of(connection: &Arc<Connection>) -> Arc<Self> {
        Arc::new(Self {
            woken: AtomicBool::new(true),
            connection: Arc::clone(connection),
        })
    }

    /// Whether it was woken since the last time.
    pub(super) fn take(&self) -> bool {
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::AcqRel)
    }

    /// Has the next look find it woken.
    pub(super) fn set(&self) {
        self.woken.store(true, Ordering::Release);
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.set();
        self.connection.turn().wake();
    }
}

/// One of its tasks has something to do.
impl Wake for Connection {
    fn wake(self: Arc<Self>) {
        self.turn().wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.turn().wake();
    }
}

#[cfg(test)]
mod tests;
