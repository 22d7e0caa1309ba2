//! The load over plain sockets, for the floor that speaks no gRPC.

use super::load::{DIALS, Load, Target, first_beat};
use super::with_sockets::{ANSWER, ATTACH, COMMAND, END, HEARTBEAT, Link, framed, parts, write};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::interval_at;

/// About what an answer of the gRPC load takes.
const ANSWER_FILLER: [u8; 96] = [b'r'; 96];
/// Calls that an operator has at the same time, each on its connection.
const CALLERS: usize = 64;

#[derive(Debug)]
pub(super) struct SocketsLoad {
    agents: JoinSet<io::Result<()>>,
    prefix: String,
    count: usize,
    callers: Vec<Mutex<Link>>,
    heartbeats: Arc<AtomicU64>,
}

impl Load for SocketsLoad {
    async fn attach(
        target: &Target,
        prefix: &str,
        agents: usize,
        heartbeat: Option<Duration>,
    ) -> Result<Self, String> {
        let heartbeats = Arc::new(AtomicU64::new(0));
        let dials = Arc::new(Semaphore::new(DIALS));
        let attached = Arc::new(Semaphore::new(0));
        let mut running = JoinSet::new();
        let address = target.agents;
        for index in 0..agents {
            let (dials, attached) = (Arc::clone(&dials), Arc::clone(&attached));
            let id = agent_id(prefix, index);
            let heartbeats = Arc::clone(&heartbeats);
            running.spawn(async move {
                let dial = dials.acquire().await;
                let mut link = Link::open(address).await?;
                drop(dial);
                write(&link.socket, &framed(ATTACH, &[], id.as_bytes()))?;
                link.body().await?;
                attached.add_permits(1);
                live(link, heartbeat, index, agents, &heartbeats).await
            });
        }
        let all = u32::try_from(agents).map_err(|e| e.to_string())?;
        attached
            .acquire_many(all)
            .await
            .map_err(|e| e.to_string())?
            .forget();
        let mut callers = Vec::new();
        for _ in 0..CALLERS {
            let link = Link::open(target.management).await;
            callers.push(Mutex::new(link.map_err(|e| e.to_string())?));
        }
        Ok(Self {
            agents: running,
            prefix: prefix.into(),
            count: agents,
            callers,
            heartbeats,
        })
    }

    async fn broadcast(&self, name: u64) -> Result<usize, String> {
        self.send(name, "", 0).await
    }

    async fn multicast(&self, _name: u64, _first: usize) -> Result<Option<usize>, String> {
        Ok(None)
    }

    async fn command(&self, name: u64, agent: usize, caller: usize) -> Result<(), String> {
        let id = agent_id(&self.prefix, agent % self.count);
        match self.send(name, &id, caller).await? {
            1 => Ok(()),
            other => Err(format!("{other} answers of one agent")),
        }
    }

    fn heartbeats(&self) -> u64 {
        self.heartbeats.load(Ordering::Relaxed)
    }

    async fn detach(mut self) -> Result<(), String> {
        self.agents.shutdown().await;
        Ok(())
    }
}

impl SocketsLoad {
    async fn send(&self, name: u64, target: &str, caller: usize) -> Result<usize, String> {
        let mut link = self.callers[caller % CALLERS].lock().await;
        let command = framed(COMMAND, &name.to_be_bytes(), target.as_bytes());
        write(&link.socket, &command).map_err(|e| e.to_string())?;
        let mut answers = 0;
        loop {
            let body = link.body().await.map_err(|e| e.to_string())?;
            match parts(&body).0 {
                ANSWER => answers += 1,
                END => return Ok(answers),
                other => return Err(format!("a frame of kind {other}")),
            }
        }
    }
}

fn agent_id(prefix: &str, index: usize) -> String {
    format!("{prefix}{index}")
}

/// Answers commands and sends heartbeats; those of a fleet are spread evenly.
async fn live(
    mut link: Link,
    heartbeat: Option<Duration>,
    index: usize,
    agents: usize,
    heartbeats: &AtomicU64,
) -> io::Result<()> {
    let every = heartbeat.unwrap_or(Duration::from_secs(3_600));
    let mut beats = interval_at(first_beat(every, index, agents), every);
    loop {
        tokio::select! {
            body = link.body() => {
                let body = body?;
                let (kind, name, _) = parts(&body);
                if kind == COMMAND {
                    write(&link.socket, &framed(ANSWER, &name, &ANSWER_FILLER))?;
                } else {
                    heartbeats.fetch_add(1, Ordering::Relaxed);
                }
            }
            _ = beats.tick() => write(&link.socket, &framed(HEARTBEAT, &[], &[b'h'; 64]))?,
        }
    }
}
