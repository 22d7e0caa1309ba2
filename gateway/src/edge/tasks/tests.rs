use std::future::pending;
use std::sync::atomic::AtomicUsize;

use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::edge::testing::connection;

/// Counts how often the runtime is asked to run the connection's task.
#[derive(Default)]
struct Runtime(AtomicUsize);

impl Wake for Runtime {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A connection whose task is run by hand.
struct ByHand {
    connection: Arc<Connection>,
    tasks: Tasks,
    runtime: Arc<Runtime>,
}

impl ByHand {
    fn new() -> Self {
        let connection = connection();
        Self {
            tasks: Tasks::of(&connection),
            connection,
            runtime: Arc::default(),
        }
    }

    fn runtime_was_asked(&self) -> usize {
        self.runtime.0.load(Ordering::Relaxed)
    }

    /// One run, as long as there is something to do.
    fn run(&mut self) {
        let runtime = Waker::from(Arc::clone(&self.runtime));
        let tasks = Waker::from(Arc::clone(&self.connection));
        let turn = self.connection.turn();
        turn.begin();
        turn.register(&Context::from_waker(&runtime));
        loop {
            self.tasks.run(&mut Context::from_waker(&tasks));
            if turn.end() {
                return;
            }
        }
    }
}

#[test]
fn what_a_task_wakes_while_the_connection_runs_is_run_at_once_without_the_runtime() {
    let mut by_hand = ByHand::new();
    let (to_second, mut from_first) = mpsc::channel(1);
    let (done, mut was_done) = oneshot::channel();
    // The second waits before the first has sent.
    by_hand.connection.spawn(async move {
        from_first.recv().await.unwrap();
        done.send(()).unwrap();
    });
    by_hand.run();
    assert!(was_done.try_recv().is_err());
    let asked = by_hand.runtime_was_asked();
    by_hand.connection.spawn(async move {
        to_second.send(()).await.unwrap();
    });
    assert_eq!(by_hand.runtime_was_asked(), asked + 1);
    by_hand.run();
    was_done.try_recv().unwrap();
    assert_eq!(by_hand.runtime_was_asked(), asked + 1);
}

#[test]
fn a_wake_up_from_outside_asks_the_runtime() {
    let mut by_hand = ByHand::new();
    let (send, receive) = oneshot::channel();
    let (done, mut was_done) = oneshot::channel();
    by_hand.connection.spawn(async move {
        receive.await.unwrap();
        done.send(()).unwrap();
    });
    by_hand.run();
    let asked = by_hand.runtime_was_asked();
    send.send(()).unwrap();
    assert_eq!(by_hand.runtime_was_asked(), asked + 1);
    by_hand.run();
    was_done.try_recv().unwrap();
}

#[test]
fn a_wake_up_between_the_last_look_and_the_wait_is_not_lost() {
    let connection = connection();
    let turn = connection.turn();
    turn.begin();
    turn.wake();
    turn.wake();
    assert!(!turn.end());
    assert!(turn.end());
}

#[test]
fn calls_that_come_together_are_run_in_their_order() {
    let mut by_hand = ByHand::new();
    let (order, mut seen) = mpsc::channel(3);
    for number in 0..3 {
        let order = order.clone();
        by_hand.connection.spawn(async move {
            order.try_send(number).unwrap();
        });
    }
    by_hand.run();
    let seen: Vec<_> = std::iter::from_fn(|| seen.try_recv().ok()).collect();
    assert_eq!(seen, [0, 1, 2]);
}

#[test]
fn a_panic_ends_its_task_alone() {
    let mut by_hand = ByHand::new();
    let (done, mut was_done) = oneshot::channel();
    by_hand.connection.spawn(async { panic!("injected fault") });
    by_hand.connection.spawn(async move {
        done.send(()).unwrap();
    });
    by_hand.run();
    was_done.try_recv().unwrap();
}

#[tokio::test]
async fn tasks_outlive_their_connection_as_tasks_of_the_runtime() {
    let mut by_hand = ByHand::new();
    let (send, receive) = oneshot::channel();
    let (done, was_done) = oneshot::channel();
    let (of_child, by_child) = oneshot::channel();
    let connection = Arc::clone(&by_hand.connection);
    by_hand.connection.spawn(async move {
        receive.await.unwrap();
        connection.spawn(async move {
            of_child.send(()).unwrap();
        });
        done.send(()).unwrap();
    });
    by_hand.run();
    let connection = Arc::clone(&by_hand.connection);
    drop(by_hand.tasks);
    send.send(()).unwrap();
    was_done.await.unwrap();
    by_child.await.unwrap();
    let (done, was_done) = oneshot::channel();
    connection.spawn(async move { done.send(()).unwrap() });
    was_done.await.unwrap();
}

#[tokio::test]
async fn without_tasks_of_its_own_a_connection_leaves_them_to_the_runtime() {
    let connection = connection();
    let (done, was_done) = oneshot::channel();
    connection.spawn(async move { done.send(()).unwrap() });
    was_done.await.unwrap();
}

#[test]
fn a_task_that_nobody_runs_any_more_is_dropped() {
    let mut by_hand = ByHand::new();
    let (held, mut dropped) = oneshot::channel::<()>();
    by_hand.connection.spawn(async move {
        let _held = held;
        pending::<()>().await;
    });
    by_hand.run();
    drop(by_hand.tasks);
    assert_eq!(
        dropped.try_recv(),
        Err(oneshot::error::TryRecvError::Closed)
    );
}

#[test]
fn of_more_tasks_than_there_are_parts_each_is_run_when_it_was_woken() {
    let mut by_hand = ByHand::new();
    let parts = Part::OTHER_TASKS.0.ilog2() - Part::FIRST_TASK.0.ilog2();
    let mut senders = Vec::new();
    let (order, mut ran) = mpsc::channel(100);
    for number in 0..parts + 3 {
        let (send, mut receive) = mpsc::channel::<()>(1);
        let order = order.clone();
        by_hand.connection.spawn(async move {
            while receive.recv().await.is_some() {
                order.try_send(number).unwrap();
            }
        });
        senders.push(send);
    }
    by_hand.run();
    assert_eq!(by_hand.tasks.parts.count_ones(), parts);
    for number in [parts + 2, 0, parts] {
        senders[number as usize].try_send(()).unwrap();
        by_hand.run();
        assert_eq!(ran.try_recv(), Ok(number));
    }
    // The place of one that ends is the next one's, whose wake-ups are its own.
    drop(senders.remove(1));
    by_hand.run();
    let (send, mut receive) = oneshot::channel();
    by_hand.connection.spawn(async move {
        (&mut receive).await.unwrap();
        order.try_send(999).unwrap();
    });
    by_hand.run();
    assert_eq!(by_hand.tasks.parts.count_ones(), parts);
    send.send(()).unwrap();
    by_hand.run();
    assert_eq!(ran.try_recv(), Ok(999));
    assert!(ran.try_recv().is_err());
}

#[test]
fn a_sleeper_wakes_the_task_that_was_polled_whoever_runs_it() {
    let mut by_hand = ByHand::new();
    let (tell, mut told) = mpsc::channel(10);
    let connection = Arc::clone(&by_hand.connection);
    by_hand.connection.spawn(std::future::poll_fn(move |cx| {
        tell.try_send(connection.sleeper(cx)).unwrap();
        Poll::<()>::Pending
    }));
    by_hand.run();
    // The first poll is that of a newcomer, which has no part yet.
    assert!(matches!(told.try_recv(), Ok(Sleeper::Task(_))));
    let sleeper = told.try_recv().unwrap();
    assert!(matches!(sleeper, Sleeper::Part(..)), "{sleeper:?}");
    let asked = by_hand.runtime_was_asked();
    sleeper.prefetch();
    assert_eq!(by_hand.runtime_was_asked(), asked);
    sleeper.wake();
    assert_eq!(by_hand.runtime_was_asked(), asked + 1);
    by_hand.run();
    assert!(matches!(told.try_recv(), Ok(Sleeper::Part(..))));
    assert!(told.try_recv().is_err(), "polled once for each wake-up");
    // Nobody is polled: whoever asks is woken as it says.
    let runtime = Waker::from(Arc::clone(&by_hand.runtime));
    let outside = by_hand.connection.sleeper(&Context::from_waker(&runtime));
    assert!(matches!(outside, Sleeper::Task(_)));
}

#[tokio::test]
async fn a_sleeper_kept_by_a_task_of_an_ended_connection_is_replaced_by_one_of_the_runtime() {
    let mut by_hand = ByHand::new();
    let sleeper = Arc::new(Mutex::new(None));
    let (letters, mut received) = (Arc::new(AtomicUsize::new(0)), 0);
    let (tell, mut told) = mpsc::channel(10);
    let connection = Arc::clone(&by_hand.connection);
    let (slot, letterbox) = (Arc::clone(&sleeper), Arc::clone(&letters));
    by_hand.connection.spawn(std::future::poll_fn(move |cx| {
        *slot.lock().unwrap() = Some(connection.sleeper(cx));
        let sent = letterbox.load(Ordering::Acquire);
        if sent > received {
            received = sent;
            tell.try_send(sent).unwrap();
        }
        Poll::<()>::Pending
    }));
    by_hand.run();
    let send = || {
        letters.fetch_add(1, Ordering::Release);
        sleeper.lock().unwrap().take()
    };
    // One letter before the connection ends, which wakes what nobody runs any more; then another.
    let of_the_connection = send().unwrap();
    assert!(matches!(of_the_connection, Sleeper::Part(..)));
    drop(by_hand.tasks);
    of_the_connection.wake();
    assert_eq!(told.recv().await, Some(1));
    let of_the_runtime = send().unwrap();
    assert!(matches!(of_the_runtime, Sleeper::Task(_)));
    of_the_runtime.wake();
    assert_eq!(told.recv().await, Some(2));
}
