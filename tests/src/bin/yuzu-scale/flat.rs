//! Whether something stays as it is.

use std::time::Duration;

/// Parts that a run is cut into: short enough to see a slope, long enough for a median.
const WINDOWS: usize = 10;

/// Values over time.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<(Duration, u64)>);

/// The medians of the parts of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) lowest: u64,
    pub(crate) highest: u64,
}

impl Range {
    /// How many times the lowest the highest is.
    pub(crate) fn ratio(self) -> f64 {
        ratio(self.highest as f64, self.lowest as f64)
    }
}

/// The ratio of two, 1 when both are 0.
fn ratio(high: f64, low: f64) -> f64 {
    if high == low { 1.0 } else { high / low }
}

/// How many times the lowest the highest of these is; `None` without any.
pub(crate) fn spread(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values = values.into_iter();
    let first = values.next()?;
    let (low, high) = values.fold((first, first), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    Some(ratio(high, low))
}

impl Samples {
    /// Adds a value; times do not go back.
    pub(crate) fn add(&mut self, at: Duration, value: u64) {
        self.0.push((at, value));
    }

    /// The medians of equal parts of the time from `start` on, those without a value left out.
    /// `None` when there is none at all.
    pub(crate) fn range_from(&self, start: Duration) -> Option<Range> {
        let end = self.0.last()?.0;
        let length = end.checked_sub(start)?;
        let mut windows: [Vec<u64>; WINDOWS] = Default::default();
        for (at, value) in self.0.iter().filter(|(at, _)| *at >= start) {
            let share = (*at - start).as_secs_f64() / length.as_secs_f64().max(f64::MIN_POSITIVE);
            let window = ((share * WINDOWS as f64) as usize).min(WINDOWS - 1);
            windows[window].push(*value);
        }
        let medians = windows.into_iter().filter_map(median);
        let range = |range: Option<Range>, value| match range {
            None => Some(Range {
                lowest: value,
                highest: value,
            }),
            Some(range) => Some(Range {
                lowest: range.lowest.min(value),
                highest: range.highest.max(value),
            }),
        };
        medians.fold(None, range)
    }
}

fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(of: impl Fn(u64) -> u64) -> Samples {
        let mut samples = Samples::default();
        for second in 0..=1_200 {
            samples.add(Duration::from_secs(second), of(second));
        }
        samples
    }

    #[test]
    fn what_grows_early_or_for_a_moment_is_flat() {
        let bursts = samples(|second| match second {
            0..=199 => second,
            second if second % 50 == 0 => 9_000,
            _ => 1_000,
        });
        let range = bursts.range_from(Duration::from_secs(200)).unwrap();
        assert_eq!((range.lowest, range.highest), (1_000, 1_000));
        assert_eq!(range.ratio(), 1.0);
    }

    #[test]
    fn what_grows_slowly_is_not_flat() {
        let leak = samples(|second| 1_000 + second / 10);
        let range = leak.range_from(Duration::from_secs(200)).unwrap();
        assert_eq!((range.lowest, range.highest), (1_025, 1_115));
        assert!(range.ratio() > 1.05);
    }

    #[test]
    fn without_values_there_is_no_verdict() {
        assert_eq!(Samples::default().range_from(Duration::ZERO), None);
        assert_eq!(samples(|_| 1).range_from(Duration::from_secs(9_999)), None);
        assert_eq!(spread([]), None);
    }

    #[test]
    fn a_spread_is_the_highest_by_the_lowest() {
        assert_eq!(spread([10.0, 8.0, 9.0]), Some(1.25));
        assert_eq!(spread([0.0, 0.0]), Some(1.0));
    }
}
