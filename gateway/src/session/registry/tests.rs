use std::collections::HashSet;
use std::sync::Barrier;

use super::super::testing::{connect, registration, registry};
use super::*;

fn key() -> ConnectionKey {
    ConnectionKey::next()
}

fn size(index: &Sharded) -> usize {
    index.collect(0).len()
}

/// Both indexes hold the live rows of the table, and nothing else.
fn check(registry: &Registry) {
    let (rows, more) = registry.page("", usize::MAX >> 1);
    assert!(!more);
    assert_eq!(registry.len(), rows.len());
    assert_eq!(size(&registry.by_agent), rows.len());
    for row in &rows {
        let routed = registry.route(row.agent_id()).unwrap();
        assert!(Arc::ptr_eq(&routed, row));
    }
    let ids: HashSet<_> = rows.iter().map(|row| &row.session_id).collect();
    assert_eq!(size(&registry.by_session), ids.len());
}

#[test]
fn sub_8_the_older_session_loses_route_and_admission_at_once() {
    let registry = registry();
    let (first, second) = (key(), key());
    let old = connect(&registry, "agent", "s-1", first);
    assert_eq!(registry.admit("s-1", first), Ok(()));
    let new = connect(&registry, "agent", "s-2", second);
    assert!(Arc::ptr_eq(&registry.route("agent").unwrap(), &new));
    assert_eq!(registry.admit("s-1", first), Err(Refusal::UnknownSession));
    assert_eq!(registry.admit("s-2", second), Ok(()));
    check(&registry);

    // Old fault 7: the old one closing took the new one with it.
    registry.end(&old);
    assert!(Arc::ptr_eq(&registry.route("agent").unwrap(), &new));
    assert_eq!(registry.admit("s-2", second), Ok(()));
    registry.end(&new);
    assert!(registry.route("agent").is_none());
    check(&registry);
}

#[test]
fn sub_8_an_older_session_with_the_same_id_takes_nothing_of_the_newer_with_it() {
    let registry = registry();
    let connection = key();
    let old = connect(&registry, "agent", "s", connection);
    let new = connect(&registry, "agent", "s", connection);
    registry.end(&old);
    assert!(Arc::ptr_eq(&registry.route("agent").unwrap(), &new));
    assert_eq!(registry.admit("s", connection), Ok(()));
    check(&registry);
}

#[test]
fn two_agents_with_one_session_id_end_by_themselves() {
    let registry = registry();
    let (first, second) = (key(), key());
    let a = connect(&registry, "a", "s", first);
    let b = connect(&registry, "b", "s", second);
    assert_eq!(registry.admit("s", second), Ok(()));
    registry.end(&a);
    assert_eq!(registry.admit("s", second), Ok(()));
    assert!(registry.route("a").is_none());
    assert!(Arc::ptr_eq(&registry.route("b").unwrap(), &b));
    registry.end(&b);
    assert_eq!(registry.admit("s", second), Err(Refusal::UnknownSession));
    check(&registry);
}

#[test]
fn admit_1_a_live_session_is_admitted_on_the_connection_of_its_subscribe_only() {
    let registry = registry();
    let (register, subscribe) = (key(), key());
    let slot = registry.reserve(register, &Arc::from("agent")).unwrap();
    slot.commit(&Arc::from("s"), registration("agent")).unwrap();
    assert_eq!(registry.admit("s", register), Ok(()));
    assert_eq!(
        registry.admit("s", subscribe),
        Err(Refusal::ConnectionMismatch)
    );
    registry
        .subscribe("s", subscribe, Arc::from("home"))
        .unwrap();
    assert_eq!(registry.admit("s", subscribe), Ok(()));
    assert_eq!(
        registry.admit("s", register),
        Err(Refusal::ConnectionMismatch)
    );
    assert_eq!(registry.admit("", subscribe), Err(Refusal::UnknownSession));
}

#[test]
fn reg_14_a_slot_that_is_dropped_is_free_again() {
    let registry = registry();
    let connection = key();
    let slots: Vec<_> = (0..8)
        .map(|n| registry.reserve(connection, &Arc::from(n.to_string())))
        .collect();
    assert!(slots.iter().all(Result::is_ok));
    assert!(registry.reserve(connection, &Arc::from("ninth")).is_err());
    drop(slots);
    assert!(registry.reserve(connection, &Arc::from("ninth")).is_ok());
}

#[test]
fn cap_4_subscribes_and_registers_at_once_never_pass_the_cap() {
    for _ in 0..50 {
        let registry = registry();
        let connection = key();
        for n in 0..8 {
            let id = n.to_string();
            let slot = registry.reserve(connection, &Arc::from(&*id)).unwrap();
            slot.commit(&Arc::from(&*id), registration(&id)).unwrap();
        }
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                for n in 0..8 {
                    let id = n.to_string();
                    let home = Arc::from("home");
                    registry.subscribe(&id, connection, home).unwrap();
                }
            });
            start.wait();
            for _ in 0..1_000 {
                let ninth = registry.reserve(connection, &Arc::from("ninth"));
                assert!(ninth.is_err(), "a slot was free for a moment");
            }
        });
    }
}

#[test]
fn the_indexes_equal_the_table_while_many_threads_connect_and_end_the_same_agents() {
    let registry = registry();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let registry = &registry;
            scope.spawn(move || {
                for round in 0..500 {
                    let agent = format!("agent-{}", round % 3);
                    // Now and then the threads share a session id too.
                    let session = format!("s-{}-{}", thread / 2, round % 5);
                    let connection = key();
                    let slot = registry.reserve(connection, &Arc::from(&*agent)).unwrap();
                    let committed = slot.commit(&Arc::from(&*session), registration(&agent));
                    if committed.is_err() {
                        continue;
                    }
                    let home = Arc::from("home");
                    if let Ok(session) = registry.subscribe(&session, connection, home) {
                        if let Some(routed) = registry.route(session.agent_id()) {
                            assert_eq!(routed.agent_id(), session.agent_id());
                        }
                        registry.end(&session);
                    }
                }
            });
        }
    });
    check(&registry);
    for session in registry.all() {
        registry.end(&session);
    }
    assert_eq!(registry.len(), 0);
    assert_eq!(
        (size(&registry.by_agent), size(&registry.by_session)),
        (0, 0)
    );
}

#[test]
fn unack_6_held_is_the_session_and_the_stream_that_commands_go_to() {
    let registry = registry();
    let old = connect(&registry, "agent", "s-1", key());
    assert!(registry.holds("agent", "s-1", "home-s-1"));
    for (agent, session, home) in [
        ("other", "s-1", "home-s-1"),
        ("agent", "s-2", "home-s-1"),
        ("agent", "s-1", "home-s-2"),
    ] {
        assert!(!registry.holds(agent, session, home), "{agent} {session}");
    }
    let new = connect(&registry, "agent", "s-2", key());
    assert!(!registry.holds("agent", "s-1", "home-s-1"), "superseded");
    registry.end(&old);
    assert!(registry.holds("agent", "s-2", "home-s-2"));
    registry.end(&new);
    assert!(!registry.holds("agent", "s-2", "home-s-2"));
}
