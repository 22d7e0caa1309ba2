//! One connected agent, as every part of the node sees it.
//!
//! Responsible for the facts of a session and for its mailbox behind one short lock. The owner
//! reads the agent's stream, the stream's body takes commands from the mailbox; neither waits for
//! the other. Must never send or read a frame itself.

use std::fmt;
use std::hint::black_box;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use tokio::time::Instant;
use tonic::Status;

use super::clock::unix_ms;
use super::epoch::Epoch;
use super::mailbox::{Mailbox, MailboxLimits, NotDispatched};
use super::replies::{Waiter, Waiters};
use super::table::Registration;
use crate::edge::{ConnectionKey, Prefetch, Sleeper};

/// What an owner is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    /// The stream's sending half is gone: the session is over.
    StreamGone,
    /// End the session; the stream ends with OK (SUB-10).
    End,
    /// Give way to another owner, as all owners do (OWNER-9).
    Replace,
    /// Send GOAWAY on the agent's connection and go on (SHIFT-1).
    LetGo,
    /// Panic, for tests of recovery.
    #[cfg(feature = "fault-injection")]
    Panic,
}

const NOTHING: u8 = 0;
const STREAM_GONE: u8 = 1;
const END: u8 = 2;
const PANIC: u8 = 4;
const ANNOUNCE: u8 = 8;
const REPLACE: u8 = 16;
const LET_GO: u8 = 32;
const LEAVING: u8 = 64;

/// One connected agent.
///
/// What each command and each answer needs lies together and first, behind the counts of the `Arc`:
/// a broadcast touches every session, and no cache holds thousands of them.
#[repr(C)]
pub(crate) struct Session {
    owner: AtomicWaker,
    mailbox: Mutex<Mailbox>,
    asked: AtomicU8,
    /// What the agent registered with.
    pub(crate) registration: Registration,
    /// Minted by the server.
    pub(crate) session_id: Arc<str>,
    /// Minted here, 32 lowercase hex digits; the same on every notice of this stream.
    pub(crate) stream_home_id: Arc<str>,
    /// The connection of the Subscribe (SUB-5).
    pub(crate) connection: ConnectionKey,
    /// Which row of the table is this session's.
    pub(crate) epoch: Epoch,
    /// Wall clock of the Subscribe, Unix milliseconds.
    pub(crate) connected_at_ms: i64,
    /// Monotonic clock of the Subscribe.
    pub(crate) connected: Instant,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.connected_at_ms)
    }
}

impl Prefetch for Session {
    fn prefetch(&self) {
        // Where a command or an answer finds its mailbox, and where it ends.
        black_box(self.mailbox.is_poisoned());
        black_box(self.asked.load(Ordering::Relaxed));
    }
}

impl Session {
    pub(super) fn new(
        registration: Registration,
        session_id: Arc<str>,
        stream_home_id: Arc<str>,
        connection: ConnectionKey,
        epoch: Epoch,
    ) -> Self {
        Self {
            owner: AtomicWaker::new(),
            mailbox: Mutex::new(Mailbox::new()),
            asked: AtomicU8::new(NOTHING),
            registration,
            session_id,
            stream_home_id,
            connection,
            epoch,
            connected_at_ms: unix_ms(),
            connected: Instant::now(),
        }
    }

    /// The agent's id.
    pub(crate) fn agent_id(&self) -> &Arc<str> {
        &self.registration.agent_id
    }

    /// The agent's attributed address.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        self.registration.peer
    }

    fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a framed command into the mailbox. The stream is to be woken for it, if it waits.
    ///
    /// # Errors
    /// When a bound is reached or the session has ended; the agent gets nothing of it.
    pub(crate) fn dispatch(
        &self,
        command_id: &Bytes,
        frame: Bytes,
        waiter: Waiter,
        limits: MailboxLimits,
    ) -> Result<Option<Sleeper>, NotDispatched> {
        (self.mailbox()).dispatch(command_id, frame, waiter, limits)
    }

    /// The next command for the stream, or the status it ends with; else `reader` says whom to wake.
    pub(crate) fn poll_command(
        &self,
        reader: impl FnOnce() -> Sleeper,
    ) -> Poll<Result<Bytes, Status>> {
        self.mailbox().poll_next(reader)
    }

    /// The callers waiting for `command_id`.
    pub(crate) fn waiters(&self, command_id: &[u8], terminal: bool) -> Option<Waiters> {
        self.mailbox().waiters(command_id, terminal)
    }

    /// Tells every waiting caller that the agent is lost (CMD-4, CMD-20).
    pub(crate) fn fail_outstanding(&self) {
        let lost = self.mailbox().fail_outstanding();
        for waiter in lost {
            waiter.sink.lost(waiter.target, self.agent_id());
        }
    }

    /// Ends the stream with `status` and tells every waiting caller (CMD-4).
    pub(crate) fn end_stream(&self, status: Status) {
        let (lost, reader) = self.mailbox().end(status);
        if let Some(reader) = reader {
            reader.wake();
        }
        for waiter in lost {
            waiter.sink.lost(waiter.target, self.agent_id());
        }
    }

    /// Whether the stream was ended from this side, and how many commands still wait.
    pub(crate) fn stream_state(&self) -> (bool, usize) {
        let mailbox = self.mailbox();
        (mailbox.has_ended(), mailbox.queued())
    }

    /// Asks the owner for something.
    pub(crate) fn ask(&self, control: Control) {
        let bit = match control {
            Control::StreamGone => STREAM_GONE,
            Control::End => END,
            Control::Replace => REPLACE,
            Control::LetGo => LET_GO,
            #[cfg(feature = "fault-injection")]
            Control::Panic => PANIC,
        };
        self.asked.fetch_or(bit, Ordering::AcqRel);
        self.owner.wake();
    }

    /// Marks that the agent is asked to move, for good. False: it was marked before.
    pub(crate) fn mark_leaving(&self) -> bool {
        self.asked.fetch_or(LEAVING, Ordering::AcqRel) & LEAVING == 0
    }

    /// Asks the owner to tell the server once more that the stream is here (REPLAY-14). An owner
    /// that has ended does not.
    pub(crate) fn ask_to_announce(&self) {
        self.asked.fetch_or(ANNOUNCE, Ordering::AcqRel);
        self.owner.wake();
    }

    /// Waits for [`Session::ask_to_announce`]; in the task that waits for [`Session::asked`].
    pub(crate) async fn asked_to_announce(&self) {
        std::future::poll_fn(|cx| {
            self.owner.register(cx.waker());
            match self.asked.fetch_and(!ANNOUNCE, Ordering::AcqRel) & ANNOUNCE {
                0 => Poll::Pending,
                _ => Poll::Ready(()),
            }
        })
        .await;
    }

    /// What the owner is asked for; only one task may wait at a time.
    pub(crate) async fn asked(&self) -> Control {
        std::future::poll_fn(|cx| {
            self.owner.register(cx.waker());
            let asked = self.asked.load(Ordering::Acquire);
            if asked & PANIC != 0 {
                self.asked.fetch_and(!PANIC, Ordering::AcqRel);
                #[cfg(feature = "fault-injection")]
                return Poll::Ready(Control::Panic);
            }
            if asked & STREAM_GONE != 0 {
                Poll::Ready(Control::StreamGone)
            } else if asked & END != 0 {
                Poll::Ready(Control::End)
            } else if asked & REPLACE != 0 {
                self.asked.fetch_and(!REPLACE, Ordering::AcqRel);
                Poll::Ready(Control::Replace)
            } else if asked & LET_GO != 0 {
                self.asked.fetch_and(!LET_GO, Ordering::AcqRel);
                Poll::Ready(Control::LetGo)
            } else {
                Poll::Pending
            }
        })
        .await
    }

    /// Waits until the stream's sending half is gone.
    pub(crate) async fn stream_gone(&self) {
        std::future::poll_fn(|cx| {
            self.owner.register(cx.waker());
            if self.asked.load(Ordering::Acquire) & STREAM_GONE != 0 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}
