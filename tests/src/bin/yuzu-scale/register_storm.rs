//! Many Registers at once at a slow server, and beside it the floor: the same calls straight to that
//! server, 48 at a time, without a gateway.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use prost::Message;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use yuzu_proto::agent::v1::{AgentInfo, RegisterRequest};
use yuzu_proto::path;
use yuzu_server_stub::{Action, Fault, Rpc, StubConfig};
use yuzu_tests::agent::Agent;
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::raw::{Connection, Options, Request};

pub(crate) const ABOUT: &str = "600 Registers at once, 48 permits, server 50 ms";
pub(crate) const ABOUT_WAVE: &str = "5,000 Registers at once, 48 permits, server 200 ms";

/// How many come at once, and at what server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Storm {
    agents: u64,
    delay: Duration,
    rounds: u64,
    /// What the figure is, by [`Storm::ideal`].
    by_ideal: f64,
}

impl Storm {
    pub(crate) const AGENTS: usize = 600;
    pub(crate) const AGENTS_OF_WAVE: usize = 5_000;

    /// F-REG-1.
    pub(crate) fn of(agents: usize) -> Self {
        let delay = Duration::from_millis(50);
        Self {
            agents: agents as u64,
            delay,
            rounds: 5,
            by_ideal: 1.03,
        }
    }

    /// F-REG-2.
    pub(crate) fn wave(agents: usize) -> Self {
        let delay = Duration::from_millis(200);
        Self {
            agents: agents as u64,
            delay,
            rounds: 1,
            by_ideal: 1.02,
        }
    }

    /// Refuses what a gateway is to refuse in part: those that wait too long, or find no place.
    fn check(self) -> Result<(), String> {
        let most = PERMITS + PLACES;
        match self.figure() > DESIGN || self.agents > most {
            false => Ok(()),
            true => Err(format!(
                "--agents {}: at most {most} find a place, and all are to be served within {} s",
                self.agents,
                DESIGN.as_secs()
            )),
        }
    }

    /// The permits handed on without a moment's loss.
    fn ideal(self) -> Duration {
        self.delay * u32::try_from(self.agents.div_ceil(PERMITS)).unwrap_or(u32::MAX)
    }

    /// What the old gateway was measured or reckoned to take with so many, F-REG-1 and F-REG-2.
    fn figure(self) -> Duration {
        self.ideal().mul_f64(self.by_ideal)
    }
}

const PERMITS: u64 = 48;
/// For those that wait for a permit (PERMIT-3).
const PLACES: u64 = 10_000;
/// An agent waits for its Register so long, less a margin of 5 s.
const DESIGN: Duration = Duration::from_secs(25);
/// The gateway by the floor of the same run.
const BY_FLOOR: f64 = 1.02;
const ALONE: u64 = 11;
const LIMIT: Duration = Duration::from_secs(30);
const RPC: Rpc = Rpc::ProxyRegister;

/// One round, from both sides.
struct Round {
    refused: u64,
    at_server: Duration,
    at_callers: Duration,
}

pub(crate) async fn run(binaries: &Binaries, storm: Storm) -> Result<Report, String> {
    check_descriptors(2 * storm.agents as usize)?;
    storm.check()?;
    let bed = Bed::start(binaries, StubConfig::default()).await?;
    let slow = Fault::new(RPC, Action::Delay(storm.delay));
    bed.server.fault(slow).map_err(|e| e.to_string())?;
    let (mut straight, mut alone) = (Vec::new(), Vec::new());
    for number in 0..ALONE {
        straight.push(lone_call(bed.server.addr(), number).await?);
        alone.push(lone_register(&bed, number).await?);
    }
    let (straight, _) = bed::median_and_most(straight);
    let (alone, _) = bed::median_and_most(alone);
    let (mut floors, mut rounds) = (Vec::new(), Vec::new());
    for round in 0..storm.rounds {
        floors.push(storm.floor(&bed, round).await?);
        rounds.push(storm.run(&bed, round).await?);
    }
    let mut report = Report::default();
    report.no_less(
        "one call straight to the server, median",
        straight,
        storm.delay,
    );
    report.time("one Register alone, median", alone);
    storm
        .judge_calls(&bed, rounds.iter().chain(&floors), &mut report)
        .await?;
    storm.judge_times(&rounds, &floors, &mut report);
    Ok(report)
}

impl Storm {
    async fn judge_calls(
        self,
        bed: &Bed,
        rounds: impl Iterator<Item = &Round>,
        report: &mut Report,
    ) -> Result<(), String> {
        let counts = bed.server.view(|state| *state.counts(RPC));
        let metrics = bed::scrape(&bed.gateway).await?;
        let refused = bed::value(&metrics, "upstream_permit_refused_total", &[])?;
        let all_refused = rounds.map(|r| r.refused).sum();
        report.exactly("refused, all rounds", all_refused, 0);
        report.exactly("permits refused, all rounds", refused, 0);
        report.exactly(
            "calls the server received",
            counts.received,
            2 * (self.agents * self.rounds + ALONE),
        );
        report.at_most(
            "most in flight at the server",
            counts.max_in_flight,
            PERMITS,
        );
        Ok(())
    }

    fn judge_times(self, rounds: &[Round], floors: &[Round], report: &mut Report) {
        let at_server = |rounds: &[Round]| rounds.iter().map(|r| r.at_server).collect();
        let (floor, floor_most) = bed::median_and_most(at_server(floors));
        let (server, server_most) = bed::median_and_most(at_server(rounds));
        let at_callers = rounds.iter().map(|r| r.at_callers).collect();
        let (agents, agents_most) = bed::median_and_most(at_callers);
        report.time("floor: first call to last answer, median round", floor);
        report.time("the same, slowest round", floor_most);
        // A machine that is busy makes the floor late as well.
        report.within(
            "first call to last answer, median round",
            server,
            self.figure().max(floor.mul_f64(BY_FLOOR)),
        );
        report.time("the same, slowest round", server_most);
        report.time("as the agents see it, median round", agents);
        report.within("the same, slowest round", agents_most, DESIGN);
    }
}

async fn lone_call(server: SocketAddr, number: u64) -> Result<Duration, String> {
    let connection = Connection::open(server, &Options::default()).await;
    let connection = connection.map_err(|e| e.to_string())?;
    let started = Instant::now();
    let good = call(&connection, &format!("straight-{number}")).await;
    good.then(|| started.elapsed())
        .ok_or_else(|| "the server refuses".to_owned())
}

async fn lone_register(bed: &Bed, number: u64) -> Result<Duration, String> {
    let agent = Agent::connect(bed.gateway.agents, &format!("alone-{number}")).await;
    let mut agent = agent.map_err(|e| e.to_string())?;
    let started = Instant::now();
    agent.register().await?;
    Ok(started.elapsed())
}

/// The call that the gateway makes; false: it failed.
pub(crate) async fn call(connection: &Connection, agent_id: &str) -> bool {
    let request = RegisterRequest {
        info: Some(AgentInfo {
            agent_id: agent_id.into(),
            ..AgentInfo::default()
        }),
        ..RegisterRequest::default()
    };
    let call = Request::new(path::PROXY_REGISTER).timeout(Duration::from_secs(5));
    let answer = connection.unary(call, &request.encode_to_vec()).await;
    answer.is_ok_and(|answer| answer.status.is_ok())
}

impl Storm {
    async fn floor(self, bed: &Bed, round: u64) -> Result<Round, String> {
        let connection = Connection::open(bed.server.addr(), &Options::default()).await;
        let connection = Arc::new(connection.map_err(|e| e.to_string())?);
        let next = Arc::new(AtomicU64::new(0));
        let callers = (0..PERMITS).map(|_| {
            let (connection, next) = (Arc::clone(&connection), Arc::clone(&next));
            async move {
                let mut refused = 0;
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= self.agents {
                        return (connection, refused);
                    }
                    let good = call(&connection, &format!("floor-{round}-{number}")).await;
                    refused += u64::from(!good);
                }
            }
        });
        self.measure(bed, callers).await
    }

    async fn run(self, bed: &Bed, round: u64) -> Result<Round, String> {
        let mut agents = Vec::new();
        for number in 0..self.agents {
            let id = format!("storm-{round}-{number}");
            let agent = Agent::connect(bed.gateway.agents, &id).await;
            agents.push(agent.map_err(|e| e.to_string())?);
        }
        let callers = agents.into_iter().map(|mut agent| async move {
            let refused = agent.register().await.is_err();
            (agent, u64::from(refused))
        });
        self.measure(bed, callers).await
    }

    /// Runs the callers, who make `agents` calls in all. Each returns what is to live until all have
    /// ended, and how many of its calls were refused.
    async fn measure<T, C>(
        self,
        bed: &Bed,
        callers: impl Iterator<Item = C>,
    ) -> Result<Round, String>
    where
        T: Send + 'static,
        C: Future<Output = (T, u64)> + Send + 'static,
    {
        bed.server.clear_records();
        let answered = bed.server.view(|state| state.counts(RPC).received) + self.agents;
        let started = Instant::now();
        let calls: JoinSet<(T, u64)> = callers.collect();
        let calls = async {
            let ended = calls.join_all().await;
            (started.elapsed(), ended)
        };
        let last_answer = bed.server_has("every answer", LIMIT, |state| {
            let counts = state.counts(RPC);
            (counts.received >= answered && counts.in_flight == 0).then(|| {
                let first = state.received(RPC).next();
                first.map(|first| first.at.elapsed())
            })
        });
        let ((at_callers, ended), at_server) = tokio::join!(calls, last_answer);
        Ok(Round {
            refused: ended.iter().map(|(_, refused)| refused).sum(),
            at_server: at_server?.ok_or("the server forgot its first call")?,
            at_callers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_that_is_refused_in_part_by_rule_is_none() {
        assert!(Storm::of(Storm::AGENTS).check().is_ok());
        assert!(Storm::wave(Storm::AGENTS_OF_WAVE).check().is_ok());
        // 123 turns of 200 ms are 24.6 s.
        assert!(Storm::wave(6_000).check().is_err());
        assert!(Storm::of(10_100).check().is_err());
    }
}
