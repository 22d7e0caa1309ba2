//! One stream between two nodes: each tells the other which agents it holds (ADJ-1).
//!
//! Responsible for reading and writing at the same time, so that two nodes that both have much to
//! tell don't wait for each other. Must never keep more than one frame in hand.

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use yuzu_proto::node::v1::agents_frame::Kind;

use super::inbox::{Inbox, Rejected, Taken};
use super::outbox::{NeverTold, Outbox};
use super::questions::{Questions, TooMany};
use super::seats::Seat;
use super::sharing::Sharing;
use super::table::Telling;
use super::wire::{Frames, encode};

/// What both directions know.
struct Exchange<'a> {
    sharing: &'a Sharing,
    outbox: Outbox,
    inbox: Inbox,
    /// What the peer is to hear of its last frames.
    answer: Option<Taken>,
    questions: Questions,
    seat: Seat<'a>,
}

/// Runs until the stream ends or the peer breaks the contract; `Ok`: the stream ended.
pub(super) async fn exchange(
    sharing: &Sharing,
    telling: Telling,
    mut frames: Frames,
    sending: mpsc::Sender<Bytes>,
) -> Result<(), Rejected> {
    let confirmed = sharing.own.journal().last();
    let (seat, mut asked) = sharing.seats.take(telling.node(), confirmed);
    let mut exchange = Exchange {
        sharing,
        outbox: Outbox::new(Instant::now()),
        inbox: Inbox::new(telling),
        answer: None,
        questions: Questions::default(),
        seat,
    };
    let mut changes = sharing.own.changes();
    let mut ready = None;
    loop {
        exchange.inbox.check()?;
        if ready.is_none() {
            ready = exchange.next();
        }
        let idle = ready.is_none();
        let (due, told) = exchange.due();
        let frame = tokio::select! {
            frame = frames.next() => frame,
            room = sending.reserve(), if !idle => match (room, ready.take()) {
                (Ok(room), Some(frame)) => {
                    room.send(frame);
                    continue;
                }
                _ => return Ok(()),
            },
            question = asked.recv(), if idle && exchange.questions.has_room() => {
                question.into_iter().for_each(|question| exchange.questions.ask(question));
                continue;
            }
            () = sending.closed(), if idle => return Ok(()),
            () = sleep_until(due), if idle => continue,
            // What is here already waits for its time.
            _ = changes.wait_for(|last| Some(*last) > told), if idle && told.is_some() => continue,
        };
        let Some(frame) = frame else {
            return Ok(());
        };
        exchange.take(&frame)?;
        // A peer that tells of many agents must not keep commands waiting (ADJ-4).
        tokio::task::yield_now().await;
    }
}

impl Exchange<'_> {
    /// The next frame to send: what is short goes first.
    fn next(&mut self) -> Option<Bytes> {
        if let Some(answer) = self.answer.take() {
            return Some(encode(answer.told()));
        }
        if let Some(next) = self.questions.next(&self.sharing.registry) {
            return Some(encode(next));
        }
        let next = self
            .outbox
            .next(&self.sharing.own.journal(), Instant::now());
        next.map(encode)
    }

    /// When there is something to tell even if nothing changes, and the last change if all is told.
    fn due(&self) -> (Instant, Option<u64>) {
        let journal = self.sharing.own.journal();
        let told = self.outbox.told();
        let due = self.outbox.due(&journal);
        (due, (told == journal.last()).then_some(told))
    }

    fn take(&mut self, frame: &Kind) -> Result<(), Rejected> {
        match frame {
            Kind::Applied(applied) => {
                let heard = self.outbox.applied(applied);
                self.seat.confirm(self.outbox.confirmed());
                heard.map_err(|NeverTold| Rejected::Malformed)
            }
            Kind::Question(question) => {
                let asked = self.questions.asked(question);
                asked.map_err(|TooMany| Rejected::Malformed)
            }
            Kind::Description(description) => {
                self.questions.answered(description);
                Ok(())
            }
            _ => self.told(frame),
        }
    }

    /// The peer tells of its agents.
    fn told(&mut self, frame: &Kind) -> Result<(), Rejected> {
        let sharing = self.sharing;
        let taken = self
            .inbox
            .take(frame, &mut |change| sharing.publish(change))?;
        if let Some(epoch) = self.inbox.take_newest() {
            sharing.registry.heard_of(epoch);
        }
        sharing.count(&taken);
        let answer = self.answer.get_or_insert(taken);
        answer.join(&taken);
        Ok(())
    }
}
