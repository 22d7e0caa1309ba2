//! The gateway beside the floors: the same load on each, by turns, medians and ratios.

mod table;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
pub(crate) use table::Side;
use table::Table;
use yuzu_tests::cli::{check_descriptors, duration};
use yuzu_tests::floor::{Figures, Kind, Plan, Subject, measure};
use yuzu_tests::process::{beside, gateway_binary};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Agents, one connection each; a process holds about 19,000.
    #[arg(long, default_value_t = 5_000)]
    agents: usize,
    /// Runs of each; the table has their medians.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The floors; tonic's is the one that bounds refer to.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Kind::value_variants().to_vec())]
    kind: Vec<Kind>,
    /// Measured broadcasts in a run.
    #[arg(long, default_value_t = 10)]
    broadcasts: u64,
    /// Heartbeats a second of all agents together.
    #[arg(long, default_value_t = 5_000.0)]
    heartbeat_rate: f64,
    /// How long heartbeats are measured.
    #[arg(long, default_value = "5s", value_parser = duration)]
    heartbeat_time: Duration,
    /// Wait before memory is read.
    #[arg(long, default_value = "2s", value_parser = duration)]
    settle: Duration,
    /// Agents speak TLS 1.3, at the gateway and at the floors that can: not tcp's.
    #[arg(long)]
    tls: bool,
    /// Prints one JSON document, with the figures of every run, instead of a table.
    #[arg(long)]
    json: bool,
    /// The gateway; by default the one beside this program.
    #[arg(long)]
    gateway_binary: Option<PathBuf>,
    /// The floor; by default the one beside this program.
    #[arg(long)]
    floor_binary: Option<PathBuf>,
}

impl Options {
    fn subjects(&self) -> Result<Vec<(Side, Subject)>, String> {
        let gateway = self
            .gateway_binary
            .clone()
            .map_or_else(gateway_binary, Ok)?;
        let floor = self.floor_binary.clone();
        let floor = floor.map_or_else(|| beside("yuzu-floor", "--floor-binary"), Ok)?;
        let mut kinds = self.kind.clone();
        if self.tls {
            kinds.retain(|kind| *kind != Kind::Tcp);
        }
        kinds.sort_unstable();
        kinds.dedup();
        let floors = kinds.into_iter().map(|kind| {
            let subject = Subject::Floor(floor.clone(), kind);
            (Side::Floor(kind), subject)
        });
        let mut subjects: Vec<_> = floors.collect();
        subjects.push((Side::Gateway, Subject::Gateway(gateway)));
        Ok(subjects)
    }

    fn plan(&self) -> Result<Plan, String> {
        check_descriptors(self.agents)?;
        if self.agents == 0 || self.rounds == 0 || self.broadcasts == 0 {
            return Err("--agents, --rounds and --broadcasts must be above 0".into());
        }
        if !(self.heartbeat_rate > 0.0 && self.heartbeat_rate.is_finite()) {
            return Err("--heartbeat-rate must be above 0".into());
        }
        Ok(Plan {
            agents: self.agents,
            broadcasts: self.broadcasts,
            heartbeat_rate: self.heartbeat_rate,
            heartbeat_time: self.heartbeat_time,
            batch_interval: None,
            settle: self.settle,
            tls: self.tls,
        })
    }
}

/// Whether every bound was met.
pub(crate) async fn run(options: Options) -> Result<bool, String> {
    let (plan, subjects) = (options.plan()?, options.subjects()?);
    let mut table = Table::new(plan.tls);
    let mut runs = Vec::new();
    for round in 0..options.rounds {
        // Each round begins with another, so that none always follows the same.
        let turns = subjects.iter().cycle().skip(round % subjects.len());
        for (side, subject) in turns.take(subjects.len()) {
            eprintln!("round {} of {}: {}", round + 1, options.rounds, side.name());
            let figures = measure(subject, &plan).await;
            let figures = figures.map_err(|problem| format!("{}: {problem}", side.name()))?;
            runs.push(raw(round, *side, &figures));
            table.add(*side, figures);
        }
    }
    if options.json {
        let document = json!({
            "agents": plan.agents,
            "broadcasts": plan.broadcasts,
            "heartbeat_rate": plan.heartbeat_rate,
            "tls": plan.tls,
            "met": table.holds(),
            "figures": table.json(),
            "runs": runs,
        });
        println!("{document:#}");
    } else {
        let over = if plan.tls { " over TLS" } else { "" };
        println!(
            "{} agents{over}, medians of {} runs",
            plan.agents, options.rounds
        );
        println!("{}", table.text());
    }
    Ok(table.holds())
}

fn raw(round: usize, side: Side, figures: &Figures) -> Value {
    json!({ "round": round + 1, "of": side.name(), "figures": figures })
}
