//! A simulated fleet: agents that act like the real one, one TCP connection each.
//!
//! Responsible for the order of calls, deadlines, answers, heartbeats and both backoff ladders
//! of the real agent, and for acting wrongly on request. One fleet has one kind of agent; start
//! several for a mix. Lean: an agent is one task and one connection, nothing is polled.
//! Must never share a connection between agents.

mod agent;
mod backoff;
mod counters;
mod diary;
pub(crate) mod message;
mod options;
mod order;
mod pacer;
mod session;

pub use counters::{Counters, Outcome, Rpc, Snapshot};
pub use diary::{Diary, Fate, Opened};
pub use options::{Answer, Misbehaviour, Options, Periodic};

use pacer::Pacer;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// What all agents of a fleet share.
#[derive(Debug)]
struct Shared {
    options: Options,
    counters: Arc<Counters>,
    diary: Diary,
    pacer: Pacer,
    /// Text from which outputs are cut.
    filler: String,
}

/// A running fleet. Dropping it stops the agents without waiting for them.
#[derive(Debug)]
pub struct Fleet {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
}

impl Fleet {
    /// Starts the agents; they register and subscribe on their own from here.
    pub fn start(options: Options) -> Self {
        let shared = Arc::new(Shared {
            pacer: Pacer::new(options.connects_per_second),
            counters: Arc::default(),
            diary: match options.keeps_diary {
                true => Diary::of(options.agents),
                false => Diary::default(),
            },
            filler: "x".repeat(options.answer.bytes),
            options,
        });
        let (stop, stopped) = watch::channel(false);
        for index in 0..shared.options.agents {
            let running = counters::Held::new(&shared.counters, |c| &c.running);
            let life = agent::live(shared.clone(), index, stopped.clone());
            tokio::spawn(async move {
                life.await;
                drop(running);
            });
        }
        Self { shared, stop }
    }

    /// The counters, live.
    pub fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }

    /// The counters now.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.counters.snapshot()
    }

    /// What its agents got and answered; empty unless [`Options::keeps_diary`].
    pub fn diary(&self) -> &Diary {
        &self.shared.diary
    }

    /// How it was set up.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Waits until all agents are subscribed at the same time.
    ///
    /// # Errors
    /// The counters as they stand after `limit`, when they are not.
    pub async fn all_subscribed(&self, limit: Duration) -> Result<Snapshot, Box<Snapshot>> {
        let agents = self.shared.options.agents as u64;
        self.shared
            .counters
            .wait_for(limit, |s| s.subscribed == agents)
            .await
    }

    /// Ends all agents: each half-closes its stream, gives the gateway a moment to end it, and
    /// closes its connection. Completes when all have ended, with the last counters.
    pub async fn stop(self) -> Snapshot {
        // Fails only when no agent is left to be told.
        let _ = self.stop.send(true);
        let limit = session::FAREWELL * 3;
        match self
            .shared
            .counters
            .wait_for(limit, |s| s.running == 0)
            .await
        {
            Ok(snapshot) => snapshot,
            Err(snapshot) => *snapshot,
        }
    }
}
