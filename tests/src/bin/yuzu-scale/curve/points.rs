//! Figures by number of agents, as they are kept in JSON.
//!
//! A document is what `floor --json` prints, or an array of such; only `agents` and `runs` of it
//! are read.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use yuzu_tests::floor::Figures;

/// All runs, by subject and number of agents.
#[derive(Debug, Default)]
pub(super) struct Points(BTreeMap<String, BTreeMap<usize, Vec<Figures>>>);

impl Points {
    pub(super) fn add(&mut self, of: &str, agents: usize, figures: Figures) {
        let by_agents = self.0.entry(of.to_owned()).or_default();
        by_agents.entry(agents).or_default().push(figures);
    }

    /// Adds what a document holds.
    ///
    /// # Errors
    /// What it lacks.
    pub(super) fn read(&mut self, document: &Value) -> Result<(), String> {
        let one = std::slice::from_ref(document);
        for part in document.as_array().map_or(one, Vec::as_slice) {
            let agents = part["agents"].as_u64().ok_or("no number of `agents`")?;
            let agents = usize::try_from(agents).map_err(|e| e.to_string())?;
            for run in part["runs"].as_array().ok_or("no `runs`")? {
                let of = run["of"].as_str().ok_or("a run without `of`")?;
                let figures = run["figures"].as_object();
                let figures = figures.ok_or("a run without `figures`")?;
                let numbers = figures
                    .iter()
                    .filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)));
                self.add(of, agents, numbers.collect());
            }
        }
        Ok(())
    }

    /// What [`Points::read`] reads.
    pub(super) fn json(&self) -> Value {
        let mut runs: BTreeMap<usize, Vec<Value>> = BTreeMap::new();
        for (of, by_agents) in &self.0 {
            for (&agents, figures) in by_agents {
                let raw = figures.iter().map(|f| json!({ "of": of, "figures": f }));
                runs.entry(agents).or_default().extend(raw);
            }
        }
        let parts = runs
            .into_iter()
            .map(|(agents, runs)| json!({ "agents": agents, "runs": runs }));
        parts.collect()
    }

    pub(super) fn subjects(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The medians of a figure, in the order of the number of agents.
    pub(super) fn medians(&self, of: &str, figure: &str) -> Vec<(usize, f64)> {
        let by_agents = self.0.get(of).into_iter().flatten();
        by_agents
            .filter_map(|(&agents, runs)| {
                let mut values: Vec<f64> =
                    runs.iter().filter_map(|r| r.get(figure).copied()).collect();
                values.sort_by(f64::total_cmp);
                Some((agents, values.get(values.len() / 2).copied()?))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let mut points = Points::default();
        for (agents, value) in [(5_000, 3.0), (1_000, 9.0), (1_000, 1.0), (1_000, 2.0)] {
            let figures = Figures::from([("idle_kib".to_owned(), value)]);
            points.add("gateway", agents, figures);
        }
        let wanted = [(1_000, 2.0), (5_000, 3.0)];
        assert_eq!(points.medians("gateway", "idle_kib"), wanted);
        let mut again = Points::default();
        again.read(&points.json()).unwrap();
        assert_eq!(again.medians("gateway", "idle_kib"), wanted);
        assert_eq!(again.subjects().collect::<Vec<_>>(), ["gateway"]);
        assert!(again.medians("gateway", "other").is_empty());
        assert!(again.read(&json!({ "runs": [] })).is_err());
    }
}
