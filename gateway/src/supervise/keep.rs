//! One task that is started again when it panics.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::intensity::Intensity;
use super::node::{MAX_RESTARTS, RESTART_PERIOD};

const PAUSE: Duration = Duration::from_millis(100);

/// Runs what `make` returns, until the handle is dropped. After a panic it is made and run anew;
/// after more than 10 panics within 60 s the handle finishes, which `/readyz` shows. A task that
/// returns is done. What a node can't be without is also handed to
/// [`NodeSupervisor::watch`](super::NodeSupervisor::watch).
pub(crate) fn keep_running<M, F>(name: &'static str, make: M) -> Kept
where
    M: Fn() -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (counter, restarts) = watch::channel(0);
    let task = tokio::spawn(async move {
        let mut intensity = Intensity::new(MAX_RESTARTS, RESTART_PERIOD);
        loop {
            let run = make();
            if AssertUnwindSafe(run).catch_unwind().await.is_ok() {
                return;
            }
            counter.send_modify(|count| *count += 1);
            if !intensity.admit(Instant::now()) {
                tracing::error!(task = name, "task keeps panicking; given up");
                return;
            }
            tracing::error!(task = name, "task panicked; started again");
            sleep(PAUSE).await;
        }
    });
    Kept { task, restarts }
}

/// A running task; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    task: JoinHandle<()>,
    restarts: watch::Receiver<u64>,
}

impl Kept {
    /// Whether it has ended, by itself or given up.
    pub(crate) fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// How often it has panicked so far; the channel closes when it ends.
    pub(crate) fn restarts(&self) -> watch::Receiver<u64> {
        self.restarts.clone()
    }

    /// Ends it, without waiting until it has.
    pub(crate) fn stop(&self) {
        self.task.abort();
    }

    /// Ends it and waits until it has, and all that it held is dropped.
    pub(crate) async fn end(mut self) {
        self.stop();
        // Ended by the abort; there is nothing to learn from it.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn gen_3_a_task_that_panics_is_started_again() {
        let runs = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&runs);
        let mut task = keep_running("test", move || {
            let run = seen.fetch_add(1, Ordering::SeqCst);
            async move { assert!(run >= 3, "panics on purpose") }
        });
        (&mut task.task).await.unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_ends_with_its_handle() {
        let (held, released) = tokio::sync::oneshot::channel::<()>();
        let held = std::sync::Mutex::new(Some(held));
        let task = keep_running("test", move || {
            let held = held.lock().unwrap().take();
            async move {
                let _held = held;
                std::future::pending().await
            }
        });
        tokio::task::yield_now().await;
        drop(task);
        released.await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn gen_3_more_than_ten_restarts_in_a_minute_end_it() {
        let runs = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&runs);
        let mut task = keep_running("test", move || {
            seen.fetch_add(1, Ordering::SeqCst);
            async { panic!("on purpose") }
        });
        (&mut task.task).await.unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 11);
    }
}
