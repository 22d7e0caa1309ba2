//! One run: a process is started, loaded in a fixed order, and every figure is taken.

use super::Kind;
use super::grpc_load::GrpcLoad;
use super::load::{Load, Target};
use super::process::FloorProcess;
use super::sockets_load::SocketsLoad;
use super::transport::Certificates;
use crate::broadcast::percentile;
use crate::process::{GatewayProcess, Lines};
use crate::usage::{self, Usage};
use futures_util::future::try_join_all;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use yuzu_server_stub::{Rpc, State, StubConfig, StubServer};

/// Callers at the same time whose single commands are measured.
pub const CONCURRENCIES: [usize; 3] = [1, 16, 64];

const START_LIMIT: Duration = Duration::from_secs(30);
const NOTICE_LIMIT: Duration = Duration::from_secs(60);
/// Between a start or an end and what is measured after it.
const CALM: Duration = Duration::from_millis(500);
/// Before anything is measured: buffers and code are touched for the first time.
const WARM_UP: u64 = 2;
/// Heartbeats of each agent before any is measured.
const WARM_UP_BEATS: u32 = 5;
/// Agents that are named in place of all: the memory that they take is the same however many there are.
const FEW: usize = 1_000;
/// An agent without much to say of itself.
const REGISTER_BYTES: usize = 200;
/// A real agent with its plugins. A gateway keeps as much for replays.
const LARGE_REGISTER_BYTES: usize = 9_054;
/// Single commands of each caller, by the place in [`CONCURRENCIES`].
const COMMANDS_EACH: [usize; 3] = [1_000, 150, 60];

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// The gateway, this binary.
    Gateway(PathBuf),
    /// A floor; the binary is `yuzu-floor`.
    Floor(PathBuf, Kind),
}

/// How much of it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Agents, one connection each.
    pub agents: usize,
    /// Measured broadcasts.
    pub broadcasts: u64,
    /// Heartbeats a second of all agents together; [`measure`] also takes twice as many.
    pub heartbeat_rate: f64,
    /// How long heartbeats are measured.
    pub heartbeat_time: Duration,
    /// How often the gateway is to pass heartbeats on; none: its default, one second. An agent that
    /// beats more often is passed on once.
    pub batch_interval: Option<Duration>,
    /// Wait before memory is read.
    pub settle: Duration,
    /// From the last broadcast of [`measure`] until memory is read again.
    pub after_load: Duration,
    /// Agents speak TLS, operators do not. Not with [`Kind::Tcp`].
    pub tls: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            agents: 5_000,
            broadcasts: 10,
            heartbeat_rate: 5_000.0,
            heartbeat_time: Duration::from_secs(5),
            batch_interval: None,
            settle: Duration::from_secs(2),
            after_load: Duration::from_secs(60),
            tls: false,
        }
    }
}

impl Plan {
    /// What the gateway is configured with.
    fn gateway_lines(&self) -> String {
        self.batch_interval.map_or_else(String::new, |interval| {
            format!("[heartbeat]\nbatch_interval_ms = {}", interval.as_millis())
        })
    }
}

/// Figures of one run by name.
pub type Figures = BTreeMap<String, f64>;

/// Runs one subject once, with a server stub of its own in this process.
///
/// # Errors
/// A sentence for the user.
pub async fn measure(subject: &Subject, plan: &Plan) -> Result<Figures, String> {
    let mut figures = match subject {
        Subject::Floor(_, Kind::Tcp) => {
            let bed = Bed::start(subject, plan, REGISTER_BYTES).await?;
            return bed.run(plan).all::<SocketsLoad>().await;
        }
        Subject::Floor(..) | Subject::Gateway(_) => {
            let bed = Bed::start(subject, plan, REGISTER_BYTES).await?;
            let figures = bed.run(plan).all::<GrpcLoad>().await;
            figures.map_err(|problem| bed.failed(&problem))?
        }
    };
    // A process of its own: memory that was used once is not given back at once.
    let bed = Bed::start(subject, plan, LARGE_REGISTER_BYTES).await?;
    let large = bed.run(plan).idle::<GrpcLoad>(&mut Figures::new()).await;
    let (_, _, large) = large.map_err(|problem| bed.failed(&problem))?;
    figures.insert("idle_large_kib".into(), large);
    let more = large - figures.get("idle_kib").copied().unwrap_or_default();
    let kept = LARGE_REGISTER_BYTES as f64 / 1_024.0;
    figures.insert("large_per_kept_byte".into(), more / kept);
    Ok(figures)
}

/// As [`measure`], but for broadcasts, the memory before and after them, and heartbeats only; with as
/// many answers of the same few agents, whatever the number of agents.
///
/// # Errors
/// A sentence for the user.
pub async fn measure_broadcasts(subject: &Subject, plan: &Plan) -> Result<Figures, String> {
    let bed = Bed::start(subject, plan, REGISTER_BYTES).await?;
    let run = bed.run(plan);
    let figures = match subject {
        Subject::Floor(_, Kind::Tcp) => run.broadcasts_alone::<SocketsLoad>().await,
        Subject::Floor(..) | Subject::Gateway(_) => run.broadcasts_alone::<GrpcLoad>().await,
    };
    figures.map_err(|problem| bed.failed(&problem))
}

/// A subject that runs, with its server. It ends with this value.
#[derive(Debug)]
struct Bed {
    server: StubServer,
    subject: Running,
    target: Target,
    _certificates: Option<Certificates>,
}

#[derive(Debug)]
enum Running {
    Gateway(GatewayProcess),
    Floor(FloorProcess),
}

impl Bed {
    async fn start(subject: &Subject, plan: &Plan, register_bytes: usize) -> Result<Self, String> {
        let server = StubServer::start(StubConfig::default());
        let server = server.await.map_err(|e| e.to_string())?;
        let certificates = plan.tls.then(Certificates::new).transpose()?;
        let files = certificates.as_ref();
        let (subject, agents, management) = match subject {
            Subject::Gateway(binary) => {
                let tls = files.map_or_else(String::new, listener_tls);
                let lines = Lines {
                    agent: &tls,
                    more: &plan.gateway_lines(),
                };
                let address = server.addr();
                let gateway = GatewayProcess::start_configured(binary, address, lines, START_LIMIT);
                let gateway = gateway.await?;
                let (agents, management) = (gateway.agents, gateway.management);
                (Running::Gateway(gateway), agents, management)
            }
            Subject::Floor(binary, kind) => {
                let floor = FloorProcess::start(binary, *kind, server.addr(), files).await?;
                let (agents, management) = (floor.agents, floor.management);
                (Running::Floor(floor), agents, management)
            }
        };
        let target = Target {
            agents,
            management,
            tls: files.map(|files| files.client.clone()),
            register_bytes,
        };
        Ok(Self {
            server,
            subject,
            target,
            _certificates: certificates,
        })
    }

    fn run<'a>(&'a self, plan: &'a Plan) -> Run<'a> {
        let (process, notices_of) = match &self.subject {
            Running::Gateway(gateway) => (gateway.id().unwrap_or_default(), Some(&self.server)),
            Running::Floor(floor) => (floor.id, None),
        };
        Run {
            process,
            target: &self.target,
            notices_of,
            plan,
        }
    }

    /// The problem with what the subject says of it.
    fn failed(&self, problem: &str) -> String {
        match &self.subject {
            Running::Gateway(gateway) => format!("{problem}\n{}", gateway.log_end()),
            Running::Floor(_) => problem.to_owned(),
        }
    }
}

/// Keys of an agent listener.
fn listener_tls(files: &Certificates) -> String {
    let [certificate, key, ca] =
        [&files.cert_file, &files.key_file, &files.ca_file].map(|path| path.display());
    format!("tls = {{ cert_file = \"{certificate}\", key_file = \"{key}\", ca_file = \"{ca}\" }}")
}

struct Run<'a> {
    process: u32,
    target: &'a Target,
    /// Who is told of every agent; a floor tells nobody.
    notices_of: Option<&'a StubServer>,
    plan: &'a Plan,
}

impl Run<'_> {
    async fn all<L: Load>(&self) -> Result<Figures, String> {
        let mut figures = Figures::new();
        let (load, bare, idle) = self.idle::<L>(&mut figures).await?;
        figures.insert("bare_mib".into(), mib(bare.anonymous));
        figures.insert("idle_kib".into(), idle);
        self.idle_usage(bare, &mut figures)?;
        self.broadcasts(&load, &mut figures).await?;
        let loaded = Instant::now();
        for (callers, each) in CONCURRENCIES.into_iter().zip(COMMANDS_EACH) {
            self.commands(&load, callers, each, &mut figures).await?;
        }
        sleep_until(loaded + self.plan.after_load).await;
        figures.insert("loaded_kib".into(), self.kib_per_agent(bare)?);
        load.detach().await?;
        let rate = self.plan.heartbeat_rate;
        for heartbeats in [(rate, ""), (2.0 * rate, "_twice")] {
            sleep(CALM).await;
            self.heartbeats::<L>(heartbeats, &mut figures).await?;
        }
        Ok(figures)
    }

    async fn broadcasts_alone<L: Load>(&self) -> Result<Figures, String> {
        let mut figures = Figures::new();
        let (load, bare, idle) = self.idle::<L>(&mut figures).await?;
        figures.insert("idle_kib".into(), idle);
        self.broadcasts(&load, &mut figures).await?;
        self.multicasts(&load, &mut figures).await?;
        sleep(self.plan.settle).await;
        figures.insert("loaded_kib".into(), self.kib_per_agent(bare)?);
        load.detach().await?;
        sleep(CALM).await;
        let heartbeats = (self.plan.heartbeat_rate, "");
        self.heartbeats::<L>(heartbeats, &mut figures).await?;
        Ok(figures)
    }

    /// Attached agents, what the process uses without them, and the KiB each of them takes.
    async fn idle<L: Load>(&self, figures: &mut Figures) -> Result<(L, Usage, f64), String> {
        sleep(CALM).await;
        let bare = Usage::of(self.process)?;
        let load = self.attached::<L>(figures).await?;
        sleep(self.plan.settle).await;
        Ok((load, bare, self.kib_per_agent(bare)?))
    }

    fn kib_per_agent(&self, bare: Usage) -> Result<f64, String> {
        let now = Usage::of(self.process)?;
        let more = now.anonymous.saturating_sub(bare.anonymous);
        Ok(more as f64 / 1_024.0 / self.plan.agents as f64)
    }

    /// What else idle agents make the process use.
    fn idle_usage(&self, bare: Usage, figures: &mut Figures) -> Result<(), String> {
        let now = Usage::of(self.process)?;
        let agents = self.plan.agents as f64;
        let resident = now.resident.saturating_sub(bare.resident) as f64;
        figures.insert("idle_resident_kib".into(), resident / 1_024.0 / agents);
        let descriptors = now.descriptors.saturating_sub(bare.descriptors) as f64;
        figures.insert("descriptors_per_agent".into(), descriptors / agents);
        Ok(())
    }

    async fn attached<L: Load>(&self, figures: &mut Figures) -> Result<L, String> {
        let before = usage::processor_time(self.process)?;
        let started = Instant::now();
        let load = L::attach(self.target, "idle-", self.plan.agents, None).await?;
        figures.insert("attach_s".into(), started.elapsed().as_secs_f64());
        if let Some(server) = self.notices_of {
            let agents = self.plan.agents as u64;
            let all =
                |state: &State| (state.counts(Rpc::NotifyStreamStatus).ok >= agents).then_some(());
            let told = server.wait_for("every CONNECTED", NOTICE_LIMIT, all).await;
            told.map_err(|e| e.to_string())?;
            figures.insert("told_s".into(), started.elapsed().as_secs_f64());
        }
        let spent = usage::processor_time(self.process)? - before;
        figures.insert("attach_cpu_s".into(), spent.as_secs_f64());
        Ok(load)
    }

    async fn broadcasts<L: Load>(&self, load: &L, figures: &mut Figures) -> Result<(), String> {
        for name in 0..WARM_UP {
            self.broadcast(load, name).await?;
        }
        let before = usage::processor_time(self.process)?;
        let load_before = usage::processor_time(std::process::id())?;
        let switches_before = usage::switches(self.process)?;
        let started = Instant::now();
        for name in 0..self.plan.broadcasts {
            self.broadcast(load, WARM_UP + name).await?;
        }
        let elapsed = started.elapsed().as_secs_f64();
        let spent = usage::processor_time(self.process)? - before;
        let answers = self.plan.broadcasts as f64 * self.plan.agents as f64;
        figures.insert("answers_per_s".into(), answers / elapsed);
        let per_100_000 = spent.as_secs_f64() * 100_000.0 / answers;
        figures.insert("cpu_s_per_100k".into(), per_100_000);
        let spent = usage::processor_time(std::process::id())? - load_before;
        let per_100_000 = spent.as_secs_f64() * 100_000.0 / answers;
        figures.insert("load_cpu_s_per_100k".into(), per_100_000);
        let switches = usage::switches(self.process)?;
        for (name, at) in [("voluntary", 0), ("forced", 1)] {
            let switches = switches[at].saturating_sub(switches_before[at]) as f64;
            let name = format!("{name}_switches_per_100k");
            figures.insert(name, switches * 100_000.0 / answers);
        }
        Ok(())
    }

    /// Commands to the same few of all agents, for as many answers as broadcasts have.
    async fn multicasts<L: Load>(&self, load: &L, figures: &mut Figures) -> Result<(), String> {
        let first = FEW.min(self.plan.agents);
        let answers = self.plan.broadcasts as usize * self.plan.agents;
        // Apart from the names of broadcasts.
        let names = (0..(answers / first) as u64).map(|number| (1 << 48) + number);
        let before = usage::processor_time(self.process)?;
        let mut answers = 0;
        for name in names {
            match load.multicast(name, first).await? {
                Some(some) if some == first => answers += some,
                Some(other) => return Err(format!("{other} answers of {first} agents")),
                None => return Ok(()),
            }
        }
        let spent = usage::processor_time(self.process)? - before;
        let per_100_000 = spent.as_secs_f64() * 100_000.0 / answers as f64;
        figures.insert("few_cpu_s_per_100k".into(), per_100_000);
        Ok(())
    }

    async fn broadcast<L: Load>(&self, load: &L, name: u64) -> Result<(), String> {
        let answers = load.broadcast(name).await?;
        match answers == self.plan.agents {
            true => Ok(()),
            false => Err(format!("{answers} answers of {} agents", self.plan.agents)),
        }
    }

    /// `callers` callers send `each` commands one after the other, each to another agent.
    async fn commands<L: Load>(
        &self,
        load: &L,
        callers: usize,
        each: usize,
        figures: &mut Figures,
    ) -> Result<(), String> {
        let agents = self.plan.agents;
        let caller = |caller: usize| async move {
            let mut times = Vec::with_capacity(each);
            for number in 0..each {
                let place = number * callers + caller;
                // Apart from the names of broadcasts, and of other concurrencies.
                let name = ((callers as u64) << 32) + place as u64;
                let started = Instant::now();
                load.command(name, place % agents, caller).await?;
                times.push(started.elapsed());
            }
            Ok::<_, String>(times)
        };
        let times = try_join_all((0..callers).map(caller)).await?;
        let mut times: Vec<Duration> = times.into_iter().flatten().collect();
        times.sort_unstable();
        for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
            let time = percentile(&times, share).unwrap_or_default();
            let name = format!("single_{callers}_{name}_ms");
            figures.insert(name, time.as_secs_f64() * 1_000.0);
        }
        Ok(())
    }

    /// Heartbeats at a rate; the names of their figures end with `suffix`.
    async fn heartbeats<L: Load>(
        &self,
        (rate, suffix): (f64, &str),
        figures: &mut Figures,
    ) -> Result<(), String> {
        let every = Duration::from_secs_f64(self.plan.agents as f64 / rate);
        let load = L::attach(self.target, "beat-", self.plan.agents, Some(every)).await?;
        // What is touched for the first time is not what a heartbeat costs.
        sleep(every * WARM_UP_BEATS + CALM).await;
        let cpu_before = usage::processor_time(self.process)?;
        let before = load.heartbeats();
        let started = Instant::now();
        sleep(self.plan.heartbeat_time).await;
        let elapsed = started.elapsed().as_secs_f64();
        let beats = (load.heartbeats() - before) as f64;
        let spent = usage::processor_time(self.process)? - cpu_before;
        figures.insert(format!("heartbeats_per_s{suffix}"), beats / elapsed);
        let percent = spent.as_secs_f64() / beats.max(1.0) * rate * 100.0;
        figures.insert(format!("heartbeat_core_percent{suffix}"), percent);
        load.detach().await
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
