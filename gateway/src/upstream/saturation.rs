//! Whether the server is slow: how often a lane to it is full (SLOW-*).
//!
//! Responsible for sampling the lanes' published counts and for the share of the last minute in
//! which one was full. Must never change what a lane does, and must never be a readiness input.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::NOTICES_IN_FLIGHT;
use super::lane::Lanes;
use crate::observe::metrics::Metrics;

const PERIOD: Duration = Duration::from_millis(100);
/// What one sample counts for at most, however late the next one is.
const LONGEST_STEP: Duration = Duration::from_secs(1);
const BUCKETS: u64 = 60;
const BUCKET: Duration = Duration::from_secs(1);
/// Duty cycle from which the server is slow.
const SLOW: f64 = 0.5;

/// What the notice store publishes for the slow-server detector (SLOW-1).
#[derive(Debug, Default)]
pub(crate) struct NoticeCounts {
    /// Notices being sent now.
    pub(crate) in_flight: AtomicUsize,
    /// Notices that wait to be sent.
    pub(crate) held: AtomicUsize,
}

/// Which lanes are full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// A live register or an inventory waits for its permit.
    pub(crate) permits: bool,
    /// Ten notices are in flight and more are held.
    pub(crate) notify: bool,
    /// No Guardian frame could be sent now.
    pub(crate) guardian: bool,
}

impl Sample {
    fn backpressure(self) -> bool {
        self.permits || self.notify || self.guardian
    }
}

/// The last minute, in buckets of one second.
#[derive(Debug)]
pub(crate) struct DutyCycle {
    start: Instant,
    /// The time under backpressure in each second. One more than is counted: the second that is
    /// being filled.
    buckets: [Duration; BUCKETS as usize + 1],
    /// Seconds since the start; buckets up to this one are clean or in use.
    second: u64,
    /// When the last sample was taken, if it was under backpressure.
    full_since: Option<Instant>,
}

impl DutyCycle {
    /// Nothing was full before `now`.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            start: now,
            buckets: [Duration::ZERO; BUCKETS as usize + 1],
            second: 0,
            full_since: None,
        }
    }

    /// Takes a sample: the last one is credited with the time since, one second at most (SLOW-2).
    /// Returns the share of the last 60 whole seconds, from 0 to 1.
    pub(crate) fn sample(&mut self, now: Instant, backpressure: bool) -> f64 {
        let now = now.max(self.start);
        if let Some(since) = self.full_since {
            self.credit(since, now.min(since + LONGEST_STEP));
        }
        self.advance(self.second_of(now));
        self.full_since = backpressure.then_some(now);
        let filling = self.slot(self.second);
        let whole = self.buckets.iter().enumerate();
        let full: Duration = whole
            .filter(|(slot, _)| *slot != filling)
            .map(|(_, bucket)| *bucket)
            .sum();
        full.as_secs_f64() / (BUCKET * BUCKETS as u32).as_secs_f64()
    }

    fn credit(&mut self, mut from: Instant, to: Instant) {
        while from < to {
            let second = self.second_of(from);
            self.advance(second);
            let end = to.min(self.start + BUCKET * (second as u32 + 1));
            self.buckets[self.slot(second)] += end - from;
            from = end;
        }
    }

    /// Empties the buckets of the seconds that begin.
    fn advance(&mut self, second: u64) {
        let new = second.saturating_sub(self.second).min(BUCKETS + 1);
        for passed in 0..new {
            self.buckets[self.slot(second - passed)] = Duration::ZERO;
        }
        self.second = self.second.max(second);
    }

    fn second_of(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.start).as_secs()
    }

    fn slot(&self, second: u64) -> usize {
        (second % (BUCKETS + 1)) as usize
    }
}

/// Samples the lanes and shows what it finds.
#[derive(Debug)]
pub(crate) struct Detector {
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) notices: Arc<NoticeCounts>,
    pub(crate) guardian: Arc<Semaphore>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Detector {
    /// Samples every 100 ms; never returns.
    pub(crate) async fn run(&self) {
        let mut duty = DutyCycle::new(Instant::now());
        let mut tick = interval(PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let sample = self.sample();
            let share = duty.sample(Instant::now(), sample.backpressure());
            self.show(sample, share);
        }
    }

    fn sample(&self) -> Sample {
        let in_flight = self.notices.in_flight.load(Ordering::Relaxed);
        let held = self.notices.held.load(Ordering::Relaxed);
        Sample {
            permits: self.lanes.saturated(),
            notify: in_flight >= NOTICES_IN_FLIGHT && held > 0,
            guardian: self.guardian.available_permits() == 0,
        }
    }

    fn show(&self, sample: Sample, share: f64) {
        let lanes = [
            ("permits", sample.permits),
            ("notify", sample.notify),
            ("guardian", sample.guardian),
        ];
        for (lane, full) in lanes {
            self.metrics
                .upstream_lane_saturated
                .with_label_values(&[lane])
                .set(full.into());
        }
        self.metrics.upstream_backpressure_duty_cycle.set(share);
        self.metrics.upstream_slow.set((share >= SLOW).into());
    }
}

#[cfg(test)]
mod tests;
