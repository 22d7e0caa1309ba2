use std::collections::BTreeSet;

use futures_util::FutureExt;

use super::*;
use crate::edge::ConnectionKey;
use crate::session::testing::{connect, registry};

const GRACE: Duration = Duration::from_secs(5);

/// `count` agents, each with a connection of its own.
fn agents(registry: &Registry, count: usize) -> Vec<Arc<Session>> {
    let agent = |number: usize| {
        let (id, session) = (format!("agent-{number:04}"), format!("s-{number}"));
        connect(registry, &id, &session, ConnectionKey::next())
    };
    (0..count).map(agent).collect()
}

/// What each session is asked for next.
fn asked(sessions: &[Arc<Session>]) -> Vec<Option<Control>> {
    let asked = sessions
        .iter()
        .map(|session| session.asked().now_or_never());
    asked.collect()
}

#[test]
fn shift_1_an_agent_is_let_go_first_and_ended_after_its_grace() {
    let registry = Arc::new(registry());
    let sessions = agents(&registry, 3);
    let (mut mover, now) = (Mover::new(&registry), Instant::now());
    let one = Asked {
        connections: 1,
        sessions: 1,
    };
    assert_eq!(mover.ask(now, GRACE, 1), one);
    assert_eq!(asked(&sessions), [Some(Control::LetGo), None, None]);
    assert_eq!(mover.next_time(), Some(now + GRACE));
    mover.end_due(now + GRACE - Duration::from_millis(1));
    assert_eq!(asked(&sessions), [None, None, None]);
    assert_eq!(mover.leaving(), 1);
    mover.end_due(now + GRACE);
    assert_eq!(asked(&sessions), [Some(Control::End), None, None]);
    assert_eq!((mover.leaving(), mover.next_time()), (0, None));
}

#[test]
fn shift_1_a_connection_moves_as_one_and_each_of_its_sessions_counts() {
    let registry = Arc::new(registry());
    let shared = ConnectionKey::next();
    let together: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|id| connect(&registry, id, &format!("s-{id}"), shared))
        .collect();
    let others = agents(&registry, 2);
    let (mut mover, now) = (Mover::new(&registry), Instant::now());
    let all_of_one = Asked {
        connections: 1,
        sessions: 3,
    };
    assert_eq!(mover.ask(now, GRACE, 1), all_of_one);
    let let_go = asked(&together).into_iter().flatten().count();
    assert_eq!(let_go, 1, "one GOAWAY");
    assert_eq!(asked(&others), [None, None]);
    mover.end_due(now + GRACE);
    assert_eq!(asked(&together), [Some(Control::End); 3]);
}

#[test]
fn shift_1_all_agents_have_their_turn_and_nobody_is_asked_twice() {
    let registry = Arc::new(registry());
    // More than two pages.
    let sessions = agents(&registry, 1_100);
    let (mut mover, now) = (Mover::new(&registry), Instant::now());
    let mut seen = BTreeSet::new();
    for _ in 0..10 {
        assert_eq!(mover.ask(now, GRACE, 100).sessions, 100);
        let let_go = sessions
            .iter()
            .filter(|session| session.asked().now_or_never().is_some());
        seen.extend(let_go.map(|session| Arc::clone(session.agent_id())));
    }
    assert_eq!(seen.len(), 1_000);
    // Those whose turn had not come, and then nobody.
    assert_eq!(mover.ask(now, GRACE, 200).sessions, 100);
    assert_eq!(mover.ask(now, GRACE, 200), Asked::default());
    // A newcomer is one who has not been asked.
    connect(&registry, "agent-0000-new", "s-new", ConnectionKey::next());
    assert_eq!(mover.ask(now, GRACE, 200).sessions, 1);
}
