//! One SendCommand at the entry node: the sessions to the nodes that hold its targets.
//!
//! Responsible for carrying out what [`Outstanding`] says and for telling it what comes. One task
//! for each call, which ends with it. Must never decide how a target ends.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, Sleep, sleep_until};
use tracing::debug;
use yuzu_proto::node::v1::ForwardOpen;
use yuzu_proto::node::v1::forward_refused::Reason;
use yuzu_proto::wire::GRPC_PREFIX;

use super::super::drop_in_turns;
use super::super::entries::NoAnswer;
use super::super::fanout::Feed;
use super::super::local::{Dispatched, Local};
use super::answers::answers;
use super::frames::{Kind, VERSION, decode_of_owner};
use super::lane::{Event, Lane, Opening};
use super::ledger::Limit;
use super::outstanding::{
    Action, Ended, Foreign, MAX_TARGETS, Outstanding, Place, SessionId, Slot, Times,
};
use super::{Forwarded, Forwarder};
use crate::cluster::Lost;
use crate::observe::log::safe_text;

/// Targets taken in, or ended, before other tasks get a turn.
const TURN: usize = MAX_TARGETS;
/// When nothing is due.
const NEVER: Duration = Duration::from_secs(24 * 3_600);

/// See the module.
pub(super) struct Call {
    forwarder: Arc<Forwarder>,
    local: Arc<Local>,
    feed: Feed,
    /// Of the call, in this node's life.
    number: u64,
    /// Targets that are still to be taken in.
    coming: std::vec::IntoIter<(u32, Arc<str>, Place)>,
    /// Which target of the fan-out each slot is.
    indexes: Vec<u32>,
    core: Outstanding,
    /// Still to be carried out.
    actions: VecDeque<Action>,
    lanes: Vec<Lane>,
    command: Forwarded,
    /// The lane that is looked at first.
    turn: usize,
}

/// What the task waits for.
enum Next {
    /// Nothing is wanted any more.
    Over,
    Due,
    On(SessionId, Event),
    /// More targets.
    More,
    /// The caller has taken what held a session back.
    GoOn(SessionId),
    /// The caller has all that came.
    Delivered,
}

impl Call {
    pub(super) fn new(
        forwarder: &Arc<Forwarder>,
        local: &Arc<Local>,
        feed: Feed,
        number: u64,
        targets: Vec<(u32, Arc<str>, Place)>,
        command: Forwarded,
    ) -> Self {
        let bounds = forwarder.routing.load_full();
        let times = Times {
            connect: bounds.connect_timeout,
            forward: bounds.forward_timeout,
            idle: bounds.idle_close,
            grace: bounds.resume_grace,
        };
        Self {
            forwarder: Arc::clone(forwarder),
            local: Arc::clone(local),
            feed,
            number,
            indexes: Vec::with_capacity(targets.len()),
            coming: targets.into_iter(),
            core: Outstanding::new(times),
            actions: VecDeque::new(),
            lanes: Vec::new(),
            command,
            turn: 0,
        }
    }

    /// Begins, and runs until every target has ended and the caller has what came, or has gone.
    pub(super) fn start(mut self) {
        // What can be sent is sent before anything else has its turn, unless it is very much.
        self.take_in();
        self.act_some();
        tokio::spawn(self.run());
    }

    async fn run(mut self) {
        let mut alarm = pin!(sleep_until(Instant::now() + NEVER));
        self.act().await;
        while !self.is_over() {
            let due = self.core.due();
            alarm
                .as_mut()
                .reset(due.unwrap_or_else(|| Instant::now() + NEVER));
            let next = std::future::poll_fn(|cx| self.poll_next(cx, alarm.as_mut())).await;
            match next {
                Next::Over => break,
                Next::Due => self.tick(),
                Next::On(id, Event::Opened) => self.opened(id),
                Next::On(id, Event::Frame(frame)) => self.take(id, frame),
                Next::GoOn(id) => self.core.hold_back(id, false, Instant::now()),
                Next::More | Next::Delivered => {}
            }
            if self.coming.len() > 0 {
                self.take_in();
                tokio::task::yield_now().await;
            }
            self.act().await;
            // Many answers must not keep its thread from other calls.
            tokio::task::coop::consume_budget().await;
        }
        // One that left before owners had to say how the call ended blames none of them.
        if self.feed.is_late() {
            self.give_up().await;
        }
        // The caller left, or nothing more can come: the owners forget it (FWD-8).
        self.lanes.iter_mut().for_each(Lane::close);
        let Self {
            core, coming, feed, ..
        } = self;
        drop(feed);
        drop_in_turns(core.into_agents()).await;
        drop_in_turns(coming).await;
    }

    /// A time has passed.
    fn tick(&mut self) {
        let now = Instant::now();
        let forwarder = &self.forwarder;
        self.core.seek(|agent| forwarder.look(agent), now);
        self.core.tick(now);
    }

    /// Nobody is told any more how the targets that are left end, but it is counted.
    async fn give_up(&mut self) {
        let never_sent = self.coming.len() as u64;
        self.count(Ended::NotConnected, never_sent);
        self.core.give_up();
        self.act().await;
    }

    fn is_over(&self) -> bool {
        let is_done = self.coming.len() == 0 && self.core.is_done();
        is_done && self.lanes.iter().all(Lane::is_delivered)
    }

    /// Takes some targets in.
    fn take_in(&mut self) {
        let Self {
            coming,
            indexes,
            core,
            ..
        } = self;
        let some = coming.take(TURN).map(|(index, agent, place)| {
            indexes.push(index);
            (agent, place)
        });
        core.add(some, Instant::now());
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, alarm: Pin<&mut Sleep>) -> Poll<Next> {
        if self.feed.poll_over(cx).is_ready() {
            return Poll::Ready(Next::Over);
        }
        for (id, lane) in self.lanes.iter_mut().enumerate() {
            if lane.deliver(id, &self.feed, cx) {
                cx.waker().wake_by_ref();
            }
        }
        if self.is_over() {
            return Poll::Ready(Next::Delivered);
        }
        for (id, lane) in self.lanes.iter().enumerate() {
            if self.core.is_held_back(id) && !lane.is_behind() {
                return Poll::Ready(Next::GoOn(id));
            }
        }
        let lanes = self.lanes.len();
        for step in 0..lanes {
            let id = (self.turn + step) % lanes;
            if let Poll::Ready(event) = self.lanes[id].poll(cx) {
                self.turn = id + 1;
                return Poll::Ready(Next::On(id, event));
            }
        }
        if self.coming.len() > 0 {
            return Poll::Ready(Next::More);
        }
        alarm.poll(cx).map(|()| Next::Due)
    }

    /// Does what is to be done, in turns with other work.
    async fn act(&mut self) {
        while !self.act_some() {
            tokio::task::yield_now().await;
        }
    }

    /// Does as much of it as one turn allows. True: that was all.
    fn act_some(&mut self) -> bool {
        let mut done = 0;
        while done < TURN {
            if self.actions.is_empty() {
                self.actions.extend(self.core.take_actions());
            }
            let Some(action) = self.actions.pop_front() else {
                return true;
            };
            done += match &action {
                Action::Dispatch(_, slots) => slots.len(),
                _ => 1,
            };
            self.carry_out(action);
        }
        false
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Open(id, owner) => self.open(id, owner),
            Action::Dispatch(id, slots) => self.dispatch(id, &slots),
            Action::Resume(id) => {
                let opening = self.channel_to(id);
                self.lanes[id].open(opening);
            }
            Action::NotResumed(_) => self.count_resume("lost"),
            Action::Unreachable(id) => self.refused_by(id),
            Action::Close(id) => self.lanes[id].close(),
            Action::Here(slot) => self.here(slot),
            Action::Settle(slot, ended) => self.settle(slot, ended),
        }
    }

    fn open(&mut self, id: SessionId, owner: Arc<str>) {
        let forwarder = Arc::clone(&self.forwarder);
        let number = forwarder.sessions.fetch_add(1, Ordering::Relaxed);
        let bytes_out = forwarder.metrics.forward_bytes_out_total.clone();
        debug_assert_eq!(id, self.lanes.len());
        self.lanes
            .push(Lane::new(Arc::clone(&owner), number, bytes_out));
        let now = Instant::now();
        if forwarder.ledger.fails_fast(&owner, now) {
            return self.core.refused(id, Ended::NotConnected);
        }
        match forwarder.ledger.seat(&owner, &forwarder.routing.load()) {
            Ok(seat) => {
                self.lanes[id].seated(seat);
                match forwarder.channels.try_open(&owner) {
                    Some(channel) => {
                        self.lanes[id].connect(channel);
                        self.core.opened(id, now);
                    }
                    None => {
                        let opening = self.channel_to(id);
                        self.lanes[id].open(opening);
                    }
                }
            }
            Err(_) => self.core.refused(id, Ended::Rejected),
        }
    }

    fn channel_to(&self, id: SessionId) -> Opening {
        let channels = Arc::clone(&self.forwarder.channels);
        Box::pin(channels.open(Arc::clone(&self.lanes[id].owner)))
    }

    fn opened(&mut self, id: SessionId) {
        if self.core.is_resuming(id) {
            self.lanes[id].resume();
        } else {
            self.core.opened(id, Instant::now());
        }
    }

    fn dispatch(&mut self, id: SessionId, slots: &[Slot]) {
        let now = Instant::now();
        // Nothing is sent for a caller whose time is over.
        let Some(timeout_ms) = self.command.left_ms(now) else {
            return self
                .core
                .not_dispatched(id, slots, Ended::NotConnected, now);
        };
        let forwarder = &self.forwarder;
        let lane = &mut self.lanes[id];
        let agents = slots.iter().map(|slot| self.core.agent(*slot).to_string());
        let command = self.command.frame.slice(GRPC_PREFIX..);
        let frame = lane.next_dispatch(&command, agents.collect());
        let load = forwarder
            .ledger
            .load(frame.len(), &forwarder.routing.load());
        let Ok(load) = load else {
            return self.core.not_dispatched(id, slots, Ended::Rejected, now);
        };
        let marker = ForwardOpen {
            version: VERSION,
            origin: forwarder.channels.own().to_string(),
            hop: 1,
            identity: self.command.caller.clone(),
            call: self.number,
            session: lane.number,
            timeout_ms,
        };
        lane.dispatch(frame, load, marker);
    }

    fn refused_by(&self, id: SessionId) {
        let owner = &self.lanes[id].owner;
        self.forwarder.ledger.refused(owner, Instant::now());
    }

    fn count_resume(&self, outcome: &str) {
        let family = &self.forwarder.metrics.forward_resumes_total;
        family.with_label_values(&[outcome]).inc();
    }

    /// The agent has come to this node since.
    fn here(&mut self, slot: Slot) {
        let target = self.indexes[slot];
        let session = self.forwarder.registry.route(self.core.agent(slot));
        let is_wanted = self.command.left_ms(Instant::now()).is_some();
        let session = session.filter(|_| is_wanted);
        let dispatched = session.map(|session| {
            let Forwarded {
                command_id, frame, ..
            } = &self.command;
            let fanout = self.feed.fanout();
            fanout.expect([target]);
            (self.local.round(fanout, command_id, frame)).dispatch(target, &session)
        });
        let ended = match dispatched {
            Some(Dispatched::Yes) => {
                self.feed.fanout().metrics().dispatched().inc();
                Ended::Answered
            }
            Some(Dispatched::Full) => Ended::Answered,
            Some(Dispatched::Ended) | None => {
                let agent = self.core.agent(slot);
                self.feed.refuse(target, agent, NoAnswer::NotConnected);
                Ended::Moved
            }
        };
        // As of any owner: what becomes of it here is counted elsewhere.
        self.count(ended, 1);
    }

    fn settle(&mut self, slot: Slot, ended: Ended) {
        self.count(ended, 1);
        let entry = match ended {
            Ended::Answered => return,
            Ended::NotConnected | Ended::Rejected | Ended::Moved => NoAnswer::NotConnected,
            Ended::OutcomeUnknown => NoAnswer::OutcomeUnknown,
            Ended::AgentDisconnected => NoAnswer::AgentDisconnected,
        };
        let lane = self.core.session_of(slot);
        let agent = Arc::clone(self.core.agent(slot));
        self.lanes[lane].entry(self.indexes[slot], agent, entry);
    }

    fn count(&self, ended: Ended, targets: u64) {
        let family = &self.forwarder.metrics.forward_requests_total;
        family.with_label_values(&[ended.label()]).inc_by(targets);
    }

    /// Something came over a session.
    fn take(&mut self, id: SessionId, frame: Result<Option<Bytes>, Lost>) {
        let now = Instant::now();
        let resuming = self.core.is_resuming(id);
        match frame {
            Ok(Some(message)) => {
                let bytes_in = &self.forwarder.metrics.forward_bytes_in_total;
                let bytes = GRPC_PREFIX + message.len();
                bytes_in.inc_by(bytes as u64);
                let taken = decode_of_owner(message).ok_or(Foreign);
                if taken
                    .and_then(|kind| self.heed(id, kind, bytes, now))
                    .is_err()
                {
                    debug!(node = %safe_text(&*self.lanes[id].owner), "a forwarded session made no sense");
                    self.core.lost(id);
                }
                return;
            }
            Err(Lost::NotServed) if resuming => self.core.not_resumed(id),
            Err(Lost::NotServed) => {
                self.refused_by(id);
                self.core.refused(id, Ended::NotConnected);
            }
            Err(Lost::NotSent) if !resuming => self.core.refused(id, Ended::NotConnected),
            // The same would come again.
            Err(Lost::NoMessage | Lost::NoRoom) => self.core.lost(id),
            Ok(None) if !resuming => self.core.lost(id),
            Ok(None) | Err(Lost::Broken | Lost::NotSent) => self.core.broken(id, now),
        }
        self.lanes[id].hang_up();
    }

    /// The owner says something, in a frame of so many bytes.
    fn heed(
        &mut self,
        id: SessionId,
        kind: Kind,
        bytes: usize,
        now: Instant,
    ) -> Result<(), Foreign> {
        let lane = &mut self.lanes[id];
        match kind {
            Kind::Written(written) => {
                lane.received += 1;
                lane.frame(bytes);
                lane.unload();
                if lane.is_behind() {
                    self.core.hold_back(id, true, now);
                }
                let look = |agent: &str| self.forwarder.look(agent);
                self.core.written(id, &written.moved, look, now)
            }
            Kind::Answers(came) => {
                lane.received += 1;
                if came.entries.is_empty() || !lane.has_room() {
                    return Err(Foreign);
                }
                let answers = answers(&came.entries).ok_or(Foreign)?;
                self.core.answered(id, &answers, now)?;
                let load = self.forwarder.ledger.hold(came.entries.len());
                lane.answers(came.entries, load, bytes);
                if let Some(sent) = lane.sent.take() {
                    let ms = (now - sent).as_secs_f64() * 1_000.0;
                    self.forwarder.metrics.forward_first_frame_ms.observe(ms);
                }
                Ok(())
            }
            Kind::End(end) => {
                // Whether the caller reads is judged here. What an owner has dropped because it was
                // not taken in time is lost, and nothing else is (FWD-6).
                match end.code == tonic::Code::ResourceExhausted as u32 {
                    true => self.core.lost(id),
                    false => self.core.ended(id),
                }
                Ok(())
            }
            Kind::Resumed(resumed) => {
                let missed = self.core.resumed(id, resumed.dispatches, now)?;
                lane.resumed(resumed.dispatches, missed);
                self.count_resume("resumed");
                Ok(())
            }
            Kind::Refused(refused) => {
                self.refused(id, refused.reason());
                Ok(())
            }
            // What only an entry node says.
            Kind::Open(_) | Kind::Resume(_) | Kind::Dispatch(_) | Kind::Received(_) => Err(Foreign),
        }
    }

    fn refused(&mut self, id: SessionId, reason: Reason) {
        let mut unsent = Ended::NotConnected;
        match reason {
            Reason::UnknownSession => return self.core.not_resumed(id),
            Reason::Limit => {
                unsent = Ended::Rejected;
                self.forwarder.ledger.reached(Limit::Owner);
                self.refused_by(id);
            }
            Reason::Stopping | Reason::Version => self.refused_by(id),
            _ => {}
        }
        self.core.refused(id, unsent);
    }
}
