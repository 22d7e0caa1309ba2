//! What a heartbeat costs the gateway, with few sessions and with many.
//!
//! Descriptors would limit how many agents there are, so that their connections are in memory.
//! The gateway has threads of its own, by whose processor time it is told from its agents.

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
use yuzu_tests::http;
use yuzu_tests::metrics::Metrics;
use yuzu_tests::process::time_of_threads;
use yuzu_tests::raw::{Dialer, Options};
use yuzu_tests::testbed::{Setup, endpoint, in_memory};

pub(crate) const ABOUT: &str =
    "50,000 sessions beat every 30 s, in memory: processor time as with 1,000 at the same rate";

const FEW: usize = 1_000;
const MANY: usize = 50_000;
const MAX_SESSIONS: usize = 60_000;
/// Of each of many sessions. Few of them beat as much more often.
const EVERY: Duration = Duration::from_secs(30);
const MEASURED: Duration = Duration::from_secs(60);
/// Agents that wait for an answer at a time.
const CREWS: usize = 64;
const THREADS: &str = "gateway";

pub(crate) async fn run() -> Result<Report, String> {
    let mut report = Report::default();
    let few = measure(FEW, &mut report).await?;
    let many = measure(MANY, &mut report).await?;
    report.time(&format!("{FEW} sessions: processor time of one"), few);
    report.within(
        &format!("{MANY} sessions: processor time of one"),
        many,
        few.mul_f64(1.2),
    );
    Ok(report)
}

async fn measure(sessions: usize, report: &mut Report) -> Result<Duration, String> {
    let node = Node::start().await?;
    let crews = node.connected(sessions).await?;
    let every = EVERY.mul_f64(sessions as f64 / MANY as f64);
    let rounds = MEASURED.div_duration_f64(every).round() as usize;
    // Once for everything that happens once.
    let crews = beat(crews, 1, every.min(EVERY / 4)).await?;
    let heartbeats = (rounds * sessions) as u64;
    let batches = || {
        let counts = node.server.view(|state| *state.counts(Rpc::BatchHeartbeat));
        (counts.received, counts.received - counts.ok)
    };
    let (before, started) = (time_of_threads(THREADS)?, Instant::now());
    let (batches_before, _) = batches();
    drop(beat(crews, rounds, every).await?);
    let spent = time_of_threads(THREADS)?.saturating_sub(before);
    let intervals = started.elapsed().div_duration_f64(node.batch_interval);
    let (batches_after, failed) = batches();

    let name = |what: &str| format!("{sessions} sessions: {what}");
    let sent = batches_after - batches_before;
    report.count(&name("heartbeats"), heartbeats);
    // Whatever is heard within an interval fits into one chunk.
    report.at_most(&name("batches"), sent, intervals.ceil() as u64 + 1);
    report.at_least(&name("the same"), sent, intervals.floor() as u64 - 1);
    report.exactly(&name("batches that failed"), failed, 0);
    let page = http::get(node.gateway.metrics_address(), "/metrics").await;
    let metrics = Metrics::parse(&page.map_err(|e| e.to_string())?.body)?;
    let lost = bed::value(&metrics, "heartbeat_buffer_dropped_total", &[])?;
    report.exactly(&name("heartbeats given up"), lost, 0);
    Ok(spent.div_f64(heartbeats as f64))
}

/// A gateway on threads of its own.
struct Node {
    server: Server,
    gateway: Arc<Gateway>,
    batch_interval: Duration,
    dialer: Dialer,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

impl Node {
    async fn start() -> Result<Self, String> {
        let server = Server::start(StubConfig::default()).await?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name(THREADS)
            .enable_all()
            .build()
            .map_err(|e| e.to_string())?;
        let mut config = Setup::default().gateway;
        config.upstream.endpoints = vec![endpoint(server.addr())];
        config.heartbeat = Config::default().heartbeat;
        config.heartbeat.max_sessions = MAX_SESSIONS;
        let batch_interval = config.heartbeat.batch_interval;
        let gateway = runtime.spawn(Gateway::start(config)).await;
        let gateway = gateway.map_err(|e| e.to_string())?;
        let gateway = Arc::new(gateway.map_err(|e| e.to_string())?);
        Ok(Self {
            server,
            dialer: in_memory(&gateway, runtime.handle().clone()),
            gateway,
            batch_interval,
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
