use proptest::prelude::*;
use tokio::time::advance;

use super::*;
use crate::upstream::tests::{lanes, metric, metrics};

fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

/// Samples every 100 ms from `from` to `to`, both in milliseconds; the last share.
fn samples(duty: &mut DutyCycle, from: u64, to: u64, full: bool) -> f64 {
    let start = duty.start;
    let mut share = 0.0;
    for at in (from..=to).step_by(100) {
        share = duty.sample(start + ms(at), full);
    }
    share
}

#[test]
fn slow_2_half_a_minute_full_is_a_half_and_the_rest_counts_as_not_full() {
    let mut duty = DutyCycle::new(Instant::now());
    assert_eq!(samples(&mut duty, 0, 29_900, true), 29.0 / 60.0);
    assert_eq!(samples(&mut duty, 30_000, 30_000, true), 0.5);
    assert_eq!(samples(&mut duty, 30_100, 60_000, true), 1.0);
    assert_eq!(samples(&mut duty, 60_100, 600_000, true), 1.0);
}

#[test]
fn slow_2_what_is_older_than_a_minute_is_forgotten() {
    let mut duty = DutyCycle::new(Instant::now());
    samples(&mut duty, 0, 20_000, true);
    // The sample at 20.0 s counts until the one at 20.1 s.
    let full = 20.1 / 60.0;
    let close = |share: f64, expected: f64| assert!((share - expected).abs() < 1e-9, "{share}");
    close(samples(&mut duty, 20_100, 60_000, false), full);
    close(samples(&mut duty, 60_100, 70_000, false), 10.1 / 60.0);
    close(samples(&mut duty, 70_100, 80_000, false), 0.1 / 60.0);
    close(samples(&mut duty, 80_100, 81_000, false), 0.0);
}

#[test]
fn slow_2_a_sample_counts_for_one_second_at_most() {
    let mut duty = DutyCycle::new(Instant::now());
    let start = duty.start;
    duty.sample(start + ms(500), true);
    let share = duty.sample(start + ms(10_000), false);
    assert_eq!(share, 1.0 / 60.0);
    duty.sample(start + ms(10_100), true);
    let share = duty.sample(start + ms(1_000_000), false);
    assert_eq!(share, 0.0, "it was long ago");
}

proptest! {
    /// The credits in one long list of steps of 50 ms.
    #[test]
    fn agrees_with_a_list_of_steps(
        samples in prop::collection::vec((1usize..100, any::<bool>()), 1..150),
    ) {
        let mut duty = DutyCycle::new(Instant::now());
        let start = duty.start;
        let mut line: Vec<bool> = Vec::new();
        let mut last = false;
        for (steps, full) in samples {
            line.extend((0..steps).map(|step| last && step < 20));
            last = full;
            let share = duty.sample(start + ms(50) * line.len() as u32, full);
            let end = line.len() / 20 * 20;
            let window = &line[end.saturating_sub(1_200)..end];
            let expected = window.iter().filter(|full| **full).count() as f64 / 1_200.0;
            prop_assert!((share - expected).abs() < 1e-9, "{} is not {}", share, expected);
        }
    }
}

fn detector() -> Detector {
    Detector {
        lanes: lanes(),
        notices: Arc::default(),
        guardian: Arc::new(Semaphore::new(50)),
        metrics: metrics(),
    }
}

#[tokio::test]
async fn slow_1_a_lane_is_full_when_its_callers_wait() {
    let detector = detector();
    let sample = |permits, notify, guardian| Sample {
        permits,
        notify,
        guardian,
    };
    assert_eq!(detector.sample(), sample(false, false, false));
    assert!(!detector.sample().backpressure());

    detector.notices.in_flight.store(10, Ordering::Relaxed);
    assert_eq!(detector.sample(), sample(false, false, false));
    detector.notices.held.store(1, Ordering::Relaxed);
    assert_eq!(detector.sample(), sample(false, true, false));
    assert!(detector.sample().backpressure());
    detector.notices.in_flight.store(9, Ordering::Relaxed);
    assert_eq!(detector.sample(), sample(false, false, false));

    let most = detector.guardian.acquire_many(49).await.unwrap();
    assert_eq!(detector.sample(), sample(false, false, false));
    let last = detector.guardian.acquire().await.unwrap();
    assert_eq!(detector.sample(), sample(false, false, true));
    assert!(detector.sample().backpressure());
    drop((most, last));
    assert_eq!(detector.sample(), sample(false, false, false));
}

#[tokio::test(start_paused = true)]
async fn slow_3_the_server_is_slow_from_half_of_a_minute_on() {
    let detector = Arc::new(detector());
    let metrics = Arc::clone(&detector.metrics);
    let notices = Arc::clone(&detector.notices);
    let value = |series: &str| metric(&metrics, series).unwrap();
    let running = tokio::spawn(async move { detector.run().await });
    tokio::task::yield_now().await;
    let pass = async |seconds: u64| {
        for _ in 0..seconds * 10 {
            advance(PERIOD).await;
            tokio::task::yield_now().await;
        }
    };
    notices.in_flight.store(10, Ordering::Relaxed);
    notices.held.store(5, Ordering::Relaxed);
    pass(29).await;
    assert_eq!(value("upstream_slow"), 0.0);
    assert_eq!(value("upstream_lane_saturated{lane=\"notify\"}"), 1.0);
    assert_eq!(value("upstream_lane_saturated{lane=\"permits\"}"), 0.0);
    pass(2).await;
    assert_eq!(value("upstream_slow"), 1.0);
    assert!(value("upstream_backpressure_duty_cycle") >= 0.5);
    notices.held.store(0, Ordering::Relaxed);
    pass(60).await;
    assert_eq!(value("upstream_lane_saturated{lane=\"notify\"}"), 0.0);
    assert_eq!(value("upstream_slow"), 0.0);
    running.abort();
}
