//! The permits as calls see them: waiting within a deadline, given back by [`Drop`].
//!
//! Responsible for the callers' deadlines (a caller whose time ran out while it waited is never
//! admitted, REG-15), for following the server's stream limit, and for metrics and log lines.
//! Must never decide who is served: [`super::permits`] does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::{Histogram, IntCounter, IntGauge};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::error::CallError;
use super::permits::{Asked, Class, Limits, Pool, Ticket};
use crate::config;
use crate::observe::metrics::Metrics;

/// The permits of all classes, shared.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// Streams that need no permit.
    reserved: usize,
    state: Mutex<State>,
    /// Live registers and inventories in the queue, published for the slow-server detector.
    live_waiting: AtomicUsize,
    meters: [Meters; 3],
}

#[derive(Debug)]
struct State {
    /// In force while the server's limit is unknown.
    configured: Limits,
    /// The server's limit, where it is known.
    server: Option<u32>,
    pool: Pool<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct Meters {
    limit: IntGauge,
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
    lanes: Arc<Lanes>,
    class: Class,
}

/// A place in the queue, or the permit that came for it.
struct Place<'a> {
    lanes: &'a Lanes,
    class: Class,
    ticket: Option<Ticket>,
}

impl Lanes {
    /// The permits of `config` beside `reserved` streams that need none.
    pub(crate) fn new(config: &config::Upstream, reserved: usize, metrics: &Metrics) -> Arc<Self> {
        let (configured, queues) = limits(config);
        let lanes = Self {
            reserved,
            state: Mutex::new(State {
                configured,
                server: None,
                pool: Pool::new(configured, queues),
            }),
            live_waiting: AtomicUsize::new(0),
            meters: Class::ALL.map(|class| Meters::new(class.label(), metrics)),
        };
        lanes.tell(configured, configured, None);
        Arc::new(lanes)
    }

    /// Waits for a permit, until `deadline` at most.
    ///
    /// # Errors
    /// [`CallError::QueueFull`], [`CallError::Deadline`] or [`CallError::Stopping`].
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        class: Class,
        deadline: Instant,
    ) -> Result<Permit, CallError> {
        let asked = Instant::now();
        let granted = self.wait(class, deadline).await?;
        let waited = asked.elapsed().as_secs_f64();
        self.meters[class as usize].wait.observe(waited);
        match granted {
            Some(permit) if Instant::now() < deadline => Ok(permit),
            _ => Err(self.out_of_time(class)),
        }
    }

    /// Refuses a caller whose deadline passed before its call was sent.
    pub(crate) fn out_of_time(&self, class: Class) -> CallError {
        let meters = &self.meters[class as usize];
        meters.deadline.inc();
        meters.dropped.inc();
        CallError::Deadline
    }

    /// Refuses everybody from now on, those in the queue included (PERMIT-13).
    pub(crate) fn stop(&self) {
        self.lock().pool.stop();
    }

    /// Follows the server's stream limit; `None` is unknown or unlimited (PERMIT-8, PERMIT-12).
    pub(crate) fn follow(&self, server: Option<u32>) {
        self.limit(|state| state.server = server);
    }

    /// Puts another configuration in force, within the server's limit. No permit that is held and
    /// no place in a queue is taken back.
    pub(crate) fn retune(&self, config: &config::Upstream) {
        let (configured, queues) = limits(config);
        self.limit(|state| {
            state.configured = configured;
            state.pool.limit_queues(queues);
        });
    }

    /// Works out the limits anew after `change`.
    fn limit(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let (configured, server) = (state.configured, state.server);
        let limits = configured.within(server, self.reserved);
        if state.pool.limits() == limits {
            return;
        }
        state.pool.limit(limits);
        self.serve(&mut state.pool);
        drop(state);
        self.tell(limits, configured, server);
    }

    /// Whether a live register or an inventory waits (SLOW-1).
    pub(crate) fn saturated(&self) -> bool {
        self.live_waiting.load(Ordering::Relaxed) > 0
    }

    /// `None` when the deadline passed first.
    async fn wait(
        self: &Arc<Self>,
        class: Class,
        deadline: Instant,
    ) -> Result<Option<Permit>, CallError> {
        let (waiter, served) = oneshot::channel();
        let asked = self.ask(class, waiter);
        let permit = || Permit {
            lanes: Arc::clone(self),
            class,
        };
        let meters = &self.meters[class as usize];
        let ticket = match asked {
            Asked::Granted => return Ok(Some(permit())),
            Asked::Queued(ticket) => Some(ticket),
            Asked::Full => {
                meters.queue_full.inc();
                return Err(CallError::QueueFull);
            }
            Asked::Stopped => {
                meters.stopping.inc();
                return Err(CallError::Stopping);
            }
        };
        let mut place = Place {
            lanes: self,
            class,
            ticket,
        };
        match timeout_at(deadline, served).await {
            Ok(Ok(())) => {
                place.ticket = None;
                Ok(Some(permit()))
            }
            Ok(Err(_stopped)) => {
                meters.stopping.inc();
                Err(CallError::Stopping)
            }
            Err(_elapsed) => Ok(None),
        }
    }

    fn ask(&self, class: Class, waiter: oneshot::Sender<()>) -> Asked {
        let pool = &mut self.lock().pool;
        let asked = pool.ask(class, waiter);
        self.publish(pool);
        asked
    }

    /// Wakes whoever can be served now. Called after every change that may make room.
    fn serve(&self, pool: &mut Pool<oneshot::Sender<()>>) {
        while let Some(waiter) = pool.next() {
            // A caller that is leaving just now gives its permit back when its place is dropped.
            let _ = waiter.send(());
        }
        self.publish(pool);
    }

    /// Called under the lock, so that the gauges end with the last change.
    fn publish(&self, pool: &Pool<oneshot::Sender<()>>) {
        for (class, meters) in Class::ALL.into_iter().zip(&self.meters) {
            meters.held.set(pool.held(class) as i64);
            meters.waiting.set(pool.waiting(class) as i64);
        }
        let live = pool.waiting(Class::Register) + pool.waiting(Class::Inventory);
        self.live_waiting.store(live, Ordering::Relaxed);
    }

    fn tell(&self, limits: Limits, configured: Limits, server: Option<u32>) {
        let Limits {
            register,
            inventory,
            replay,
        } = limits;
        for (meters, limit) in self.meters.iter().zip([register, inventory, replay]) {
            meters.limit.set(limit as i64);
        }
        match server {
            Some(server) if limits != configured => tracing::warn!(
                "Upstream permits lowered to the server's stream limit: register {register} \
                 (replay {replay}), inventory {inventory}; the server allows {server} streams, \
                 {} are reserved",
                self.reserved
            ),
            _ => tracing::info!(
                "Upstream permits in force: register {register} (replay {replay}), inventory \
                 {inventory}, {} streams reserved",
                self.reserved
            ),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Permits, and the queues before them.
fn limits(config: &config::Upstream) -> (Limits, Limits) {
    let permits = Limits {
        register: config.register_concurrency,
        inventory: config.inventory_concurrency,
        replay: config.replay_concurrency,
    };
    let queues = Limits {
        register: config.register_queue,
        inventory: config.inventory_queue,
        // Replays and recoveries of sessions each keep no more calls than that.
        replay: 2 * config.replay_concurrency,
    };
    (permits, queues)
}

impl Meters {
    fn new(class: &str, metrics: &Metrics) -> Self {
        let refused = |reason| {
            metrics
                .upstream_permit_refused_total
                .with_label_values(&[class, reason])
        };
        Self {
            limit: metrics.upstream_permit_limit.with_label_values(&[class]),
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
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let pool = &mut self.lanes.lock().pool;
            pool.leave(self.class, ticket);
            self.lanes.serve(pool);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let pool = &mut self.lanes.lock().pool;
        pool.release(self.class);
        self.lanes.serve(pool);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::sync::mpsc;
    use tokio::time::advance;

    use super::*;

    fn lane(permits: usize, queue: usize) -> (Arc<Lanes>, Metrics) {
        let metrics = Metrics::new("gw1").unwrap();
        let config = config::Upstream {
            register_concurrency: permits,
            register_queue: queue,
            ..config::Config::default().upstream
        };
        (Lanes::new(&config, 61, &metrics), metrics)
    }

    fn after(ms: u64) -> Instant {
        Instant::now() + Duration::from_millis(ms)
    }

    #[tokio::test(start_paused = true)]
    async fn permit_3_waiters_are_served_first_in_first_out() {
        let (lane, _metrics) = lane(1, 10);
        let held = lane.acquire(Class::Register, after(60_000)).await.unwrap();
        let (tell, mut served) = mpsc::channel(10);
        for waiter in 0..5 {
            let (lane, tell) = (Arc::clone(&lane), tell.clone());
            tokio::spawn(async move {
                let _permit = lane.acquire(Class::Register, after(60_000)).await.unwrap();
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
        let _held = lane.acquire(Class::Register, after(60_000)).await.unwrap();
        let start = Instant::now();
        let (long, short) = tokio::join!(lane.acquire(Class::Register, after(25_000)), async {
            let short = lane.acquire(Class::Register, after(1_000)).await;
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
            lane.acquire(Class::Register, deadline).await.unwrap_err(),
            CallError::Deadline
        );
        let held = metrics
            .upstream_permits_held
            .with_label_values(&["register"]);
        assert_eq!(held.get(), 0);
        lane.acquire(Class::Register, after(10))
            .await
            .expect("the permit went back");
    }

    #[tokio::test(start_paused = true)]
    async fn permit_3_a_full_queue_refuses_at_once() {
        let (lane, metrics) = lane(1, 0);
        let _held = lane.acquire(Class::Register, after(10)).await.unwrap();
        let start = Instant::now();
        assert_eq!(
            lane.acquire(Class::Register, after(10)).await.unwrap_err(),
            CallError::QueueFull
        );
        assert_eq!(start.elapsed(), Duration::ZERO);
        let refused = &metrics.upstream_permit_refused_total;
        assert_eq!(
            refused.with_label_values(&["register", "queue_full"]).get(),
            1
        );
    }

    #[tokio::test(start_paused = true)]
    async fn reload_8_other_permits_serve_who_waits_and_take_nothing_back() {
        let (lane, metrics) = lane(1, 1);
        let config = |permits: usize, queue: usize| config::Upstream {
            register_concurrency: permits,
            register_queue: queue,
            ..config::Config::default().upstream
        };
        let ask = || Box::pin(lane.acquire(Class::Register, after(60_000)));
        let mut held = vec![ask().await.unwrap()];
        let mut second = ask();
        assert!(second.as_mut().now_or_never().is_none());
        assert_eq!(ask().await.unwrap_err(), CallError::QueueFull);
        lane.retune(&config(2, 2));
        held.push(second.now_or_never().unwrap().unwrap());
        let mut third = ask();
        assert!(third.as_mut().now_or_never().is_none());
        lane.retune(&config(1, 0));
        assert_eq!(ask().await.unwrap_err(), CallError::QueueFull);
        held.pop();
        assert!(third.as_mut().now_or_never().is_none(), "one is held");
        held.pop();
        third.now_or_never().unwrap().unwrap();
        // The server's limit counts as before: 61 streams are reserved.
        lane.follow(Some(61 + 20));
        lane.retune(&config(32, 10));
        let limit = metrics
            .upstream_permit_limit
            .with_label_values(&["register"]);
        assert_eq!(limit.get(), 16, "20 of 32 and 8");
    }

    #[tokio::test(start_paused = true)]
    async fn permit_14_waits_and_gauges_are_those_of_the_class() {
        let (lane, metrics) = lane(1, 10);
        let gauges = || {
            ["register", "inventory", "replay"].map(|class| {
                let held = metrics.upstream_permits_held.with_label_values(&[class]);
                let waiting = metrics.upstream_permits_waiting.with_label_values(&[class]);
                (held.get(), waiting.get())
            })
        };
        let first = lane.acquire(Class::Register, after(60_000)).await.unwrap();
        let _other = lane.acquire(Class::Inventory, after(60_000)).await.unwrap();
        let mut second = Box::pin(lane.acquire(Class::Register, after(60_000)));
        let mut third = Box::pin(lane.acquire(Class::Replay, after(60_000)));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(third.as_mut().now_or_never().is_none());
        assert_eq!(gauges(), [(1, 1), (1, 0), (0, 1)]);
        advance(Duration::from_millis(2_000)).await;
        drop(first);
        let second = second.await.unwrap();
        assert_eq!(gauges(), [(1, 0), (1, 0), (0, 1)]);
        drop(second);
        let third = third.await.unwrap();
        assert_eq!(gauges(), [(0, 0), (1, 0), (1, 0)]);
        drop(third);
        assert_eq!(gauges(), [(0, 0), (1, 0), (0, 0)]);
        for (class, count, sum) in [
            ("register", 2, 2.0),
            ("inventory", 1, 0.0),
            ("replay", 1, 2.0),
        ] {
            let waits = metrics
                .upstream_permit_wait_seconds
                .with_label_values(&[class]);
            assert_eq!(waits.get_sample_count(), count, "{class}");
            assert!((waits.get_sample_sum() - sum).abs() < 0.01, "{class}");
        }
    }

    /// Within a millisecond is at once: nothing has to run for it.
    #[tokio::test]
    async fn permit_7_what_a_caller_drops_is_free_before_drop_returns() {
        let (lane, metrics) = lane(1, 1);
        let held = lane.acquire(Class::Register, after(60_000)).await.unwrap();
        let mut waiting = Box::pin(lane.acquire(Class::Register, after(60_000)));
        assert!(waiting.as_mut().now_or_never().is_none());
        let full = lane.acquire(Class::Register, after(60_000)).await;
        assert_eq!(full.unwrap_err(), CallError::QueueFull);
        drop(waiting);
        let mut waiting = Box::pin(lane.acquire(Class::Register, after(60_000)));
        assert!(waiting.as_mut().now_or_never().is_none(), "its place");
        // Served and not yet told: the permit is given back all the same.
        drop(held);
        drop(waiting);
        let gauge = metrics
            .upstream_permits_held
            .with_label_values(&["register"]);
        assert_eq!(gauge.get(), 0);
        lane.acquire(Class::Register, after(1_000)).await.unwrap();
    }
}
