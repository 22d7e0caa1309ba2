//! The desk against the model, on random schedules.

use proptest::prelude::*;

use super::*;

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
