//! The desk against the same rules over plain lists, on random schedules.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use Event::{Connected, Disconnected};

const SESSIONS: u8 = 16;

fn rules(pending_max: usize) -> config::Notify {
    let seconds = Duration::from_secs;
    config::Notify {
        pending_max,
        probe_timeout: seconds(15),
        unacked_retry_base: seconds(1),
        unacked_retry_max: seconds(8),
        unacked_slow_after: seconds(30),
        unacked_slow_max: seconds(20),
        unacked_disconnected_window: seconds(12),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Item {
    session: u8,
    event: Event,
    /// Which of all notices it is.
    id: u32,
    /// Where it stands among those held, from 1: that of the first notice it replaced.
    place: u32,
}

impl Item {
    /// The id travels as the peer's address.
    fn notice(self) -> Notice {
        Notice {
            agent_id: "a".into(),
            session_id: self.session.to_string().into(),
            stream_home_id: "h".into(),
            event: self.event,
            peer: Some(IpAddr::V4(Ipv4Addr::from_bits(self.id))),
        }
    }

    fn id_of(notice: &Notice) -> u32 {
        match notice.peer {
            Some(IpAddr::V4(id)) => id.to_bits(),
            _ => unreachable!("every notice has its id"),
        }
    }
}

/// A notice that was refused at least once.
#[derive(Debug, Clone, Copy)]
struct Story {
    item: Item,
    number: u64,
    first: Instant,
    refused: Instant,
    due: Instant,
    previous: Duration,
    refusals: u32,
    slow: bool,
}

/// The rules once more, and what became of every notice.
struct Model {
    rules: config::Notify,
    now: Instant,
    stage: Stage,
    /// Nothing starts before this.
    paused_until: Instant,
    /// Length of the next pause, in milliseconds.
    pause: u64,
    held: VecDeque<Item>,
    flying: Vec<(Item, Option<Story>)>,
    waiting: Vec<Story>,
    live: BTreeSet<u8>,
    numbers: u64,
    offered: u32,
    places: u32,
    /// Notices that left, each once.
    gone: BTreeMap<u32, &'static str>,
    /// The newest notice of each session that was ever sent.
    newest_sent: BTreeMap<u8, u32>,
}

impl Model {
    fn new(rules: config::Notify, now: Instant) -> Self {
        Self {
            rules,
            now,
            stage: Stage::Normal,
            paused_until: now,
            pause: 10,
            held: VecDeque::new(),
            flying: Vec::new(),
            waiting: Vec::new(),
            live: (0..SESSIONS).collect(),
            numbers: 0,
            offered: 0,
            places: 0,
            gone: BTreeMap::new(),
            newest_sent: BTreeMap::new(),
        }
    }

    fn flies(&self, session: u8) -> bool {
        self.flying.iter().any(|(item, _)| item.session == session)
    }

    fn resends(&self) -> usize {
        self.flying
            .iter()
            .filter(|(_, story)| story.is_some())
            .count()
    }

    fn load(&self) -> usize {
        self.held.len() + self.flying.len() - self.resends()
    }

    fn leave(&mut self, item: Item, how: &'static str) {
        let before = self.gone.insert(item.id, how);
        assert_eq!(before, None, "{item:?} left twice");
    }

    fn lose(&mut self, item: Item, loss: Loss, facts: &mut Vec<Fact>) {
        self.leave(item, "lost");
        facts.push(Fact::Lost(item.event, loss));
    }

    fn end(&mut self, item: Item, end: End, facts: &mut Vec<Fact>) {
        if !self.gone.contains_key(&item.id) {
            self.leave(item, end.label());
        }
        facts.push(Fact::Ended(end));
    }

    fn held_again(&mut self, item: Item) {
        let older = self.held.iter().take_while(|held| held.place < item.place);
        self.held.insert(older.count(), item);
    }

    fn held_last(&mut self, item: Item) {
        self.places += 1;
        let place = self.places;
        self.held.push_back(Item { place, ..item });
    }

    fn offer(&mut self, session: u8, event: Event) -> (Item, Vec<Fact>) {
        self.offered += 1;
        let item = Item {
            session,
            event,
            id: self.offered,
            place: 0,
        };
        let mut facts = Vec::new();
        if self.stage == Stage::Over {
            self.lose(item, Loss::Shutdown, &mut facts);
            return (item, facts);
        }
        if let Some(at) = self.waiting.iter().position(|w| w.item.session == session) {
            let old = self.waiting.remove(at);
            self.end(old.item, End::Superseded, &mut facts);
        }
        if let Some(at) = self.held.iter().position(|held| held.session == session) {
            let place = self.held[at].place;
            let old = std::mem::replace(&mut self.held[at], Item { place, ..item });
            self.leave(old, "coalesced");
            facts.push(Fact::Coalesced);
        } else if self.flies(session) || self.load() < self.rules.pending_max {
            self.held_last(item);
        } else {
            let oldest = self
                .held
                .iter()
                .position(|held| held.event == Connected && !self.flies(held.session));
            match oldest.filter(|_| event == Disconnected) {
                Some(at) => {
                    if let Some(old) = self.held.remove(at) {
                        self.lose(old, Loss::Evicted, &mut facts);
                    }
                    self.held_last(item);
                }
                None => {
                    facts.push(Fact::Dropped);
                    self.lose(item, Loss::AtCapacity, &mut facts);
                }
            }
        }
        (item, facts)
    }

    fn start(&mut self) -> (Option<Item>, Vec<Fact>) {
        let mut facts = Vec::new();
        let width = match self.stage {
            Stage::Normal => 10,
            Stage::Final => 64,
            Stage::Over => 0,
        };
        if self.flying.len() >= width || self.now < self.paused_until {
            return (None, facts);
        }
        let free = self.held.iter().position(|held| !self.flies(held.session));
        if let Some(item) = free.and_then(|at| self.held.remove(at)) {
            self.flying.push((item, None));
            return (Some(item), facts);
        }
        self.waiting.sort_by_key(|story| (story.due, story.number));
        while self.resends() < 5 && self.waiting.first().is_some_and(|w| w.due <= self.now) {
            let story = self.waiting.remove(0);
            if story.item.event == Connected && !self.live.contains(&story.item.session) {
                self.end(story.item, End::SessionEnded, &mut facts);
                continue;
            }
            self.flying.push((story.item, Some(story)));
            return (Some(story.item), facts);
        }
        (None, facts)
    }

    /// What landing means; a wait is taken from `got`, after it was checked against the rules.
    fn land(&mut self, at: usize, sent: Sent, got: &[Fact]) -> Vec<Fact> {
        let (item, story) = self.flying.remove(at);
        let newer = self.held.iter().any(|held| held.session == item.session);
        let last = self.stage == Stage::Final;
        let mut facts = Vec::new();
        if sent != Sent::NoStream {
            self.pause = 10;
        } else if self.now >= self.paused_until {
            self.paused_until = self.now + Duration::from_millis(self.pause);
            self.pause = (self.pause * 2).min(100);
        }
        match sent {
            Sent::Acknowledged => {
                self.leave(item, "acknowledged");
                if story.is_some() {
                    facts.push(Fact::Ended(End::Acknowledged));
                    self.hasten();
                }
            }
            Sent::Lost(loss) => {
                self.lose(item, loss, &mut facts);
                if story.is_some() {
                    self.end(item, End::Lost, &mut facts);
                }
            }
            Sent::Failed | Sent::NoStream if newer => {
                self.leave(item, "superseded");
                facts.push(match story {
                    Some(_) => Fact::Ended(End::Superseded),
                    None => Fact::Coalesced,
                });
            }
            Sent::Failed if last => {
                self.lose(item, Loss::Shutdown, &mut facts);
                if story.is_some() {
                    self.end(item, End::Shutdown, &mut facts);
                }
            }
            Sent::NoStream if last => {
                facts.extend(story.map(|_| Fact::Ended(End::Shutdown)));
                facts.push(Fact::Requeued);
                match story {
                    Some(_) => self.held_last(item),
                    None => self.held_again(item),
                }
            }
            Sent::Failed | Sent::NoStream => {
                facts.push(Fact::Requeued);
                match story {
                    Some(story) => self.waiting.push(story),
                    None => self.held_again(item),
                }
            }
            Sent::Unacknowledged if newer => self.end(item, End::Superseded, &mut facts),
            Sent::Unacknowledged if last => {
                self.lose(item, Loss::Unacknowledged, &mut facts);
                self.end(item, End::Lost, &mut facts);
            }
            Sent::Unacknowledged => self.refused(item, story, got, &mut facts),
        }
        facts
    }

    fn refused(&mut self, item: Item, story: Option<Story>, got: &[Fact], facts: &mut Vec<Fact>) {
        let resends = self.waiting.len() + self.resends();
        if story.is_none() && resends >= self.rules.pending_max {
            self.lose(item, Loss::Unacknowledged, facts);
            return self.end(item, End::Lost, facts);
        }
        let fresh = Story {
            item,
            number: self.numbers,
            first: self.now,
            refused: self.now,
            due: self.now,
            previous: self.rules.unacked_retry_base,
            refusals: 0,
            slow: false,
        };
        self.numbers += 1;
        let mut story = story.unwrap_or(fresh);
        story.refusals += 1;
        let (base, max) = (self.rules.unacked_retry_base, self.rules.unacked_retry_max);
        let age = self.now - story.first;
        let left = self.rules.unacked_disconnected_window.saturating_sub(age);
        if item.event == Disconnected && left < base {
            self.lose(item, Loss::Unacknowledged, facts);
            return self.end(item, End::WindowExpired, facts);
        }
        let Some(Fact::Again(wait)) = got.last() else {
            panic!("a refused notice is sent again, not {got:?}");
        };
        assert_eq!((wait.refusals, wait.over), (story.refusals, age));
        if item.event == Connected && age >= self.rules.unacked_slow_after {
            let slow_max = self.rules.unacked_slow_max;
            assert!(wait.delay >= slow_max.mul_f64(0.799) && wait.delay <= slow_max);
            story.slow = true;
        } else {
            assert!(wait.delay >= base, "{wait:?}");
            assert!(wait.delay <= max.min(story.previous * 3), "{wait:?}");
            if item.event == Disconnected {
                assert!(wait.delay <= left, "{wait:?}");
            }
            story.previous = wait.delay;
        }
        story.refused = self.now;
        story.due = self.now + wait.delay;
        facts.push(Fact::Again(*wait));
        self.waiting.push(story);
    }

    fn hasten(&mut self) {
        let now = self.now;
        let later = self.waiting.iter_mut().filter(|story| story.due > now);
        let next = later.min_by_key(|story| (story.due, story.number));
        let Some(next) = next.filter(|story| !story.slow) else {
            return;
        };
        let soonest = now.max(next.refused + self.rules.unacked_retry_base);
        if soonest < next.due {
            next.due = soonest;
            next.previous = soonest - next.refused;
        }
    }

    fn tick(&mut self) -> Vec<Fact> {
        let mut facts = Vec::new();
        let window = self.rules.unacked_disconnected_window;
        let (over, waiting) = self.waiting.iter().partition(|story| {
            story.item.event == Disconnected && story.first + window <= self.now
        });
        self.waiting = waiting;
        let over: Vec<Story> = over;
        for story in over {
            self.lose(story.item, Loss::Unacknowledged, &mut facts);
            self.end(story.item, End::WindowExpired, &mut facts);
        }
        facts
    }

    fn settle(&mut self, session: u8) -> (bool, Vec<Fact>) {
        let mut facts = Vec::new();
        if let Some(at) = self.waiting.iter().position(|w| w.item.session == session) {
            let story = self.waiting.remove(at);
            self.end(story.item, End::Superseded, &mut facts);
        }
        let held = self.held.iter().any(|held| held.session == session);
        (!held && !self.flies(session), facts)
    }

    fn begin_final_send(&mut self) -> Vec<Fact> {
        let mut facts = Vec::new();
        if self.stage == Stage::Normal {
            self.stage = Stage::Final;
            self.waiting.sort_by_key(|story| (story.due, story.number));
            for story in std::mem::take(&mut self.waiting) {
                facts.push(Fact::Ended(End::Shutdown));
                match story.item.event {
                    Connected => self.lose(story.item, Loss::Shutdown, &mut facts),
                    Disconnected => self.held_last(story.item),
                }
            }
        }
        facts
    }

    fn give_up(&mut self) -> Vec<Fact> {
        let mut facts = self.begin_final_send();
        self.stage = Stage::Over;
        for item in std::mem::take(&mut self.held) {
            self.lose(item, Loss::Shutdown, &mut facts);
        }
        for (item, story) in std::mem::take(&mut self.flying) {
            self.lose(item, Loss::Shutdown, &mut facts);
            if story.is_some() {
                self.end(item, End::Shutdown, &mut facts);
            }
        }
        facts
    }

    /// Older notices of a session are never sent after newer ones.
    fn in_order(&mut self, item: Item) {
        let newest = self.newest_sent.entry(item.session).or_default();
        assert!(*newest <= item.id, "{item:?} after {newest}");
        *newest = item.id;
    }

    fn agrees_with(&self, desk: &Desk) {
        let (held, flying) = (self.held.len(), self.flying.len());
        assert_eq!((desk.held(), desk.in_flight()), (held, flying));
        let unacked = self.waiting.len() + self.resends();
        assert_eq!(desk.unacked(), unacked);
        let out = self.flying.iter().filter_map(|(_, story)| story.as_ref());
        let slow = self.waiting.iter().chain(out).filter(|story| story.slow);
        assert_eq!(desk.unacked_slow(), slow.count());
        assert!(desk.high_water() >= held);

        if self.stage == Stage::Normal {
            let cap = self.rules.pending_max;
            assert!(flying <= 10 && self.resends() <= 5 && unacked <= cap);
            // Newer notices of keys in flight come in beyond the cap.
            assert!(self.load() <= cap + 15, "load {}", self.load());
        }
        let sessions = self.flying.iter().map(|(item, _)| item.session);
        assert_eq!(sessions.collect::<BTreeSet<_>>().len(), flying);
        let present = held + flying + self.waiting.len();
        let gone = self.gone.len();
        assert_eq!(present + gone, self.offered as usize, "a notice vanished");
    }
}

#[derive(Debug, Clone)]
enum Step {
    Offer(u8, Event),
    /// Starts all that may start.
    Start,
    Land(prop::sample::Index, Sent, f64),
    /// The server, or the connection, is gone: every send fails.
    ServerRestart,
    /// Other calls have all the streams.
    ConnectionFull,
    /// An owner's recovery: DISCONNECTED, and CONNECTED once that is settled.
    OwnerRestart(u8),
    Settle(u8),
    /// The session is, or is not, held.
    Hold(u8, bool),
    /// Time passes, in milliseconds; a suspended machine steps far.
    Clock(u64),
    FinalSend,
    GiveUp,
}

fn step() -> impl Strategy<Value = Step> {
    let session = 0..SESSIONS;
    let event = prop::sample::select(vec![Connected, Disconnected]);
    let sent = prop::sample::select(vec![
        Sent::Acknowledged,
        Sent::Failed,
        Sent::NoStream,
        Sent::Unacknowledged,
        Sent::Unacknowledged,
        Sent::Unacknowledged,
        Sent::Lost(Loss::Rejected),
        Sent::Lost(Loss::Crashed),
    ]);
    let index = any::<prop::sample::Index>();
    prop_oneof![
        60 => (session.clone(), event).prop_map(|(session, event)| Step::Offer(session, event)),
        30 => Just(Step::Start),
        90 => (index, sent, 0.0..=1.0).prop_map(|(at, sent, chance)| Step::Land(at, sent, chance)),
        3 => Just(Step::ServerRestart),
        3 => Just(Step::ConnectionFull),
        5 => session.clone().prop_map(Step::OwnerRestart),
        3 => session.clone().prop_map(Step::Settle),
        8 => (session, any::<bool>()).prop_map(|(session, held)| Step::Hold(session, held)),
        10 => (0u64..100).prop_map(Step::Clock),
        25 => (0u64..4_000).prop_map(Step::Clock),
        2 => (4_000u64..60_000).prop_map(Step::Clock),
        1 => Just(Step::FinalSend),
        1 => Just(Step::GiveUp),
    ]
}

fn sorted(mut facts: Vec<Fact>) -> Vec<Fact> {
    facts.sort_by_key(|fact| format!("{fact:?}"));
    facts
}

/// Desk and model side by side.
struct Both {
    desk: Desk,
    model: Model,
    flying: Vec<Notice>,
}

impl Both {
    fn offer(&mut self, session: u8, event: Event) {
        let (item, expected) = self.model.offer(session, event);
        let facts = self.desk.offer(item.notice(), self.model.now);
        assert_eq!(facts, expected);
    }

    fn start_one(&mut self) -> bool {
        let (now, live) = (self.model.now, self.model.live.clone());
        let (expected, expected_facts) = self.model.start();
        let is_held = |key: &NoticeKey| live.contains(&key.session_id.parse().unwrap());
        let (notice, facts) = self.desk.start(now, is_held);
        assert_eq!(facts, expected_facts);
        assert_eq!(
            notice.as_ref().map(Item::id_of),
            expected.map(|item| item.id)
        );
        self.flying.extend(notice);
        if let Some(item) = expected {
            self.model.in_order(item);
        }
        expected.is_some()
    }

    fn land(&mut self, at: usize, sent: Sent, chance: f64) {
        let notice = self.flying.remove(at);
        let facts = self.desk.land(notice, sent, self.model.now, chance);
        if self.model.stage == Stage::Over {
            assert_eq!(facts, []);
        } else {
            let expected = self.model.land(at, sent, &facts);
            assert_eq!(facts, expected);
        }
    }

    fn settle(&mut self, session: u8) -> bool {
        let key = Item {
            session,
            event: Connected,
            id: 0,
            place: 0,
        };
        let expected = self.model.settle(session);
        assert_eq!(self.desk.settle(&key.notice().key()), expected);
        expected.0
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Offer(session, event) => self.offer(session, event),
            Step::Start => while self.start_one() {},
            Step::Land(index, sent, chance) => {
                if !self.flying.is_empty() {
                    self.land(index.index(self.flying.len()), sent, chance);
                }
            }
            Step::ServerRestart => {
                while !self.flying.is_empty() {
                    self.land(0, Sent::Failed, 0.5);
                }
            }
            Step::ConnectionFull => {
                while !self.flying.is_empty() {
                    self.land(0, Sent::NoStream, 0.5);
                }
            }
            Step::OwnerRestart(session) => {
                self.offer(session, Disconnected);
                if self.settle(session) {
                    self.offer(session, Connected);
                }
            }
            Step::Settle(session) => {
                self.settle(session);
            }
            Step::Hold(session, true) => {
                self.model.live.insert(session);
            }
            Step::Hold(session, false) => {
                self.model.live.remove(&session);
            }
            Step::Clock(millis) => {
                self.model.now += Duration::from_millis(millis);
                while self.start_one() {}
                let expected = sorted(self.model.tick());
                assert_eq!(sorted(self.desk.tick(self.model.now)), expected);
            }
            Step::FinalSend => {
                let expected = self.model.begin_final_send();
                assert_eq!(self.desk.begin_final_send(self.model.now), expected);
            }
            Step::GiveUp => {
                let expected = sorted(self.model.give_up());
                assert_eq!(sorted(self.desk.give_up(self.model.now)), expected);
            }
        }
        self.model.agrees_with(&self.desk);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn no_notice_lost_uncounted_no_order_broken_caps_kept(
        cap in prop::sample::select(vec![2, 6, 12, 100]),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let now = Instant::now();
        let mut both = Both {
            desk: Desk::new(&rules(cap), now),
            model: Model::new(rules(cap), now),
            flying: Vec::new(),
        };
        for step in steps {
            both.run(step);
        }
        // The server is well again: once every delay is over nothing is left behind.
        both.run(Step::Clock(20_000));
        while !both.flying.is_empty() {
            both.land(0, Sent::Acknowledged, 0.0);
            both.run(Step::Start);
        }
        let model = &both.model;
        prop_assert_eq!(model.held.len() + model.flying.len() + model.waiting.len(), 0);
        prop_assert_eq!(model.gone.len(), model.offered as usize);
    }
}
