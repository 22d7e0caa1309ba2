//! The load over gRPC: agents that answer at once, and an operator that counts answers.

use super::agent::{Agent, Beats};
use super::load::{DIALS, Load, Target, first_beat};
use crate::operator::Operator;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use yuzu_proto::agent::v1::CommandRequest;

const ATTACH_LIMIT: Duration = Duration::from_secs(120);
const DETACH_LIMIT: Duration = Duration::from_secs(15);
const COMMAND_TIMEOUT_S: i32 = 60;

#[derive(Debug)]
pub(super) struct GrpcLoad {
    agents: JoinSet<Result<(), String>>,
    /// Dropped to end them.
    stops: Vec<oneshot::Sender<()>>,
    prefix: String,
    operator: Operator,
    heartbeats: Arc<AtomicU64>,
}

/// What the agents of a load share.
struct Shared {
    target: Target,
    count: usize,
    heartbeat: Option<Duration>,
    dials: Semaphore,
    attached: Semaphore,
    heartbeats: Arc<AtomicU64>,
}

impl Load for GrpcLoad {
    async fn attach(
        target: &Target,
        prefix: &str,
        agents: usize,
        heartbeat: Option<Duration>,
    ) -> Result<Self, String> {
        let shared = Arc::new(Shared {
            target: target.clone(),
            count: agents,
            heartbeat,
            dials: Semaphore::new(DIALS),
            attached: Semaphore::new(0),
            heartbeats: Arc::default(),
        });
        let (mut running, mut stops) = (JoinSet::new(), Vec::with_capacity(agents));
        for index in 0..agents {
            let (stop, stopped) = oneshot::channel();
            stops.push(stop);
            let id = agent_id(prefix, index);
            running.spawn(live(Arc::clone(&shared), index, id, stopped));
        }
        timeout(ATTACH_LIMIT, all_attached(&shared, &mut running))
            .await
            .unwrap_or_else(|_| Err("the agents do not attach in time".into()))?;
        let operator = Operator::connect(target.management).await;
        Ok(Self {
            agents: running,
            stops,
            prefix: prefix.into(),
            operator: operator.map_err(|e| e.to_string())?,
            heartbeats: Arc::clone(&shared.heartbeats),
        })
    }

    async fn broadcast(&self, name: u64) -> Result<usize, String> {
        self.send(&[], name).await
    }

    async fn multicast(&self, name: u64, first: usize) -> Result<Option<usize>, String> {
        let ids: Vec<_> = (0..first).map(|n| agent_id(&self.prefix, n)).collect();
        let ids: Vec<_> = ids.iter().map(|id| &**id).collect();
        self.send(&ids, name).await.map(Some)
    }

    async fn command(&self, name: u64, agent: usize, _caller: usize) -> Result<(), String> {
        match self.send(&[&agent_id(&self.prefix, agent)], name).await? {
            1 => Ok(()),
            other => Err(format!("{other} answers of one agent")),
        }
    }

    fn heartbeats(&self) -> u64 {
        self.heartbeats.load(Ordering::Relaxed)
    }

    async fn detach(self) -> Result<(), String> {
        let Self {
            mut agents, stops, ..
        } = self;
        drop(stops);
        let all_left = async {
            while let Some(ended) = agents.join_next().await {
                ended.map_err(|e| e.to_string())??;
            }
            Ok(())
        };
        timeout(DETACH_LIMIT, all_left)
            .await
            .unwrap_or_else(|_| Err("the agents do not end in time".into()))
    }
}

impl GrpcLoad {
    async fn send(&self, agents: &[&str], name: u64) -> Result<usize, String> {
        let command = CommandRequest {
            command_id: format!("command-{name}"),
            plugin: "shell".into(),
            ..CommandRequest::default()
        };
        let fanout = self.operator.send(agents, command, COMMAND_TIMEOUT_S).await;
        fanout.map_err(|e| e.to_string())?.successes().await
    }
}

/// Waits until all are attached; none of them may end before.
async fn all_attached(
    shared: &Shared,
    running: &mut JoinSet<Result<(), String>>,
) -> Result<(), String> {
    let all = u32::try_from(shared.count).map_err(|e| e.to_string())?;
    tokio::select! {
        attached = shared.attached.acquire_many(all) => {
            attached.map_err(|e| e.to_string())?.forget();
            Ok(())
        }
        Some(ended) = running.join_next() => {
            ended.map_err(|e| e.to_string())??;
            Err("an agent has ended".into())
        }
    }
}

/// The life of one agent.
async fn live(
    shared: Arc<Shared>,
    index: usize,
    id: String,
    stop: oneshot::Receiver<()>,
) -> Result<(), String> {
    let dial = shared.dials.acquire().await.map_err(|e| e.to_string())?;
    let mut agent = Agent::open(&shared.target).await?;
    drop(dial);
    let session = agent.register(&id, shared.target.register_bytes).await?;
    let beats = shared.heartbeat.map(|every| Beats {
        first: first_beat(every, index, shared.count),
        every,
    });
    let session = agent.subscribe(session, beats, stop).await?;
    shared.attached.add_permits(1);
    let acknowledged = || {
        shared.heartbeats.fetch_add(1, Ordering::Relaxed);
    };
    session.run(acknowledged).await
}

fn agent_id(prefix: &str, index: usize) -> String {
    format!("{prefix}{index}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr};
    use tokio::net::TcpListener;

    fn target(agents: SocketAddr) -> Target {
        Target {
            agents,
            management: agents,
            tls: None,
            register_bytes: 0,
        }
    }

    #[tokio::test]
    async fn agents_that_reach_nobody_are_an_error() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let attached = GrpcLoad::attach(&target(address), "nobody-", 3, None).await;
        assert!(attached.unwrap_err().contains("refused"));
    }

    #[tokio::test]
    async fn agents_whose_connections_are_closed_are_an_error() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let closing = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let attached = GrpcLoad::attach(&target(address), "closed-", 3, None).await;
        assert!(attached.is_err());
        closing.abort();
    }
}
