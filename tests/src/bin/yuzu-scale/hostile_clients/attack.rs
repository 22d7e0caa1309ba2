//! The hostile clients of one kind: a thread of their own, held to its share of a core.

use super::kinds::{Client, Kind, Target};
use rustix::time::{ClockId, clock_gettime};
use std::rc::Rc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// Of a core.
pub(super) const SHARE: f64 = 0.2;
/// Time between the first connects of two clients, over all kinds. Two hundred handshakes at one
/// moment would be the load's own doing: it shares the cores of what is measured.
const APART: Duration = Duration::from_millis(65);
/// A client that can't connect tries again after this.
const AGAIN: Duration = Duration::from_millis(100);

/// Holds a thread to [`SHARE`] of a core, by the processor time that it has used.
#[derive(Debug)]
pub(super) struct Governor {
    started: Instant,
    used_before: Duration,
}

impl Governor {
    fn start() -> Self {
        Self {
            started: Instant::now(),
            used_before: thread_time(),
        }
    }

    fn used(&self) -> Duration {
        thread_time().saturating_sub(self.used_before)
    }

    /// Waits until what was used fits the share.
    pub(super) async fn pause(&self) {
        let earliest = self.used().div_f64(SHARE);
        if let Some(ahead) = earliest.checked_sub(self.started.elapsed()) {
            sleep(ahead).await;
        }
    }
}

/// Processor time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // A clock of processor time is never negative.
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// What became of the connections of one kind.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    /// Ended by the gateway.
    pub(super) ended: u64,
    /// The fewest of one client.
    pub(super) fewest: u64,
    /// From the connect to the end, the longest.
    pub(super) longest: Duration,
    /// Could not connect, or ended before the hostile part.
    pub(super) failed: u64,
    /// Why the last of these failed.
    pub(super) problem: Option<String>,
    /// Share of a core that the thread used.
    pub(super) share: f64,
}

/// Starts `clients` of a kind, until `end`.
///
/// # Errors
/// When there is no thread.
pub(super) fn start(
    kind: Kind,
    clients: u8,
    target: &Target,
    end: Instant,
) -> Result<JoinHandle<Result<Tally, String>>, String> {
    let target = target.clone();
    let thread = Builder::new().name(format!("attack {}", kind.name()));
    let running = thread.spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| e.to_string())?;
        let attack = all_of(kind, clients, &target, end);
        Ok(LocalSet::new().block_on(&runtime, attack))
    });
    running.map_err(|e| e.to_string())
}

async fn all_of(kind: Kind, clients: u8, target: &Target, end: Instant) -> Tally {
    let governor = Rc::new(Governor::start());
    let mut tasks = JoinSet::new();
    for number in 1..=clients {
        let client = Client {
            kind,
            number,
            target: target.clone(),
        };
        let place = u32::from(clients) * kind as u32 + u32::from(number);
        let begin = governor.started + APART * place;
        tasks.spawn_local(one(client, Rc::clone(&governor), begin, end));
    }
    let mut all = Tally {
        fewest: u64::MAX,
        ..Tally::default()
    };
    while let Some(one) = tasks.join_next().await {
        // A client that panicked has ended no connection.
        let one = one.unwrap_or_default();
        all.ended += one.ended;
        all.fewest = all.fewest.min(one.ended);
        all.longest = all.longest.max(one.longest);
        all.failed += one.failed;
        all.problem = one.problem.or(all.problem);
    }
    all.share = governor.used().as_secs_f64() / governor.started.elapsed().as_secs_f64();
    all
}

/// One client, which comes back as soon as it is closed.
async fn one(client: Client, governor: Rc<Governor>, begin: Instant, end: Instant) -> Tally {
    let mut tally = Tally::default();
    sleep_until(begin).await;
    loop {
        let started = Instant::now();
        match timeout_at(end, client.attack(&governor)).await {
            Err(_) => return tally,
            Ok(Ok(())) => {
                tally.ended += 1;
                tally.longest = tally.longest.max(started.elapsed());
            }
            Ok(Err(problem)) => {
                tally.failed += 1;
                tally.problem = Some(problem);
                sleep(AGAIN).await;
            }
        }
        governor.pause().await;
    }
}
