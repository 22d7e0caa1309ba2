//! The queue against the same rules over plain lists, on random schedules.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const AGENTS: u8 = 12;
const WINDOW: Duration = Duration::from_secs(10);
const MAX: usize = 6;
/// Small, so that a walk has several pages.
const PAGE: usize = 4;

#[derive(Debug, Clone)]
enum Step {
    /// The agent comes (again), under a new session.
    Connect(u8),
    Disconnect(u8),
    /// A verdict over agents; a large number is nobody's session.
    Name(Vec<u8>),
    Full,
    Take(usize),
    /// The n-th entry in flight is sent if its agent is still there.
    Send(usize),
    Land(usize, Landing),
    Abort,
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..AGENTS).prop_map(Step::Connect),
        1 => (0..AGENTS).prop_map(Step::Disconnect),
        4 => prop::collection::vec(0..AGENTS + 3, 0..8).prop_map(Step::Name),
        2 => Just(Step::Full),
        8 => (0_usize..4).prop_map(Step::Take),
        8 => (0_usize..4).prop_map(Step::Send),
        8 => (0_usize..4, landing()).prop_map(|(n, landing)| Step::Land(n, landing)),
        1 => Just(Step::Abort),
        4 => (0_u64..15_000).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 0..120)
}

fn landing() -> impl Strategy<Value = Landing> {
    prop_oneof![
        5 => Just(Landing::Adopted),
        2 => Just(Landing::Done),
        1 => Just(Landing::Unsent),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Item {
    agent: u8,
    session: u32,
    /// Which of all items it is.
    id: u32,
    full: bool,
    /// Aborted, or in the way of a newer session of its agent, before it was sent.
    off: bool,
}

struct Flight {
    item: Item,
    entry: Entry,
    sent: bool,
}

/// The rules once more.
struct Model {
    now: Instant,
    held: BTreeMap<u8, (u32, Instant)>,
    waiting: Vec<Item>,
    flying: Vec<Flight>,
    /// Every send: session and time.
    sends: Vec<(u32, Instant)>,
    /// Those that the server took in, by the time of their send.
    adopted: Vec<(u32, Instant)>,
    walk: Option<(Option<u8>, Instant)>,
    /// When the full replay that runs began.
    full: Option<Instant>,
    ended: Option<Instant>,
    ids: u32,
    sessions: u32,
}

impl Model {
    fn guarded(&self, session: u32) -> bool {
        let recent = |at: Instant| self.now < at + WINDOW;
        self.sends
            .iter()
            .any(|(s, at)| *s == session && recent(*at))
    }

    fn adopted_since(&self, session: u32, since: Instant) -> bool {
        let here = |(s, at): &(u32, Instant)| *s == session && *at >= since;
        self.adopted.iter().any(here)
    }

    /// What may still be sent.
    fn unsent(&self) -> impl Iterator<Item = &Item> {
        let flying = self.flying.iter().filter(|f| !f.sent).map(|f| &f.item);
        self.waiting.iter().chain(flying).filter(|item| !item.off)
    }

    fn waits(&self, agent: u8) -> bool {
        self.unsent().any(|item| item.agent == agent)
    }

    fn waits_as(&self, agent: u8, session: u32) -> bool {
        self.unsent()
            .any(|item| (item.agent, item.session) == (agent, session))
    }

    /// Whether the agent's latest item was sent and has not landed.
    fn flies(&self, agent: u8) -> Option<u32> {
        let flying = |f: &&Flight| f.item.agent == agent && f.sent && !f.item.off;
        self.flying.iter().find(flying).map(|f| f.item.session)
    }

    fn append(&mut self, agent: u8, session: u32, full: bool) {
        self.ids += 1;
        let flying = self.flying.iter_mut().map(|f| &mut f.item);
        for item in self.waiting.iter_mut().chain(flying) {
            item.off |= item.agent == agent;
        }
        let id = self.ids;
        self.waiting.push(Item {
            agent,
            session,
            id,
            full,
            off: false,
        });
    }

    fn name(&mut self, agents: &[u8]) -> Tally {
        let mut tally = Tally::default();
        for agent in agents {
            let Some((session, _)) = self.held.get(agent).copied() else {
                tally.not_local += 1;
                continue;
            };
            if self.waits(*agent) {
                tally.already_queued += 1;
            } else if self.guarded(session) {
                tally.within_guard += 1;
            } else if self.flies(*agent).is_some() {
                tally.already_queued += 1;
            } else if self.waiting.len() >= MAX {
                tally.queue_full += 1;
            } else {
                self.append(*agent, session, false);
                tally.queued += 1;
            }
        }
        tally
    }

    fn walk_on(&mut self) {
        while let (true, Some((after, began))) = (self.waiting.is_empty(), self.walk) {
            let behind: Vec<_> = self
                .held
                .iter()
                .map(|(agent, row)| (*agent, *row))
                .filter(|(agent, _)| after.is_none_or(|after| *agent > after))
                .collect();
            for (agent, (session, since)) in behind.iter().take(PAGE).copied() {
                let skipped = since > began
                    || self.waits_as(agent, session)
                    || self.flies(agent) == Some(session)
                    || self.guarded(session)
                    || self.adopted_since(session, began);
                if !skipped {
                    self.append(agent, session, true);
                }
            }
            self.walk = match behind.len() > PAGE {
                true => Some((Some(behind[PAGE - 1].0), began)),
                false => None,
            };
        }
    }

    /// Notices the end of a full replay: whoever was there all the time was replayed.
    fn settle(&mut self) {
        let Some(began) = self.full else { return };
        let left =
            self.waiting.iter().any(|item| item.full) || self.flying.iter().any(|f| f.item.full);
        if self.walk.is_some() || left {
            return;
        }
        self.full = None;
        self.ended = Some(self.now);
        for (agent, (session, since)) in &self.held {
            let sent = |(s, at): &(u32, Instant)| s == session && *at + WINDOW >= began;
            let seen_to = self.sends.iter().any(sent)
                || self.waits_as(*agent, *session)
                || self.flies(*agent) == Some(*session);
            assert!(*since > began || seen_to, "agent {agent} was left out");
        }
    }

    fn abort(&mut self) -> Option<usize> {
        let dropped = self.unsent().count();
        self.waiting.clear();
        if dropped == 0 && self.walk.is_none() {
            return None;
        }
        self.walk = None;
        for flight in &mut self.flying {
            flight.item.off |= !flight.sent;
            flight.item.full = false;
        }
        if self.full.take().is_some() {
            self.ended = Some(self.now);
        }
        Some(dropped)
    }
}

/// Agents as the registry orders them, in pages of [`PAGE`].
fn page(held: &BTreeMap<u8, (u32, Instant)>, after: &str) -> Page {
    let behind: Vec<_> = held
        .iter()
        .map(|(agent, (session, since))| Held {
            target: target(*agent, *session),
            since: *since,
        })
        .filter(|held| *held.target.agent_id > *after)
        .collect();
    let more = behind.len() > PAGE;
    (behind.into_iter().take(PAGE).collect(), more)
}

fn target(agent: u8, session: u32) -> Target {
    Target {
        agent_id: format!("{agent:03}").into(),
        session_id: session.to_string().into(),
    }
}

fn run(steps: Vec<Step>) {
    // Far enough to look back from.
    let start = Instant::now() + Duration::from_secs(3_600);
    let mut queue = Queue::new(&config::Replay {
        session_guard: WINDOW,
        queue_max: MAX,
        start_jitter: Duration::ZERO,
    });
    let mut model = Model {
        now: start,
        held: BTreeMap::new(),
        waiting: Vec::new(),
        flying: Vec::new(),
        sends: Vec::new(),
        adopted: Vec::new(),
        walk: None,
        full: None,
        ended: None,
        ids: 0,
        sessions: 0,
    };
    for step in steps {
        // No two things happen at the same time.
        model.now += Duration::from_millis(1);
        apply(&mut queue, &mut model, step);
        model.settle();
        assert_eq!(queue.depth(), model.waiting.len());
        assert_eq!(queue.in_flight(), model.flying.len());
        assert!(queue.depth() <= MAX + PAGE, "bounded");
    }
}

fn apply(queue: &mut Queue, model: &mut Model, step: Step) {
    let now = model.now;
    match step {
        Step::Connect(agent) => {
            model.sessions += 1;
            model.held.insert(agent, (model.sessions, now));
        }
        Step::Disconnect(agent) => {
            model.held.remove(&agent);
        }
        Step::Name(agents) => {
            let found = |agent: &u8| model.held.get(agent).map(|(s, _)| target(*agent, *s));
            let named: Vec<_> = agents.iter().map(found).collect();
            assert_eq!(
                queue.name(named, now, Duration::ZERO),
                model.name(&agents),
                "{agents:?}"
            );
        }
        Step::Full => {
            let gap = model
                .ended
                .is_none_or(|at| now >= at + Duration::from_secs(60));
            let may = model.full.is_none() && gap;
            assert_eq!(queue.begin_full(now, Duration::ZERO), may);
            if may {
                (model.full, model.walk) = (Some(now), Some((None, now)));
            }
        }
        Step::Take(width) => {
            let taken = queue.take(width, now, |after, _| page(&model.held, after));
            let expected = (model.flying.len() < width).then(|| {
                model.walk_on();
                (!model.waiting.is_empty()).then(|| model.waiting.remove(0))
            });
            let expected = expected.flatten();
            assert_eq!(taken.is_some(), expected.is_some());
            if let (Some(entry), Some(item)) = (taken, expected) {
                assert_eq!(entry.target, target(item.agent, item.session));
                let sent = false;
                model.flying.push(Flight { item, entry, sent });
            }
        }
        Step::Send(n) => {
            let Some(flight) = model.flying.get(n).filter(|f| !f.sent) else {
                return;
            };
            let Item {
                agent,
                session,
                off,
                ..
            } = flight.item;
            if model.held.get(&agent).is_none_or(|row| row.0 != session) {
                return;
            }
            assert_eq!(queue.begin(&flight.entry, now), !off);
            if !off {
                model.flying[n].sent = true;
                model.sends.push((session, now));
            }
        }
        Step::Land(n, landing) => land(queue, model, n, landing),
        Step::Abort => {
            let aborted = queue.abort(now);
            assert_eq!(aborted.map(|aborted| aborted.waiting), model.abort());
        }
        Step::Pass(ms) => {
            model.now += Duration::from_millis(ms);
            queue.tick(model.now);
        }
    }
}

fn land(queue: &mut Queue, model: &mut Model, n: usize, landing: Landing) {
    if n >= model.flying.len() {
        return;
    }
    let Flight { item, entry, sent } = model.flying.remove(n);
    // What was sent is not put back, and nothing else is adopted.
    let landing = match (sent, landing) {
        (true, Landing::Unsent) | (false, Landing::Adopted) => Landing::Done,
        (_, landing) => landing,
    };
    queue.land(entry, landing, model.now);
    if landing == Landing::Adopted {
        let sends = model.sends.iter().rev();
        let send = sends.copied().find(|(session, _)| *session == item.session);
        model.adopted.extend(send);
    }
    if landing == Landing::Unsent && !item.off {
        let at = model.waiting.partition_point(|other| other.id < item.id);
        model.waiting.insert(at, item);
    } else if !item.off {
        // Answered now, or skipped because its agent is gone, or given up by the test: a full
        // replay that began before has seen to it.
        model.sends.push((item.session, model.now - WINDOW));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn replay_6_to_10_hold_on_any_schedule(steps in steps()) {
        run(steps);
    }
}
