//! hyper's timer.
//!
//! hyper polls the timer of its keep-alive each time that a connection is run, and it goes off once in
//! minutes. tokio's own timer registers the waker anew each time. Responsible for going off in
//! time, for a moment more when it goes off late, so that what waits in the socket is read before a
//! peer is taken for silent, and for costing no more than a look at the clock until then. Must never
//! be pending without the waker of its latest poll.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::rt::{Sleep, Timer};
use tokio::task::coop::unconstrained;
use tokio::time::Instant;

use crate::edge::late::SecondLook;

/// tokio's timer, polled when it may have gone off.
#[derive(Debug, Clone, Copy)]
pub(super) struct LazyTimer;

impl Timer for LazyTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(LazySleep::until(Instant::now() + duration))
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(LazySleep::until(deadline.into()))
    }

    fn now(&self) -> std::time::Instant {
        Instant::now().into()
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, deadline: std::time::Instant) {
        match sleep.as_mut().downcast_mut_pin::<LazySleep>() {
            Some(sleep) => sleep.get_mut().reset(deadline.into()),
            None => *sleep = self.sleep_until(deadline),
        }
    }
}

struct LazySleep {
    deadline: Instant,
    /// Whom `sleep` wakes at the deadline; none: it is not registered.
    wakes: Option<Waker>,
    look: SecondLook,
    sleep: Pin<Box<tokio::time::Sleep>>,
}

impl LazySleep {
    fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            wakes: None,
            look: SecondLook::default(),
            sleep: Box::pin(tokio::time::sleep_until(deadline)),
        }
    }

    fn reset(&mut self, deadline: Instant) {
        self.look = SecondLook::default();
        self.put_off(deadline);
    }

    fn put_off(&mut self, deadline: Instant) {
        self.deadline = deadline;
        self.wakes = None;
        self.sleep.as_mut().reset(deadline);
    }

    /// Registers the waker, however much the task has done in its turn.
    fn poll_tokio(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut unconstrained(self.sleep.as_mut())).poll(cx)
    }
}

impl Future for LazySleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let wakes = self.wakes.as_ref();
        if wakes.is_some_and(|wakes| wakes.will_wake(cx.waker())) && Instant::now() < self.deadline
        {
            return Poll::Pending;
        }
        let mut polled = self.poll_tokio(cx);
        if polled.is_ready() {
            let (due, now) = (self.deadline.into_std(), Instant::now().into_std());
            if let Some(later) = self.look.at(due, now) {
                self.put_off(later.into());
                polled = self.poll_tokio(cx);
            }
        }
        self.wakes = polled.is_pending().then(|| cx.waker().clone());
        polled
    }
}

impl Sleep for LazySleep {}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use tokio::task::coop;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Woken {
        fn times(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn poll(sleep: &mut Pin<Box<dyn Sleep>>, woken: &Arc<Woken>) -> bool {
        let waker = Waker::from(Arc::clone(woken));
        let mut context = Context::from_waker(&waker);
        sleep.as_mut().poll(&mut context).is_ready()
    }

    #[tokio::test(start_paused = true)]
    async fn it_wakes_whoever_polled_last_at_its_time_and_not_before() {
        let (first, second) = (Arc::<Woken>::default(), Arc::<Woken>::default());
        let mut sleep = LazyTimer.sleep(SECOND);
        assert!(!poll(&mut sleep, &first));
        assert!(!poll(&mut sleep, &first));
        assert!(!poll(&mut sleep, &second));
        tokio::time::sleep(SECOND / 2).await;
        assert!(!poll(&mut sleep, &second));
        assert_eq!((first.times(), second.times()), (0, 0));
        tokio::time::sleep(SECOND / 2 + SECOND / 100).await;
        assert_eq!((first.times(), second.times()), (0, 1));
        assert!(poll(&mut sleep, &second));
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_registered_though_its_task_has_done_much_in_this_turn() {
        let woken = Arc::<Woken>::default();
        let mut sleep = LazyTimer.sleep(SECOND);
        poll_fn(|cx| {
            while let Poll::Ready(turn) = coop::poll_proceed(cx) {
                turn.made_progress();
            }
            assert!(!poll(&mut sleep, &woken));
            Poll::Ready(())
        })
        .await;
        tokio::time::sleep(SECOND / 2).await;
        let early = woken.times();
        assert!(!poll(&mut sleep, &woken));
        tokio::time::sleep(SECOND / 2 + SECOND / 100).await;
        assert_eq!((early, woken.times() - early), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_and_an_earlier_deadline_take_the_place_of_the_first() {
        let woken = Arc::<Woken>::default();
        let mut sleep = LazyTimer.sleep_until(LazyTimer.now() + SECOND);
        assert!(!poll(&mut sleep, &woken));
        LazyTimer.reset(&mut sleep, LazyTimer.now() + 3 * SECOND);
        assert!(!poll(&mut sleep, &woken));
        tokio::time::sleep(2 * SECOND).await;
        assert!(!poll(&mut sleep, &woken));
        assert_eq!(woken.times(), 0);
        LazyTimer.reset(&mut sleep, LazyTimer.now() + SECOND / 10);
        assert!(!poll(&mut sleep, &woken));
        tokio::time::sleep(SECOND / 10 + SECOND / 100).await;
        assert_eq!(woken.times(), 1);
        assert!(poll(&mut sleep, &woken));
    }

    #[tokio::test(start_paused = true)]
    async fn mesh_5_a_timer_that_is_late_gives_what_waits_a_moment() {
        let start = Instant::now();
        let mut sleep = LazyTimer.sleep(SECOND);
        // Nothing runs until long after.
        tokio::time::advance(4 * SECOND).await;
        sleep.as_mut().await;
        assert_eq!(start.elapsed().as_millis(), 4_100);
        LazyTimer.reset(&mut sleep, LazyTimer.now() + SECOND);
        sleep.await;
        assert_eq!(start.elapsed().as_millis(), 5_100);
    }
}
