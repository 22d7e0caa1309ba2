//! What waits for one agent, and who waits for that agent's answers.
//!
//! Responsible for the bounds of CMD-17 (in commands and in bytes), for the order of commands and
//! for correlating answers with callers by command id. Pure: no task, no socket. Must never look
//! into a command.

use std::task::Poll;

use bytes::Bytes;
use tonic::Status;

use super::commands::Commands;
use super::outstanding::Outstanding;
use super::replies::{Waiter, Waiters};
use crate::edge::Sleeper;

/// Callers that wait for answers of one agent, whatever is queued. Each is a SendCommand that an
/// operator holds open.
const MAX_OUTSTANDING: u32 = 16_384;
/// Entries of callers that left are looked for when so many are outstanding: an agent that never
/// answers costs no more than that many.
const SWEEP_FLOOR: u32 = 8;
/// Room for so many commands is kept when none is left.
const KEPT_ROOM: usize = 16;

/// Bounds of a mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MailboxLimits {
    /// Commands waiting.
    pub(crate) commands: usize,
    /// The same in bytes.
    pub(crate) bytes: usize,
}

/// Why a command did not enter the mailbox; nothing of it reaches the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotDispatched {
    /// A bound is reached, with this many commands waiting.
    Full(usize),
    /// The session has ended.
    Ended,
}

/// The mailbox of one session. What each command touches first lies together.
#[repr(C)]
pub(crate) struct Mailbox {
    reader: Option<Sleeper>,
    ended: Option<Status>,
    waiters: u32,
    sweep_at: u32,
    queued_bytes: usize,
    queue: Commands,
    outstanding: Outstanding,
}

impl Mailbox {
    pub(crate) fn new() -> Self {
        Self {
            reader: None,
            ended: None,
            waiters: 0,
            sweep_at: SWEEP_FLOOR,
            queued_bytes: 0,
            queue: Commands::default(),
            outstanding: Outstanding::default(),
        }
    }

    /// Queues a framed command and enters its caller. On success the stream's task has to be
    /// woken, if it waits.
    pub(crate) fn dispatch(
        &mut self,
        command_id: &Bytes,
        frame: Bytes,
        waiter: Waiter,
        limits: MailboxLimits,
    ) -> Result<Option<Sleeper>, NotDispatched> {
        if self.ended.is_some() {
            return Err(NotDispatched::Ended);
        }
        if self.waiters >= self.sweep_at {
            self.sweep();
        }
        let full = self.queue.len() >= limits.commands
            || self.queued_bytes + frame.len() > limits.bytes.max(frame.len())
            || self.waiters >= MAX_OUTSTANDING;
        if full {
            return Err(NotDispatched::Full(self.queue.len()));
        }
        self.queued_bytes += frame.len();
        self.queue.push(frame);
        self.waiters += 1;
        self.outstanding.add(command_id, waiter);
        Ok(self.reader.take())
    }

    fn sweep(&mut self) {
        self.outstanding.retain(Waiters::sweep);
        let waiting = self.outstanding.iter();
        self.waiters = waiting.map(Waiters::count).sum();
        self.sweep_at = SWEEP_FLOOR.max(self.waiters * 2);
        self.outstanding.shrink();
    }

    /// The next command for the stream, or the status it ends with; else `reader` says whom to wake.
    pub(crate) fn poll_next(
        &mut self,
        reader: impl FnOnce() -> Sleeper,
    ) -> Poll<Result<Bytes, Status>> {
        if let Some(frame) = self.queue.pop() {
            self.queued_bytes -= frame.len();
            return Poll::Ready(Ok(frame));
        }
        if let Some(status) = &self.ended {
            return Poll::Ready(Err(status.clone()));
        }
        self.reader = Some(reader());
        Poll::Pending
    }

    /// The callers waiting for `command_id`, in the order they came. After a terminal frame none
    /// waits any more.
    pub(crate) fn waiters(&mut self, command_id: &[u8], terminal: bool) -> Option<Waiters> {
        if !terminal {
            return self.outstanding.get(command_id).cloned();
        }
        let waiters = self.outstanding.remove(command_id)?;
        if self.outstanding.is_empty() && self.outstanding.capacity() > KEPT_ROOM {
            self.outstanding = Outstanding::default();
        }
        self.waiters -= waiters.count();
        Some(waiters)
    }

    /// Takes every caller out: their commands were lost. What is queued is dropped.
    pub(crate) fn fail_outstanding(&mut self) -> Vec<Waiter> {
        self.queue = Commands::default();
        self.queued_bytes = 0;
        self.waiters = 0;
        self.sweep_at = SWEEP_FLOOR;
        let outstanding = std::mem::take(&mut self.outstanding);
        let waiting = outstanding.iter();
        waiting
            .flat_map(|waiters| waiters.as_slice().to_vec())
            .collect()
    }

    /// Ends the mailbox; the stream ends with `status`. The first status stays.
    pub(crate) fn end(&mut self, status: Status) -> (Vec<Waiter>, Option<Sleeper>) {
        self.ended.get_or_insert(status);
        (self.fail_outstanding(), self.reader.take())
    }

    /// Commands waiting.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::task::Waker;

    use super::super::testing::Caller;
    use super::*;

    const LIMITS: MailboxLimits = MailboxLimits {
        commands: 3,
        bytes: 100,
    };

    fn waiter(target: u32) -> Waiter {
        Arc::new(Caller::default()).waiter(target)
    }

    fn send(mailbox: &mut Mailbox, id: &'static str, len: usize) -> Result<(), NotDispatched> {
        let frame = Bytes::from(vec![0; len]);
        mailbox
            .dispatch(&Bytes::from_static(id.as_bytes()), frame, waiter(7), LIMITS)
            .map(drop)
    }

    fn next(mailbox: &mut Mailbox) -> Poll<Result<Bytes, Status>> {
        mailbox.poll_next(|| Sleeper::Task(Waker::noop().clone()))
    }

    #[test]
    fn cmd_17_the_bound_holds_in_commands() {
        let mut mailbox = Mailbox::new();
        for id in ["a", "b", "c"] {
            send(&mut mailbox, id, 10).unwrap();
        }
        assert_eq!(send(&mut mailbox, "d", 10), Err(NotDispatched::Full(3)));
        assert!(next(&mut mailbox).is_ready());
        send(&mut mailbox, "d", 10).unwrap();
    }

    #[test]
    fn cmd_17_the_bound_holds_in_bytes_whichever_comes_first() {
        let mut mailbox = Mailbox::new();
        send(&mut mailbox, "a", 60).unwrap();
        assert_eq!(send(&mut mailbox, "b", 41), Err(NotDispatched::Full(1)));
        send(&mut mailbox, "b", 40).unwrap();
        assert!(mailbox.waiters(b"nobody", true).is_none());
    }

    #[test]
    fn a_command_larger_than_the_bound_passes_alone() {
        let mut mailbox = Mailbox::new();
        send(&mut mailbox, "a", 500).unwrap();
        assert_eq!(send(&mut mailbox, "b", 1), Err(NotDispatched::Full(1)));
        assert!(next(&mut mailbox).is_ready());
        send(&mut mailbox, "b", 1).unwrap();
    }

    #[test]
    fn cmd_12_every_caller_of_an_id_waits_until_the_terminal_frame() {
        let mut mailbox = Mailbox::new();
        send(&mut mailbox, "a", 1).unwrap();
        send(&mut mailbox, "a", 1).unwrap();
        assert_eq!(mailbox.queued(), 2);
        for terminal in [false, true] {
            let waiters = mailbox.waiters(b"a", terminal).unwrap();
            assert_eq!(waiters.as_slice().len(), 2);
        }
        assert!(mailbox.waiters(b"a", true).is_none());
    }

    #[test]
    fn the_end_gives_every_caller_back_and_refuses_more() {
        let mut mailbox = Mailbox::new();
        send(&mut mailbox, "a", 1).unwrap();
        send(&mut mailbox, "b", 1).unwrap();
        assert_eq!(mailbox.end(Status::ok("")).0.len(), 2);
        assert_eq!(send(&mut mailbox, "c", 1), Err(NotDispatched::Ended));
        let Poll::Ready(Err(status)) = next(&mut mailbox) else {
            panic!("the stream goes on")
        };
        assert_eq!(status.code(), tonic::Code::Ok);
    }

    #[test]
    fn callers_that_left_are_swept_so_that_the_map_stays_small() {
        let mut mailbox = Mailbox::new();
        let sink = Arc::new(Caller::default());
        for n in 0..10_000_u32 {
            let id = Bytes::from(n.to_string());
            mailbox
                .dispatch(&id, Bytes::from_static(b"x"), sink.waiter(0), LIMITS)
                .unwrap();
            assert!(next(&mut mailbox).is_ready());
            sink.over.store(true, Ordering::Relaxed);
            assert!(mailbox.outstanding.len() <= SWEEP_FLOOR as usize + 1);
            assert!(Arc::strong_count(&sink) <= SWEEP_FLOOR as usize + 2);
        }
    }

    #[test]
    fn a_caller_that_still_waits_is_never_swept() {
        let mut mailbox = Mailbox::new();
        let (stays, leaves) = (Arc::new(Caller::default()), Arc::new(Caller::default()));
        leaves.over.store(true, Ordering::Relaxed);
        for n in 0..1_000_u32 {
            let caller = if n % 10 == 0 { &stays } else { &leaves };
            let id = Bytes::from((n / 20).to_string());
            mailbox
                .dispatch(&id, Bytes::from_static(b"x"), caller.waiter(n), LIMITS)
                .unwrap();
            assert!(next(&mut mailbox).is_ready());
        }
        for id in 0..50_u32 {
            let waiters = mailbox.waiters(id.to_string().as_bytes(), true).unwrap();
            let waiters = waiters.as_slice().iter();
            let targets: Vec<_> = waiters.map(|waiter| waiter.target).collect();
            for staying in [id * 20, id * 20 + 10] {
                assert!(targets.contains(&staying), "{staying} of {targets:?}");
            }
        }
        assert_eq!((mailbox.waiters, mailbox.outstanding.len()), (0, 0));
    }

    #[test]
    fn commands_leave_in_their_order_and_the_stream_is_woken_for_the_first() {
        let mut mailbox = Mailbox::new();
        assert!(next(&mut mailbox).is_pending());
        for (n, wakes) in [(1_u8, true), (2, false), (3, false)] {
            let frame = Bytes::from(vec![n]);
            let id = Bytes::from_static(b"id");
            let reader = mailbox.dispatch(&id, frame, waiter(0), LIMITS).unwrap();
            assert_eq!(reader.is_some(), wakes, "command {n}");
        }
        for n in 1..=3 {
            let Poll::Ready(Ok(frame)) = next(&mut mailbox) else {
                panic!("command {n} is missing")
            };
            assert_eq!(*frame, [n]);
        }
    }

    #[test]
    fn cmd_20_after_a_panic_callers_are_lost_and_the_mailbox_works_on() {
        let mut mailbox = Mailbox::new();
        for id in ["a", "b", "c"] {
            send(&mut mailbox, id, 30).unwrap();
        }
        assert_eq!(mailbox.fail_outstanding().len(), 3);
        assert!(next(&mut mailbox).is_pending(), "nobody waits for them");
        for id in ["a", "b", "c"] {
            send(&mut mailbox, id, 30).unwrap();
        }
        assert_eq!(send(&mut mailbox, "d", 1), Err(NotDispatched::Full(3)));
    }

    #[test]
    fn the_first_status_stays_and_the_stream_is_woken_for_it() {
        let mut mailbox = Mailbox::new();
        assert!(next(&mut mailbox).is_pending());
        assert!(mailbox.end(Status::internal("bad bytes")).1.is_some());
        mailbox.end(Status::ok(""));
        let Poll::Ready(Err(status)) = next(&mut mailbox) else {
            panic!("the stream goes on")
        };
        assert_eq!(status.code(), tonic::Code::Internal);
    }

    #[test]
    fn memory_of_a_burst_is_given_back() {
        let limits = MailboxLimits {
            commands: 10_000,
            bytes: 1 << 20,
        };
        let mut mailbox = Mailbox::new();
        for n in 0..10_000_u32 {
            let id = Bytes::from(n.to_string());
            let frame = Bytes::from_static(b"x");
            mailbox.dispatch(&id, frame, waiter(0), limits).unwrap();
        }
        for n in 0..10_000_u32 {
            assert!(next(&mut mailbox).is_ready());
            mailbox.waiters(n.to_string().as_bytes(), true);
        }
        assert_eq!(mailbox.queue.room(), 0);
        assert_eq!(mailbox.outstanding.capacity(), 0);
    }

    #[test]
    fn callers_that_wait_are_bounded() {
        let mut mailbox = Mailbox::new();
        for n in 0..MAX_OUTSTANDING {
            let id = Bytes::from(n.to_string());
            mailbox
                .dispatch(&id, Bytes::from_static(b"x"), waiter(0), LIMITS)
                .unwrap();
            assert!(next(&mut mailbox).is_ready());
        }
        assert_eq!(send(&mut mailbox, "more", 1), Err(NotDispatched::Full(0)));
    }
}
