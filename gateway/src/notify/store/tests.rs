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
        store.land(&notice.key());
        Some(label(&notice))
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
    assert!(store.land(&flying.key()).newer);
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
fn notify_10_failed_sends_go_back_to_the_head_in_their_order() {
    let mut store = Store::new(10);
    for session in 1..=4 {
        offer(&mut store, session, Connected);
    }
    let mut flying: Vec<Notice> = (0..3).map(|_| store.take().unwrap()).collect();
    offer(&mut store, 5, Connected);
    // In whatever order they fail.
    for at in [1, 0, 0] {
        let failed = flying.remove(at);
        let landed = store.land(&failed.key());
        assert!(!landed.newer);
        store.requeue(failed, landed.place);
    }
    assert_eq!(
        rest(&mut store),
        named(&[1, 2, 3, 4, 5].map(|session| (session, Connected)))
    );
}

#[test]
fn notify_10_a_place_is_given_once_though_the_store_was_empty_in_between() {
    let mut store = Store::new(10);
    offer(&mut store, 1, Connected);
    let (failed, ..) = take(&mut store).unwrap();
    offer(&mut store, 2, Connected);
    let landed = store.land(&failed.key());
    store.requeue(failed, landed.place);
    assert_eq!(rest(&mut store), named(&[(1, Connected), (2, Connected)]));
}

#[test]
fn unack_5_a_newer_notice_waits_for_a_resend_that_is_out() {
    let mut store = Store::new(10);
    let resent = notice(1, Connected);
    store.resend(&resent);
    offer(&mut store, 1, Disconnected);
    assert!(store.take().is_none());
    assert!(store.land(&resent.key()).newer);
    assert_eq!(rest(&mut store), named(&[(1, Disconnected)]));
}

#[test]
fn notify_12_resends_take_no_place_in_the_store() {
    let mut store = Store::new(1);
    store.resend(&notice(1, Connected));
    assert_eq!((store.in_flight(), store.load()), (1, 0));
    assert_eq!(offer(&mut store, 2, Connected), "held");
    assert_eq!(offer(&mut store, 3, Connected), "refused");
    assert_eq!(
        offer(&mut store, 1, Disconnected),
        "held",
        "of a key in flight"
    );
    store.land(&notice(1, Connected).key());
    assert_eq!((store.in_flight(), store.load()), (0, 2));
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
    assert!(store.land(&flying.key()).newer);
    assert_eq!(offer(&mut store, 2, Disconnected), "held");
    assert_eq!(offer(&mut store, 3, Disconnected), "evicted");
}

#[test]
fn stop_2_a_raised_cap_lets_the_notices_of_a_stop_in() {
    let mut store = Store::new(1);
    assert_eq!(offer(&mut store, 1, Disconnected), "held");
    assert_eq!(offer(&mut store, 2, Disconnected), "refused");
    store.raise_cap(2);
    assert_eq!(offer(&mut store, 2, Disconnected), "held");
    assert_eq!(offer(&mut store, 3, Disconnected), "held");
    assert_eq!(offer(&mut store, 4, Disconnected), "refused");
}

#[test]
fn reload_8_a_lowered_cap_refuses_newcomers_and_loses_nothing() {
    let mut store = Store::new(3);
    for session in 0..3 {
        assert_eq!(offer(&mut store, session, Connected), "held");
    }
    store.limit(1);
    assert_eq!(store.held(), 3);
    assert_eq!(offer(&mut store, 9, Connected), "refused");
    assert_eq!(offer(&mut store, 1, Disconnected), "coalesced");
    store.raise_cap(5);
    assert_eq!(store.cap(), 6, "STOP-2");
    store.limit(2);
    assert_eq!(store.cap(), 7);
    assert_eq!(offer(&mut store, 9, Connected), "held");
}
