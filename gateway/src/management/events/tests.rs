use http_body_util::BodyExt;
use tokio::time::Instant;

use super::*;
use crate::edge::testing::connection;
use crate::session::Events;

fn event(agent_id: &str, change: Change) -> Event {
    Event {
        agent_id: agent_id.into(),
        at_ms: 1_700_000_000_123,
        change,
    }
}

async fn next(body: &mut WatchBody) -> AgentEvent {
    let frame = body.frame().await.expect("a frame").unwrap();
    let data = frame.into_data().expect("data");
    AgentEvent::decode(&data[5..]).unwrap()
}

/// Status and message of the trailers.
async fn end(body: &mut WatchBody) -> (String, Option<String>) {
    let frame = body.frame().await.expect("a frame").unwrap();
    let trailers = frame.into_trailers().expect("trailers");
    assert!(body.is_end_stream());
    let text = |name| trailers.get(name).map(|v| v.to_str().unwrap().to_owned());
    (text("grpc-status").unwrap(), text("grpc-message"))
}

fn watch(events: &Events, wanted: &[&str]) -> WatchBody {
    let wanted = wanted.iter().map(|id| (*id).to_owned()).collect();
    WatchBody::new(events.watch(), wanted, &connection())
}

#[tokio::test]
async fn mgmt_4_events_carry_the_session_or_the_reason_and_the_time() {
    let events = Events::new();
    let mut body = watch(&events, &[]);
    events.publish(event("a", Change::Connected("s-1".into())));
    events.publish(event("a", Change::Disconnected));
    let connected = next(&mut body).await;
    assert_eq!(connected.agent_id, "a");
    let at = connected.occurred_at.unwrap().millis_epoch;
    assert_eq!(at, 1_700_000_000_123);
    let session_id = "s-1".to_owned();
    assert_eq!(
        connected.event,
        Some(EventKind::Connected(AgentConnected { session_id }))
    );
    let reason = "normal".to_owned();
    assert_eq!(
        next(&mut body).await.event,
        Some(EventKind::Disconnected(AgentDisconnected { reason }))
    );
}

#[tokio::test]
async fn mgmt_4_only_the_wanted_ids_exactly() {
    let events = Events::new();
    let mut body = watch(&events, &["b", "d"]);
    for agent in ["a", "b", "bb", "B", "d"] {
        events.publish(event(agent, Change::Disconnected));
    }
    for agent in ["b", "d"] {
        assert_eq!(next(&mut body).await.agent_id, agent);
    }
}

#[tokio::test(start_paused = true)]
async fn mgmt_4_ends_with_ok_after_24_h_without_an_event_that_is_wanted() {
    let events = Events::new();
    let mut body = watch(&events, &["a"]);
    tokio::time::sleep(QUIET - Duration::from_secs(1)).await;
    events.publish(event("a", Change::Disconnected));
    next(&mut body).await;
    let start = Instant::now();
    let unwanted = async {
        tokio::time::sleep(QUIET / 2).await;
        events.publish(event("b", Change::Disconnected));
    };
    let (ended, ()) = tokio::join!(end(&mut body), unwanted);
    assert_eq!(ended, ("0".to_owned(), None));
    assert_eq!(start.elapsed(), QUIET);
}

#[tokio::test]
async fn mgmt_4_a_watcher_that_falls_behind_ends_with_8_and_how_many_it_missed() {
    let events = Events::new();
    let mut body = watch(&events, &[]);
    for _ in 0..16_384 + 5 {
        events.publish(event("a", Change::Disconnected));
    }
    // grpc-message is percent-encoded on the wire.
    let missed = Some("missed%205".to_owned());
    assert_eq!(end(&mut body).await, ("8".to_owned(), missed));
}
