//! CAP and REG-9: what registrations of one connection may hold.

use crate::support::soon;
use futures_util::future::join_all;
use prost::Message;
use std::time::Duration;
use yuzu_proto::agent::v1::{AgentInfo, HeartbeatRequest, RegisterRequest, RegisterResponse};
use yuzu_server_stub::{Action, Fault, Rpc};
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::raw::{Answer, code};
use yuzu_tests::testbed::{Setup, TestBed};

const CAP: usize = 8;

/// A gateway that lets one connection have so many calls at once.
async fn bed_for(calls: u32) -> TestBed {
    let setup = Setup::default();
    let setup = setup.agent_listener(|listener| listener.http2.max_concurrent_streams = calls);
    setup.start().await
}

async fn register(agent: &Agent, id: &str, token_bytes: usize) -> Answer {
    let request = RegisterRequest {
        info: Some(AgentInfo {
            agent_id: id.into(),
            ..AgentInfo::default()
        }),
        enrollment_token: "t".repeat(token_bytes),
        ..RegisterRequest::default()
    };
    let answer = agent.register_raw(&request.encode_to_vec()).await;
    answer.expect("an answer")
}

fn session_of(answer: &Answer) -> String {
    assert!(answer.status.is_ok(), "{}", answer.status);
    answer.decode::<RegisterResponse>().unwrap().session_id
}

/// Sends all these ids at once while the server keeps its calls until the others are refused: how
/// many were let through.
async fn at_once(bed: &TestBed, ids: &[String]) -> usize {
    let hang = Fault::new(Rpc::ProxyRegister, Action::Hang);
    bed.server.fault(hang).unwrap();
    let agent = bed.bare_agent("all").await;
    let refusals = (ids.len() - CAP) as f64;
    let calls = join_all(ids.iter().map(|id| register(&agent, id, 0)));
    let release = async {
        bed.metric_becomes("session_limit_rejected_total", &[], refusals)
            .await;
        let admitted = bed.server.wait_received(Rpc::ProxyRegister, 8, PATIENCE);
        admitted.await.unwrap();
        bed.server.clear_faults(None);
        bed.server.release(None);
    };
    let (answers, ()) = soon("every answer", async { tokio::join!(calls, release) }).await;
    let refused = answers.iter().filter(|answer| {
        let cap = answer.status.message == "too many sessions on this connection";
        answer.status.code == code::UNAVAILABLE && cap
    });
    assert_eq!(refused.count(), ids.len() - CAP);
    bed.server.received(Rpc::ProxyRegister).len()
}

#[tokio::test]
async fn cap_4_of_200_ids_at_once_on_one_connection_8_reach_the_server() {
    let bed = bed_for(200).await;
    let ids: Vec<_> = (0..200).map(|n| format!("a-{n}")).collect();
    assert_eq!(at_once(&bed, &ids).await, CAP);
}

#[tokio::test]
async fn cap_4_of_20_registers_of_one_id_at_once_8_reach_the_server() {
    let bed = bed_for(32).await;
    assert_eq!(at_once(&bed, &vec!["a".to_owned(); 20]).await, CAP);
}

#[tokio::test]
async fn reg_9_of_40_in_a_row_one_pending_row_is_there_at_every_moment() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("a").await;
    let mut sessions = Vec::new();
    for _ in 0..40 {
        sessions.push(session_of(&register(&agent, "a", 1 << 20).await));
        // A pending row admits heartbeats on its connection.
        let mut admitted = Vec::new();
        for session_id in &sessions {
            let beat = HeartbeatRequest {
                session_id: session_id.clone(),
                ..Default::default()
            };
            let answer = agent.heartbeat_raw(&beat.encode_to_vec()).await.unwrap();
            match answer.status.code {
                code::OK => admitted.push(session_id),
                other => assert_eq!(other, code::NOT_FOUND),
            }
        }
        assert_eq!(admitted, [sessions.last().unwrap()]);
    }
    assert_eq!(bed.metric("session_limit_rejected_total", &[]).await, 0.0);
}

#[tokio::test]
async fn cap_1_and_6_the_ninth_id_is_refused_until_a_session_ends_and_the_cap_is_exact_again() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("all").await;
    let mut streams = Vec::new();
    for n in 0..CAP {
        let session = session_of(&register(&agent, &format!("a-{n}"), 0).await);
        streams.push(agent.subscribe_as(&session).await.unwrap());
    }
    for round in 0..3 {
        let ninth = register(&agent, "ninth", 0).await;
        assert_eq!(ninth.status.code, code::UNAVAILABLE, "round {round}");
        // An agent's own session is not counted against it (CAP-3).
        let own = session_of(&register(&agent, "a-7", 0).await);
        streams.truncate(CAP - 1);
        bed.metric_becomes("agents_disconnected_total", &[], f64::from(round) + 1.0)
            .await;
        streams.push(agent.subscribe_as(&own).await.unwrap());
    }
}

#[tokio::test]
async fn cap_5_a_subscribe_on_a_full_connection_is_14() {
    let bed = TestBed::start().await;
    let full = bed.bare_agent("full").await;
    for n in 0..CAP {
        session_of(&register(&full, &format!("a-{n}"), 0).await);
    }
    let other = bed.bare_agent("other").await;
    let session = session_of(&register(&other, "other", 0).await);
    let refused = full.subscribe_as(&session).await.unwrap_err();
    assert_eq!(refused.code(), Some(code::UNAVAILABLE), "{refused}");
    assert_eq!(bed.metric("session_limit_rejected_total", &[]).await, 1.0);
    // The row is still there for a connection that has room.
    other.subscribe_as(&session).await.unwrap();
}

/// The status of a Subscribe on a new connection, after the one of the Register has closed.
async fn after_the_close(grace: Duration) -> Option<u16> {
    let setup = Setup::default();
    let setup = setup.gateway(|config| config.session.dead_connection_grace = grace);
    let bed = setup.start().await;
    let agent = bed.bare_agent("a").await;
    let session = session_of(&register(&agent, "a", 0).await);
    let connections = [("listener", "agent")];
    bed.metric_becomes("listener_connections", &connections, 1.0)
        .await;
    agent.connection.cut();
    bed.metric_becomes("listener_connections", &connections, 0.0)
        .await;
    let next = bed.bare_agent("a").await;
    let subscribed = next.subscribe_as(&session).await;
    subscribed.err().map(|refused| refused.code().unwrap())
}

#[tokio::test]
async fn cap_7_within_the_grace_the_row_of_a_closed_connection_can_be_taken() {
    assert_eq!(after_the_close(Duration::from_secs(15)).await, None);
}

#[tokio::test]
async fn cap_7_without_a_grace_it_goes_with_its_connection() {
    assert_eq!(after_the_close(Duration::ZERO).await, Some(code::NOT_FOUND));
}
