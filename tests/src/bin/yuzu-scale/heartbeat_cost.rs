//! What a heartbeat costs the gateway, with few sessions and with many.
//!
//! Descriptors would limit how many agents there are, so that their connections are in memory.
//! The gateway has threads of its own, by whose processor time it is told from its agents.
//!
//! With few sessions that beat as seldom, what a node does anyway is a good part of a heartbeat's
//! cost. So few are also measured at the rate of many: what a heartbeat costs more with many
//! sessions is then what the caches do not hold. A server that only acknowledges (the floor of
//! hyper) has such a part as well, and the gateway's is held against it.

use crate::bed;
use crate::report::Report;
use crate::server::Server;
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use yuzu_gateway::Gateway;
use yuzu_gateway::config::Config;
use yuzu_proto::agent::v1::HeartbeatRequest;
use yuzu_server_stub::{Rpc, StubConfig};
use yuzu_tests::agent::Agent;
use yuzu_tests::floor;
use yuzu_tests::http;
use yuzu_tests::metrics::Metrics;
use yuzu_tests::process::time_of_threads;
use yuzu_tests::raw::{Dialer, Options};
use yuzu_tests::testbed::{Setup, endpoint, in_memory};

pub(crate) const ABOUT: &str =
    "50,000 sessions beat every 30 s, in memory: processor time of one as with 1,000";

const FEW: usize = 1_000;
pub(crate) const AGENTS: usize = 50_000;
const EVERY: Duration = Duration::from_secs(30);
const MEASURED: Duration = Duration::from_secs(60);
/// Agents that wait for an answer at a time.
const CREWS: usize = 64;
const THREADS: &str = "gateway";
const MORE: f64 = 1.2;

#[derive(Debug, Clone, Copy)]
enum Subject {
    Gateway,
    Floor,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Floor => "floor",
        }
    }
}

pub(crate) async fn run(many: usize) -> Result<Report, String> {
    if many <= FEW {
        return Err(format!(
            "--agents must be above {FEW}, which they are held against"
        ));
    }
    let mut report = Report::default();
    let as_often = EVERY.mul_f64(FEW as f64 / many as f64);
    let gateway_many = measure(Subject::Gateway, many, EVERY, &mut report).await?;
    let gateway_few = measure(Subject::Gateway, FEW, EVERY, &mut report).await?;
    let gateway_busy = measure(Subject::Gateway, FEW, as_often, &mut report).await?;
    let floor_many = measure(Subject::Floor, many, EVERY, &mut report).await?;
    let floor_busy = measure(Subject::Floor, FEW, as_often, &mut report).await?;
    let growth = |many: Duration, few: Duration| many.as_secs_f64() / few.as_secs_f64();
    let gateway = growth(gateway_many, gateway_busy);
    let floor = growth(floor_many, floor_busy);
    report.times(
        "many by few, each every 30 s",
        growth(gateway_many, gateway_few),
        MORE,
    );
    report.number("many by few at the same rate", gateway);
    report.number("many by few at the same rate, floor", floor);
    report.times("the same, gateway by floor", gateway / floor, MORE);
    Ok(report)
}

/// The processor time of one heartbeat when each of so many sessions beats every so often.
async fn measure(
    subject: Subject,
    sessions: usize,
    every: Duration,
    report: &mut Report,
) -> Result<Duration, String> {
    let node = Node::start(subject, sessions).await?;
    let crews = node.connected(sessions).await?;
    let rounds = MEASURED.div_duration_f64(every).round() as usize;
    // Once for everything that happens once.
    let crews = beat(crews, 1, every.min(EVERY / 4)).await?;
    let heartbeats = (rounds * sessions) as u64;
    let batches = || node.server.view(|state| *state.counts(Rpc::BatchHeartbeat));
    let (before, started) = (time_of_threads(THREADS)?, Instant::now());
    let batches_before = batches().received;
    let crews = beat(crews, rounds, every).await?;
    let spent = time_of_threads(THREADS)?.saturating_sub(before);
    let lasted = started.elapsed();
    // Not before: their end costs the gateway as well.
    drop(crews);

    let name = |what: &str| {
        let (subject, every) = (subject.name(), every.as_secs_f64());
        format!("{subject}, {sessions} every {every} s: {what}")
    };
    report.count(&name("heartbeats"), heartbeats);
    if let Some(gateway) = &node.gateway {
        let batches = batches();
        let sent = batches.received - batches_before;
        let intervals = lasted.div_duration_f64(Config::default().heartbeat.batch_interval);
        // Whatever is heard within an interval fits into one chunk.
        report.at_most(&name("batches"), sent, intervals.ceil() as u64 + 1);
        report.at_least(&name("the same"), sent, intervals.floor() as u64 - 1);
        let failed = batches.received - batches.ok;
        report.exactly(&name("batches that failed"), failed, 0);
        let page = http::get(gateway.metrics_address(), "/metrics").await;
        let metrics = Metrics::parse(&page.map_err(|e| e.to_string())?.body)?;
        let lost = bed::value(&metrics, "heartbeat_buffer_dropped_total", &[])?;
        report.exactly(&name("heartbeats given up"), lost, 0);
    }
    let each = spent.div_f64(heartbeats as f64);
    report.time(&name("processor time of one"), each);
    Ok(each)
}

/// A gateway or a floor on threads of its own.
struct Node {
    server: Server,
    gateway: Option<Arc<Gateway>>,
    dialer: Dialer,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

impl Node {
    async fn start(subject: Subject, sessions: usize) -> Result<Self, String> {
        let server = Server::start(StubConfig::default()).await?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name(THREADS)
            .enable_all()
            .build()
            .map_err(|e| e.to_string())?;
        let handle = runtime.handle().clone();
        let (gateway, dialer) = match subject {
            Subject::Gateway => {
                let mut config = Setup::default().gateway;
                config.upstream.endpoints = vec![endpoint(server.addr())];
                config.heartbeat = Config::default().heartbeat;
                config.heartbeat.max_sessions = sessions + sessions / 5;
                let gateway = runtime.spawn(Gateway::start(config)).await;
                let gateway = gateway.map_err(|e| e.to_string())?;
                let gateway = Arc::new(gateway.map_err(|e| e.to_string())?);
                let dialer = in_memory(&gateway, handle);
                (Some(gateway), dialer)
            }
            Subject::Floor => (None, floor::in_memory(server.addr(), handle).await?),
        };
        Ok(Self {
            server,
            gateway,
            dialer,
            runtime: Some(runtime),
        })
    }

    /// The sessions, each on a connection of its own, split among those that beat at once.
    async fn connected(&self, sessions: usize) -> Result<Vec<Vec<Beating>>, String> {
        let mut tasks = JoinSet::new();
        for crew in 0..CREWS {
            let dialer = self.dialer.clone();
            tasks.spawn(async move {
                let mut connected = Vec::new();
                for number in (crew..sessions).step_by(CREWS) {
                    connected.push(Beating::connect(&dialer, number).await?);
                }
                Ok::<_, String>(connected)
            });
        }
        tasks.join_all().await.into_iter().collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting for its threads is not allowed on another runtime.
            runtime.shutdown_background();
        }
    }
}

/// A subscribed agent and what it says.
struct Beating {
    agent: Agent,
    heartbeat: Vec<u8>,
}

impl Beating {
    async fn connect(dialer: &Dialer, number: usize) -> Result<Self, String> {
        let options = Options {
            keepalive: None,
            dialer: Some(dialer.clone()),
            ..Options::default()
        };
        let nowhere = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
        let id = format!("agent-{number}");
        let agent = Agent::attach_with(nowhere, &id, &options).await?;
        let tag = |n: usize| (format!("status.tag.{n}"), format!("value of {n}"));
        let heartbeat = HeartbeatRequest {
            session_id: agent.session_id.clone(),
            status_tags: (0..5).map(tag).collect(),
            ..HeartbeatRequest::default()
        };
        let heartbeat = heartbeat.encode_to_vec();
        Ok(Self { agent, heartbeat })
    }

    async fn beat(&self) -> Result<(), String> {
        let answer = self.agent.heartbeat_raw(&self.heartbeat).await;
        let problem = match answer {
            Ok(answer) if answer.status.is_ok() => return Ok(()),
            Ok(answer) => answer.status.to_string(),
            Err(error) => error.to_string(),
        };
        Err(format!("a heartbeat of {}: {problem}", self.agent.id))
    }
}

/// Every session beats `rounds` times, each time `every` after the last; all of them evenly spread.
async fn beat(
    crews: Vec<Vec<Beating>>,
    rounds: usize,
    every: Duration,
) -> Result<Vec<Vec<Beating>>, String> {
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for (number, crew) in crews.into_iter().enumerate() {
        tasks.spawn(async move {
            let step = every.div_f64(crew.len().max(1) as f64);
            let first = started + step.mul_f64(number as f64 / CREWS as f64);
            for round in 0..rounds {
                for (place, beating) in crew.iter().enumerate() {
                    sleep_until(first + every * round as u32 + step * place as u32).await;
                    beating.beat().await?;
                }
            }
            Ok(crew)
        });
    }
    tasks.join_all().await.into_iter().collect()
}
