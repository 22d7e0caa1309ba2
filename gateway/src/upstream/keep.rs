//! Tasks that must not end.
//!
//! Responsible for starting a task again that panicked (GEN-3), and for saying when it is no
//! longer worth trying. Must never hide that a task is gone.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

const RESTARTS_MAX: usize = 10;
const RESTART_WINDOW: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

/// Runs what `make` returns, until the handle is dropped. After a panic it is made and run anew;
/// after more than 10 panics within 60 s the handle finishes, which `/readyz` shows. A task that
/// returns is done.
pub(crate) fn keep_running<M, F>(name: &'static str, make: M) -> Kept
where
    M: Fn() -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    Kept(tokio::spawn(async move {
        let mut restarts: Vec<Instant> = Vec::new();
        loop {
            let mut task = Kept(tokio::spawn(make()));
            match (&mut task.0).await {
                Ok(()) => return,
                Err(error) if error.is_cancelled() => return,
                Err(_panic) => {}
            }
            let now = Instant::now();
            restarts.retain(|at| now.duration_since(*at) < RESTART_WINDOW);
            restarts.push(now);
            if restarts.len() > RESTARTS_MAX {
                tracing::error!(task = name, "task keeps panicking; given up");
                return;
            }
            tracing::error!(task = name, "task panicked; started again");
            sleep(PAUSE).await;
        }
    }))
}

/// A running task; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Kept(JoinHandle<()>);

impl Kept {
    /// Whether it has ended, by itself or given up.
    pub(crate) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Ends it and waits until it has.
    pub(crate) async fn end(mut self) {
        self.0.abort();
        // Ended by the abort; there is nothing to learn from it.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.abort();
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
        (&mut task.0).await.unwrap();
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
        (&mut task.0).await.unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 11);
    }
}
