//! An owner that panics leaves its Subscribe stream open.

use prost::Message;
use yuzu_proto::agent::v1::HeartbeatRequest;
use yuzu_proto::gateway::v1::StreamStatusNotification;
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::raw::code;
use yuzu_tests::testbed::TestBed;

use super::{command, serves};

const CONNECTED: Event = Event::Connected;
const DISCONNECTED: Event = Event::Disconnected;

/// Waits for so many notices of this agent; they arrive at the server in any order.
async fn notices(bed: &TestBed, agent: &Agent, count: usize) -> Vec<StreamStatusNotification> {
    let what = format!("{count} notices of {}", agent.id);
    let session = agent.session_id.clone();
    let look = |state: &yuzu_server_stub::State| {
        let all = state.received(yuzu_server_stub::Rpc::NotifyStreamStatus);
        let of = all.filter_map(|received| received.stream_status());
        let of: Vec<_> = of.filter(|n| n.session_id == session).collect();
        (of.len() >= count).then_some(of)
    };
    bed.server.wait_for(&what, PATIENCE, look).await.unwrap()
}

fn events(notices: &[StreamStatusNotification]) -> Vec<Event> {
    notices
        .iter()
        .map(StreamStatusNotification::event)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner_5_a_panic_leaves_the_stream_open_and_is_told_with_the_same_home() {
    let bed = TestBed::start().await;
    let operator = bed.operator().await;
    let mut agent = bed.agent("victim").await;
    let mut bystander = bed.agent("bystander").await;

    let mut in_flight = operator
        .send(&["victim"], command("lost"), 60)
        .await
        .unwrap();
    assert_eq!(agent.command().await.unwrap().message.command_id, "lost");
    assert!(bed.gateway.inject_owner_panic("victim"));

    let entry = in_flight.entry().await.unwrap();
    assert_eq!(entry.agent_id, "victim");
    assert_eq!(entry.response.command_id, "lost");
    assert_eq!(entry.response.output, "agent_disconnected");
    assert!(in_flight.next().await.unwrap().unwrap_err().is_ok());

    let told = notices(&bed, &agent, 3).await;
    assert_eq!(events(&told), [CONNECTED, DISCONNECTED, CONNECTED]);
    assert!(!told[0].stream_home_id.is_empty());
    for notice in &told {
        assert_eq!(notice.stream_home_id, told[0].stream_home_id);
    }

    serves(&operator, &mut agent, "after").await;
    serves(&operator, &mut bystander, "after").await;
    bed.metric_becomes(
        "agent_owner_restarts_total",
        &[("outcome", "recovered")],
        1.0,
    )
    .await;
    assert_eq!(events(&bed.notices_of(&bystander.session_id)), [CONNECTED]);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cmd_20_a_command_that_waits_is_answered_too_and_the_late_answer_is_dropped() {
    let bed = TestBed::start().await;
    let operator = bed.operator().await;
    let mut agent = bed.agent("victim").await;
    let mut fanouts = Vec::new();
    for n in 0..5 {
        let sent = operator
            .send(&["victim"], command(&format!("c-{n}")), 60)
            .await;
        fanouts.push(sent.unwrap());
    }
    assert!(bed.gateway.inject_owner_panic("victim"));
    for fanout in &mut fanouts {
        let output = super::only_entry(fanout).await;
        assert_eq!(output, "agent_disconnected");
    }
    agent.answer(&super::done("c-0", "too late")).await.unwrap();
    let mut next = operator
        .send(&["victim"], command("next"), 60)
        .await
        .unwrap();
    while agent.command().await.unwrap().message.command_id != "next" {}
    agent.answer(&super::done("next", "in time")).await.unwrap();
    assert_eq!(super::only_entry(&mut next).await, "in time");
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner_6_heartbeats_stay_admitted_from_the_death_on() {
    let bed = TestBed::start().await;
    let agent = bed.agent("victim").await;
    for panics in 1..=3 {
        assert!(bed.gateway.inject_owner_panic("victim"));
        // These race the recovery; each must be admitted.
        for _ in 0..20 {
            let answer = agent.heartbeat().await.unwrap();
            assert!(answer.status.is_ok(), "{}", answer.status);
        }
        notices(&bed, &agent, 1 + 2 * panics).await;
    }
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admit_7_a_session_being_recovered_stays_admitted_on_its_connection() {
    let bed = TestBed::start().await;
    let agent = bed.agent("victim").await;
    let stranger = bed.bare_agent("other").await;
    let beat = HeartbeatRequest {
        session_id: agent.session_id.clone(),
        ..HeartbeatRequest::default()
    };
    let beat = beat.encode_to_vec();
    assert!(bed.gateway.inject_owner_panic("victim"));
    // These race the recovery.
    for _ in 0..20 {
        let own = agent.heartbeat_raw(&beat).await.unwrap();
        assert!(own.status.is_ok(), "{}", own.status);
        let other = stranger.heartbeat_raw(&beat).await.unwrap();
        assert_eq!(other.status.code, code::NOT_FOUND);
    }
    notices(&bed, &agent, 3).await;
    assert!(agent.heartbeat().await.unwrap().status.is_ok());
    assert!(agent.inventory().await.unwrap().status.is_ok());
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner_8_the_fourth_panic_within_60_s_ends_the_stream() {
    let bed = TestBed::start().await;
    let operator = bed.operator().await;
    let mut agent = bed.agent("victim").await;
    for panics in 1..=3 {
        assert!(bed.gateway.inject_owner_panic("victim"));
        notices(&bed, &agent, 1 + 2 * panics).await;
        serves(&operator, &mut agent, &format!("after-{panics}")).await;
    }
    assert!(bed.gateway.inject_owner_panic("victim"));
    let status = agent.stream_end().await.unwrap();
    assert!(status.is_ok(), "{status}");
    let told = notices(&bed, &agent, 8).await;
    assert_eq!(told.last().unwrap().event(), DISCONNECTED);
    let connected = told.iter().filter(|n| n.event() == CONNECTED);
    assert_eq!(connected.count(), 4);
    for (outcome, count) in [("recovered", 3.0), ("gave_up", 1.0)] {
        bed.metric_becomes("agent_owner_restarts_total", &[("outcome", outcome)], count)
            .await;
    }

    // The same connection registers again and gets a new session.
    agent.register().await.unwrap();
    agent.subscribe().await.unwrap();
    bed.notice(CONNECTED, &agent.session_id).await;
    serves(&operator, &mut agent, "new-session").await;
    bed.stop().await;
}
