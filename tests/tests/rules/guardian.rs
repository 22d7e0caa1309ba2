//! GUARD: Guardian frames.

use crate::support::{command, serve_one, with_unknown_fields};
use prost::Message;
use tonic::Code;
use yuzu_proto::agent::v1::CommandResponse;
use yuzu_server_stub::{Action, Fault, Rpc, State};
use yuzu_tests::agent::PATIENCE;
use yuzu_tests::raw::code;
use yuzu_tests::testbed::TestBed;

/// An unsolicited frame.
fn event(payload: &[u8]) -> CommandResponse {
    CommandResponse {
        plugin: "__guard__".into(),
        status: 1,
        payload: payload.to_vec().into(),
        ..Default::default()
    }
}

#[derive(Clone, PartialEq, Message)]
struct RawForward {
    #[prost(string, tag = "1")]
    agent_id: String,
    #[prost(bytes = "bytes", tag = "2")]
    response: bytes::Bytes,
}

async fn forwarded(bed: &TestBed, count: u64) {
    bed.server
        .wait_received(Rpc::ForwardGuardianMessage, count, PATIENCE)
        .await
        .unwrap();
}

#[tokio::test]
async fn guard_1_an_unsolicited_frame_goes_to_the_server_and_to_nobody_else() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let operator = bed.operator().await;
    // A caller that waits for the empty id must not get it either.
    let mut fanout = operator.send(&["a"], command(""), 20).await.unwrap();
    agent.command().await.unwrap();
    let frame = with_unknown_fields(&event(b"\x00\xffstate"));
    agent.answer_raw(&frame).await.unwrap();
    forwarded(&bed, 1).await;
    let arrived = bed.server.received(Rpc::ForwardGuardianMessage);
    let arrived = RawForward::decode(arrived[0].raw.clone()).unwrap();
    assert_eq!(
        (arrived.agent_id.as_str(), &arrived.response),
        ("a", &frame)
    );
    agent
        .answer(&crate::support::success("", "done"))
        .await
        .unwrap();
    let (entries, _) = fanout.rest().await.unwrap();
    assert_eq!(
        (entries.len(), entries[0].response.output.as_str()),
        (1, "done")
    );
}

#[tokio::test]
async fn guard_2_with_a_command_id_it_is_an_ordinary_answer() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let mut fanout = bed
        .operator()
        .await
        .send(&["a"], command("c"), 20)
        .await
        .unwrap();
    agent.command().await.unwrap();
    let answer = CommandResponse {
        command_id: "c".into(),
        ..event(b"x")
    };
    agent.answer(&answer).await.unwrap();
    let (entries, status) = fanout.rest().await.unwrap();
    assert!(status.is_ok());
    assert!(entries.len() == 1 && entries[0].response == answer);
    assert!(bed.server.received(Rpc::ForwardGuardianMessage).is_empty());
}

#[tokio::test]
async fn guard_3_the_agent_is_the_one_the_session_is_bound_to() {
    let bed = TestBed::start().await;
    let (a, b) = (bed.agent("a").await, bed.agent("b").await);
    // Whatever the frame says of itself, it is opaque.
    let mut frame = event(b"").encode_to_vec();
    frame.extend([0x0a, 0]);
    a.answer_raw(&frame).await.unwrap();
    forwarded(&bed, 1).await;
    b.answer_raw(&frame).await.unwrap();
    forwarded(&bed, 2).await;
    let ids: Vec<String> = bed
        .server
        .received(Rpc::ForwardGuardianMessage)
        .iter()
        .map(|received| received.guardian().unwrap().agent_id)
        .collect();
    assert_eq!(ids, ["a", "b"]);
}

#[tokio::test]
async fn guard_4_at_most_50_are_in_flight_and_the_rest_is_dropped_and_counted() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    bed.server
        .fault(Fault::new(Rpc::ForwardGuardianMessage, Action::Hang))
        .unwrap();
    for number in 0..60_u8 {
        agent.answer(&event(&[number])).await.unwrap();
    }
    bed.metric_becomes(
        "guardian_forward_dropped_total",
        &[("reason", "at_capacity")],
        10.0,
    )
    .await;
    assert_eq!(
        bed.metric("guardian_forward_accepted_total", &[]).await,
        50.0
    );
    forwarded(&bed, 50).await;
    let in_flight = |s: &State| s.counts(Rpc::ForwardGuardianMessage).in_flight;
    assert_eq!(bed.server.view(in_flight), 50);
    // GUARD-6: the stream of the agent is as good as before.
    let mut fanout = bed
        .operator()
        .await
        .send(&["a"], command("c"), 20)
        .await
        .unwrap();
    serve_one(&mut agent).await;
    assert!(fanout.rest().await.unwrap().1.is_ok());
}

#[tokio::test]
async fn guard_4_while_the_breaker_is_open_frames_are_dropped() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    let broken = Action::Status(Code::Internal, String::new());
    bed.server
        .fault(Fault::new(Rpc::ProxyRegister, broken))
        .unwrap();
    let other = bed.bare_agent("b").await;
    let message = other.register_request().encode_to_vec();
    for _ in 0..5 {
        other.register_raw(&message).await.unwrap();
    }
    agent.answer(&event(b"x")).await.unwrap();
    bed.metric_becomes(
        "guardian_forward_dropped_total",
        &[("reason", "circuit_open")],
        1.0,
    )
    .await;
    assert_eq!(
        bed.metric("guardian_forward_accepted_total", &[]).await,
        0.0
    );
    assert!(bed.server.received(Rpc::ForwardGuardianMessage).is_empty());
}

#[tokio::test]
async fn guard_5_a_failed_forward_is_not_sent_again_and_does_not_feed_the_breaker() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    let broken = Action::Status(Code::Internal, String::new());
    bed.server
        .fault(Fault::new(Rpc::ForwardGuardianMessage, broken))
        .unwrap();
    for number in 1..=10 {
        agent.answer(&event(b"x")).await.unwrap();
        forwarded(&bed, number).await;
    }
    let failed = |s: &State| (s.counts(Rpc::ForwardGuardianMessage).failed == 10).then_some(());
    bed.server
        .wait_for("ten failures", PATIENCE, failed)
        .await
        .unwrap();
    let labels = [("rpc_name", "guardian"), ("code", "13")];
    bed.metric_becomes("upstream_rpc_errors_total", &labels, 10.0)
        .await;
    let other = bed.bare_agent("b").await;
    let message = other.register_request().encode_to_vec();
    let status = other.register_raw(&message).await.unwrap().status;
    assert_eq!(status.code, code::OK, "the breaker is closed");
    assert_eq!(
        bed.server.received(Rpc::ForwardGuardianMessage).len(),
        10,
        "none was repeated"
    );
}
