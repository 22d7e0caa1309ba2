//! Operators that read none of their answers, and what they cost the gateway.

use crate::bed::{self, Bed, Binaries, Peak};
use crate::report::Report;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep};
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_server_stub::StubConfig;
use yuzu_tests::fleet::{Answer, Fleet, Options};
use yuzu_tests::operator::{Fanout, Operator};
use yuzu_tests::raw;

pub(crate) const ABOUT: &str = "operators read none of their answers: memory and other operators";

const LIMIT: Duration = Duration::from_secs(60);
/// After the last answer, or the last caller given up.
const WATCHED: Duration = Duration::from_secs(2);

/// One kind of answer, sent by many agents to callers that do not read.
struct Load {
    title: &'static str,
    agents: usize,
    bytes: usize,
    broadcasts: usize,
    /// Growth of anonymous memory at its peak, in MiB: what CMD-22 lets wait for one caller (8 MiB,
    /// and 8 beyond) or for all (32), 8 of answers under way, and 40 KiB of each agent whose answer
    /// waits in its socket. The last load has it twice: what one worker frees stays in its arena
    /// while the other fills its own.
    bound: u64,
    given_up: Option<u64>,
}

const LOADS: [Load; 3] = [
    Load {
        title: "1 x 1,000 x 4 KB",
        agents: 1_000,
        bytes: 4_000,
        broadcasts: 1,
        bound: 16,
        given_up: Some(0),
    },
    Load {
        title: "1 x 1,000 x 160 KB",
        agents: 1_000,
        bytes: 160_000,
        broadcasts: 1,
        bound: 8 + 8 + 8 + 40,
        given_up: Some(1),
    },
    Load {
        title: "100 x 300 x 20 KB",
        agents: 300,
        bytes: 20_000,
        broadcasts: 100,
        bound: 2 * (32 + 8 + 12),
        given_up: None,
    },
];

pub(crate) async fn run(binaries: &Binaries) -> Result<Report, String> {
    let mut report = Report::default();
    for load in &LOADS {
        measure(binaries, load, &mut report).await?;
    }
    Ok(report)
}

async fn measure(binaries: &Binaries, load: &Load, report: &mut Report) -> Result<(), String> {
    let bed = Bed::start(binaries, StubConfig::default()).await?;
    let answer = Answer {
        bytes: load.bytes,
        delay: Duration::ZERO,
        running_frames: 0,
    };
    let fleet = Fleet::start(Options {
        answer,
        ..bed.fleet("unread-", load.agents)
    });
    let all = fleet.all_subscribed(LIMIT).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    let before = bed.gateway.anonymous_memory()?;
    let bed = Arc::new(bed);
    let peak = Peak::watch(&bed);
    let other = Other::start(&bed).await?;
    let unread = broadcasts(&bed, load).await?;
    let wanted = (load.agents * load.broadcasts) as u64;
    let counters = fleet.counters();
    let answered = counters.wait_for(LIMIT, |now| now.answers >= wanted).await;
    answered.map_err(|now| format!("{} of {wanted} answers were taken", now.answers))?;
    sleep(WATCHED).await;
    let peak = peak.end().await?;
    let (worst, rounds) = other.end().await?;
    let given_up = bed::scrape(&bed.gateway).await?;
    let given_up = bed::value(&given_up, "command_slow_callers_total", &[])?;
    let mib = |bytes: u64| bytes >> 20;
    let line = |what: &str| format!("{}: {what}", load.title);
    report.count(&line("anonymous memory before, MiB"), mib(before));
    report.at_most(
        &line("growth at its peak, MiB"),
        mib(peak.saturating_sub(before)),
        load.bound,
    );
    match load.given_up {
        Some(wanted) => report.exactly(&line("callers given up"), given_up, wanted),
        None => report.count(&line("callers given up"), given_up),
    }
    report.count(&line("commands of another operator"), rounds);
    report.within(
        &line("its slowest answer"),
        worst,
        Duration::from_millis(1_000),
    );
    drop(unread);
    fleet.stop().await;
    Ok(())
}

/// Sends the broadcasts of one operator, none of which is read.
async fn broadcasts(bed: &Bed, load: &Load) -> Result<(Operator, Vec<Fanout>), String> {
    let window = raw::Options {
        stream_window: 65_535,
        ..raw::Options::default()
    };
    let operator = Operator::connect_with(bed.gateway.management, &window).await;
    let operator = operator.map_err(|e| e.to_string())?;
    let mut unread = Vec::new();
    for number in 0..load.broadcasts {
        let fanout = operator.send(&[], command(&format!("unread-{number}")), 60);
        unread.push(fanout.await.map_err(|e| e.to_string())?);
    }
    Ok((operator, unread))
}

fn command(id: &str) -> CommandRequest {
    CommandRequest {
        command_id: id.into(),
        plugin: "shell".into(),
        ..CommandRequest::default()
    }
}

/// An operator that reads: one command after the other to one of the agents.
struct Other {
    done: Arc<AtomicBool>,
    worst: Arc<AtomicU64>,
    task: JoinHandle<Result<u64, String>>,
}

impl Other {
    async fn start(bed: &Bed) -> Result<Self, String> {
        let operator = Operator::connect(bed.gateway.management).await;
        let operator = operator.map_err(|e| e.to_string())?;
        let (done, worst) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (ends, slowest) = (Arc::clone(&done), Arc::clone(&worst));
        let task = tokio::spawn(async move {
            let mut ticks = interval(Duration::from_millis(20));
            let mut round = 0;
            while !ends.load(Ordering::Relaxed) {
                ticks.tick().await;
                let started = Instant::now();
                let id = format!("other-{round}");
                let fanout = operator.send(&["unread-7"], command(&id), 60).await;
                let mut fanout = fanout.map_err(|e| e.to_string())?;
                let (entries, status) = fanout.rest().await?;
                if !status.is_ok() || entries.len() != 1 {
                    return Err(format!("{} answers, then {status}", entries.len()));
                }
                let took = started.elapsed().as_micros() as u64;
                slowest.fetch_max(took, Ordering::Relaxed);
                round += 1;
            }
            Ok(round)
        });
        Ok(Self { done, worst, task })
    }

    async fn end(self) -> Result<(Duration, u64), String> {
        self.done.store(true, Ordering::Relaxed);
        let rounds = self.task.await.map_err(|e| e.to_string())??;
        let worst = Duration::from_micros(self.worst.load(Ordering::Relaxed));
        Ok((worst, rounds))
    }
}
