//! Ticks whose pace can be changed.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, interval_at};

/// A millisecond: an interval of nothing would never let go.
const LEAST: Duration = Duration::from_millis(1);

/// How often something is done.
#[derive(Debug)]
pub(crate) struct Pace(watch::Sender<Duration>);

impl Pace {
    /// Once every `every`.
    pub(crate) fn new(every: Duration) -> Self {
        Self(watch::Sender::new(every))
    }

    /// Once every `every` from now on; the next time after that much.
    pub(crate) fn set(&self, every: Duration) {
        self.0.send_if_modified(|now| {
            let changed = *now != every;
            *now = every;
            changed
        });
    }

    /// The time from one to the next.
    pub(crate) fn every(&self) -> Duration {
        *self.0.borrow()
    }

    /// Ticks at this pace; the first one comes at once.
    pub(crate) fn ticks(&self) -> Ticks {
        let mut every = self.0.subscribe();
        let interval = spaced(interval(LEAST.max(*every.borrow_and_update())));
        Ticks { every, interval }
    }
}

/// Ticks of a [`Pace`]. One that is late puts those after it off.
#[derive(Debug)]
pub(crate) struct Ticks {
    every: watch::Receiver<Duration>,
    interval: Interval,
}

impl Ticks {
    /// The next one. Dropped before, nothing is lost.
    pub(crate) async fn tick(&mut self) {
        loop {
            tokio::select! {
                biased;
                changed = self.every.changed() => match changed {
                    Ok(()) => {
                        let every = LEAST.max(*self.every.borrow_and_update());
                        self.interval = spaced(interval_at(Instant::now() + every, every));
                    }
                    // Nobody can change it any more.
                    Err(_) => {
                        self.interval.tick().await;
                        return;
                    }
                },
                _ = self.interval.tick() => return,
            }
        }
    }
}

fn spaced(mut interval: Interval) -> Interval {
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(value: u64) -> Duration {
        Duration::from_millis(value)
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_pace_holds_from_now_on() {
        let pace = Pace::new(ms(60_000));
        let mut ticks = pace.ticks();
        let start = Instant::now();
        ticks.tick().await;
        assert_eq!(start.elapsed(), ms(0), "the first one");
        let waiting = async {
            ticks.tick().await;
            start.elapsed()
        };
        let (at, ()) = tokio::join!(waiting, async {
            tokio::time::sleep(ms(100)).await;
            pace.set(ms(50));
        });
        assert_eq!(at, ms(150));
        ticks.tick().await;
        assert_eq!(start.elapsed(), ms(200));
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_pace_again_puts_nothing_off() {
        let pace = Pace::new(ms(100));
        let mut ticks = pace.ticks();
        ticks.tick().await;
        let start = Instant::now();
        tokio::time::advance(ms(60)).await;
        pace.set(ms(100));
        ticks.tick().await;
        assert_eq!(start.elapsed(), ms(100));
    }

    #[tokio::test(start_paused = true)]
    async fn ticks_outlive_their_pace() {
        let pace = Pace::new(ms(100));
        let mut ticks = pace.ticks();
        drop(pace);
        let start = Instant::now();
        for _ in 0..3 {
            ticks.tick().await;
        }
        assert_eq!(start.elapsed(), ms(200));
    }
}
