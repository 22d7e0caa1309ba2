//! What a heartbeat costs the gateway, with few sessions and with many.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use crate::server::Server;
use prost::Message;
use std::time::Duration;
use tokio::task::JoinSet;
use yuzu_proto::agent::v1::HeartbeatRequest;
use yuzu_server_stub::StubConfig;
use yuzu_tests::agent::Agent;
use yuzu_tests::raw::{Options, Receiver, Sender};

pub(crate) const ABOUT: &str = "processor time of a heartbeat with 1,000 and with 50,000 sessions";

const FEW: usize = 1_000;
const MANY: usize = 50_000;
/// Sessions of a connection: one of an agent, and as many as it may have where descriptors are few.
const OWN: usize = 1;
const SHARED: usize = 8;
/// Agents that wait for an answer at a time.
const AT_ONCE: usize = 64;
const HEARTBEATS: usize = 400_000;

pub(crate) async fn run(binaries: &Binaries) -> Result<Report, String> {
    let mut report = Report::default();
    let few = measure(binaries, FEW, OWN, &mut report).await?;
    let many = measure(binaries, MANY, SHARED, &mut report).await?;
    report.time(&format!("{FEW} sessions: processor time of one"), few);
    report.within(
        &format!("{MANY} sessions: processor time of one"),
        many,
        few.mul_f64(1.2),
    );
    Ok(report)
}

async fn measure(
    binaries: &Binaries,
    sessions: usize,
    shared: usize,
    report: &mut Report,
) -> Result<Duration, String> {
    let server = Server::start(StubConfig::default()).await?;
    let room = format!("\n[heartbeat]\nmax_sessions = {MANY}\n");
    let gateway = bed::gateway(binaries, server.addr(), &room).await?;
    let bed = Bed { server, gateway };
    let failed = |e: String| format!("{e}\n{}", bed.gateway.log_end());
    let crews = connected(&bed, sessions, shared).await.map_err(failed)?;
    // Once for everything that happens once.
    let crews = beat(crews, 1).await.map_err(failed)?;
    let before = bed.gateway.processor_time()?;
    let beaten = beat(crews, HEARTBEATS / sessions).await;
    drop(beaten.map_err(failed)?);
    let spent = bed.gateway.processor_time()? - before;
    let metrics = bed::scrape(&bed.gateway).await?;
    let heartbeats = |what: &str| format!("{sessions} sessions: heartbeats {what}");
    let coalesced = bed::value(&metrics, "heartbeat_coalesced_total", &[])?;
    report.count(&heartbeats("replaced before they were sent"), coalesced);
    let lost = bed::value(&metrics, "heartbeat_buffer_dropped_total", &[])?;
    report.exactly(&heartbeats("given up"), lost, 0);
    Ok(spent / HEARTBEATS as u32)
}

/// One connection and its sessions, each with its stream.
struct Shared {
    agent: Agent,
    heartbeats: Vec<Vec<u8>>,
    _streams: Vec<(Sender, Receiver)>,
}

impl Shared {
    async fn beat(&self, heartbeat: &[u8]) -> Result<(), String> {
        let answer = self.agent.heartbeat_raw(heartbeat).await;
        let problem = match answer {
            Ok(answer) if answer.status.is_ok() => return Ok(()),
            Ok(answer) => answer.status.to_string(),
            Err(error) => error.to_string(),
        };
        let from = self.agent.connection.local_address();
        Err(format!("a heartbeat from {from}: {problem}"))
    }
}

/// The connections, split among those that beat at once.
async fn connected(bed: &Bed, sessions: usize, shared: usize) -> Result<Vec<Vec<Shared>>, String> {
    let mut tasks = JoinSet::new();
    let gateway = bed.gateway.agents;
    let connections = sessions / shared;
    for crew in 0..AT_ONCE {
        tasks.spawn(async move {
            let mut connected = Vec::new();
            for number in (crew..connections).step_by(AT_ONCE) {
                let options = Options {
                    keepalive: None,
                    ..Options::default()
                };
                let agent = Agent::connect_with(gateway, "", &options).await;
                let agent = agent.map_err(|e| e.to_string())?;
                connected.push(subscribed(agent, number, shared).await?);
            }
            Ok::<_, String>(connected)
        });
    }
    tasks.join_all().await.into_iter().collect()
}

async fn subscribed(mut agent: Agent, number: usize, sessions: usize) -> Result<Shared, String> {
    let mut heartbeats = Vec::new();
    let mut streams = Vec::new();
    for session in 0..sessions {
        agent.id = format!("agent-{number}-{session}");
        agent.register().await?;
        let stream = agent.subscribe_as(&agent.session_id).await;
        streams.push(stream.map_err(|e| e.to_string())?);
        let tag = |n: usize| (format!("status.tag.{n}"), format!("value of {n}"));
        let heartbeat = HeartbeatRequest {
            session_id: agent.session_id.clone(),
            status_tags: (0..5).map(tag).collect(),
            ..HeartbeatRequest::default()
        };
        heartbeats.push(heartbeat.encode_to_vec());
    }
    Ok(Shared {
        agent,
        heartbeats,
        _streams: streams,
    })
}

/// Every session beats `rounds` times, one of each crew at a time.
async fn beat(crews: Vec<Vec<Shared>>, rounds: usize) -> Result<Vec<Vec<Shared>>, String> {
    let mut tasks = JoinSet::new();
    for crew in crews {
        tasks.spawn(async move {
            for _ in 0..rounds {
                for shared in &crew {
                    for heartbeat in &shared.heartbeats {
                        shared.beat(heartbeat).await?;
                    }
                }
            }
            Ok(crew)
        });
    }
    tasks.join_all().await.into_iter().collect()
}
