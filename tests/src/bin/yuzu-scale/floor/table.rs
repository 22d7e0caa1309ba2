//! Medians of gateway and floors, their ratios, and the bounds on these.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use yuzu_tests::floor::{CONCURRENCIES, Figures, Kind};

use crate::report::Outcome;

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
    /// Without it on both sides there is nothing to be judged: a figure and the least of it.
    needs: Option<(String, f64)>,
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
    /// `None` when there is no floor to hold the gateway against, or one that took nothing that could be
    /// measured.
    fn holds(self, gateway: f64, floor: Option<f64>) -> Option<bool> {
        let floor = floor.filter(|floor| *floor > 0.0);
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
            needs: None,
        }
    }
}

/// Descriptors of an agent (F-MEM-5).
const DESCRIPTORS: f64 = 2.0;
/// KiB of an idle agent with a short Register.
const IDLE: f64 = 28.0;
/// KiB of one with a Register of 9,054 bytes: 1.1 times what is kept of it more.
const IDLE_LARGE: f64 = IDLE + 1.1 * 9_054.0 / 1_024.0;

/// Of the heartbeats a second that were asked for so many must come.
const RATE_REACHED: f64 = 0.97;

/// Over TLS only memory is held to something: the rest is what the cipher takes.
fn rows_over_tls(heartbeat_rate: f64) -> Vec<Row> {
    let mut rows = rows(heartbeat_rate);
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

fn rows(heartbeat_rate: f64) -> Vec<Row> {
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
            "KiB per agent a minute after broadcasts",
            "loaded_kib",
            Some(Absolute(32.0)),
        ),
        Row::new(
            "KiB per idle agent, files included",
            "idle_resident_kib",
            None,
        ),
        Row::new(
            "descriptors per agent",
            "descriptors_per_agent",
            Some(Absolute(DESCRIPTORS)),
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
        Row::new("the load's", "load_cpu_s_per_100k", None),
        Row::new(
            "waits per 100,000 answers",
            "voluntary_switches_per_100k",
            None,
        ),
        Row::new(
            "forced off the core, per 100,000",
            "forced_switches_per_100k",
            None,
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
        needs: None,
    });
    rows.push(Row::new("CPU s of it", "attach_cpu_s", None));
    for (suffix, times, name) in [("", 1.0, "the rate"), ("_twice", 2.0, "twice the rate")] {
        let came = format!("heartbeats_per_s{suffix}");
        rows.push(Row::new(
            &format!("heartbeats a second, {name}"),
            &came,
            None,
        ));
        let (label, figure) = (
            format!("CPU % of a core at {name}"),
            format!("heartbeat_core_percent{suffix}"),
        );
        rows.push(Row {
            needs: Some((came, RATE_REACHED * times * heartbeat_rate)),
            ..Row::new(&label, &figure, Some(AtMost(1.1)))
        });
    }
    rows
}

/// All runs so far.
#[derive(Debug)]
pub(crate) struct Table {
    runs: BTreeMap<Side, Vec<Figures>>,
    rows: Vec<Row>,
}

impl Table {
    pub(crate) fn new(tls: bool, heartbeat_rate: f64) -> Self {
        let rows = if tls { rows_over_tls } else { rows };
        Self {
            runs: BTreeMap::new(),
            rows: rows(heartbeat_rate),
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
        let tonic = Side::Floor(Kind::Tonic);
        if let Some((figure, least)) = &row.needs {
            let reached = |side| {
                self.median(side, figure)
                    .is_some_and(|value| value >= *least)
            };
            if !reached(Side::Gateway) || !reached(tonic) {
                return None;
            }
        }
        row.bound?.holds(gateway, self.of_row(row, tonic))
    }

    /// Whether all bounds are met, or why that is not known.
    pub(crate) fn outcome(&self) -> Outcome {
        let bounded = self.rows.iter().filter(|row| row.bound.is_some());
        let (mut missed, mut unjudged) = (false, Vec::new());
        for row in bounded {
            match self.verdict(row) {
                Some(met) => missed |= !met,
                None => unjudged.push(&*row.label),
            }
        }
        match (missed, unjudged.as_slice()) {
            (true, _) => Outcome::Missed,
            (false, []) => Outcome::Met,
            (false, some) => Outcome::NotJudged(format!(
                "not judged, for want of tonic's floor (--kind), of enough to be measured or of so many \
                 heartbeats a second: {}",
                some.join("; ")
            )),
        }
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
                None if row.bound.is_some() => "not judged",
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

    const RATE: f64 = 5_000.0;

    fn figures(values: &[(&str, f64)]) -> Figures {
        let owned = values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value));
        owned.collect()
    }

    /// Of gateway and tonic's floor, one run each.
    fn table(gateway: &[(&str, f64)], tonic: &[(&str, f64)]) -> Table {
        let mut table = Table::new(false, RATE);
        table.add(Side::Floor(Kind::Tonic), figures(tonic));
        table.add(Side::Gateway, figures(gateway));
        table
    }

    fn row<'a>(table: &'a Table, figure: &str) -> &'a Row {
        let found = table
            .rows
            .iter()
            .find(|row| row.gateway == figure && row.bound.is_some());
        found.unwrap()
    }

    #[test]
    fn bounds_are_ratios_of_medians() {
        for (gateway, met) in [(110.1, true), (109.0, false)] {
            let mut table = Table::new(false, RATE);
            for value in [100.0, 90.0, 400.0] {
                let tonic = figures(&[("answers_per_s", value)]);
                table.add(Side::Floor(Kind::Tonic), tonic);
            }
            table.add(Side::Gateway, figures(&[("answers_per_s", gateway)]));
            assert_eq!(table.verdict(row(&table, "answers_per_s")), Some(met));
            assert_eq!(table.text().contains("MISSED"), !met);
            assert_eq!(table.outcome() == Outcome::Missed, !met);
        }
    }

    #[test]
    fn what_is_not_judged_is_not_met() {
        let mut table = Table::new(false, RATE);
        table.add(Side::Gateway, figures(&[("idle_kib", 20.0)]));
        // Without tonic's floor no ratio is judged, and what was not measured is not judged at all.
        assert!(matches!(table.outcome(), Outcome::NotJudged(_)));
        table.add(Side::Gateway, figures(&[("idle_kib", 28.5)]));
        assert_eq!(table.outcome(), Outcome::Missed);
    }

    #[test]
    fn a_floor_that_took_nothing_is_no_yardstick() {
        let nothing = [("cpu_s_per_100k", 0.0)];
        let table = table(&nothing, &nothing);
        assert_eq!(table.verdict(row(&table, "cpu_s_per_100k")), None);
    }

    #[test]
    fn heartbeats_are_judged_when_so_many_came_as_were_asked_for() {
        for (gateway, tonic, verdict) in [
            (4_900.0, 4_900.0, Some(true)),
            (4_800.0, 4_900.0, None),
            (4_900.0, 4_800.0, None),
        ] {
            let of = |came| [("heartbeats_per_s", came), ("heartbeat_core_percent", 20.0)];
            let table = table(&of(gateway), &of(tonic));
            let row = row(&table, "heartbeat_core_percent");
            assert_eq!(table.verdict(row), verdict);
        }
    }

    #[test]
    fn over_tls_an_idle_agent_takes_at_most_0_85_of_the_floors() {
        for (kib, outcome) in [(84.0, Outcome::Met), (86.0, Outcome::Missed)] {
            let mut table = Table::new(true, RATE);
            for (side, value) in [(Side::Floor(Kind::Tonic), 100.0), (Side::Gateway, kib)] {
                table.add(side, figures(&[("idle_kib", value)]));
            }
            assert_eq!(table.outcome(), outcome);
        }
    }

    #[test]
    fn a_large_register_takes_little_more_than_what_is_kept_of_it() {
        for (kib, met) in [(37.72, true), (37.73, false)] {
            let table = table(&[("idle_large_kib", kib)], &[]);
            let row = row(&table, "idle_large_kib");
            assert_eq!(table.verdict(row), Some(met));
        }
    }
}
