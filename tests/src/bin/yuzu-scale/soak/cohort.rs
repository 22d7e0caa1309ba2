//! Agents that come and leave together.
//!
//! Responsible for their lives, and for who can say afterwards that an agent was there all the
//! while. Must never leave that open: who has begun to leave was not.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use yuzu_tests::fleet::{Counters, Fleet, Misbehaviour, Options, Snapshot};
use yuzu_tests::random::Random;

/// Agents of a cohort.
pub(super) const SIZE: usize = 10;
/// Lives in which agents are lost without a farewell.
const UNRULY_SHARE: f64 = 0.15;
/// Commands after which an unruly agent is lost: from so many to twice as many.
const UNRULY_COMMANDS: usize = 8;
const LIFE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(120));
const AWAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// A server that does not answer for a while keeps agents out.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(240);

/// What has become of all agents that left.
#[derive(Debug, Default)]
pub(super) struct Gone {
    pub(super) connects: AtomicU64,
    pub(super) connected: AtomicU64,
    pub(super) running: AtomicU64,
    pub(super) lives: AtomicU64,
    /// Streams that calm agents lost.
    pub(super) lost_streams: AtomicU64,
    pub(super) misordered: AtomicU64,
}

impl Gone {
    pub(super) fn add(&self, last: &Snapshot) {
        self.connects.fetch_add(last.connects, Relaxed);
        self.connected.fetch_add(last.connected, Relaxed);
        self.running.fetch_add(last.running, Relaxed);
        self.misordered
            .fetch_add(last.duplicates + last.out_of_order, Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Cohort {
    ids: Vec<String>,
    here: Mutex<Option<Here>>,
}

/// Calm agents that are all subscribed.
#[derive(Debug, Clone)]
struct Here {
    life: u64,
    counters: Arc<Counters>,
    /// Theirs when they had all come.
    reconnects: u64,
}

/// Agents that were all there at some time.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Witness(u64);

impl Cohort {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            ids: (0..options.agents).map(|i| options.agent_id(i)).collect(),
            here: Mutex::default(),
        }
    }

    pub(super) fn ids(&self) -> &[String] {
        &self.ids
    }

    /// That all agents are here now, none of them about to leave or to be lost.
    pub(super) fn witness(&self) -> Option<Witness> {
        let here = self.here().clone()?;
        let now = here.counters.snapshot();
        let whole = now.subscribed == self.ids.len() as u64 && now.reconnects == here.reconnects;
        whole.then_some(Witness(here.life))
    }

    fn here(&self) -> MutexGuard<'_, Option<Here>> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lives until `over`, then comes once more and stays: the agents, all subscribed.
    pub(super) async fn live(
        &self,
        options: Options,
        mut random: Random,
        mut over: watch::Receiver<bool>,
        gone: &Gone,
    ) -> Result<Fleet, String> {
        let mut life = 0;
        loop {
            let ended = *over.borrow();
            let unruly = !ended && random.share() < UNRULY_SHARE;
            let misbehaviour = match unruly {
                true => unruly_kind(&mut random),
                false => Misbehaviour::None,
            };
            let fleet = Fleet::start(Options {
                misbehaviour,
                ..options.clone()
            });
            gone.lives.fetch_add(self.ids.len() as u64, Relaxed);
            let came = match unruly {
                true => None,
                false => Some(self.arrived(&fleet, life).await?),
            };
            if ended {
                return Ok(fleet);
            }
            let stay = random.between(LIFE.0, LIFE.1);
            let all_over = over.wait_for(|over| *over);
            let stayed = timeout(stay, all_over).await.is_ok();
            if stayed && !unruly {
                return Ok(fleet);
            }
            *self.here() = None;
            if let Some(before) = came {
                let lost = fleet.snapshot().reconnects - before;
                gone.lost_streams.fetch_add(lost, Relaxed);
            }
            gone.add(&fleet.stop().await);
            sleep(random.between(AWAY.0, AWAY.1)).await;
            life += 1;
        }
    }

    /// Waits for all agents; how often they had to try again until then.
    async fn arrived(&self, fleet: &Fleet, life: u64) -> Result<u64, String> {
        let all = fleet.all_subscribed(ARRIVAL_LIMIT).await;
        let now = all.map_err(|now| format!("only {} of a cohort subscribe", now.subscribed))?;
        *self.here() = Some(Here {
            life,
            counters: fleet.counters(),
            reconnects: now.reconnects,
        });
        Ok(now.reconnects)
    }

    /// Streams that agents which stayed have lost since they all came.
    pub(super) fn lost_streams(&self) -> u64 {
        let here = self.here().clone();
        here.map_or(0, |here| {
            here.counters.snapshot().reconnects - here.reconnects
        })
    }
}

fn unruly_kind(random: &mut Random) -> Misbehaviour {
    let after = (UNRULY_COMMANDS + random.below(UNRULY_COMMANDS)) as u64;
    match random.below(4) {
        0 => Misbehaviour::Abort { after },
        1 => Misbehaviour::Disconnect { after },
        2 => Misbehaviour::Reset { after },
        _ => Misbehaviour::HalfClose { after },
    }
}
