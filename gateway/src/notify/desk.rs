//! Every notice of the node and what becomes of it: the store, the set of unacknowledged ones,
//! the slots, and the planned stop (NOTIFY-*, UNACK-*, STOP-6).
//!
//! Pure: time, chance and what the registry knows come in, facts to count come out. Every notice
//! that came in is held, waits, is in flight, or has left with the server's acknowledgement or
//! with one of the facts [`Fact::Coalesced`], [`Fact::Dropped`], [`Fact::Lost`], [`Fact::Ended`].
//! Must never send, wait or count.

use tokio::time::Instant;

use super::high_water::HighWater;
use super::notice::{Event, Notice, NoticeKey};
use super::pause::Pause;
use super::store::{Landed, Offered, Store};
use super::unacked::{Refused, Unacked, Wait};
use crate::config;
use crate::upstream::NOTICES_IN_FLIGHT;

/// Resends in flight at most (UNACK-4).
const RESENDS_IN_FLIGHT: usize = 5;
/// Sends out at once during a planned stop (STOP-6).
const FINAL_WIDTH: usize = 64;

/// How far a planned stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Notices wait for the breaker and for one of the ten slots, of 64 once a stop has begun.
    Normal,
    /// The final send: wide, whatever the breaker says; what was sent is not retried (STOP-6).
    Final,
    /// Nothing is sent any more.
    Over,
}

/// Why a notice is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Gave way to a DISCONNECTED in a full store (NOTIFY-13).
    Evicted,
    /// Refused by a full store (NOTIFY-13).
    AtCapacity,
    /// The server, or the encoder, found fault with this very notice (NOTIFY-11).
    Rejected,
    /// Its send ended without a result (NOTIFY-11).
    Crashed,
    /// A planned stop left it.
    Shutdown,
    /// The server did not record it, and it is not sent again.
    Unacknowledged,
}

impl Loss {
    /// Value of the metric label `reason`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Loss::Evicted => "evicted",
            Loss::AtCapacity => "at_capacity",
            Loss::Rejected => "rejected",
            Loss::Crashed => "crashed",
            Loss::Shutdown => "shutdown",
            Loss::Unacknowledged => "unacknowledged",
        }
    }
}

/// How the story of a notice that the server did not record ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// A newer notice of its key took over, or is about to (UNACK-5, OWNER-5).
    Superseded,
    /// A resend was recorded.
    Acknowledged,
    /// A CONNECTED whose session is over (UNACK-6).
    SessionEnded,
    /// A DISCONNECTED that was refused for too long (UNACK-8).
    WindowExpired,
    /// A planned stop (UNACK-9).
    Shutdown,
    /// Lost in another way.
    Lost,
}

impl End {
    /// Value of the metric label `outcome`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            End::Superseded => "superseded",
            End::Acknowledged => "acknowledged",
            End::SessionEnded => "session_ended",
            End::WindowExpired => "window_expired",
            End::Shutdown => "shutdown",
            End::Lost => "lost",
        }
    }
}

/// Something to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fact {
    /// Replaced by a newer notice of its key before it was sent (again).
    Coalesced,
    /// Held again after a failed send.
    Requeued,
    /// Refused at admission; its [`Fact::Lost`] comes with it.
    Dropped,
    /// Lost for good.
    Lost(Event, Loss),
    /// Not recorded; it is sent again.
    Again(Wait),
    /// Not recorded, now or before, and not sent again.
    Ended(End),
}

/// How a send ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Recorded by the server.
    Acknowledged,
    /// Answered, but not recorded (UNACK-1).
    Unacknowledged,
    /// It may be sent again.
    Failed,
    /// The connection had no stream for it: nothing was sent (PERMIT-11).
    NoStream,
    /// It is of no use to send it again.
    Lost(Loss),
}

/// The pure core.
pub(crate) struct Desk {
    store: Store,
    unacked: Unacked,
    stage: Stage,
    /// A planned stop has begun.
    stopping: bool,
    pause: Pause,
    /// A CONNECTED was lost since the last full replay (NOTIFY-14).
    replay_armed: bool,
    high_water: HighWater,
    sent: usize,
    unsent: usize,
}

impl Desk {
    /// Nothing held.
    pub(crate) fn new(config: &config::Notify, now: Instant) -> Self {
        Self {
            store: Store::new(config.pending_max),
            unacked: Unacked::new(config),
            stage: Stage::Normal,
            stopping: false,
            pause: Pause::new(),
            replay_armed: false,
            high_water: HighWater::new(now),
            sent: 0,
            unsent: 0,
        }
    }

    /// Puts another configuration in force; the cap then in force.
    pub(crate) fn limit(&mut self, config: &config::Notify) -> usize {
        self.store.limit(config.pending_max);
        self.unacked.limit(config);
        self.store.cap()
    }

    /// Makes room for the notices of a planned stop (STOP-2), which are sent wide as soon as they
    /// come; the cap then in force.
    pub(crate) fn prepare_stop(&mut self, more: usize) -> usize {
        self.stopping = true;
        self.store.raise_cap(more);
        self.store.cap()
    }

    /// Notices held.
    pub(crate) fn held(&self) -> usize {
        self.store.held()
    }

    /// Notices in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.store.in_flight()
    }

    /// The most that were held over the last one to two minutes.
    pub(crate) fn high_water(&self) -> usize {
        self.high_water.most()
    }

    /// Notices that the server did not record, those whose resend is in flight included.
    pub(crate) fn unacked(&self) -> usize {
        self.unacked.len()
    }

    /// Those of them in the slow phase.
    pub(crate) fn unacked_slow(&self) -> usize {
        self.unacked.slow()
    }

    /// How far a planned stop has come.
    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether the final send has nothing left to do.
    pub(crate) fn is_drained(&self) -> bool {
        self.stage == Stage::Final && self.held() + self.in_flight() == 0
    }

    /// Takes a notice in, or refuses it (NOTIFY-3, NOTIFY-12, NOTIFY-13). An unacknowledged one
    /// of its key that waits is given up for it (UNACK-5).
    pub(crate) fn offer(&mut self, notice: Notice, now: Instant) -> Vec<Fact> {
        let event = notice.event;
        let mut facts = Vec::new();
        if self.stage == Stage::Over {
            self.lose(event, Loss::Shutdown, &mut facts);
            return facts;
        }
        if self.unacked.end_waiting(&notice.key()) {
            facts.push(Fact::Ended(End::Superseded));
        }
        match self.store.offer(notice) {
            Offered::Held => {}
            Offered::Coalesced => facts.push(Fact::Coalesced),
            Offered::Evicted(evicted) => self.lose(evicted.event, Loss::Evicted, &mut facts),
            Offered::Refused => {
                facts.push(Fact::Dropped);
                self.lose(event, Loss::AtCapacity, &mut facts);
            }
        }
        self.level(now);
        facts
    }

    /// Whether a slot is free, something may be there for it, and the lane does not pause
    /// (PERMIT-11).
    pub(crate) fn may_start(&self, now: Instant) -> bool {
        let width = match self.stage {
            Stage::Normal if !self.stopping => NOTICES_IN_FLIGHT,
            Stage::Normal | Stage::Final => FINAL_WIDTH,
            Stage::Over => return false,
        };
        let free = self.in_flight() < width && !self.pause.is_on(now);
        free && (self.held() > 0 || self.may_resend(now))
    }

    /// The notice to send now: a held one, else an unacknowledged one that is due (UNACK-4). It
    /// is in flight until [`Desk::land`]. `is_held` knows whether the session of a key still is.
    pub(crate) fn start(
        &mut self,
        now: Instant,
        is_held: impl Fn(&NoticeKey) -> bool,
    ) -> (Option<Notice>, Vec<Fact>) {
        if !self.may_start(now) {
            return (None, Vec::new());
        }
        if let Some(notice) = self.store.take() {
            self.level(now);
            return (Some(notice), Vec::new());
        }
        if !self.may_resend(now) {
            return (None, Vec::new());
        }
        let (notice, ended) = self.unacked.take(now, is_held);
        if let Some(notice) = &notice {
            self.store.resend(notice);
        }
        (notice, vec![Fact::Ended(End::SessionEnded); ended])
    }

    /// A send of `notice` ended. `chance` is a random number in `0.0..=1.0`.
    pub(crate) fn land(
        &mut self,
        notice: Notice,
        sent: Sent,
        now: Instant,
        chance: f64,
    ) -> Vec<Fact> {
        let mut facts = Vec::new();
        // What was in flight then is counted already.
        if self.stage == Stage::Over {
            return facts;
        }
        let (key, event) = (notice.key(), notice.event);
        let resend = self.unacked.is_out(&key);
        let Landed { newer, place } = self.store.land(&key);
        let last = self.stage == Stage::Final;
        match sent {
            Sent::NoStream => self.pause.found_no_stream(now),
            _ => self.pause.found_a_stream(),
        }
        match sent {
            Sent::Failed if last && !newer => {
                self.lose(event, Loss::Shutdown, &mut facts);
                self.end(&key, End::Shutdown, &mut facts);
            }
            Sent::Failed | Sent::NoStream if newer => {
                if !self.end(&key, End::Superseded, &mut facts) {
                    facts.push(Fact::Coalesced);
                }
            }
            // It was not sent, so this retries nothing. A resend goes on as a held one.
            Sent::NoStream if last => {
                self.end(&key, End::Shutdown, &mut facts);
                facts.push(Fact::Requeued);
                self.store.requeue(notice, place);
            }
            Sent::Failed | Sent::NoStream => {
                facts.push(Fact::Requeued);
                if resend {
                    self.unacked.put_back(&key);
                } else {
                    self.store.requeue(notice, place);
                }
            }
            Sent::Unacknowledged if newer => {
                self.unacked.end(&key);
                facts.push(Fact::Ended(End::Superseded));
            }
            Sent::Unacknowledged if last => {
                self.unacked.end(&key);
                self.lose(event, Loss::Unacknowledged, &mut facts);
                facts.push(Fact::Ended(End::Lost));
            }
            Sent::Unacknowledged => self.refused(notice, now, chance, &mut facts),
            Sent::Lost(loss) => {
                self.lose(event, loss, &mut facts);
                self.end(&key, End::Lost, &mut facts);
            }
            Sent::Acknowledged => {
                self.sent += usize::from(last);
                if self.end(&key, End::Acknowledged, &mut facts) {
                    self.unacked.hasten(now);
                }
            }
        }
        self.level(now);
        facts
    }

    /// Lets time pass: windows end, the high-water mark sinks. Called after [`Desk::start`] had
    /// its turn, because a last resend is due when its window ends.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Fact> {
        let mut facts = Vec::new();
        for _ in 0..self.unacked.expire(now) {
            self.lose(Event::Disconnected, Loss::Unacknowledged, &mut facts);
            facts.push(Fact::Ended(End::WindowExpired));
        }
        self.high_water.tick(now);
        facts
    }

    /// When to call [`Desk::start`] and [`Desk::tick`] again with nothing else happening, if both
    /// had their turn at `now`.
    pub(crate) fn next_time(&self, now: Instant) -> Option<Instant> {
        let due = self.unacked.next_time(now);
        let pause = self.pause.next_time(now);
        let times = due.into_iter().chain(pause);
        times.chain(self.high_water.next_time()).min()
    }

    /// Gives up a waiting resend of `key` (OWNER-5). Whether no notice of the key is left.
    pub(crate) fn settle(&mut self, key: &NoticeKey) -> (bool, Vec<Fact>) {
        let mut facts = Vec::new();
        if self.unacked.end_waiting(key) {
            facts.push(Fact::Ended(End::Superseded));
        }
        (!self.store.contains(key), facts)
    }

    /// Whether the full replay that a lost CONNECTED asks for is due, `closed` being the breaker:
    /// once per time that it is armed (NOTIFY-14).
    pub(crate) fn take_due_replay(&mut self, closed: bool) -> bool {
        let room = self.store.load() < self.store.cap() / 2;
        let due = self.replay_armed && closed && room && self.stage == Stage::Normal;
        self.replay_armed &= !due;
        due
    }

    /// Begins the final send of a planned stop: a waiting CONNECTED is lost, a waiting
    /// DISCONNECTED joins it (UNACK-9).
    pub(crate) fn begin_final_send(&mut self, now: Instant) -> Vec<Fact> {
        let mut facts = Vec::new();
        if self.stage == Stage::Normal {
            self.stage = Stage::Final;
            for notice in self.unacked.end_all_waiting() {
                facts.push(Fact::Ended(End::Shutdown));
                match notice.event {
                    Event::Connected => self.lose(notice.event, Loss::Shutdown, &mut facts),
                    Event::Disconnected => self.store.join(notice),
                }
            }
            self.level(now);
        }
        facts
    }

    /// Ends the final send: all that is left is lost.
    pub(crate) fn give_up(&mut self, now: Instant) -> Vec<Fact> {
        let mut facts = self.begin_final_send(now);
        self.stage = Stage::Over;
        for event in self.store.drain() {
            self.lose(event, Loss::Shutdown, &mut facts);
        }
        for _ in 0..self.unacked.end_all() {
            facts.push(Fact::Ended(End::Shutdown));
        }
        self.level(now);
        facts
    }

    /// Results of the planned stop: notices sent, and notices not sent.
    pub(crate) fn report(&self) -> (usize, usize) {
        (self.sent, self.unsent)
    }

    fn may_resend(&self, now: Instant) -> bool {
        self.unacked.out() < RESENDS_IN_FLIGHT && self.unacked.is_due(now)
    }

    fn refused(&mut self, notice: Notice, now: Instant, chance: f64, facts: &mut Vec<Fact>) {
        let event = notice.event;
        let end = match self.unacked.refuse(notice, now, chance) {
            Refused::Again(wait) => {
                facts.push(Fact::Again(wait));
                return;
            }
            Refused::Expired => End::WindowExpired,
            Refused::Full => End::Lost,
        };
        self.lose(event, Loss::Unacknowledged, facts);
        facts.push(Fact::Ended(end));
    }

    /// Ends the story of `key`, if it has one.
    fn end(&mut self, key: &NoticeKey, end: End, facts: &mut Vec<Fact>) -> bool {
        let ended = self.unacked.end(key);
        if ended {
            facts.push(Fact::Ended(end));
        }
        ended
    }

    fn lose(&mut self, event: Event, loss: Loss, facts: &mut Vec<Fact>) {
        facts.push(Fact::Lost(event, loss));
        self.replay_armed |= event == Event::Connected && loss != Loss::Shutdown;
        self.unsent += usize::from(self.stage != Stage::Normal);
    }

    fn level(&mut self, now: Instant) {
        self.high_water.set(self.store.held(), now);
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
