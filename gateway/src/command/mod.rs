//! Command fan-out: from one SendCommand to the mailboxes of its targets, and the answers back.
//!
//! Responsible for resolving targets, for correlating what is left, and for the bounds of a caller
//! that does not read. Must never hold a lock while something is sent, and never look into a
//! command beyond its id and plugin.

mod backlog;
#[cfg(feature = "bench")]
pub(crate) mod bench;
mod callers;
mod entries;
mod fanout;
mod forward;
mod local;
mod metrics;
mod pool;
mod router;
mod running;
mod tracker;

use std::collections::VecDeque;

use tokio::runtime::Handle;

pub(crate) use fanout::FanoutBody;
pub(crate) use forward::{Forwarder, Served};
pub(crate) use router::{Command, Router};
pub(crate) use running::Ticket;

/// The largest command: what an agent's gRPC library receives at most (CMD-24).
pub(crate) const MAX_COMMAND: usize = 4 << 20;
/// Targets resolved or dispatched before other tasks get a turn. With fewer the threads of the runtime wait
/// for each other's next few at once and are woken for them.
const TURN: usize = 64;
/// More than these are not let go of at once.
const MANY: usize = 10_000;
/// Targets that are only listed.
const LONG_TURN: usize = 1_024;

async fn take_turns(index: usize) {
    if index % TURN == TURN - 1 {
        tokio::task::yield_now().await;
    }
}

async fn take_long_turns(index: usize) {
    if index % LONG_TURN == LONG_TURN - 1 {
        tokio::task::yield_now().await;
    }
}

/// Drops what nobody waits for, in turns when it is much and there is a runtime.
fn let_go<T: Send + 'static>(all: VecDeque<T>) {
    if all.len() > MANY
        && let Ok(runtime) = Handle::try_current()
    {
        runtime.spawn(drop_in_turns(all));
    }
}

/// Very many things are not let go of at once.
async fn drop_in_turns<T>(all: impl IntoIterator<Item = T>) {
    for (index, one) in all.into_iter().enumerate() {
        take_long_turns(index).await;
        drop(one);
    }
}
