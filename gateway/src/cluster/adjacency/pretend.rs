//! Agents that peers are told of and that no session stands for; for tests.
//!
//! Responsible for as many rows as no test can have sessions. Must never be part of what is deployed.

use std::ops::Range;
use std::sync::Arc;

use tokio::time::Instant;

use super::sharing::Sharing;
use crate::session::Epoch;

/// The id of such an agent, as long as a real one's.
pub(crate) fn agent_id(number: u64) -> String {
    format!("{number:08x}-0000-4000-8000-000000000000")
}

/// Older than any session's: a real agent of that id would win.
fn epoch(number: u64) -> Epoch {
    Epoch::from_number(number).expect("far below the limit")
}

impl Sharing {
    /// Peers are told that these agents came.
    pub(crate) fn pretend(&self, numbers: Range<u64>) {
        for number in numbers {
            let agent: Arc<str> = agent_id(number).into();
            let session: Arc<str> = format!("gw-session-{number:032x}").into();
            self.own.write(|journal| {
                journal.came(&agent, &session, epoch(number), Instant::now());
            });
        }
    }

    /// Peers are told that this agent went.
    pub(crate) fn pretend_end(&self, number: u64) {
        let agent: Arc<str> = agent_id(number).into();
        self.own
            .write(|journal| journal.went(&agent, epoch(number), Instant::now()));
    }
}
