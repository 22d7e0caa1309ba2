//! One broadcast and the tally of its answers: none lost, none doubled, order kept.
//!
//! [`Tally`] is pure; [`broadcast`] feeds it from an operator's stream.

use crate::operator::{Entry, Operator};
use crate::raw::Status;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_proto::agent::v1::command_response::Status as Outcome;

/// What came back for one command, agent by agent.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    agents: HashMap<String, Progress>,
    /// Answers to another command than the one sent.
    pub strays: usize,
    /// Terminal frames after the first one of an agent, and whatever follows one.
    pub doubled: usize,
    /// RUNNING frames whose number is not the one that had to come.
    pub misordered: usize,
    /// Terminal frames that are no SUCCESS, `not_connected` and the like included.
    pub failures: usize,
    /// Frames in all.
    pub frames: usize,
}

#[derive(Debug, Clone, Default)]
struct Progress {
    running: u32,
    ended: bool,
    succeeded: bool,
}

impl Tally {
    /// Notes an entry for the command that was sent. RUNNING frames are those of a simulated
    /// agent: their output is `frame <n>`, from 1.
    pub fn note(&mut self, command_id: &str, entry: &Entry) {
        self.frames += 1;
        if entry.response.command_id != command_id {
            self.strays += 1;
            return;
        }
        let progress = self.agents.entry(entry.agent_id.clone()).or_default();
        if progress.ended {
            self.doubled += 1;
            return;
        }
        if entry.response.status == Outcome::Running as i32 {
            progress.running += 1;
            if entry.response.output != format!("frame {}", progress.running) {
                self.misordered += 1;
            }
            return;
        }
        progress.ended = true;
        progress.succeeded = entry.response.status == Outcome::Success as i32;
        if !progress.succeeded {
            self.failures += 1;
        }
    }

    /// Agents whose terminal frame came.
    pub fn answered(&self) -> usize {
        self.agents
            .values()
            .filter(|progress| progress.ended)
            .count()
    }

    /// RUNNING frames in all.
    pub fn running(&self) -> u64 {
        self.agents
            .values()
            .map(|progress| u64::from(progress.running))
            .sum()
    }

    /// How many of these agents have not answered with SUCCESS.
    pub fn without_success<'a>(&self, expected: impl IntoIterator<Item = &'a str>) -> usize {
        let succeeded = |id: &str| self.agents.get(id).is_some_and(|p| p.succeeded);
        expected.into_iter().filter(|id| !succeeded(id)).count()
    }

    /// How many of these agents have not ended with a terminal frame.
    pub fn missing<'a>(&self, expected: impl IntoIterator<Item = &'a str>) -> usize {
        let ended = |id: &str| self.agents.get(id).is_some_and(|progress| progress.ended);
        expected.into_iter().filter(|id| !ended(id)).count()
    }
}

/// A broadcast that has ended.
#[derive(Debug)]
pub struct Round {
    /// Its answers.
    pub tally: Tally,
    /// How the stream ended.
    pub status: Status,
    /// Time from the send to each terminal frame, ascending.
    pub latencies: Vec<Duration>,
    /// Time from the send to the end of the stream.
    pub elapsed: Duration,
}

impl Round {
    /// The latency that this share (0 to 1) of the answers did not exceed.
    pub fn latency(&self, share: f64) -> Option<Duration> {
        percentile(&self.latencies, share)
    }

    /// Answers a second, over the whole round.
    pub fn answers_per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// The smallest of the ascending values that `share` of them do not exceed.
pub fn percentile(ascending: &[Duration], share: f64) -> Option<Duration> {
    let rank = (ascending.len() as f64 * share).ceil() as usize;
    ascending
        .get(rank.clamp(1, ascending.len().max(1)) - 1)
        .copied()
}

/// Sends `command` to all agents and reads to the end of the stream.
///
/// # Errors
/// When the stream did not end with a status, as text.
pub async fn broadcast(
    operator: &Operator,
    command: CommandRequest,
    timeout_seconds: i32,
) -> Result<Round, String> {
    let command_id = command.command_id.clone();
    let started = Instant::now();
    let fanout = operator.send(&[], command, timeout_seconds).await;
    let mut fanout = fanout.map_err(|e| e.to_string())?;
    let mut tally = Tally::default();
    let mut latencies = Vec::new();
    loop {
        match fanout.next().await? {
            Ok(entry) => {
                tally.note(&command_id, &entry);
                if entry.response.status != Outcome::Running as i32 {
                    latencies.push(started.elapsed());
                }
            }
            Err(status) => {
                return Ok(Round {
                    tally,
                    status,
                    latencies,
                    elapsed: started.elapsed(),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use yuzu_proto::agent::v1::CommandResponse;

    fn entry(agent: &str, command: &str, status: Outcome, output: &str) -> Entry {
        let response = CommandResponse {
            command_id: command.into(),
            status: status.into(),
            output: output.into(),
            ..Default::default()
        };
        let (raw, response_raw) = (Bytes::new(), Bytes::new());
        Entry {
            raw,
            agent_id: agent.into(),
            response_raw,
            response,
        }
    }

    #[test]
    fn tells_lost_doubled_misordered_failed_and_stray_frames() {
        let mut tally = Tally::default();
        for entry in [
            entry("a", "c", Outcome::Running, "frame 1"),
            entry("b", "c", Outcome::Running, "frame 2"),
            entry("a", "c", Outcome::Running, "frame 2"),
            entry("a", "c", Outcome::Success, "done"),
            entry("a", "c", Outcome::Success, "done"),
            entry("a", "c", Outcome::Running, "frame 3"),
            entry("b", "other", Outcome::Success, "done"),
            entry("d", "c", Outcome::Failure, "not_connected"),
        ] {
            tally.note("c", &entry);
        }
        assert_eq!((tally.frames, tally.strays, tally.doubled), (8, 1, 2));
        assert_eq!((tally.misordered, tally.failures), (1, 1));
        assert_eq!((tally.answered(), tally.running()), (2, 3));
        assert_eq!(tally.missing(["a", "b", "c", "d"]), 2);
        assert_eq!(tally.without_success(["a", "b", "c", "d"]), 3);
    }

    #[test]
    fn percentiles_are_by_rank() {
        let values: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&values, 0.5), Some(Duration::from_millis(50)));
        assert_eq!(percentile(&values, 0.99), Some(Duration::from_millis(99)));
        assert_eq!(percentile(&values, 1.0), Some(Duration::from_millis(100)));
        assert_eq!(
            percentile(&values[..1], 0.5),
            Some(Duration::from_millis(1))
        );
        assert_eq!(percentile(&[], 0.5), None);
    }
}
