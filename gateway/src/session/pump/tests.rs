use bytes::Bytes;

use super::super::mailbox::MailboxLimits;
use super::super::testing::{Caller, connect, context};
use super::*;
use crate::edge::ConnectionKey;
use crate::upstream::tests::metric;

const LIMITS: MailboxLimits = MailboxLimits {
    commands: 10,
    bytes: 1_000,
};

fn life(context: &Arc<OwnerContext>) -> SessionLife {
    let session = connect(&context.registry, "agent", "s", ConnectionKey::next());
    context.roster.add(&session);
    SessionLife {
        session,
        context: Arc::clone(context),
        connected: true,
        ended: false,
    }
}

fn value(context: &OwnerContext, name: &str) -> f64 {
    metric(&context.metrics, name).unwrap_or_else(|| panic!("no {name}"))
}

#[tokio::test]
async fn cmd_20_a_task_that_is_killed_answers_its_callers_at_once() {
    let context = context();
    let life = life(&context);
    let caller = Arc::new(Caller::default());
    let (id, frame) = (Bytes::from_static(b"c-1"), Bytes::from_static(b"frame"));
    let sent = life.session.dispatch(&id, frame, caller.waiter(7), LIMITS);
    sent.unwrap();
    drop(life);
    assert_eq!(*caller.lost.lock().unwrap(), [7]);
    assert_eq!((context.registry.len(), context.roster.len()), (0, 0));
    assert_eq!(value(&context, "upstream_notify_pending"), 1.0);
}

#[tokio::test]
async fn owner_3_what_the_owners_death_said_is_not_said_again_at_the_end() {
    let context = context();
    let mut life = life(&context);
    life.say_owner_died();
    life.say_owner_died();
    life.end(Status::ok(""));
    drop(life);
    assert_eq!(value(&context, "upstream_notify_pending"), 1.0);
    assert_eq!(value(&context, "upstream_notify_coalesced_total"), 0.0);
    let gone = "agents_disconnected_total{node=\"yuzu_gw@127.0.0.1\"}";
    assert_eq!(value(&context, gone), 1.0);
}

#[tokio::test]
async fn owner_10_every_outcome_has_its_count() {
    let context = context();
    let life = life(&context);
    for outcome in [
        Outcome::Recovered,
        Outcome::DisconnectedOnly(NotRecovered::NotAccepted),
        Outcome::GaveUp,
    ] {
        life.tell(&outcome);
    }
    for label in ["recovered", "disconnected_only", "gave_up"] {
        let series = format!("agent_owner_restarts_total{{outcome=\"{label}\"}}");
        assert_eq!(value(&context, &series), 1.0, "{label}");
    }
}

#[tokio::test]
async fn vis_5_a_session_that_was_told_to_be_gone_is_not_announced_again() {
    let context = context();
    let mut life = life(&context);
    life.end(Status::ok(""));
    life.session.ask_to_announce();
    assert!(announce_again(&mut life).now_or_never().is_none());
    assert!(!life.connected);
    assert_eq!(value(&context, "upstream_notify_pending"), 1.0);
    assert_eq!(value(&context, "upstream_notify_coalesced_total"), 0.0);
}
