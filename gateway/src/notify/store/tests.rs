use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use Event::{Connected, Disconnected};

fn notice(session: u8, event: Event) -> Notice {
    Notice {
        agent_id: "a".into(),
        session_id: format!("s{session}").into(),
        stream_home_id: "h".into(),
        event,
        peer: None,
    }
}

fn label(notice: &Notice) -> (String, Event) {
    (notice.session_id.to_string(), notice.event)
}

fn offer(store: &mut Store, session: u8, event: Event) -> &'static str {
    match store.offer(notice(session, event)) {
        Offered::Held => "held",
        Offered::Coalesced => "coalesced",
        Offered::Evicted(_) => "evicted",
        Offered::Refused => "refused",
    }
}

/// Takes the next notice and names it.
fn take(store: &mut Store) -> Option<(Notice, String, Event)> {
    let notice = store.take()?;
    let (session, event) = label(&notice);
    Some((notice, session, event))
}

fn rest(store: &mut Store) -> Vec<(String, Event)> {
    std::iter::from_fn(|| {
        let notice = store.take()?;
        let name = label(&notice);
        store.land(notice, Sent::Delivered);
        Some(name)
    })
    .collect()
}

fn named(expected: &[(u8, Event)]) -> Vec<(String, Event)> {
    expected
        .iter()
        .map(|(session, event)| (format!("s{session}"), *event))
        .collect()
}

#[test]
fn notify_1_first_in_first_out() {
    let mut store = Store::new(10);
    for session in 1..=3 {
        assert_eq!(offer(&mut store, session, Connected), "held");
    }
    assert_eq!(
        rest(&mut store),
        named(&[(1, Connected), (2, Connected), (3, Connected)])
    );
}

#[test]
fn notify_3_a_newer_notice_replaces_a_held_one_in_its_place() {
    let mut store = Store::new(10);
    offer(&mut store, 1, Connected);
    offer(&mut store, 2, Connected);
    assert_eq!(offer(&mut store, 1, Disconnected), "coalesced");
    assert_eq!(offer(&mut store, 2, Connected), "coalesced");
    assert_eq!(
        rest(&mut store),
        named(&[(1, Disconnected), (2, Connected)])
    );
}

#[test]
fn notify_4_a_key_with_a_send_out_waits_and_others_pass_it() {
    let mut store = Store::new(10);
    offer(&mut store, 1, Connected);
    let (flying, ..) = take(&mut store).unwrap();
    offer(&mut store, 1, Disconnected);
    offer(&mut store, 2, Connected);
    assert_eq!(rest(&mut store), named(&[(2, Connected)]));
    assert_eq!(store.held(), 1);
    assert_eq!(store.land(flying, Sent::Delivered), Landed::Done);
    assert_eq!(rest(&mut store), named(&[(1, Disconnected)]));
}

#[test]
fn notify_5_sessions_and_stream_homes_are_keys_of_their_own() {
    let mut store = Store::new(10);
    let first = notice(1, Connected);
    let home = Notice {
        stream_home_id: "other".into(),
        ..first.clone()
    };
    let agent = Notice {
        agent_id: "other".into(),
        ..first.clone()
    };
    for notice in [first, home, agent, notice(2, Connected)] {
        assert!(store.offer(notice) == Offered::Held);
    }
    assert_eq!(store.held(), 4);
}

#[test]
fn notify_10_a_failed_send_goes_back_to_the_head() {
    let mut store = Store::new(10);
    for session in 1..=3 {
        offer(&mut store, session, Connected);
    }
    let (first, ..) = take(&mut store).unwrap();
    let (second, ..) = take(&mut store).unwrap();
    assert_eq!(store.land(first, Sent::Failed), Landed::Requeued);
    assert_eq!(store.land(second, Sent::Failed), Landed::Requeued);
    assert_eq!(
        rest(&mut store),
        named(&[(2, Connected), (1, Connected), (3, Connected)])
    );
}

#[test]
fn notify_10_a_failed_send_gives_way_to_a_newer_held_notice() {
    let mut store = Store::new(10);
    offer(&mut store, 1, Connected);
    let (flying, ..) = take(&mut store).unwrap();
    offer(&mut store, 1, Disconnected);
    assert_eq!(store.land(flying, Sent::Failed), Landed::Superseded);
    assert_eq!(rest(&mut store), named(&[(1, Disconnected)]));
}

#[test]
fn notify_11_a_send_that_is_over_is_not_held_again() {
    let mut store = Store::new(10);
    offer(&mut store, 1, Connected);
    let (flying, ..) = take(&mut store).unwrap();
    assert_eq!(store.land(flying, Sent::Over), Landed::Done);
    assert_eq!((store.held(), store.in_flight()), (0, 0));
}

#[test]
fn notify_12_the_cap_counts_what_is_in_flight_but_never_refuses_its_newer_notice() {
    let mut store = Store::new(2);
    offer(&mut store, 1, Connected);
    let _flying = take(&mut store).unwrap();
    assert_eq!(offer(&mut store, 2, Connected), "held");
    assert_eq!(offer(&mut store, 3, Connected), "refused");
    assert_eq!(offer(&mut store, 1, Connected), "held");
    assert_eq!(store.held() + store.in_flight(), 3);
}

#[test]
fn notify_13_a_disconnected_takes_the_place_of_the_oldest_held_connected() {
    let mut store = Store::new(3);
    offer(&mut store, 1, Disconnected);
    offer(&mut store, 2, Connected);
    offer(&mut store, 3, Connected);
    let Offered::Evicted(evicted) = store.offer(notice(4, Disconnected)) else {
        panic!("nothing evicted")
    };
    assert_eq!(label(&evicted), ("s2".into(), Connected));
    assert_eq!(offer(&mut store, 5, Connected), "refused");
    assert_eq!(offer(&mut store, 6, Disconnected), "evicted");
    assert_eq!(offer(&mut store, 7, Disconnected), "refused");
    assert_eq!(
        rest(&mut store),
        named(&[(1, Disconnected), (4, Disconnected), (6, Disconnected)])
    );
}

#[test]
fn notify_13_a_connected_that_became_a_disconnected_is_not_evicted() {
    let mut store = Store::new(2);
    offer(&mut store, 1, Connected);
    offer(&mut store, 1, Disconnected);
    offer(&mut store, 2, Connected);
    let Offered::Evicted(evicted) = store.offer(notice(3, Disconnected)) else {
        panic!("nothing evicted")
    };
    assert_eq!(label(&evicted), ("s2".into(), Connected));
}

#[test]
fn notify_12_the_newer_notice_of_a_key_in_flight_is_not_evicted_either() {
    let mut store = Store::new(2);
    offer(&mut store, 1, Connected);
    let (flying, ..) = take(&mut store).unwrap();
    offer(&mut store, 1, Connected);
    assert_eq!(offer(&mut store, 2, Disconnected), "refused");
    assert_eq!(store.land(flying, Sent::Delivered), Landed::Done);
    assert_eq!(offer(&mut store, 2, Disconnected), "held");
    assert_eq!(offer(&mut store, 3, Disconnected), "evicted");
}

#[derive(Debug, Clone)]
enum Step {
    Offer(u8, Event),
    Take,
    Land(prop::sample::Index, Sent),
}

fn step() -> impl Strategy<Value = Step> {
    let event = prop::sample::select(vec![Connected, Disconnected]);
    let sent = prop::sample::select(vec![Sent::Delivered, Sent::Failed, Sent::Over]);
    prop_oneof![
        4 => (0u8..10, event).prop_map(|(session, event)| Step::Offer(session, event)),
        2 => Just(Step::Take),
        2 => (any::<prop::sample::Index>(), sent).prop_map(|(index, sent)| Step::Land(index, sent)),
    ]
}

const CAP: usize = 6;

/// The rules once more, over plain lists.
#[derive(Default)]
struct Model {
    held: VecDeque<(u8, Event)>,
    flying: Vec<(u8, Event)>,
}

impl Model {
    fn offer(&mut self, session: u8, event: Event) -> &'static str {
        if let Some(held) = self.held.iter_mut().find(|held| held.0 == session) {
            held.1 = event;
            return "coalesced";
        }
        let flying = self.flying.iter().any(|out| out.0 == session);
        if flying || self.held.len() + self.flying.len() < CAP {
            self.held.push_back((session, event));
            return "held";
        }
        let flies = |held: &(u8, Event)| self.flying.iter().any(|out| out.0 == held.0);
        let oldest = self
            .held
            .iter()
            .position(|held| held.1 == Connected && !flies(held));
        match oldest {
            Some(oldest) if event == Disconnected => {
                self.held.remove(oldest);
                self.held.push_back((session, event));
                "evicted"
            }
            _ => "refused",
        }
    }

    fn take(&mut self) -> Option<(u8, Event)> {
        let free = |held: &(u8, Event)| !self.flying.iter().any(|out| out.0 == held.0);
        let taken = self.held.remove(self.held.iter().position(free)?)?;
        self.flying.push(taken);
        Some(taken)
    }

    fn land(&mut self, index: usize, sent: Sent) -> Landed {
        let (session, event) = self.flying.swap_remove(index);
        if sent != Sent::Failed {
            Landed::Done
        } else if self.held.iter().any(|held| held.0 == session) {
            Landed::Superseded
        } else {
            self.held.push_front((session, event));
            Landed::Requeued
        }
    }
}

proptest! {
    #[test]
    fn agrees_with_plain_lists(steps in prop::collection::vec(step(), 1..250)) {
        let mut store = Store::new(CAP);
        let mut model = Model::default();
        let mut flying: Vec<Notice> = Vec::new();
        for step in steps {
            match step {
                Step::Offer(session, event) => {
                    let expected = model.offer(session, event);
                    prop_assert_eq!(offer(&mut store, session, event), expected);
                }
                Step::Take => {
                    let expected = model.take().map(|taken| named(&[taken]).remove(0));
                    let taken = store.take();
                    prop_assert_eq!(taken.as_ref().map(label), expected);
                    flying.extend(taken);
                }
                Step::Land(index, sent) if !flying.is_empty() => {
                    let index = index.index(flying.len());
                    let landed = store.land(flying.swap_remove(index), sent);
                    prop_assert_eq!(landed, model.land(index, sent));
                }
                Step::Land(..) => {}
            }
            prop_assert_eq!(store.held(), model.held.len());
            prop_assert_eq!(store.in_flight(), model.flying.len());
            prop_assert_eq!(store.positions.len(), store.held.len());
            let connected = model.held.iter().filter(|held| held.1 == Connected).count();
            prop_assert_eq!(store.connected.len(), connected);
            let beyond = flying.iter().filter(|out| store.positions.contains_key(&out.key()));
            prop_assert!(store.held() + store.in_flight() <= CAP + beyond.count());
        }
        prop_assert_eq!(store.drain().len(), model.held.len() + model.flying.len());
    }
}
