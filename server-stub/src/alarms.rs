//! Waits that end when they say.
//!
//! The runtime's timers count whole milliseconds and end up to two of them late: much of a server
//! that takes 5 ms, and thirteen times in a row much of one that takes 50. Responsible for one
//! thread that wakes every waiter at its time, within what the kernel needs for that. Must never run
//! anything of a waiter on that thread.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// A handle to the thread, which ends with it.
pub(crate) struct Alarms(Arc<Inner>);

#[derive(Default)]
struct Inner {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    alarms: BinaryHeap<Reverse<Alarm>>,
    set: u64,
    closed: bool,
}

struct Alarm {
    at: Instant,
    /// Tells equal times apart.
    number: u64,
    ring: oneshot::Sender<()>,
}

impl Alarms {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Alarms> {
        let inner = Arc::new(Inner::default());
        let rings = Arc::clone(&inner);
        std::thread::Builder::new()
            .name("stub-alarms".into())
            .spawn(move || rings.run())?;
        Ok(Alarms(inner))
    }

    /// Waits for as long as `time`.
    pub(crate) async fn wait(&self, time: Duration) {
        let (ring, rung) = oneshot::channel();
        let earliest = self.0.lock().set(Instant::now() + time, ring);
        if earliest {
            self.0.changed.notify_one();
        }
        // The thread lives as long as this handle, and drops no alarm that it has not rung.
        let _ = rung.await;
    }
}

impl Drop for Alarms {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_one();
    }
}

impl Inner {
    fn run(&self) {
        let mut waiting = self.lock();
        while !waiting.closed {
            let due = waiting.take_due(Instant::now());
            if !due.is_empty() {
                drop(waiting);
                for alarm in due {
                    // Whoever waited may be gone.
                    let _ = alarm.ring.send(());
                }
                waiting = self.lock();
                continue;
            }
            waiting = match waiting.alarms.peek() {
                Some(Reverse(next)) => {
                    let left = next.at.saturating_duration_since(Instant::now());
                    let woken = self.changed.wait_timeout(waiting, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let woken = self.changed.wait(waiting);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Whether no other rings before it, so that the thread has to know.
    fn set(&mut self, at: Instant, ring: oneshot::Sender<()>) -> bool {
        self.set += 1;
        let number = self.set;
        self.alarms.push(Reverse(Alarm { at, number, ring }));
        self.alarms
            .peek()
            .is_some_and(|next| next.0.number == number)
    }

    fn take_due(&mut self, now: Instant) -> Vec<Alarm> {
        let mut due = Vec::new();
        while self.alarms.peek().is_some_and(|next| next.0.at <= now) {
            due.extend(self.alarms.pop().map(|next| next.0));
        }
        due
    }
}

impl PartialEq for Alarm {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Alarm {}

impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Alarm {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_waits_its_own_time_and_never_less() {
        let alarms = Arc::new(Alarms::start().unwrap());
        let started = Instant::now();
        let waits = [30, 10, 20, 10].map(|ms| {
            let alarms = Arc::clone(&alarms);
            tokio::spawn(async move {
                alarms.wait(Duration::from_millis(ms)).await;
                (ms, started.elapsed())
            })
        });
        for wait in waits {
            let (ms, took) = wait.await.unwrap();
            assert!(took >= Duration::from_millis(ms), "{ms} ms took {took:?}");
        }
    }

    #[test]
    fn what_is_due_rings_in_its_order() {
        let mut waiting = Waiting::default();
        let start = Instant::now();
        for (ms, earliest) in [(20, true), (10, true), (10, false), (30, false)] {
            let (ring, _) = oneshot::channel();
            let at = start + Duration::from_millis(ms);
            assert_eq!(waiting.set(at, ring), earliest);
        }
        let due = waiting.take_due(start + Duration::from_millis(20));
        let numbers: Vec<u64> = due.iter().map(|alarm| alarm.number).collect();
        assert_eq!(numbers, [2, 3, 1]);
        assert_eq!(waiting.alarms.len(), 1);
    }

    #[tokio::test]
    async fn a_waiter_that_left_is_no_trouble() {
        let alarms = Alarms::start().unwrap();
        let left = tokio::time::timeout(Duration::ZERO, alarms.wait(Duration::from_millis(1)));
        let _ = left.await;
        alarms.wait(Duration::from_millis(3)).await;
    }
}
