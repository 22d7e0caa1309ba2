//! CAP: how many agents one connection may have.

use super::*;

#[test]
fn cap_4_of_200_concurrent_registers_of_distinct_ids_8_are_admitted() {
    let mut b = Bench::new();
    let admitted = (0..200).filter(|n| b.reserve(&format!("agent-{n}")).is_ok());
    assert_eq!(admitted.count(), 8);
}

#[test]
fn cap_4_of_20_concurrent_registers_of_one_id_8_are_admitted_and_12_refused() {
    let mut b = Bench::new();
    let answers: Vec<_> = (0..20).map(|_| b.reserve("agent").is_ok()).collect();
    assert_eq!(answers.iter().filter(|admitted| **admitted).count(), 8);
    assert_eq!(answers.iter().filter(|admitted| !**admitted).count(), 12);
}

#[test]
fn cap_1_the_ninth_id_is_refused_and_after_the_eight_ended_the_cap_is_reached_again_exactly() {
    let mut b = Bench::new();
    for round in 0..2 {
        let mut epochs = Vec::new();
        for n in 0..8 {
            let agent = format!("agent-{round}-{n}");
            b.register(&agent);
            let epoch = b.subscribe(&format!("s-{agent}")).unwrap().value;
            epochs.push((agent, epoch));
        }
        assert_eq!(b.reserve("one-more"), Err(CapReached));
        for (agent, epoch) in epochs {
            assert!(b.end(&agent, epoch));
        }
    }
}

#[test]
fn cap_2_pending_and_live_rows_of_other_agents_and_reservations_count() {
    let mut b = Bench::new();
    for agent in ["p1", "p2", "p3"] {
        b.register(agent);
    }
    for agent in ["l1", "l2"] {
        b.register(agent);
        b.subscribe(&format!("s-{agent}")).unwrap();
    }
    for agent in ["r1", "r2", "r3"] {
        b.reserve(agent).unwrap();
    }
    assert_eq!(b.reserve("ninth"), Err(CapReached));
}

#[test]
fn cap_2_an_agent_with_a_reservation_in_flight_is_not_counted_for_its_pending_row_too() {
    let mut b = Bench::new();
    for n in 0..7 {
        b.register(&format!("agent-{n}"));
    }
    b.reserve("agent-0").unwrap();
    // Six pending rows and one reservation: one slot is left.
    b.reserve("eighth").unwrap();
    assert_eq!(b.reserve("ninth"), Err(CapReached));
}

#[test]
fn cap_3_the_own_pending_and_live_row_never_count_for_a_register() {
    let mut b = Bench::new();
    for n in 0..8 {
        b.register(&format!("agent-{n}"));
    }
    b.subscribe("s-agent-0").unwrap();
    // agent-0 is live and agent-1 pending: each leaves its own row out.
    for agent in ["agent-0", "agent-1"] {
        let stamp = b.reserve(agent).unwrap();
        b.table.release(stamp);
    }
    assert_eq!(b.reserve("other"), Err(CapReached));
}

#[test]
fn cap_5_a_subscribe_over_the_cap_is_refused_and_its_row_stays() {
    let mut b = Bench::new();
    b.register("mover");
    let first = std::mem::replace(&mut b.connection, ConnectionKey::next());
    for n in 0..8 {
        b.register(&format!("agent-{n}"));
    }
    assert_eq!(
        b.subscribe("s-mover").unwrap_err(),
        TakeRefused::CapReached,
        "eight rows of others are on the new connection"
    );
    b.connection = first;
    assert!(b.subscribe("s-mover").is_ok());
}

#[test]
fn cap_5_own_rows_and_reservations_do_not_stand_in_the_way_of_a_subscribe() {
    let mut b = Bench::new();
    b.register("agent");
    for _ in 0..8 {
        b.reserve("agent").unwrap();
    }
    assert!(b.subscribe("s-agent").is_ok());
}

#[test]
fn cap_6_a_slot_is_freed_by_release_lifetime_and_supersede() {
    let mut b = Bench::with(TableLimits {
        max_per_connection: 1,
        grace: GRACE,
    });
    let stamp = b.reserve("a").unwrap();
    assert_eq!(b.reserve("b"), Err(CapReached));
    b.table.release(stamp);
    b.reserve("b").unwrap();
    b.wait(120);
    // Expired, not swept.
    b.register("c");
    b.subscribe("s-c").unwrap();
    assert_eq!(b.reserve("d"), Err(CapReached));
    let here = std::mem::replace(&mut b.connection, ConnectionKey::next());
    b.register("c");
    b.subscribe("s-c").unwrap();
    b.connection = here;
    b.reserve("d").unwrap();
}

#[test]
fn cap_7_rows_of_a_closed_connection_stay_takeable_for_the_grace() {
    let mut b = Bench::new();
    b.register("agent");
    b.register("late");
    b.close();
    b.wait(14);
    b.sweep();
    b.connection = ConnectionKey::next();
    assert!(b.subscribe("s-agent").is_ok());
    b.wait(1);
    b.sweep();
    assert_eq!(
        b.subscribe("s-late").unwrap_err(),
        TakeRefused::NotPending,
        "the grace is over"
    );
    // The session that moved lives on.
    assert_eq!(b.table.len(), 1);
    assert_eq!(b.table.connections.len(), 1);
}

#[test]
fn cap_7_no_grace_drops_the_rows_at_once() {
    let mut b = Bench::with(TableLimits {
        max_per_connection: CAP,
        grace: Duration::ZERO,
    });
    b.register("agent");
    let stamp = b.reserve("other").unwrap();
    b.close();
    assert_eq!(b.subscribe("s-agent").unwrap_err(), TakeRefused::NotPending);
    assert_eq!(b.commit(stamp, "s-other", "other"), Err(Superseded));
    assert!(b.table.connections.is_empty());
}

#[test]
fn cap_9_a_commit_after_the_connection_went_leaves_no_row_behind() {
    let mut b = Bench::new();
    let (early, late) = (b.reserve("early").unwrap(), b.reserve("late").unwrap());
    b.close();
    b.wait(10);
    b.commit(early, "s-early", "early").unwrap();
    b.wait(5);
    b.sweep();
    assert_eq!(b.commit(late, "s-late", "late"), Err(Superseded));
    assert!(b.table.pending.is_empty() && b.table.connections.is_empty());
}
