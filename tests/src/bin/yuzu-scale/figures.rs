//! Which scenario stands for which figure of the contract (docs/contract/figures.md).
//!
//! Responsible for none of the figures being left out that were measured with a mocked server (M) or by a
//! scale suite (S), or reckoned (A). Those of a rig of real agents, and of a review, are not repeated here.

/// A scenario, or `floor`, and the figures that it judges, or what they are reckoned from.
const STANDS_FOR: [(&str, &[&str]); 20] = [
    ("register-storm", &["F-REG-1"]),
    ("register-wave", &["F-REG-2"]),
    ("session-cap", &["F-CAP-3"]),
    ("held-notices", &["F-NOT-13"]),
    ("refused-notices", &["F-NOT-15", "F-NOT-16"]),
    ("memory-loss", &["F-REP-1"]),
    ("memory-loss-20ms", &["F-REP-2"]),
    ("memory-loss-100ms", &["F-REP-3"]),
    ("server-crash", &["F-REP-4"]),
    ("server-crash-capped", &["F-REP-12"]),
    ("reset-once", &["F-REP-5"]),
    ("held-heartbeats", &["F-HB-5"]),
    ("owner-kill", &["F-OWN-1", "F-OWN-2", "F-OWN-3"]),
    (
        "planned-stop",
        &["F-STOP-1", "F-STOP-2", "F-STOP-3", "F-STOP-4"],
    ),
    ("frozen-server", &["F-BRK-1"]),
    ("breaker", &["F-BRK-2", "F-BRK-3"]),
    ("stream-limit", &["F-PER-1"]),
    ("slow-server", &["F-SLOW-1"]),
    ("shed", &["F-MEM-7"]),
    ("floor", &["F-MEM-5", "F-MEM-6"]),
];

/// What a scenario stands for.
pub(crate) fn of(scenario: &str) -> &'static [&'static str] {
    let found = STANDS_FOR.iter().find(|(name, _)| *name == scenario);
    found.map_or(&[], |(_, figures)| figures)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::ValueEnum;

    use super::*;
    use crate::Scenario;

    const CONTRACT: &str = include_str!("../../../../docs/contract/figures.md");

    /// Ids, with whether a scenario is to stand for them.
    fn rows() -> impl Iterator<Item = (&'static str, bool)> {
        let rows = CONTRACT.lines().filter_map(|line| line.strip_prefix("| "));
        rows.filter(|row| row.starts_with("F-")).map(|row| {
            let mut cells = row.split(" | ");
            let id = cells.next().unwrap();
            let kind = cells.next().unwrap().split(' ').next().unwrap();
            (id, ["M", "S", "A"].contains(&kind))
        })
    }

    #[test]
    fn every_figure_that_can_be_repeated_here_has_a_scenario() {
        let wanted: BTreeSet<_> = rows().filter(|(_, wanted)| *wanted).map(|r| r.0).collect();
        let stands: Vec<_> = STANDS_FOR.iter().flat_map(|(_, ids)| *ids).collect();
        let stood_for: BTreeSet<_> = stands.iter().map(|id| **id).collect();
        assert!(wanted.len() > 20, "{wanted:?}");
        assert_eq!(wanted, stood_for);
        assert_eq!(stands.len(), stood_for.len(), "one has two scenarios");
    }

    #[test]
    fn whatever_stands_for_a_figure_can_be_run() {
        let mut names: Vec<_> = Scenario::value_variants()
            .iter()
            .map(|s| s.name())
            .collect();
        names.push("floor".to_owned());
        for (name, _) in STANDS_FOR {
            assert!(names.iter().any(|n| n == name), "{name}");
        }
    }
}
