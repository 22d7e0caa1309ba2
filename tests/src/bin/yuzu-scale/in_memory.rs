//! 100,000 agents on connections that no socket carries: does anything grow faster than they do?

use crate::ballast::Ballast;
use crate::report::Report;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use yuzu_gateway::Gateway;
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_server_stub::{Rpc, State, StubServer};
use yuzu_tests::fleet::{Fleet, Options};
use yuzu_tests::operator::Operator;
use yuzu_tests::process::{anonymous_memory_of, time_of_this_process};
use yuzu_tests::raw::{self, Dialer};
use yuzu_tests::testbed::{Setup, in_memory};

pub(crate) const ABOUT: &str =
    "100,000 agents over in-memory connections: cost of each as with 10,000";

/// The first and the last of so many parts of the agents are compared.
const PARTS: usize = 10;
/// Agents that register at once; more would wait for longer than their deadline.
const AT_ONCE: usize = 1_000;
/// What an agent, its client and what the server keeps of it take, with some to spare, in bytes.
const PAGES: u64 = 80 << 10;
/// Broadcasts with a part of the agents and with all; the best counts, the others are the
/// machine's.
const BROADCASTS: usize = 5;
const SETTLE: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(300);
const TIMEOUT_S: i32 = 300;
const MORE_MEMORY: f64 = 1.15;
const MORE_TIME: f64 = 1.5;

pub(crate) async fn run(agents: usize) -> Result<Report, String> {
    let part = agents / PARTS;
    if part == 0 {
        return Err(format!("--agents must be at least {PARTS}"));
    }
    let mut bed = Bed::start(part).await?;
    let mut report = Report::default();
    report.count("agents", (part * PARTS) as u64);
    let few = bed.grow(1).await?;
    bed.come(PARTS - 2).await?;
    let all = bed.grow(1).await?;
    let time = |report: &mut Report, what: &str, few: Duration, many: Duration| {
        let name = |who: &str| format!("{what} of an agent, {who}");
        report.time(&name("a tenth"), few);
        report.time(&name("all"), many);
        let ratio = many.as_secs_f64() / few.as_secs_f64().max(f64::MIN_POSITIVE);
        report.times(&name("all by a tenth"), ratio, MORE_TIME);
    };
    report.count(
        "memory of an agent and its client, a tenth, bytes",
        few.memory,
    );
    report.count("memory of an agent and its client, all, bytes", all.memory);
    let ratio = all.memory as f64 / few.memory as f64;
    report.times("memory, all by a tenth", ratio, MORE_MEMORY);
    time(
        &mut report,
        "registration",
        few.coming.took,
        all.coming.took,
    );
    time(
        &mut report,
        "processor time of the registration",
        few.coming.worked,
        all.coming.worked,
    );
    time(&mut report, "broadcast", few.broadcast, all.broadcast);
    let many = bed.go(1).await?;
    bed.go(PARTS - 2).await?;
    let last = bed.go(1).await?;
    time(&mut report, "end", last, many);
    report.exactly(
        "agents held at the end",
        bed.gateway.agents_connected() as u64,
        0,
    );
    Ok(report)
}

/// What an agent costs.
struct Cost {
    memory: u64,
    coming: Coming,
    broadcast: Duration,
}

/// What it took until the server was told of an agent.
struct Coming {
    took: Duration,
    /// Processor time of the process. Where it does not grow and `took` does, the process waits: for
    /// the machine, or for itself.
    worked: Duration,
}

struct Bed {
    server: StubServer,
    gateway: Arc<Gateway>,
    operator: Operator,
    /// Bytes of the process without agents.
    bare: u64,
    /// Agents of a part.
    part: usize,
    dialer: Dialer,
    ballast: Ballast,
    fleets: Vec<Fleet>,
    commands: u64,
    /// Notices that the server has taken or will take.
    told: u64,
}

impl Bed {
    async fn start(part: usize) -> Result<Self, String> {
        let pages = PAGES * (part * PARTS) as u64;
        let ballast = spawn_blocking(move || Ballast::take(pages)).await;
        let ballast = ballast.map_err(|e| e.to_string())?;
        let bed = Setup::default().start().await;
        let operators = bed.operators();
        let (server, gateway) = (bed.server, Arc::new(bed.gateway));
        let dialer = in_memory(&gateway, Handle::current());
        let operator = Operator::connect(operators).await;
        sleep(SETTLE).await;
        Ok(Self {
            server,
            gateway,
            operator: operator.map_err(|e| e.to_string())?,
            bare: anonymous_memory_of(std::process::id())?,
            part,
            dialer,
            ballast: ballast
                .map_err(|e| format!("memory for the agents: {e}; have fewer --agents"))?,
            fleets: Vec::new(),
            commands: 0,
            told: 0,
        })
    }

    fn held(&self) -> usize {
        self.fleets.iter().map(|fleet| fleet.options().agents).sum()
    }

    /// More agents, and what each costs once they are there.
    async fn grow(&mut self, parts: usize) -> Result<Cost, String> {
        let coming = self.come(parts).await?;
        let mut best = Duration::MAX;
        for _ in 0..BROADCASTS {
            best = best.min(self.broadcast().await?);
        }
        sleep(SETTLE).await;
        let memory = anonymous_memory_of(std::process::id())?.saturating_sub(self.bare);
        Ok(Cost {
            memory: memory / self.held() as u64,
            coming,
            broadcast: best,
        })
    }

    /// What each of these agents took until the server was told of it.
    async fn come(&mut self, parts: usize) -> Result<Coming, String> {
        let agents = parts * self.part;
        let (before, started) = (time_of_this_process()?, Instant::now());
        let mut left = agents;
        while left > 0 {
            let agents = left.min(AT_ONCE);
            self.ballast.give(PAGES * agents as u64)?;
            let fleet = Fleet::start(Options {
                prefix: format!("memory-{}-", self.fleets.len()),
                heartbeat: None,
                connection: raw::Options {
                    keepalive: None,
                    dialer: Some(self.dialer.clone()),
                    ..raw::Options::default()
                },
                ..Options::new(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), agents)
            });
            let all = fleet.all_subscribed(LIMIT).await;
            all.map_err(|now| format!("only {} of {agents} subscribe", now.subscribed))?;
            self.fleets.push(fleet);
            left -= agents;
        }
        self.server_was_told(agents).await?;
        Ok(Coming {
            took: each(started.elapsed(), agents),
            worked: each(time_of_this_process()?.saturating_sub(before), agents),
        })
    }

    /// The time that each of these agents took to leave, until the server was told of it.
    async fn go(&mut self, parts: usize) -> Result<Duration, String> {
        let before = self.held();
        let started = Instant::now();
        let wanted = before.saturating_sub(parts * self.part);
        while self.held() > wanted {
            let Some(fleet) = self.fleets.pop() else {
                break;
            };
            let last = fleet.stop().await;
            if last.running > 0 {
                return Err(format!("{} agents do not end", last.running));
            }
        }
        let left = before - self.held();
        self.server_was_told(left).await?;
        Ok(each(started.elapsed(), left))
    }

    /// The time that each agent took to be sent a command and to answer it.
    async fn broadcast(&mut self) -> Result<Duration, String> {
        self.commands += 1;
        let command = CommandRequest {
            command_id: format!("all-{}", self.commands),
            plugin: "shell".into(),
            ..CommandRequest::default()
        };
        let started = Instant::now();
        let fanout = self.operator.send(&[], command, TIMEOUT_S).await;
        let answers = fanout.map_err(|e| e.to_string())?.successes().await?;
        let took = started.elapsed();
        match answers == self.held() {
            true => Ok(each(took, answers)),
            false => Err(format!("{answers} answers of {} agents", self.held())),
        }
    }

    /// Waits until the server was told of so many agents more that came or left. It counts calls:
    /// a look at every agent would itself take longer with more of them.
    async fn server_was_told(&mut self, agents: usize) -> Result<(), String> {
        self.told += agents as u64;
        let wanted = self.told;
        let told =
            |state: &State| (state.counts(Rpc::NotifyStreamStatus).ok >= wanted).then_some(());
        let done = self.server.wait_for("every notice", LIMIT, told).await;
        done.map_err(|e| e.to_string())
    }
}

fn each(time: Duration, agents: usize) -> Duration {
    time.div_f64(agents.max(1) as f64)
}
