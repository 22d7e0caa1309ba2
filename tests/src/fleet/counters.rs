//! What a fleet has done so far, and a way to wait for it.
//!
//! Must never make an agent wait: a change is an atomic add, and a wake-up only when somebody
//! waits.

use crate::raw::CallError;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Notify;

/// The calls whose ends are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rpc {
    /// Register.
    Register,
    /// Subscribe: the end of the stream.
    Subscribe,
    /// Heartbeat.
    Heartbeat,
    /// ReportInventory.
    Inventory,
}

const RPCS: [Rpc; 4] = [
    Rpc::Register,
    Rpc::Subscribe,
    Rpc::Heartbeat,
    Rpc::Inventory,
];

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// With this gRPC status; numbers above 16 are counted as 2 (UNKNOWN).
    Status(u16),
    /// The agent's own deadline passed.
    Deadline,
    /// The stream was reset or the answer broke the protocol.
    Broken,
    /// The connection ended.
    Disconnected,
}

const STATUSES: usize = 17;
const OUTCOMES: usize = STATUSES + 3;

impl Outcome {
    /// The outcome of a call that ended without a status.
    pub fn of(error: &CallError) -> Self {
        match error {
            CallError::Deadline => Self::Deadline,
            CallError::Connect(_) | CallError::Disconnected(_) => Self::Disconnected,
            CallError::Reset(_) | CallError::Http(_) | CallError::Framing(_) => Self::Broken,
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Status(code) if usize::from(code) < STATUSES => usize::from(code),
            Self::Status(_) => 2,
            Self::Deadline => STATUSES,
            Self::Broken => STATUSES + 1,
            Self::Disconnected => STATUSES + 2,
        }
    }

    fn from_index(index: usize) -> Self {
        match index - index.min(STATUSES - 1) {
            0 => Self::Status(index as u16),
            1 => Self::Deadline,
            2 => Self::Broken,
            _ => Self::Disconnected,
        }
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The live counters of a fleet, shared by its agents.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(pub(super) $name: Counter,)*
            ends: [[Counter; OUTCOMES]; RPCS.len()],
            changed: Notify,
        }

        /// The counters at one moment.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct Snapshot {
            $($(#[$doc])* pub $name: u64,)*
            /// Ends of calls by call and outcome; only those that happened.
            pub ends: BTreeMap<(Rpc, Outcome), u64>,
        }

        impl Counters {
            /// Reads all counters.
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.get(),)* ends: self.read_ends() }
            }
        }
    };
}

counters! {
    /// Agents with an open connection, now.
    connected,
    /// Agents with an open Subscribe stream, now.
    subscribed,
    /// Agents whose task has not ended, now.
    running,
    /// TCP connections opened.
    connects,
    /// TCP connects that failed.
    connect_failures,
    /// Registers accepted.
    registrations,
    /// Subscribe streams opened.
    subscriptions,
    /// Times an agent went back to its reconnect loop.
    reconnects,
    /// Agents that were refused for good (`accepted=false` without `pending`).
    denied,
    /// Commands received.
    commands,
    /// Commands received twice in a row.
    duplicates,
    /// Commands received after one with a larger number.
    out_of_order,
    /// Terminal answers handed to the stream.
    answers,
    /// RUNNING frames handed to the stream.
    running_frames,
    /// Heartbeats sent.
    heartbeats_sent,
    /// Heartbeats acknowledged.
    heartbeats_acked,
    /// Inventory reports sent.
    inventories_sent,
    /// Inventory reports received by the server.
    inventories_acked,
    /// Unsolicited Guardian frames handed to the stream.
    guardian_frames,
}

/// One number.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Counters {
    /// Adds one to a counter.
    pub(super) fn add(&self, counter: &Counter) {
        counter.0.fetch_add(1, Relaxed);
        self.changed.notify_waiters();
    }

    /// Takes one from a counter that tells what is now.
    pub(super) fn take(&self, counter: &Counter) {
        counter.0.fetch_sub(1, Relaxed);
        self.changed.notify_waiters();
    }

    /// Counts the end of a call.
    pub(super) fn ended(&self, rpc: Rpc, outcome: Outcome) {
        self.add(&self.ends[rpc as usize][outcome.index()]);
    }

    /// Waits until `reached` says yes.
    ///
    /// # Errors
    /// The counters as they stand after `limit`, when it has not.
    pub async fn wait_for(
        &self,
        limit: Duration,
        mut reached: impl FnMut(&Snapshot) -> bool,
    ) -> Result<Snapshot, Box<Snapshot>> {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                let now = self.snapshot();
                if reached(&now) {
                    return now;
                }
                changed.await;
            }
        };
        tokio::time::timeout(limit, wait)
            .await
            .map_err(|_| Box::new(self.snapshot()))
    }

    fn read_ends(&self) -> BTreeMap<(Rpc, Outcome), u64> {
        let mut out = BTreeMap::new();
        for rpc in RPCS {
            for (index, counter) in self.ends[rpc as usize].iter().enumerate() {
                if counter.get() > 0 {
                    out.insert((rpc, Outcome::from_index(index)), counter.get());
                }
            }
        }
        out
    }
}

impl Snapshot {
    /// How often calls of `rpc` ended like this.
    pub fn ends_of(&self, rpc: Rpc, outcome: Outcome) -> u64 {
        self.ends.get(&(rpc, outcome)).copied().unwrap_or(0)
    }
}

/// Counts one in a counter that tells what is now, until it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    counters: Arc<Counters>,
    which: fn(&Counters) -> &Counter,
}

impl Held {
    pub(super) fn new(counters: &Arc<Counters>, which: fn(&Counters) -> &Counter) -> Self {
        counters.add(which(counters));
        Self {
            counters: counters.clone(),
            which,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.counters.take((self.which)(&self.counters));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_keep_their_place() {
        let all = (0..STATUSES as u16).map(Outcome::Status).chain([
            Outcome::Deadline,
            Outcome::Broken,
            Outcome::Disconnected,
        ]);
        for (index, outcome) in all.enumerate() {
            assert_eq!(outcome.index(), index);
            assert_eq!(Outcome::from_index(index), outcome);
        }
        assert_eq!(Outcome::Status(99).index(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_sees_the_change_or_gets_what_is_there() {
        let counters = Arc::new(Counters::default());
        let waiting = tokio::spawn({
            let counters = counters.clone();
            async move {
                counters
                    .wait_for(Duration::from_secs(5), |s| s.subscribed == 2)
                    .await
            }
        });
        tokio::task::yield_now().await;
        let first = Held::new(&counters, |c| &c.subscribed);
        let second = Held::new(&counters, |c| &c.subscribed);
        assert_eq!(waiting.await.unwrap().unwrap().subscribed, 2);
        drop((first, second));
        let late = counters
            .wait_for(Duration::from_secs(5), |s| s.subscribed == 2)
            .await;
        assert_eq!(late.unwrap_err().subscribed, 0);
    }
}
