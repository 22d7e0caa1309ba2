use super::*;
use crate::edge::ConnectionKey;
use crate::session::testing::{connect, registry};

fn question(id: u64, agent_id: &str) -> AgentQuestion {
    AgentQuestion {
        id,
        agent_id: agent_id.to_owned(),
    }
}

fn ask(questions: &mut Questions) -> oneshot::Receiver<AgentDescription> {
    let (answer, answered) = oneshot::channel();
    questions.ask(Question {
        agent_id: "agent".to_owned(),
        answer,
    });
    answered
}

#[test]
fn mgmt_3_a_question_is_answered_from_the_own_table_alone() {
    let (mut here, mut there, sessions) = (Questions::default(), Questions::default(), registry());
    let session = connect(&sessions, "agent", "s", ConnectionKey::next());
    let mut answered = ask(&mut here);
    let asked = here.next(&registry());
    assert_eq!(asked, Some(Kind::Question(question(1, "agent"))));
    there.asked(&question(1, "agent")).unwrap();
    there.asked(&question(2, "gone")).unwrap();
    let Some(Kind::Description(found)) = there.next(&sessions) else {
        panic!("no answer");
    };
    assert_eq!(
        (found.id, found.connected, &*found.hostname),
        (1, true, "host")
    );
    assert_eq!(found.connected_at_ms, session.connected_at_ms);
    let gone = AgentDescription {
        id: 2,
        ..AgentDescription::default()
    };
    assert_eq!(there.next(&sessions), Some(Kind::Description(gone)));
    assert_eq!(there.next(&sessions), None);
    here.answered(&found);
    assert_eq!(answered.try_recv(), Ok(found));
}

#[test]
fn there_is_an_end_to_the_questions_of_either_side() {
    let mut questions = Questions::default();
    let waiting: Vec<_> = (0..MAX_OPEN).map(|_| ask(&mut questions)).collect();
    while questions.next(&registry()).is_some() {}
    assert!(!questions.has_room());
    drop(waiting);
    assert!(questions.has_room());
    for id in 0..MAX_OPEN as u64 {
        questions.asked(&question(id, "agent")).unwrap();
    }
    assert_eq!(questions.asked(&question(99, "agent")), Err(TooMany));
}

#[test]
fn an_answer_that_nobody_waits_for_is_dropped() {
    let mut questions = Questions::default();
    drop(ask(&mut questions));
    for id in [1, 1, 7] {
        questions.answered(&AgentDescription {
            id,
            ..AgentDescription::default()
        });
    }
    assert!(questions.open.is_empty());
}
