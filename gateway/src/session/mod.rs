//! Agent sessions: who is registered, who is connected, and the task that owns each stream.
//!
//! Responsible for the session table, for admission of what agents send, for each session's
//! mailbox and for the owner that reads its stream. Must never know how a command was asked for:
//! answers go to a [`ReplySink`].

mod admission;
mod arriving;
#[cfg(feature = "bench")]
pub(crate) mod bench;
mod clock;
mod commands;
mod epoch;
mod events;
mod inbound;
mod kept;
mod live;
mod mailbox;
mod outstanding;
mod owner;
mod pump;
mod recovery;
mod registry;
mod replies;
mod roster;
mod stream;
mod supervisor;
mod table;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use admission::Refusal;
pub(crate) use arriving::Arriving;
pub(crate) use clock::unix_ms;
pub(crate) use epoch::Epoch;
pub(crate) use events::{Change, Event, Events, MissedEvents, Watcher};
pub(crate) use inbound::Inbound;
pub(crate) use kept::Kept;
pub(crate) use live::{Control, Session};
pub(crate) use mailbox::{MailboxLimits, NotDispatched};
pub(crate) use owner::OwnerContext;
pub(crate) use pump::start as start_owner;
pub(crate) use recovery::Recovery;
pub(crate) use registry::{Follower, Registry};
pub(crate) use replies::{Reply, ReplySink, Waiter};
pub(crate) use roster::Roster;
pub(crate) use stream::SubscribeBody;
pub(crate) use supervisor::Supervisor;
pub(crate) use table::{Registration, TableLimits, TakeRefused};
