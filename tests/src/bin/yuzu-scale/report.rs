//! Figures with their bounds, as a table or as JSON.

use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// How all that was asked for went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Every bound was judged, and is met.
    Met,
    /// At least one is missed.
    Missed,
    /// None is known to be missed, but not all could be judged: why.
    NotJudged(String),
}

/// What one scenario measured.
#[derive(Debug, Default)]
pub(crate) struct Report {
    figures: Vec<Figure>,
}

#[derive(Debug)]
struct Figure {
    name: String,
    value: Number,
    /// None: told only.
    bound: Option<Bound>,
}

#[derive(Debug, Clone, Copy)]
enum Number {
    Count(u64),
    Milliseconds(f64),
    Ratio(f64),
    Plain(f64),
}

#[derive(Debug, Clone, Copy)]
enum Bound {
    Exactly(Number),
    AtMost(Number),
    AtLeast(Number),
}

impl Number {
    fn value(self) -> f64 {
        match self {
            Self::Count(count) => count as f64,
            Self::Milliseconds(ms) => ms,
            Self::Ratio(number) | Self::Plain(number) => number,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Count(count) => count.to_string(),
            Self::Milliseconds(ms) => format!("{ms:.3} ms"),
            Self::Ratio(ratio) => format!("{ratio:.3} x"),
            Self::Plain(number) => format!("{number:.2}"),
        }
    }
}

impl From<Duration> for Number {
    fn from(time: Duration) -> Self {
        Self::Milliseconds(time.as_secs_f64() * 1_000.0)
    }
}

impl Bound {
    fn holds(self, value: Number) -> bool {
        match self {
            Self::Exactly(wanted) => value.value() == wanted.value(),
            Self::AtMost(most) => value.value() <= most.value(),
            Self::AtLeast(least) => value.value() >= least.value(),
        }
    }

    fn text(self) -> String {
        match self {
            Self::Exactly(wanted) => format!("= {}", wanted.text()),
            Self::AtMost(most) => format!("<= {}", most.text()),
            Self::AtLeast(least) => format!(">= {}", least.text()),
        }
    }
}

impl Report {
    /// A number that must be this one.
    pub(crate) fn exactly(&mut self, name: &str, value: u64, wanted: u64) {
        self.add(
            name,
            Number::Count(value),
            Some(Bound::Exactly(Number::Count(wanted))),
        );
    }

    /// A number that must not be above this one.
    pub(crate) fn at_most(&mut self, name: &str, value: u64, most: u64) {
        self.add(
            name,
            Number::Count(value),
            Some(Bound::AtMost(Number::Count(most))),
        );
    }

    /// A number that must not be below this one.
    pub(crate) fn at_least(&mut self, name: &str, value: u64, least: u64) {
        self.add(
            name,
            Number::Count(value),
            Some(Bound::AtLeast(Number::Count(least))),
        );
    }

    /// A time that must not be above this one.
    pub(crate) fn within(&mut self, name: &str, value: Duration, most: Duration) {
        self.add(name, value.into(), Some(Bound::AtMost(most.into())));
    }

    /// A time that must not be below this one.
    pub(crate) fn no_less(&mut self, name: &str, value: Duration, least: Duration) {
        self.add(name, value.into(), Some(Bound::AtLeast(least.into())));
    }

    /// A ratio that must not be above this one.
    pub(crate) fn times(&mut self, name: &str, value: f64, most: f64) {
        let bound = Bound::AtMost(Number::Ratio(most));
        self.add(name, Number::Ratio(value), Some(bound));
    }

    /// A ratio that must not be below this one.
    pub(crate) fn no_less_than(&mut self, name: &str, value: f64, least: f64) {
        let bound = Bound::AtLeast(Number::Ratio(least));
        self.add(name, Number::Ratio(value), Some(bound));
    }

    /// A number that is no count, without a bound.
    pub(crate) fn number(&mut self, name: &str, value: f64) {
        self.add(name, Number::Plain(value), None);
    }

    /// A count without a bound.
    pub(crate) fn count(&mut self, name: &str, value: u64) {
        self.add(name, Number::Count(value), None);
    }

    /// A time without a bound.
    pub(crate) fn time(&mut self, name: &str, value: Duration) {
        self.add(name, value.into(), None);
    }

    fn add(&mut self, name: &str, value: Number, bound: Option<Bound>) {
        self.figures.push(Figure {
            name: name.to_owned(),
            value,
            bound,
        });
    }

    /// Every bound is met.
    pub(crate) fn holds(&self) -> bool {
        self.figures.iter().all(Figure::holds)
    }

    /// One line for each figure, under a line with the scenario's name and verdict.
    pub(crate) fn table(&self, scenario: &str) -> String {
        let mut text = format!("{scenario}: {}\n", verdict(self.holds()));
        for figure in &self.figures {
            let (bound, verdict) = match figure.bound {
                None => (String::new(), ""),
                Some(bound) => (bound.text(), verdict(figure.holds())),
            };
            let value = figure.value.text();
            // Writing to a string can't fail.
            let _ = writeln!(
                text,
                "  {:<58} {value:>14} {bound:>16}  {verdict}",
                figure.name
            );
        }
        text
    }

    pub(crate) fn json(&self, scenario: &str) -> Value {
        let figures = self.figures.iter().map(|figure| {
            json!({
                "name": figure.name,
                "value": figure.value.value(),
                "unit": match figure.value {
                    Number::Count(_) => "count",
                    Number::Milliseconds(_) => "ms",
                    Number::Ratio(_) => "times",
                    Number::Plain(_) => "number",
                },
                "bound": figure.bound.map(Bound::text),
                "met": figure.holds(),
            })
        });
        json!({
            "scenario": scenario,
            "met": self.holds(),
            "figures": figures.collect::<Vec<_>>(),
        })
    }
}

impl Figure {
    fn holds(&self) -> bool {
        self.bound.is_none_or(|bound| bound.holds(self.value))
    }
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_figure_over_its_bound_fails_the_report() {
        let mut report = Report::default();
        report.count("told", 7);
        report.exactly("refused", 0, 0);
        report.within("time", Duration::from_millis(5), Duration::from_millis(5));
        assert!(report.holds());
        report.at_most("in flight", 49, 48);
        assert!(!report.holds());
        assert_eq!(report.json("x")["figures"][3]["met"], false);
        assert_eq!(report.table("x").matches("MISSED").count(), 2);
    }
}
