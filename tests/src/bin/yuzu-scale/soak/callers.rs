//! Commands to single agents and to all, and what became of each.

use super::cohort::{Cohort, Witness};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_proto::agent::v1::command_response::Status;
use yuzu_tests::broadcast::Tally;
use yuzu_tests::operator::{Entry, Operator};
use yuzu_tests::random::Random;

const TIMEOUT_S: i32 = 15;
const PAUSE: (Duration, Duration) = (Duration::ZERO, Duration::from_millis(50));
const BROADCAST_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// Everything that operators have seen so far.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) commands: AtomicU64,
    pub(super) broadcasts: AtomicU64,
    /// Answers of agents.
    pub(super) answered: AtomicU64,
    /// Nothing was sent: not connected, or too much waits.
    pub(super) refused: AtomicU64,
    /// Sent, and the agent was lost.
    pub(super) disconnected: AtomicU64,
    /// Entries that are nothing of these.
    pub(super) others: AtomicU64,
    /// Agents that stayed and have no answer.
    pub(super) lost: AtomicU64,
    /// Entries after an agent's last, of other commands, or out of order.
    pub(super) wrong: AtomicU64,
}

impl Ledger {
    fn note(&self, entry: &Entry) {
        let response = &entry.response;
        let counter = match (response.status, &*response.output) {
            (status, _) if status == Status::Success as i32 => &self.answered,
            (_, "not_connected" | "backpressure") => &self.refused,
            (_, "agent_disconnected") => &self.disconnected,
            _ => &self.others,
        };
        counter.fetch_add(1, Relaxed);
    }
}

/// Who sends, to whom, and until when.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) operator: Arc<Operator>,
    pub(super) cohorts: Arc<Vec<Arc<Cohort>>>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) over: watch::Receiver<bool>,
}

impl Caller {
    /// Commands to one agent after the other, whether it is there or not.
    pub(super) async fn singles(self, name: usize, mut random: Random) -> Result<(), String> {
        let mut number = 0;
        while !*self.over.borrow() {
            let cohort = &self.cohorts[random.below(self.cohorts.len())];
            let agent = &cohort.ids()[random.below(cohort.ids().len())];
            let before = cohort.witness();
            let command_id = format!("single-{name}-{number}");
            let tally = self.send(&command_id, &[agent]).await?;
            if stayed(cohort, before) && (tally.answered(), tally.failures) != (1, 0) {
                self.ledger.lost.fetch_add(1, Relaxed);
            }
            number += 1;
            sleep(random.between(PAUSE.0, PAUSE.1)).await;
        }
        Ok(())
    }

    /// Commands to all.
    pub(super) async fn broadcasts(self, mut random: Random) -> Result<(), String> {
        let mut number = 0;
        while !*self.over.borrow() {
            self.broadcast(number).await?;
            number += 1;
            let pause = random.between(BROADCAST_PAUSE.0, BROADCAST_PAUSE.1);
            sleep(pause).await;
        }
        Ok(())
    }

    /// A command to all; how many agents had to answer it.
    pub(super) async fn broadcast(&self, number: usize) -> Result<usize, String> {
        let before: Vec<_> = self.cohorts.iter().map(|cohort| cohort.witness()).collect();
        let tally = self.send(&format!("all-{number}"), &[]).await?;
        let cohorts = self.cohorts.iter().zip(before);
        let stayed: Vec<&Arc<Cohort>> = cohorts
            .filter_map(|(cohort, before)| stayed(cohort, before).then_some(cohort))
            .collect();
        let ids = stayed.iter().flat_map(|cohort| cohort.ids());
        let missing = tally.without_success(ids.clone().map(String::as_str)) as u64;
        self.ledger.lost.fetch_add(missing, Relaxed);
        self.ledger.broadcasts.fetch_add(1, Relaxed);
        Ok(ids.count())
    }

    async fn send(&self, command_id: &str, agents: &[&str]) -> Result<Tally, String> {
        let command = CommandRequest {
            command_id: command_id.into(),
            plugin: "shell".into(),
            ..CommandRequest::default()
        };
        let fanout = self.operator.send(agents, command, TIMEOUT_S).await;
        let mut fanout = fanout.map_err(|e| e.to_string())?;
        let mut tally = Tally::default();
        loop {
            match fanout.next().await? {
                Ok(entry) => {
                    tally.note(command_id, &entry);
                    self.ledger.note(&entry);
                }
                Err(status) if status.is_ok() => break,
                Err(status) => return Err(format!("a command ended with {status}")),
            }
        }
        let wrong = tally.strays + tally.doubled + tally.misordered;
        self.ledger.wrong.fetch_add(wrong as u64, Relaxed);
        self.ledger.commands.fetch_add(1, Relaxed);
        Ok(tally)
    }
}

/// Whether the agents that were all there before are so now, and were all the while.
fn stayed(cohort: &Cohort, before: Option<Witness>) -> bool {
    before.is_some() && cohort.witness() == before
}
