//! Medians of gateway and floors, their ratios, and the bounds on these.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use yuzu_tests::floor::{CONCURRENCIES, Figures, Kind};

/// Whose figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Floor(Kind),
    Gateway,
}

impl Side {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Floor(kind) => kind.name(),
            Self::Gateway => "gateway",
        }
    }
}

/// A figure of the gateway against one of tonic's floor.
#[derive(Debug)]
struct Row {
    label: String,
    /// Name of the floors' figure.
    floor: String,
    /// Name of the gateway's; mostly the same.
    gateway: String,
    bound: Option<Bound>,
}

/// What must hold.
#[derive(Debug, Clone, Copy)]
enum Bound {
    /// The gateway is at most this multiple of the floor.
    AtMost(f64),
    /// The gateway is at least this multiple of the floor.
    AtLeast(f64),
    /// The gateway is at most this, whatever the floor is.
    Absolute(f64),
}

impl Bound {
    /// `None` when there is no floor to hold the gateway against.
    fn holds(self, gateway: f64, floor: Option<f64>) -> Option<bool> {
        match self {
            Self::AtMost(most) => floor.map(|floor| gateway <= most * floor),
            Self::AtLeast(least) => floor.map(|floor| gateway >= least * floor),
            Self::Absolute(most) => Some(gateway <= most),
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(most) => format!("<= {most} x"),
            Self::AtLeast(least) => format!(">= {least} x"),
            Self::Absolute(most) => format!("<= {}", (most * 10.0).floor() / 10.0),
        }
    }
}

impl Row {
    fn new(label: &str, figure: &str, bound: Option<Bound>) -> Self {
        Self {
            label: label.into(),
            floor: figure.into(),
            gateway: figure.into(),
            bound,
        }
    }
}

/// KiB of an idle agent with a short Register.
const IDLE: f64 = 28.0;
/// KiB of one with a Register of 9,054 bytes: 1.1 times what is kept of it more.
const IDLE_LARGE: f64 = IDLE + 1.1 * 9_054.0 / 1_024.0;

/// Over TLS only memory is held to something: the rest is what the cipher takes.
fn rows_over_tls() -> Vec<Row> {
    let mut rows = rows();
    for row in &mut rows {
        row.bound = match &*row.gateway {
            "idle_kib" => Some(Bound::AtMost(0.85)),
            _ => None,
        };
    }
    // There is one bound on it.
    rows.retain(|row| row.label != ABSOLUTE_IDLE);
    rows
}

/// The row of the second bound on idle agents.
const ABSOLUTE_IDLE: &str = "the same";

fn rows() -> Vec<Row> {
    use Bound::{Absolute, AtLeast, AtMost};
    let mut rows = vec![
        Row::new("MiB of the process without agents", "bare_mib", None),
        Row::new("KiB per idle agent", "idle_kib", Some(AtMost(0.75))),
        Row::new(ABSOLUTE_IDLE, "idle_kib", Some(Absolute(IDLE))),
        Row::new(
            "the same, Registers of 9,054 bytes",
            "idle_large_kib",
            Some(Absolute(IDLE_LARGE)),
        ),
        Row::new(
            "what that is more, by 9,054 bytes",
            "large_per_kept_byte",
            None,
        ),
        Row::new(
            "KiB per agent after load",
            "loaded_kib",
            Some(Absolute(32.0)),
        ),
        Row::new(
            "broadcast answers a second",
            "answers_per_s",
            Some(AtLeast(1.1)),
        ),
        Row::new(
            "CPU s per 100,000 answers",
            "cpu_s_per_100k",
            Some(AtMost(0.85)),
        ),
    ];
    for callers in CONCURRENCIES {
        for (name, most) in [("p50", 1.1), ("p99", 1.25)] {
            let label = format!("single command {name} ms, {callers} at a time");
            let figure = format!("single_{callers}_{name}_ms");
            rows.push(Row::new(&label, &figure, Some(AtMost(most))));
        }
    }
    rows.push(Row::new("s to register and subscribe", "attach_s", None));
    rows.push(Row {
        label: "the same, the server told of all".into(),
        floor: "attach_s".into(),
        gateway: "told_s".into(),
        bound: Some(AtMost(1.25)),
    });
    rows.push(Row::new("CPU s of it", "attach_cpu_s", None));
    rows.push(Row::new("heartbeats a second", "heartbeats_per_s", None));
    let label = "CPU % of a core at the heartbeat rate";
    rows.push(Row::new(label, "heartbeat_core_percent", Some(AtMost(1.1))));
    let twice = "heartbeats a second, twice the rate";
    rows.push(Row::new(twice, "heartbeats_per_s_twice", None));
    let label = "CPU % of a core at twice the rate";
    rows.push(Row::new(
        label,
        "heartbeat_core_percent_twice",
        Some(AtMost(1.1)),
    ));
    rows
}

/// All runs so far.
#[derive(Debug)]
pub(crate) struct Table {
    runs: BTreeMap<Side, Vec<Figures>>,
    rows: Vec<Row>,
}

impl Table {
    pub(crate) fn new(tls: bool) -> Self {
        Self {
            runs: BTreeMap::new(),
            rows: if tls { rows_over_tls() } else { rows() },
        }
    }

    pub(crate) fn add(&mut self, side: Side, figures: Figures) {
        self.runs.entry(side).or_default().push(figures);
    }

    fn median(&self, side: Side, figure: &str) -> Option<f64> {
        let runs = self.runs.get(&side)?;
        let mut values: Vec<f64> = runs.iter().filter_map(|r| r.get(figure).copied()).collect();
        values.sort_by(f64::total_cmp);
        // Of an even number the upper of the two.
        values.get(values.len() / 2).copied()
    }

    fn of_row(&self, row: &Row, side: Side) -> Option<f64> {
        match side {
            Side::Gateway => self.median(side, &row.gateway),
            Side::Floor(_) => self.median(side, &row.floor),
        }
    }

    fn ratio(&self, row: &Row) -> Option<f64> {
        let floor = self.of_row(row, Side::Floor(Kind::Tonic))?;
        Some(self.of_row(row, Side::Gateway)? / floor)
    }

    fn verdict(&self, row: &Row) -> Option<bool> {
        let gateway = self.of_row(row, Side::Gateway)?;
        let floor = self.of_row(row, Side::Floor(Kind::Tonic));
        row.bound?.holds(gateway, floor)
    }

    /// No bound is missed.
    pub(crate) fn holds(&self) -> bool {
        self.rows.iter().all(|row| self.verdict(row) != Some(false))
    }

    /// One line for each figure.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{:<40}", "");
        // Writing to a string can't fail.
        for side in self.runs.keys() {
            let _ = write!(text, " {:>9}", side.name());
        }
        let _ = writeln!(text, " {:>7} {:>9}", "ratio", "bound");
        for row in &self.rows {
            let _ = write!(text, "{:<40}", row.label);
            for &side in self.runs.keys() {
                let value = self.of_row(row, side).map_or_else(String::new, short);
                let _ = write!(text, " {value:>9}");
            }
            let ratio = self.ratio(row).map_or_else(String::new, short);
            let bound = row.bound.map_or_else(String::new, Bound::text);
            let verdict = match self.verdict(row) {
                None => "",
                Some(true) => "met",
                Some(false) => "MISSED",
            };
            let _ = writeln!(text, " {ratio:>7} {bound:>9}  {verdict}");
        }
        text
    }

    pub(crate) fn json(&self) -> Vec<Value> {
        let of = |row: &Row| {
            let medians = self.runs.keys().map(|&side| {
                let median = self.of_row(row, side);
                (side.name().to_owned(), json!(median))
            });
            json!({
                "name": row.label,
                "medians": medians.collect::<serde_json::Map<_, _>>(),
                "ratio": self.ratio(row),
                "bound": row.bound.map(Bound::text),
                "met": self.verdict(row),
            })
        };
        self.rows.iter().map(of).collect()
    }
}

/// Three digits that count.
fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(gateway: f64) -> Table {
        let mut table = Table::new(false);
        let figures = |value| Figures::from([("answers_per_s".to_owned(), value)]);
        for value in [100.0, 90.0, 400.0] {
            table.add(Side::Floor(Kind::Tonic), figures(value));
        }
        table.add(Side::Gateway, figures(gateway));
        table
    }

    #[test]
    fn bounds_are_ratios_of_medians() {
        assert!(table(110.1).holds());
        let missed = table(109.0);
        assert!(!missed.holds());
        assert_eq!(missed.text().matches("MISSED").count(), 1);
    }

    #[test]
    fn without_a_floor_no_ratio_is_judged() {
        let mut table = Table::new(false);
        let figures = Figures::from([("idle_kib".to_owned(), 20.0)]);
        table.add(Side::Gateway, figures);
        assert!(table.holds());
        let figures = Figures::from([("idle_kib".to_owned(), 28.5)]);
        table.add(Side::Gateway, figures);
        assert!(!table.holds());
    }

    #[test]
    fn over_tls_an_idle_agent_takes_at_most_0_85_of_the_floors() {
        for (kib, holds) in [(84.0, true), (86.0, false)] {
            let mut table = Table::new(true);
            for (side, value) in [(Side::Floor(Kind::Tonic), 100.0), (Side::Gateway, kib)] {
                table.add(side, Figures::from([("idle_kib".to_owned(), value)]));
            }
            assert_eq!(table.holds(), holds);
        }
    }

    #[test]
    fn a_large_register_takes_little_more_than_what_is_kept_of_it() {
        for (kib, holds) in [(37.72, true), (37.73, false)] {
            let mut table = Table::new(false);
            let figures = Figures::from([("idle_large_kib".to_owned(), kib)]);
            table.add(Side::Gateway, figures);
            assert_eq!(table.holds(), holds);
        }
    }
}
