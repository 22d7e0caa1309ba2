//! One forwarded session at the owner: another node's caller, served as one of this node.
//!
//! Responsible for dispatching to this node's own sessions and no further (FWD-1), for sending the
//! fan-out's answers over whichever stream the session has, and for its end. Must never read an
//! answer, nor end the fan-out of a session that may still be resumed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use yuzu_proto::node::v1::forward_refused::Reason;
use yuzu_proto::node::v1::{
    ForwardDispatch, ForwardEnd, ForwardOpen, ForwardResumed, ForwardWritten,
};
use yuzu_proto::peek::CommandRequestPeek;

use super::super::fanout::{Fanout, FanoutBody, LINGER};
use super::super::local::Dispatched;
use super::super::running::Ticket;
use super::super::{MAX_COMMAND, TURN, take_turns};
use super::frames::{Kind, decode_of_entry, encode, encode_answers};
use super::log::Log;
use super::outstanding::MAX_TARGETS;
use super::served::{Entered, Served};
use crate::cluster::{Channel, Lost, Share};
use crate::edge::grpc;
use crate::session::Session;

const MAX_TIMEOUT: Duration = Duration::from_secs(3_600);
/// An entry node that takes what it is told never has so many Dispatches unconfirmed: it confirms
/// several at once, and has one and those of agents that moved here, one for each node.
const MAX_UNCONFIRMED: usize = 256;

/// The largest frame of an entry node: a command for as many agents as one Dispatch may name.
const MAX_DISPATCH: usize = MAX_COMMAND + (1 << 20);
/// What a frame that has not come as a whole may have though there is no room for commands: as many
/// agents as one Dispatch may name, with a UUID each. A session whose command runs must not end
/// because others have large ones.
const FREE: usize = 80 << 10;

/// Another stream for a session, whose entry node has had so many frames.
pub(super) struct Attach {
    pub(super) channel: Channel,
    pub(super) received: u64,
}

/// See the module.
pub(super) struct Serving<'a> {
    entered: &'a Entered,
    _ticket: Ticket,
    deadline: Instant,
    log: Log,
    work: Option<Work>,
    dispatches: u64,
    /// When the session ends if nothing happens.
    until: Option<Instant>,
}

/// The command and its answers.
struct Work {
    frame: Bytes,
    command_id: Bytes,
    fanout: Arc<Fanout>,
    /// Its end was said.
    has_ended: bool,
    body: FanoutBody,
    /// The command's, while it is kept here for agents that are still to come.
    _room: Share,
}

enum Event {
    Frame(Result<Option<Bytes>, Lost>),
    Answers(Result<Bytes, Status>),
    Attached(Attach),
    TimeOver,
}

/// The session is over.
enum Over {
    /// The entry node has ended it.
    Left,
    /// Its time is over.
    Expired,
    Refused(Reason),
}

impl<'a> Serving<'a> {
    /// # Errors
    /// The node is stopping, or the marker makes no sense.
    pub(super) fn new(entered: &'a Entered, marker: &ForwardOpen) -> Result<Self, Reason> {
        let served = entered.served();
        let ticket = served.router.begin().map_err(|_| Reason::Stopping)?;
        let time = Duration::from_millis(marker.timeout_ms.into()).min(MAX_TIMEOUT);
        let now = Instant::now();
        Ok(Self {
            entered,
            _ticket: ticket,
            deadline: now + time,
            log: Log::new(&served.kept),
            work: None,
            dispatches: 0,
            until: Some(now + served.bounds().idle_close),
        })
    }

    fn served(&self) -> &Arc<Served> {
        self.entered.served()
    }

    /// Serves to the end.
    pub(super) async fn run(mut self, mut channel: Channel, mut attached: mpsc::Receiver<Attach>) {
        self.take_commands(&mut channel);
        let mut channel = Some(channel);
        loop {
            // A peer that speaks without end does not keep its thread from others.
            consume_budget().await;
            let event = self.next(&mut channel, &mut attached).await;
            let over = match self.heed(event, &mut channel).await {
                Ok(()) => continue,
                Err(over) => over,
            };
            match (over, channel) {
                (Over::Refused(reason), Some(channel)) => {
                    // The correlation goes first.
                    let served = Arc::clone(self.served());
                    drop(self);
                    served.refuse(channel, reason).await;
                }
                // Nobody wants what is still on its way.
                (Over::Left | Over::Expired, Some(channel)) => channel.sink.abandon(),
                _ => {}
            }
            return;
        }
    }

    /// Commands may come over the stream.
    fn take_commands(&self, channel: &mut Channel) {
        channel.source.limit(MAX_DISPATCH);
        channel.source.share(&self.served().commands, FREE);
    }

    /// When the session ends whatever happens: nobody can want it any more.
    fn last(&self) -> Instant {
        self.deadline + LINGER + self.served().bounds().resume_grace
    }

    async fn next(
        &mut self,
        channel: &mut Option<Channel>,
        attached: &mut mpsc::Receiver<Attach>,
    ) -> Event {
        let last = self.last();
        let until = self.until.map_or(last, |until| until.min(last));
        let most = self.served().bounds().max_inflight_bytes;
        let speaks = channel.is_some() && self.log.has_room(most);
        let work = self.work.as_mut().filter(|work| speaks && !work.has_ended);
        let answers = async {
            match work {
                Some(work) => work.body.next().await,
                None => std::future::pending().await,
            }
        };
        let frame = async {
            match channel {
                Some(channel) => channel.source.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            frame = frame => Event::Frame(frame),
            answers = answers => Event::Answers(answers),
            Some(attach) = attached.recv() => Event::Attached(attach),
            () = sleep_until(until) => Event::TimeOver,
        }
    }

    async fn heed(&mut self, event: Event, channel: &mut Option<Channel>) -> Result<(), Over> {
        match event {
            Event::Frame(Ok(Some(message))) => {
                let heard = self.hear(message).await;
                if let Some(frame) = heard.map_err(Over::Refused)? {
                    self.say(frame, channel);
                }
                Ok(())
            }
            // The caller left, or has all: a clean close.
            Event::Frame(Ok(None)) => Err(Over::Left),
            Event::TimeOver => Err(Over::Expired),
            Event::Frame(Err(Lost::NoMessage)) => Err(Over::Refused(Reason::Malformed)),
            Event::Frame(Err(Lost::NoRoom)) => Err(Over::Refused(Reason::Limit)),
            Event::Frame(Err(_)) => {
                *channel = None;
                self.cut_off(true);
                self.until = Some(Instant::now() + self.served().bounds().resume_grace);
                Ok(())
            }
            Event::Answers(Ok(entries)) => {
                self.say(encode_answers(&entries), channel);
                Ok(())
            }
            Event::Answers(Err(status)) => {
                let code = status.code() as u32;
                self.say(encode(Kind::End(ForwardEnd { code })), channel);
                self.work.iter_mut().for_each(|work| work.has_ended = true);
                self.until = Some(Instant::now() + self.served().bounds().resume_grace);
                Ok(())
            }
            Event::Attached(attach) => self.attach(attach, channel),
        }
    }

    /// Whether answers have no way to the entry node, which is not the caller's fault.
    fn cut_off(&self, is_cut_off: bool) {
        if let Some(work) = &self.work {
            work.fanout.cut_off(is_cut_off);
        }
    }

    /// Keeps a frame until the entry node has it.
    fn say(&mut self, frame: Bytes, channel: &Option<Channel>) {
        let frame = self.log.push(frame);
        if let Some(channel) = channel {
            self.log.handed();
            channel.sink.push(frame);
        }
    }

    /// Goes on over another stream: the older one is broken, though this side may not know it yet.
    fn attach(&mut self, attach: Attach, channel: &mut Option<Channel>) -> Result<(), Over> {
        let Attach {
            channel: next,
            received,
        } = attach;
        let known = self.log.confirm(received);
        if let Some(older) = channel.take() {
            // What is on its way over it goes over the other one.
            older.sink.abandon();
        }
        let next = channel.insert(next);
        self.take_commands(next);
        known.map_err(|_| Over::Refused(Reason::Malformed))?;
        let dispatches = self.dispatches;
        next.sink
            .push(encode(Kind::Resumed(ForwardResumed { dispatches })));
        self.log
            .rest()
            .for_each(|frame| next.sink.push(frame.clone()));
        self.log.handed();
        self.cut_off(false);
        let is_idle = self.work.as_ref().is_none_or(|work| work.has_ended);
        let idle = self.served().bounds().idle_close;
        self.until = is_idle.then(|| Instant::now() + idle);
        Ok(())
    }

    /// Does what the entry node says; what is to be said of it.
    async fn hear(&mut self, message: Bytes) -> Result<Option<Bytes>, Reason> {
        match decode_of_entry(message, MAX_TARGETS) {
            Some(Kind::Dispatch(dispatch)) => {
                if self.log.unconfirmed() >= MAX_UNCONFIRMED {
                    return Err(Reason::Malformed);
                }
                let written = self.dispatch(dispatch).await?;
                self.log.written();
                Ok(Some(encode(Kind::Written(written))))
            }
            Some(Kind::Received(received)) => {
                let confirmed = self.log.confirm(received.count);
                confirmed.map_err(|_| Reason::Malformed)?;
                Ok(None)
            }
            Some(Kind::Open(_)) => Err(Reason::SecondMarker),
            _ => Err(Reason::Malformed),
        }
    }

    /// Puts the command into the mailboxes of the agents that this node holds.
    async fn dispatch(&mut self, dispatch: ForwardDispatch) -> Result<ForwardWritten, Reason> {
        let served = Arc::clone(self.served());
        let router = &served.router;
        match (&self.work, &dispatch.command) {
            (None, Some(command)) => {
                self.work = Some(self.begin(command)?);
                self.until = None;
            }
            (Some(_), None) => {}
            (None, None) | (Some(_), Some(_)) => return Err(Reason::Malformed),
        }
        let Some(work) = &self.work else {
            return Err(Reason::Malformed);
        };
        self.dispatches += 1;
        let sessions = route(&served, &dispatch.agent_ids).await;
        let targets = sessions.iter().flatten().count();
        let first = work.fanout.add(targets);
        let Work {
            fanout,
            command_id,
            frame,
            ..
        } = work;
        let (mut moved, mut sent, mut target) = (Vec::new(), 0, first);
        for (turn, sessions) in sessions.chunks(TURN).enumerate() {
            if turn > 0 {
                tokio::task::yield_now().await;
            }
            let mut round = router.local.round(fanout, command_id, frame);
            for (position, session) in (turn * TURN..).zip(sessions) {
                let Some(session) = session else {
                    moved.push(position as u32);
                    continue;
                };
                fanout.expect([target]);
                let dispatched = round.dispatch(target, session);
                target += 1;
                match dispatched {
                    Dispatched::Yes => sent += 1,
                    Dispatched::Ended => moved.push(position as u32),
                    Dispatched::Full => {}
                }
            }
        }
        work.fanout.metrics().dispatched().inc_by(sent as u64);
        router.observe(targets, sent, 0);
        Ok(ForwardWritten { moved })
    }

    fn begin(&self, command: &Bytes) -> Result<Work, Reason> {
        if command.len() > MAX_COMMAND {
            return Err(Reason::Malformed);
        }
        let peek = CommandRequestPeek::peek(command).map_err(|_| Reason::Malformed)?;
        let text = |bytes| str::from_utf8(bytes).map_err(|_| Reason::Malformed);
        let (id, plugin) = (text(peek.command_id)?, text(peek.plugin)?);
        let mut room = self.served().commands.share();
        if !room.resize(command.len()) {
            return Err(Reason::Limit);
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        let router = &self.served().router;
        let fanout = router.fan_out(0, id.to_owned(), plugin, left);
        Ok(Work {
            frame: grpc::frame(command),
            command_id: Bytes::copy_from_slice(id.as_bytes()),
            body: FanoutBody::new(Arc::clone(&fanout)),
            fanout,
            has_ended: false,
            _room: room,
        })
    }
}

type Sessions = Vec<Option<Arc<Session>>>;

/// The sessions of these agents on this node and nowhere else (FWD-1).
async fn route(served: &Served, agent_ids: &[String]) -> Sessions {
    let mut sessions = Vec::with_capacity(agent_ids.len());
    for (position, agent_id) in agent_ids.iter().enumerate() {
        take_turns(position).await;
        let session = served.registry.route(agent_id);
        let session = session.filter(|own| !served.is_elsewhere(agent_id, own.epoch));
        sessions.push(session);
    }
    sessions
}
