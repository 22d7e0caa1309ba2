//! The rules of the desk once more, over plain lists.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

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
    /// The last answer to one that was refused once was that it is recorded.
    recording: bool,
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
            recording: false,
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
                    if self.recording {
                        self.hasten();
                    }
                    self.recording = true;
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
        self.recording = false;
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

mod schedule;
