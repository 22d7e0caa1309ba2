//! What an agent costs, against how many there are: figures, their flatness, and pictures.

mod chart;
mod points;

use crate::flat::spread;
use crate::floor::Side;
use crate::progress::{self, Progress};
use crate::report::{Outcome, Report};
use chart::{Chart, Line};
use clap::Args;
use points::Points;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use yuzu_tests::cli::{check_descriptors, duration};
use yuzu_tests::floor::{Kind, Plan, Subject, measure_broadcasts};
use yuzu_tests::process::program;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Numbers of agents; a process holds about 19,000.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 5_000, 10_000, 19_000])]
    agents: Vec<usize>,
    /// Runs with each number; the curves go through their medians.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Floors that are measured beside the gateway.
    #[arg(long, value_enum, value_delimiter = ',')]
    kind: Vec<Kind>,
    /// Answers that are measured in a run, whatever the number of agents.
    #[arg(long, default_value_t = 200_000)]
    answers: usize,
    /// How long heartbeats are measured.
    #[arg(long, default_value = "15s", value_parser = duration)]
    heartbeat_time: Duration,
    /// Wait before memory is read.
    #[arg(long, default_value = "2s", value_parser = duration)]
    settle: Duration,
    /// Documents of `curve --save` or of `floor --json` to be read instead of measuring.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    from: Vec<PathBuf>,
    /// Prints one JSON document, with the figures of every run, instead of a table.
    #[arg(long)]
    json: bool,
    /// Where the same goes after each run, so that nothing is lost.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Where the pictures go; the directory is made.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// The gateway; by default the one beside this program.
    #[arg(long)]
    gateway_binary: Option<PathBuf>,
    /// The floor; by default the one beside this program.
    #[arg(long)]
    floor_binary: Option<PathBuf>,
}

/// A picture.
struct Picture {
    file: &'static str,
    title: &'static str,
    of: &'static str,
    figure: &'static str,
    /// It is a cost, and must be the same for any number of agents.
    flat: bool,
    /// `floor --json` has it too.
    of_floor: bool,
}

const PICTURES: [Picture; 5] = [
    Picture {
        file: "memory.svg",
        title: "Memory of an idle agent",
        of: "KiB per agent",
        figure: "idle_kib",
        flat: true,
        of_floor: true,
    },
    Picture {
        file: "processor.svg",
        title: "Processor time of broadcast answers",
        of: "s per 100,000 answers",
        figure: "cpu_s_per_100k",
        flat: true,
        of_floor: true,
    },
    Picture {
        file: "few.svg",
        title: "Processor time of answers of the same 1,000 agents",
        of: "s per 100,000 answers of 1,000 of them",
        figure: "few_cpu_s_per_100k",
        flat: false,
        of_floor: false,
    },
    Picture {
        file: "heartbeats.svg",
        title: "Processor time of 5,000 heartbeats a second",
        of: "% of a core",
        figure: "heartbeat_core_percent",
        flat: true,
        of_floor: true,
    },
    Picture {
        file: "answers.svg",
        title: "Broadcast answers",
        of: "answers a second",
        figure: "answers_per_s",
        flat: false,
        of_floor: true,
    },
];

/// The gateway passes on every heartbeat, though 1,000 agents send theirs five times a second: with
/// more time between batches few agents would have fewer of them to be passed on than many.
const BATCH_INTERVAL: Duration = Duration::from_millis(100);

/// The highest cost by the lowest.
const FLAT: f64 = 1.15;

pub(crate) async fn run(options: Options) -> Result<Outcome, String> {
    options.check()?;
    // Before hours of measuring: whether there is room for what comes of it.
    if let Some(directory) = &options.svg {
        let problem = |e: std::io::Error| format!("--svg {}: {e}", directory.display());
        fs::create_dir_all(directory).map_err(problem)?;
    }
    let points = match options.from.is_empty() {
        true => options.measured().await?,
        false => read(&options.from)?,
    };
    options.save(&points)?;
    if let Some(directory) = &options.svg {
        for picture in &PICTURES {
            write(&directory.join(picture.file), &picture.chart(&points).svg())?;
        }
    }
    let report = judged(&points)?;
    match options.json {
        true => progress::result(&format!("{:#}", points.json())),
        false => progress::result(&report.table("curve")),
    }
    Ok(match report.holds() {
        true => Outcome::Met,
        false => Outcome::Missed,
    })
}

impl Options {
    fn check(&self) -> Result<(), String> {
        if self.rounds == 0 || self.answers == 0 || self.heartbeat_time.is_zero() {
            return Err("--rounds, --answers and --heartbeat-time must be above 0".into());
        }
        if self.agents.contains(&0) {
            return Err("--agents must be above 0".into());
        }
        Ok(())
    }

    fn save(&self, points: &Points) -> Result<(), String> {
        match &self.save {
            Some(file) => write(file, &format!("{:#}\n", points.json()))
                .map_err(|problem| format!("--save {problem}")),
            None => Ok(()),
        }
    }

    async fn measured(&self) -> Result<Points, String> {
        let subjects = self.subjects()?;
        let mut points = Points::default();
        // An unwritable file is told now.
        self.save(&points)?;
        for &agents in &self.agents {
            check_descriptors(agents)?;
        }
        let progress = Progress::of(self.rounds * self.agents.len() * subjects.len());
        for round in 0..self.rounds {
            for &agents in &self.agents {
                let plan = self.plan(agents);
                // Each round begins with another, so that none always follows the same.
                let turns = subjects.iter().cycle().skip(round % subjects.len());
                for (side, subject) in turns.take(subjects.len()) {
                    let name = side.name();
                    let (round, rounds) = (round + 1, self.rounds);
                    progress.step(&format!(
                        "round {round} of {rounds}: {agents} agents, {name}"
                    ));
                    let figures = measure_broadcasts(subject, &plan).await;
                    let figures = figures.map_err(|e| format!("{name}, {agents} agents: {e}"))?;
                    points.add(name, agents, figures);
                    self.save(&points)?;
                    progress.done();
                }
            }
        }
        Ok(points)
    }

    fn subjects(&self) -> Result<Vec<(Side, Subject)>, String> {
        let gateway = self.gateway_binary.as_deref();
        let gateway = program(gateway, "yuzu-gateway", "--gateway-binary")?;
        let mut subjects = vec![(Side::Gateway, Subject::Gateway(gateway))];
        for &kind in &self.kind {
            let floor = program(self.floor_binary.as_deref(), "yuzu-floor", "--floor-binary")?;
            subjects.push((Side::Floor(kind), Subject::Floor(floor, kind)));
        }
        Ok(subjects)
    }

    fn plan(&self, agents: usize) -> Plan {
        Plan {
            agents,
            broadcasts: self.answers.div_ceil(agents) as u64,
            heartbeat_time: self.heartbeat_time,
            batch_interval: Some(BATCH_INTERVAL),
            settle: self.settle,
            ..Plan::default()
        }
    }
}

impl Picture {
    fn chart(&self, points: &Points) -> Chart<'static> {
        let lines = points.subjects().map(|of| Line {
            name: of.to_owned(),
            points: points
                .medians(of, self.figure)
                .into_iter()
                .map(|(agents, value)| (agents as f64, value))
                .collect(),
        });
        Chart {
            title: self.title,
            of: self.of,
            lines: lines.collect(),
        }
    }
}

/// The gateway's figures, and whether its costs are flat; those of floors beside them.
fn judged(points: &Points) -> Result<Report, String> {
    let mut report = Report::default();
    for picture in &PICTURES {
        let values = points.medians(Side::Gateway.name(), picture.figure);
        if values.is_empty() && !picture.of_floor {
            continue;
        }
        if picture.flat && values.len() == 1 {
            return Err(
                "one number of agents says nothing of growth: name more with --agents".into(),
            );
        }
        for (agents, value) in &values {
            let name = format!("{}, {agents} agents", picture.of);
            report.number(&name, *value);
        }
        let ratio = spread(values.into_iter().map(|(_, value)| value));
        let ratio = ratio.ok_or_else(|| format!("no {} of the gateway", picture.figure))?;
        if picture.flat {
            let name = format!("{}: the highest by the lowest", picture.of);
            report.times(&name, ratio, FLAT);
            for floor in points.subjects().filter(|of| *of != Side::Gateway.name()) {
                let values = points.medians(floor, picture.figure).into_iter();
                if let Some(ratio) = spread(values.map(|(_, value)| value)) {
                    report.number(&format!("the same, {floor}"), ratio);
                }
            }
        }
    }
    Ok(report)
}

fn read(files: &[PathBuf]) -> Result<Points, String> {
    let mut points = Points::default();
    for file in files {
        let problem = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
        let text = fs::read_to_string(file).map_err(|e| problem(&e))?;
        let document = serde_json::from_str(&text).map_err(|e| problem(&e))?;
        points.read(&document).map_err(|e| problem(&e))?;
    }
    Ok(points)
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use yuzu_tests::floor::Figures;

    fn points(memory: [f64; 2]) -> Points {
        let mut points = Points::default();
        for (agents, kib) in [1_000, 19_000].into_iter().zip(memory) {
            let figures = [
                ("idle_kib", kib),
                ("cpu_s_per_100k", 2.0),
                ("few_cpu_s_per_100k", 2.0),
                ("heartbeat_core_percent", 25.0),
                // A rate may grow.
                ("answers_per_s", agents as f64),
            ];
            let figures = figures.map(|(name, value)| (name.to_owned(), value));
            points.add("gateway", agents, Figures::from(figures));
        }
        points
    }

    #[test]
    fn costs_within_15_of_100_are_flat() {
        assert!(judged(&points([28.0, 32.0])).unwrap().holds());
        assert!(judged(&points([32.0, 28.0])).unwrap().holds());
        assert!(!judged(&points([28.0, 32.5])).unwrap().holds());
        assert!(judged(&Points::default()).is_err());
        let mut one = Points::default();
        one.add("gateway", 1_000, Figures::from([("idle_kib".into(), 28.0)]));
        assert!(judged(&one).unwrap_err().contains("--agents"));
    }

    #[test]
    fn a_picture_has_a_line_for_each_subject() {
        let mut points = points([28.0, 32.0]);
        points.add("tonic", 1_000, Figures::from([("idle_kib".into(), 40.0)]));
        let chart = PICTURES[0].chart(&points);
        assert_eq!(chart.lines.len(), 2);
        assert_eq!(chart.lines[0].points, [(1_000.0, 28.0), (19_000.0, 32.0)]);
    }
}
