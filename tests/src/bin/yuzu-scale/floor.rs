//! The gateway beside the floors: the same load on each, by turns, medians and ratios.

mod table;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
pub(crate) use table::Side;
use table::Table;
use yuzu_tests::cli::{check_descriptors, duration};
use yuzu_tests::floor::{CONCURRENCIES, Kind, Plan, Subject, measure};
use yuzu_tests::process::program;

use crate::progress::{self, Progress};
use crate::report::Outcome;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Agents, one connection each; a process holds about 19,000.
    #[arg(long, default_value_t = 5_000)]
    agents: usize,
    /// Runs of each; the table has their medians.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The floors; tonic's is the one that bounds refer to. None: all, over TLS all but tcp.
    #[arg(long, value_enum, value_delimiter = ',')]
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
    /// Wait before the memory of idle agents is read.
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
        let gateway = self.gateway_binary.as_deref();
        let gateway = program(gateway, "yuzu-gateway", "--gateway-binary")?;
        let floor = self.floor_binary.as_deref();
        let floor = program(floor, "yuzu-floor", "--floor-binary")?;
        let mut kinds = match self.kind.is_empty() {
            true => Kind::value_variants().to_vec(),
            false if self.tls && self.kind.contains(&Kind::Tcp) => {
                return Err("--kind tcp has no TLS: leave it out, or --tls".into());
            }
            false => self.kind.clone(),
        };
        kinds.retain(|kind| !self.tls || *kind != Kind::Tcp);
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
        let callers = CONCURRENCIES.into_iter().max().unwrap_or_default();
        if self.agents < callers {
            return Err(format!(
                "--agents must be {callers} or more: so many callers command one each"
            ));
        }
        if self.rounds == 0 || self.broadcasts == 0 {
            return Err("--rounds and --broadcasts must be above 0".into());
        }
        if !(self.heartbeat_rate > 0.0 && self.heartbeat_rate.is_finite()) {
            return Err("--heartbeat-rate must be above 0".into());
        }
        if self.heartbeat_time.is_zero() {
            return Err("--heartbeat-time must be above 0".into());
        }
        Ok(Plan {
            agents: self.agents,
            broadcasts: self.broadcasts,
            heartbeat_rate: self.heartbeat_rate,
            heartbeat_time: self.heartbeat_time,
            batch_interval: None,
            settle: self.settle,
            tls: self.tls,
            ..Plan::default()
        })
    }
}

/// What was measured, and what it says.
struct Results<'a> {
    plan: &'a Plan,
    rounds: usize,
    table: Table,
    runs: Vec<Value>,
}

pub(crate) async fn run(options: Options) -> Result<Outcome, String> {
    let (plan, subjects) = (options.plan()?, options.subjects()?);
    let mut results = Results {
        plan: &plan,
        rounds: options.rounds,
        table: Table::new(plan.tls, plan.heartbeat_rate),
        runs: Vec::new(),
    };
    let measured = results.measure(&subjects).await;
    // What was measured before a run failed is told all the same.
    if !results.runs.is_empty() {
        results.tell(options.json);
    }
    measured?;
    Ok(results.table.outcome())
}

impl Results<'_> {
    async fn measure(&mut self, subjects: &[(Side, Subject)]) -> Result<(), String> {
        let progress = Progress::of(self.rounds * subjects.len());
        for round in 0..self.rounds {
            // Each round begins with another, so that none always follows the same.
            let turns = subjects.iter().cycle().skip(round % subjects.len());
            for (side, subject) in turns.take(subjects.len()) {
                let name = side.name();
                progress.step(&format!("round {} of {}: {name}", round + 1, self.rounds));
                let figures = measure(subject, self.plan).await;
                let figures = figures.map_err(|problem| format!("{name}: {problem}"))?;
                let raw = json!({ "round": round + 1, "of": name, "figures": figures });
                self.runs.push(raw);
                self.table.add(*side, figures);
                progress.done();
            }
        }
        Ok(())
    }

    fn tell(&self, as_json: bool) {
        let plan = self.plan;
        if as_json {
            let document = json!({
                "agents": plan.agents,
                "broadcasts": plan.broadcasts,
                "heartbeat_rate": plan.heartbeat_rate,
                "heartbeat_time_s": plan.heartbeat_time.as_secs_f64(),
                "settle_s": plan.settle.as_secs_f64(),
                "after_load_s": plan.after_load.as_secs_f64(),
                "tls": plan.tls,
                "met": self.table.outcome() == Outcome::Met,
                "figures": self.table.json(),
                "runs": self.runs,
            });
            progress::result(&format!("{document:#}"));
            return;
        }
        let over = if plan.tls { " over TLS" } else { "" };
        let (agents, rounds) = (plan.agents, self.rounds);
        progress::result(&format!(
            "{agents} agents{over}, medians of {rounds} runs\n{}",
            self.table.text()
        ));
    }
}
