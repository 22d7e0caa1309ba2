//! The scenarios by name: what each is, how many agents it has, and how it is run.

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::bed::Binaries;
use crate::register_storm::Storm;
use crate::report::Report;
use crate::{
    adjacency_million, breaker, cancelled_register, churn, cluster_kill, cold_wave, forward,
    frozen_server, heartbeat_cost, heartbeat_rate, held_heartbeats, held_notices, hostile_clients,
    in_memory, kill_nine, memory_loss, owner_kill, planned_stop, refused_notices, register_storm,
    reset_once, rolling_restart, server_crash, session_cap, shed, slow_server, soak, stream_limit,
    unread_answers,
};

const SOAK_MINUTES: f64 = 30.0;
/// Less says nothing of memory.
const SOAK_LEAST: Duration = Duration::from_secs(30);

/// What long scenarios let one choose.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Scope {
    /// Agents, or rows of `adjacency-million`, in place of what `list` says.
    #[arg(long)]
    agents: Option<usize>,
    /// Minutes of `soak`, 30 by default.
    #[arg(long)]
    minutes: Option<f64>,
    /// What `soak` chooses by; it prints the one it took.
    #[arg(long)]
    seed: Option<u64>,
}

impl Scope {
    /// Refuses what no scenario of these would look at.
    pub(crate) fn check(self, scenarios: &[Scenario]) -> Result<(), String> {
        if self.agents == Some(0) {
            return Err("--agents must be above 0".into());
        }
        let without = scenarios.iter().find(|s| s.agents_by_default().is_none());
        if let (Some(_), Some(scenario)) = (self.agents, without) {
            return Err(format!(
                "--agents: `{}` always has the same; leave the option out, or the scenario",
                scenario.name()
            ));
        }
        let soaks = scenarios.contains(&Scenario::Soak);
        if !soaks && (self.minutes.is_some() || self.seed.is_some()) {
            return Err(
                "--minutes and --seed are of `soak` alone, which is not among these".into(),
            );
        }
        self.soak_time().map(drop)
    }

    fn soak_time(self) -> Result<Duration, String> {
        let minutes = self.minutes.unwrap_or(SOAK_MINUTES);
        match Duration::try_from_secs_f64(minutes * 60.0) {
            Ok(time) if time >= SOAK_LEAST => Ok(time),
            _ => Err(format!(
                "--minutes {minutes}: it is to be a number of minutes, {} or more",
                SOAK_LEAST.as_secs_f64() / 60.0
            )),
        }
    }

    fn soak(self, agents: usize) -> Result<soak::Plan, String> {
        let time = self.soak_time()?;
        Ok(soak::Plan {
            agents,
            time,
            seed: self.seed,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    // First, so that they measure memory that nobody has used before.
    HeldNotices,
    HeldHeartbeats,
    RegisterStorm,
    RegisterWave,
    ColdWave,
    FrozenServer,
    Breaker,
    SlowServer,
    Shed,
    RefusedNotices,
    StreamLimit,
    CancelledRegister,
    HeartbeatCost,
    HeartbeatRate,
    HostileClients,
    UnreadAnswers,
    MemoryLoss,
    #[value(name = "memory-loss-20ms")]
    MemoryLoss20Ms,
    #[value(name = "memory-loss-100ms")]
    MemoryLoss100Ms,
    MemoryLossRefusing,
    ServerCrash,
    ServerCrashCapped,
    ResetOnce,
    SessionCap,
    Forward,
    OwnerKill,
    PlannedStop,
    KillNine,
    ClusterKill,
    RollingRestart,
    AdjacencyMillion,
    Churn,
    Soak,
    InMemory,
}

impl Scenario {
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Those that take minutes, all together.
    pub(crate) fn short() -> impl Iterator<Item = Self> {
        let all = Self::value_variants().iter().copied();
        all.filter(|scenario| !matches!(scenario, Self::Soak | Self::InMemory))
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::RegisterStorm => register_storm::ABOUT,
            Self::RegisterWave => register_storm::ABOUT_WAVE,
            Self::ColdWave => cold_wave::ABOUT,
            Self::FrozenServer => frozen_server::ABOUT,
            Self::Breaker => breaker::ABOUT,
            Self::SlowServer => slow_server::ABOUT,
            Self::Shed => shed::ABOUT,
            Self::RefusedNotices => refused_notices::ABOUT,
            Self::HeldNotices => held_notices::ABOUT,
            Self::StreamLimit => stream_limit::ABOUT,
            Self::CancelledRegister => cancelled_register::ABOUT,
            Self::HeartbeatCost => heartbeat_cost::ABOUT,
            Self::HeartbeatRate => heartbeat_rate::ABOUT,
            Self::HeldHeartbeats => held_heartbeats::ABOUT,
            Self::HostileClients => hostile_clients::ABOUT,
            Self::UnreadAnswers => unread_answers::ABOUT,
            Self::MemoryLoss => memory_loss::ABOUT,
            Self::MemoryLoss20Ms => memory_loss::ABOUT_20_MS,
            Self::MemoryLoss100Ms => memory_loss::ABOUT_100_MS,
            Self::MemoryLossRefusing => memory_loss::ABOUT_REFUSING,
            Self::ServerCrash => server_crash::ABOUT,
            Self::ServerCrashCapped => server_crash::ABOUT_CAPPED,
            Self::ResetOnce => reset_once::ABOUT,
            Self::SessionCap => session_cap::ABOUT,
            Self::Forward => forward::ABOUT,
            Self::OwnerKill => owner_kill::ABOUT,
            Self::PlannedStop => planned_stop::ABOUT,
            Self::KillNine => kill_nine::ABOUT,
            Self::ClusterKill => cluster_kill::ABOUT,
            Self::RollingRestart => rolling_restart::ABOUT,
            Self::AdjacencyMillion => adjacency_million::ABOUT,
            Self::Churn => churn::ABOUT,
            Self::Soak => soak::ABOUT,
            Self::InMemory => in_memory::ABOUT,
        }
    }

    /// How many agents it has unless told otherwise; none: always the same.
    pub(crate) fn agents_by_default(self) -> Option<usize> {
        Some(match self {
            Self::RegisterStorm => Storm::AGENTS,
            Self::RegisterWave => Storm::AGENTS_OF_WAVE,
            Self::ColdWave => cold_wave::AGENTS,
            Self::CancelledRegister => cancelled_register::AGENTS,
            Self::HostileClients => hostile_clients::AGENTS,
            Self::Forward => forward::AGENTS,
            Self::Breaker => breaker::AGENTS,
            Self::SlowServer => slow_server::AGENTS,
            Self::Shed => shed::AGENTS,
            Self::RefusedNotices => refused_notices::AGENTS,
            Self::HeldNotices => held_notices::AGENTS,
            Self::StreamLimit => stream_limit::AGENTS,
            Self::HeartbeatCost => heartbeat_cost::AGENTS,
            Self::HeartbeatRate => heartbeat_rate::AGENTS,
            Self::HeldHeartbeats => held_heartbeats::AGENTS,
            Self::MemoryLoss | Self::MemoryLoss20Ms | Self::MemoryLossRefusing => {
                memory_loss::AGENTS
            }
            Self::MemoryLoss100Ms => memory_loss::AGENTS_100_MS,
            Self::ServerCrash | Self::ServerCrashCapped => server_crash::AGENTS,
            Self::ResetOnce => reset_once::AGENTS,
            Self::OwnerKill => owner_kill::AGENTS,
            Self::PlannedStop => planned_stop::AGENTS,
            Self::KillNine => kill_nine::AGENTS,
            Self::ClusterKill | Self::RollingRestart => 3_000,
            Self::AdjacencyMillion => 1_000_000,
            Self::Churn => churn::AGENTS,
            Self::Soak => 5_000,
            Self::InMemory => 100_000,
            Self::FrozenServer | Self::UnreadAnswers | Self::SessionCap => return None,
        })
    }

    pub(crate) async fn run(self, binaries: &Binaries, scope: Scope) -> Result<Report, String> {
        let agents = scope.agents.or(self.agents_by_default());
        let agents = agents.unwrap_or_default();
        match self {
            Self::RegisterStorm => register_storm::run(binaries, Storm::of(agents)).await,
            Self::RegisterWave => register_storm::run(binaries, Storm::wave(agents)).await,
            Self::ColdWave => cold_wave::run(binaries, agents).await,
            Self::FrozenServer => frozen_server::run(binaries).await,
            Self::Breaker => breaker::run(binaries, agents).await,
            Self::SlowServer => slow_server::run(binaries, agents).await,
            Self::Shed => shed::run(binaries, agents).await,
            Self::RefusedNotices => refused_notices::run(binaries, agents).await,
            Self::HeldNotices => held_notices::run(agents).await,
            Self::StreamLimit => stream_limit::run(binaries, agents).await,
            Self::CancelledRegister => cancelled_register::run(agents).await,
            Self::HeartbeatCost => heartbeat_cost::run(agents).await,
            Self::HeartbeatRate => heartbeat_rate::run(binaries, agents).await,
            Self::HeldHeartbeats => held_heartbeats::run(agents).await,
            Self::HostileClients => hostile_clients::run(binaries, agents).await,
            Self::UnreadAnswers => unread_answers::run(binaries).await,
            Self::MemoryLoss => memory_loss::run(binaries, agents, 50, false).await,
            Self::MemoryLoss20Ms => memory_loss::run(binaries, agents, 20, false).await,
            Self::MemoryLoss100Ms => memory_loss::run(binaries, agents, 100, false).await,
            Self::MemoryLossRefusing => memory_loss::run(binaries, agents, 50, true).await,
            Self::ServerCrash => server_crash::run(binaries, agents, server_crash::SHORT).await,
            Self::ServerCrashCapped => {
                server_crash::run(binaries, agents, server_crash::CAPPED).await
            }
            Self::ResetOnce => reset_once::run(binaries, agents).await,
            Self::SessionCap => session_cap::run(binaries).await,
            // It holds the configurations of several nodes.
            Self::Forward => Box::pin(forward::run(agents)).await,
            Self::OwnerKill => owner_kill::run(agents).await,
            Self::PlannedStop => planned_stop::run(binaries, agents).await,
            Self::KillNine => kill_nine::run(binaries, agents).await,
            Self::ClusterKill => cluster_kill::run(binaries, agents).await,
            Self::RollingRestart => rolling_restart::run(binaries, agents).await,
            Self::AdjacencyMillion => adjacency_million::run(binaries, agents as u64).await,
            Self::Churn => churn::run(binaries, agents).await,
            Self::Soak => soak::run(binaries, scope.soak(agents)?).await,
            Self::InMemory => in_memory::run(agents).await,
        }
    }
}
