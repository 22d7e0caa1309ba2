//! One forwarded session, as the entry node has it: its stream and what came over it.
//!
//! Responsible for the frames that go out, for handing answers on in their order, each once, and for
//! telling the owner what was taken. Must never decide how a target ends.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use prometheus::IntCounter;
use tokio::time::{Instant, timeout};
use yuzu_proto::node::v1::{ForwardDispatch, ForwardOpen, ForwardReceived, ForwardResume};

use super::super::entries::NoAnswer;
use super::super::fanout::Feed;
use super::frames::{Kind, encode};
use super::ledger::{Load, Seat};
use crate::cluster::{Channel, Lost, MAX_FRAME, holding};

/// The owner is told what was taken after so many bytes of its frames, prefixes included, as it
/// counts them itself.
pub(super) const TELL: usize = 64 << 10;
/// An owner says nothing more while it keeps so many bytes: several times what it is told of at once,
/// so that a session never waits for a confirmation that is not due.
pub(super) const WINDOW: usize = 4 * TELL;
/// So is it after so many of its frames that are no answers.
const TELL_FRAMES: u32 = 32;
/// As many of them that wait for the caller are far fewer than an owner keeps.
const BEHIND: usize = 64;
/// Handed on before other tasks get a turn.
const DELIVERIES: usize = 1_024;
/// A peer has so long to end its half of a stream that this side has ended.
const PARTING: Duration = Duration::from_secs(1);

/// A stream that is on its way.
pub(super) type Opening = Pin<Box<dyn Future<Output = Channel> + Send>>;

enum Line {
    None,
    Opening(Opening),
    Open(Channel),
}

/// What happened on a lane.
pub(super) enum Event {
    Opened,
    Frame(Result<Option<Bytes>, Lost>),
}

/// What waits for the caller to have room.
enum Delivery {
    /// A frame of the owner that the caller has nothing of.
    Frame,
    Answers(
        Bytes,
        #[expect(dead_code, reason = "counts the bytes until it is dropped")] Load,
    ),
    Entry(u32, Arc<str>, NoAnswer),
}

/// See the module.
pub(super) struct Lane {
    pub(super) owner: Arc<str>,
    /// Of the session, in this node's life.
    pub(super) number: u64,
    /// The marker was sent.
    is_marked: bool,
    /// The command was sent, and the owner has not said that it never had it.
    has_command: bool,
    /// When the command was sent, until the first answer.
    pub(super) sent: Option<Instant>,
    /// Frames of the owner that came.
    pub(super) received: u64,
    /// Of dispatches that are not written. Their frames hold them as well: a stream may keep one when
    /// the session is over.
    loads: VecDeque<Arc<Load>>,
    seat: Option<Seat>,
    line: Line,
    /// With the bytes of the frame that each was in.
    deliveries: VecDeque<(Delivery, usize)>,
    /// Bytes of those.
    untaken: usize,
    /// An owner that sends answers while so many bytes are untaken keeps no bound.
    most_untaken: usize,
    taken: u64,
    taken_bytes: usize,
    taken_frames: u32,
    /// Frames that the caller has nothing of, among what waits.
    frames: usize,
    bytes_out: IntCounter,
}

impl Lane {
    pub(super) fn new(owner: Arc<str>, number: u64, bytes_out: IntCounter) -> Self {
        Self {
            owner,
            number,
            is_marked: false,
            has_command: false,
            sent: None,
            received: 0,
            loads: VecDeque::new(),
            seat: None,
            line: Line::None,
            deliveries: VecDeque::new(),
            untaken: 0,
            most_untaken: WINDOW,
            taken: 0,
            taken_bytes: 0,
            taken_frames: 0,
            frames: 0,
            bytes_out,
        }
    }

    /// Has a place, until it is closed.
    pub(super) fn seated(&mut self, seat: Seat) {
        self.seat = Some(seat);
    }

    /// A stream is on its way.
    pub(super) fn open(&mut self, opening: Opening) {
        self.line = Line::Opening(opening);
    }

    /// There is a stream.
    pub(super) fn connect(&mut self, channel: Channel) {
        self.line = Line::Open(channel);
    }

    /// Sends a framed message.
    pub(super) fn push(&self, frame: Bytes) {
        if let Line::Open(channel) = &self.line {
            self.bytes_out.inc_by(frame.len() as u64);
            channel.sink.push(frame);
        }
    }

    /// The frame of the next Dispatch, for these agents; with the command unless the owner has it.
    pub(super) fn next_dispatch(&self, command: &Bytes, agent_ids: Vec<String>) -> Bytes {
        encode(Kind::Dispatch(ForwardDispatch {
            command: (!self.has_command).then(|| command.clone()),
            agent_ids,
        }))
    }

    /// Sends it, with the marker before it if the session has none yet.
    pub(super) fn dispatch(&mut self, mut frame: Bytes, load: Load, marker: ForwardOpen) {
        let load = Arc::new(load);
        self.loads.push_back(Arc::clone(&load));
        self.has_command = true;
        if !std::mem::replace(&mut self.is_marked, true) {
            self.sent = Some(Instant::now());
            // In one piece: they arrive together.
            frame = [encode(Kind::Open(marker)), frame].concat().into();
        }
        self.push(holding(frame, load));
    }

    /// The oldest Dispatch arrived.
    pub(super) fn unload(&mut self) {
        self.loads.pop_front();
    }

    /// The owner goes on with so many Dispatches; the last `missed` never arrived.
    pub(super) fn resumed(&mut self, dispatches: u64, missed: usize) {
        let arrived = self.loads.len().saturating_sub(missed);
        self.loads.truncate(arrived);
        self.has_command &= dispatches > 0;
    }

    /// Asks over another stream for what has not come. The owner takes what has for confirmed, and
    /// may say a window more.
    pub(super) fn resume(&mut self) {
        self.most_untaken = WINDOW + self.untaken.min(MAX_FRAME);
        self.push(encode(Kind::Resume(ForwardResume {
            session: self.number,
            received: self.received,
        })));
    }

    /// The stream is over; another one may follow.
    pub(super) fn hang_up(&mut self) {
        self.line = Line::None;
    }

    /// The session is over: the stream ends in order, so that neither side has to reset it.
    pub(super) fn close(&mut self) {
        self.seat = None;
        self.loads = VecDeque::new();
        if let Line::Open(channel) = std::mem::replace(&mut self.line, Line::None) {
            channel.sink.end();
            tokio::spawn(part(channel));
        }
    }

    /// What comes next.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        match &mut self.line {
            Line::None => Poll::Pending,
            Line::Opening(opening) => opening.as_mut().poll(cx).map(|channel| {
                self.line = Line::Open(channel);
                Event::Opened
            }),
            Line::Open(channel) => channel.source.poll_next(cx).map(Event::Frame),
        }
    }

    /// Whether the owner may send answers.
    pub(super) fn has_room(&self) -> bool {
        self.untaken < self.most_untaken
    }

    /// Answers came, in a frame of so many bytes.
    pub(super) fn answers(&mut self, entries: Bytes, load: Load, bytes: usize) {
        let answers = Delivery::Answers(entries, load);
        self.untaken += bytes;
        self.deliveries.push_back((answers, bytes));
    }

    /// A frame of so many bytes came that the caller has nothing of.
    pub(super) fn frame(&mut self, bytes: usize) {
        self.untaken += bytes;
        self.frames += 1;
        self.deliveries.push_back((Delivery::Frame, bytes));
    }

    /// Whether so many of them wait behind answers that the owner had better not say more.
    pub(super) fn is_behind(&self) -> bool {
        self.frames >= BEHIND
    }

    /// A target has no answer, behind all that came.
    pub(super) fn entry(&mut self, target: u32, agent: Arc<str>, reason: NoAnswer) {
        let entry = Delivery::Entry(target, agent, reason);
        self.deliveries.push_back((entry, 0));
    }

    /// Whether the caller has all that came.
    pub(super) fn is_delivered(&self) -> bool {
        self.deliveries.is_empty()
    }

    /// Hands on what the caller has room for. True: there may be more of it.
    pub(super) fn deliver(&mut self, lane: usize, feed: &Feed, cx: &Context<'_>) -> bool {
        for _ in 0..DELIVERIES {
            let Some((delivery, bytes)) = self.deliveries.front() else {
                return false;
            };
            match delivery {
                Delivery::Answers(entries, _) if !feed.offer(lane, entries, cx.waker()) => {
                    return false;
                }
                Delivery::Answers(..) | Delivery::Frame => {}
                Delivery::Entry(target, agent, reason) => feed.refuse(*target, agent, *reason),
            }
            self.taken += u64::from(!matches!(delivery, Delivery::Entry(..)));
            self.taken_bytes += bytes;
            self.untaken -= bytes;
            let is_frame = matches!(delivery, Delivery::Frame);
            self.taken_frames += u32::from(is_frame);
            self.frames -= usize::from(is_frame);
            self.deliveries.pop_front();
            if self.taken_bytes >= TELL || self.taken_frames >= TELL_FRAMES {
                (self.taken_bytes, self.taken_frames) = (0, 0);
                let count = self.taken;
                self.push(encode(Kind::Received(ForwardReceived { count })));
            }
        }
        true
    }
}

/// Reads what the peer still says, for a while. What it has not taken then is not sent any more.
async fn part(mut channel: Channel) {
    let _ = timeout(PARTING, channel.source.read_out()).await;
    channel.sink.abandon();
}

#[cfg(test)]
mod tests;
