//! Permits of one class of calls, with a bounded queue (PERMIT-*).
//!
//! Responsible for how many calls of the class are in flight, who waits, for how long, and who is
//! refused; a caller whose time ran out while it waited is never admitted (REG-15). Everything is
//! given back by [`Drop`]. Must never know what the call is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus::{Histogram, IntCounter, IntGauge};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::time::{Instant, timeout_at};

use super::error::CallError;
use crate::observe::metrics::Metrics;

/// The permits of one class.
#[derive(Debug)]
pub(crate) struct Lane {
    permits: Arc<Semaphore>,
    queue: usize,
    waiting: AtomicUsize,
    meters: Meters,
}

#[derive(Debug)]
struct Meters {
    held: IntGauge,
    waiting: IntGauge,
    wait: Histogram,
    queue_full: IntCounter,
    deadline: IntCounter,
    stopping: IntCounter,
    dropped: IntCounter,
}

/// One call may be in flight.
#[derive(Debug)]
pub(crate) struct Permit {
    _permit: OwnedSemaphorePermit,
    held: IntGauge,
}

/// A place in the queue.
struct Place<'a>(&'a Lane);

impl Lane {
    /// A lane of `permits` calls in flight and `queue` waiting; `class` is its metric label.
    pub(crate) fn new(class: &str, permits: usize, queue: usize, metrics: &Metrics) -> Self {
        metrics
            .upstream_permit_limit
            .with_label_values(&[class])
            .set(permits as i64);
        let refused = |reason| {
            metrics
                .upstream_permit_refused_total
                .with_label_values(&[class, reason])
        };
        Self {
            permits: Arc::new(Semaphore::new(permits)),
            queue,
            waiting: AtomicUsize::new(0),
            meters: Meters {
                held: metrics.upstream_permits_held.with_label_values(&[class]),
                waiting: metrics.upstream_permits_waiting.with_label_values(&[class]),
                wait: metrics
                    .upstream_permit_wait_seconds
                    .with_label_values(&[class]),
                queue_full: refused("queue_full"),
                deadline: refused("deadline"),
                stopping: refused("stopping"),
                dropped: metrics
                    .upstream_calls_dropped_total
                    .with_label_values(&[class]),
            },
        }
    }

    /// Waits first in, first out for a permit, until `deadline` at most.
    ///
    /// # Errors
    /// [`CallError::QueueFull`], [`CallError::Deadline`] or [`CallError::Stopping`].
    pub(crate) async fn acquire(&self, deadline: Instant) -> Result<Permit, CallError> {
        let asked = Instant::now();
        let granted = self.wait(deadline).await?;
        self.meters.wait.observe(asked.elapsed().as_secs_f64());
        match granted {
            Some(permit) if Instant::now() < deadline => {
                self.meters.held.inc();
                Ok(Permit {
                    _permit: permit,
                    held: self.meters.held.clone(),
                })
            }
            _ => Err(self.out_of_time()),
        }
    }

    /// Refuses a caller whose deadline passed before its call was sent.
    pub(crate) fn out_of_time(&self) -> CallError {
        self.meters.deadline.inc();
        self.meters.dropped.inc();
        CallError::Deadline
    }

    /// Refuses everybody from now on, those in the queue included (PERMIT-13).
    pub(crate) fn stop(&self) {
        self.permits.close();
    }

    /// `None` when the deadline passed first.
    async fn wait(&self, deadline: Instant) -> Result<Option<OwnedSemaphorePermit>, CallError> {
        match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => return Ok(Some(permit)),
            Err(TryAcquireError::Closed) => return Err(self.stopping()),
            Err(TryAcquireError::NoPermits) => {}
        }
        let _place = self.enter().ok_or_else(|| {
            self.meters.queue_full.inc();
            CallError::QueueFull
        })?;
        let permit = Arc::clone(&self.permits).acquire_owned();
        match timeout_at(deadline, permit).await {
            Ok(Ok(permit)) => Ok(Some(permit)),
            Ok(Err(_closed)) => Err(self.stopping()),
            Err(_elapsed) => Ok(None),
        }
    }

    fn stopping(&self) -> CallError {
        self.meters.stopping.inc();
        CallError::Stopping
    }

    fn enter(&self) -> Option<Place<'_>> {
        self.waiting
            .try_update(Ordering::AcqRel, Ordering::Acquire, |waiting| {
                (waiting < self.queue).then_some(waiting + 1)
            })
            .ok()?;
        self.meters.waiting.inc();
        Some(Place(self))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
        self.0.meters.waiting.dec();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.held.dec();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;
    use tokio::time::advance;

    use super::*;

    fn lane(permits: usize, queue: usize) -> (Arc<Lane>, Metrics) {
        let metrics = Metrics::new("gw1").unwrap();
        (
            Arc::new(Lane::new("register", permits, queue, &metrics)),
            metrics,
        )
    }

    fn after(ms: u64) -> Instant {
        Instant::now() + Duration::from_millis(ms)
    }

    #[tokio::test(start_paused = true)]
    async fn permit_3_waiters_are_served_first_in_first_out() {
        let (lane, _metrics) = lane(1, 10);
        let held = lane.acquire(after(60_000)).await.unwrap();
        let (tell, mut served) = mpsc::channel(10);
        for waiter in 0..5 {
            let (lane, tell) = (Arc::clone(&lane), tell.clone());
            tokio::spawn(async move {
                let _permit = lane.acquire(after(60_000)).await.unwrap();
                tell.send(waiter).await.unwrap();
            });
            tokio::task::yield_now().await;
        }
        drop(held);
        for expected in 0..5 {
            assert_eq!(served.recv().await, Some(expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn permit_3_each_waiter_leaves_at_its_own_deadline() {
        let (lane, metrics) = lane(1, 10);
        let _held = lane.acquire(after(60_000)).await.unwrap();
        let start = Instant::now();
        let (long, short) = tokio::join!(lane.acquire(after(25_000)), async {
            let short = lane.acquire(after(1_000)).await;
            (short, start.elapsed())
        });
        assert_eq!(short.0.unwrap_err(), CallError::Deadline);
        assert_eq!(short.1.as_millis(), 1_000);
        assert_eq!(long.unwrap_err(), CallError::Deadline);
        assert_eq!(start.elapsed().as_millis(), 25_000);
        let dropped = metrics
            .upstream_calls_dropped_total
            .with_label_values(&["register"]);
        assert_eq!(dropped.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn reg_15_a_free_permit_is_not_given_to_a_caller_without_time() {
        let (lane, metrics) = lane(1, 10);
        let deadline = after(10);
        advance(Duration::from_millis(10)).await;
        assert_eq!(
            lane.acquire(deadline).await.unwrap_err(),
            CallError::Deadline
        );
        let held = metrics
            .upstream_permits_held
            .with_label_values(&["register"]);
        assert_eq!(held.get(), 0);
        lane.acquire(after(10)).await.expect("the permit went back");
    }

    #[tokio::test(start_paused = true)]
    async fn permit_3_a_full_queue_refuses_at_once() {
        let (lane, metrics) = lane(1, 0);
        let _held = lane.acquire(after(10)).await.unwrap();
        let start = Instant::now();
        assert_eq!(
            lane.acquire(after(10)).await.unwrap_err(),
            CallError::QueueFull
        );
        assert_eq!(start.elapsed(), Duration::ZERO);
        let refused = &metrics.upstream_permit_refused_total;
        assert_eq!(
            refused.with_label_values(&["register", "queue_full"]).get(),
            1
        );
    }
}
