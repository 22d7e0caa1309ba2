//! One run: a process is started, loaded in a fixed order, and every figure is taken.

use super::grpc_load::GrpcLoad;
use super::load::{Load, Target};
use super::process::FloorProcess;
use super::sockets_load::SocketsLoad;
use super::{Kind, usage};
use crate::broadcast::percentile;
use crate::process::GatewayProcess;
use futures_util::future::try_join_all;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use yuzu_server_stub::{Rpc, State, StubConfig, StubServer};

/// Callers at the same time whose single commands are measured.
pub const CONCURRENCIES: [usize; 3] = [1, 16, 64];

const START_LIMIT: Duration = Duration::from_secs(30);
const NOTICE_LIMIT: Duration = Duration::from_secs(60);
/// Between a start or an end and what is measured after it.
const CALM: Duration = Duration::from_millis(500);
/// Before anything is measured: buffers and code are touched for the first time.
const WARM_UP: u64 = 2;
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
    /// Heartbeats a second of all agents together.
    pub heartbeat_rate: f64,
    /// How long heartbeats are measured.
    pub heartbeat_time: Duration,
    /// Wait before memory is read.
    pub settle: Duration,
}

/// Figures of one run by name.
pub type Figures = BTreeMap<String, f64>;

/// Runs one subject once, with a server stub of its own in this process.
///
/// # Errors
/// A sentence for the user.
pub async fn measure(subject: &Subject, plan: &Plan) -> Result<Figures, String> {
    let server = StubServer::start(StubConfig::default());
    let server = server.await.map_err(|e| e.to_string())?;
    match subject {
        Subject::Gateway(binary) => {
            let gateway = GatewayProcess::start(binary, server.addr(), START_LIMIT).await?;
            let run = Run {
                process: gateway.id()?,
                target: target(gateway.agents, gateway.management),
                notices_of: Some(&server),
                plan,
            };
            let figures = run.all::<GrpcLoad>().await;
            figures.map_err(|problem| format!("{problem}\n{}", gateway.log_end()))
        }
        Subject::Floor(binary, kind) => {
            let floor = FloorProcess::start(binary, *kind, server.addr()).await?;
            let run = Run {
                process: floor.id,
                target: target(floor.agents, floor.management),
                notices_of: None,
                plan,
            };
            match kind {
                Kind::Tcp => run.all::<SocketsLoad>().await,
                Kind::Hyper | Kind::Tonic => run.all::<GrpcLoad>().await,
            }
        }
    }
}

fn target(agents: SocketAddr, management: SocketAddr) -> Target {
    Target { agents, management }
}

struct Run<'a> {
    process: u32,
    target: Target,
    /// Who is told of every agent; a floor tells nobody.
    notices_of: Option<&'a StubServer>,
    plan: &'a Plan,
}

impl Run<'_> {
    async fn all<L: Load>(&self) -> Result<Figures, String> {
        let mut figures = Figures::new();
        sleep(CALM).await;
        let bare = usage::anonymous_memory(self.process)?;
        figures.insert("bare_mib".into(), bare as f64 / f64::from(1 << 20));
        let load = self.attached::<L>(&mut figures).await?;
        let kib = |bytes: u64| bytes.saturating_sub(bare) as f64 / 1_024.0;
        sleep(self.plan.settle).await;
        let idle = kib(usage::anonymous_memory(self.process)?) / self.plan.agents as f64;
        figures.insert("idle_kib".into(), idle);
        self.broadcasts(&load, &mut figures).await?;
        for (callers, each) in CONCURRENCIES.into_iter().zip(COMMANDS_EACH) {
            self.commands(&load, callers, each, &mut figures).await?;
        }
        sleep(self.plan.settle).await;
        let loaded = kib(usage::anonymous_memory(self.process)?) / self.plan.agents as f64;
        figures.insert("loaded_kib".into(), loaded);
        load.detach().await?;
        sleep(CALM).await;
        self.heartbeats::<L>(&mut figures).await?;
        Ok(figures)
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

    async fn heartbeats<L: Load>(&self, figures: &mut Figures) -> Result<(), String> {
        let every = Duration::from_secs_f64(self.plan.agents as f64 / self.plan.heartbeat_rate);
        let load = L::attach(self.target, "beat-", self.plan.agents, Some(every)).await?;
        // Until every agent has sent its first.
        sleep(every + CALM).await;
        let cpu_before = usage::processor_time(self.process)?;
        let before = load.heartbeats();
        let started = Instant::now();
        sleep(self.plan.heartbeat_time).await;
        let elapsed = started.elapsed().as_secs_f64();
        let beats = (load.heartbeats() - before) as f64;
        let spent = usage::processor_time(self.process)? - cpu_before;
        figures.insert("heartbeats_per_s".into(), beats / elapsed);
        let each = spent.as_secs_f64() / beats.max(1.0);
        let percent = each * self.plan.heartbeat_rate * 100.0;
        figures.insert("heartbeat_core_percent".into(), percent);
        load.detach().await
    }
}
