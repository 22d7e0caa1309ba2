//! W: unknown fields cross the gateway unchanged, in both directions. The other messages are
//! with their calls: CommandRequest and CommandResponse in `command`, InventoryReport and
//! InventoryAck in `inventory`.

use crate::support::{
    accepted, command, serve_one, session_id, unknown_fields, with_unknown_fields,
};
use prost::Message;
use std::collections::HashMap;
use yuzu_proto::agent::v1::{AgentInfo, CommandRequest, HeartbeatRequest, RegisterRequest};
use yuzu_server_stub::{Action, Fault, Rpc, State};
use yuzu_tests::agent::PATIENCE;
use yuzu_tests::testbed::TestBed;

#[tokio::test]
async fn w_2_a_register_request_keeps_its_unknown_fields() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("a").await;
    let known = RegisterRequest {
        enrollment_token: "token".into(),
        machine_certificate: vec![1, 2, 255].into(),
        attestation_signature: vec![3].into(),
        attestation_provider: "tpm".into(),
        csr_pem: "csr".into(),
        ..Default::default()
    };
    // Unknown fields inside AgentInfo as well as beside it.
    let info = with_unknown_fields(&AgentInfo {
        agent_id: "a".into(),
        ..Default::default()
    });
    let mut sent = Vec::new();
    prost::encoding::bytes::encode(1, &info, &mut sent);
    sent.extend(with_unknown_fields(&known));
    assert!(agent.register_raw(&sent).await.unwrap().status.is_ok());
    let arrived = bed.server.received(Rpc::ProxyRegister)[0].raw.clone();
    // All of it, and the one field the gateway writes.
    let mut expected = sent.clone();
    prost::encoding::string::encode(6, &"127.0.0.1".to_owned(), &mut expected);
    assert_eq!(arrived, expected);
}

#[tokio::test]
async fn w_2_a_register_response_keeps_its_unknown_fields() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("a").await;
    let mut answer = accepted(&session_id('3'));
    answer.agent_credential = "credential".into();
    let answer = with_unknown_fields(&answer);
    bed.server
        .fault(Fault::new(
            Rpc::ProxyRegister,
            Action::Answer(answer.clone()),
        ))
        .unwrap();
    let message = agent.register_request().encode_to_vec();
    let answered = agent.register_raw(&message).await.unwrap();
    assert_eq!(answered.message, Some(answer));
    agent.subscribe_as(&session_id('3')).await.unwrap();
}

#[tokio::test]
async fn w_1_a_heartbeat_arrives_with_all_it_had() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    let sent = HeartbeatRequest {
        session_id: agent.session_id.clone(),
        sent_at: Some(yuzu_proto::common::v1::Timestamp { millis_epoch: 77 }),
        status_tags: HashMap::from([("k".to_owned(), "v".to_owned())]),
        fleet_snapshot_json: b"{\"n\":1}".to_vec().into(),
    };
    let raw = with_unknown_fields(&sent);
    assert!(agent.heartbeat_raw(&raw).await.unwrap().status.is_ok());
    let look = |s: &State| s.received(Rpc::BatchHeartbeat).next().cloned();
    let batch = bed
        .server
        .wait_for("a batch", PATIENCE, look)
        .await
        .unwrap();
    assert_eq!(batch.heartbeats().unwrap().heartbeats, [sent]);
    let tail = unknown_fields();
    assert!(
        batch.raw.windows(tail.len()).any(|w| w == tail),
        "unknown fields included"
    );
}

#[tokio::test]
async fn w_2_nothing_of_an_agents_metadata_goes_to_the_server() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("a").await;
    let call = yuzu_tests::raw::Request::new(yuzu_proto::path::REGISTER)
        .timeout(PATIENCE)
        .metadata("x-yuzu-session-id", session_id('4').as_bytes())
        .metadata("x-on-behalf-of", b"admin")
        .metadata("authorization", b"bearer x");
    let message = agent.register_request().encode_to_vec();
    assert!(
        agent
            .connection
            .unary(call, &message)
            .await
            .unwrap()
            .status
            .is_ok()
    );
    let arrived = &bed.server.received(Rpc::ProxyRegister)[0];
    assert_eq!(
        arrived.presented_session, None,
        "a fresh registration presents none"
    );
    assert!(
        arrived.other_metadata.is_empty(),
        "{:?}",
        arrived.other_metadata
    );
    assert!(
        arrived.grpc_timeout.is_some(),
        "a deadline goes with every call"
    );
}

#[tokio::test]
async fn cmd_24_a_command_no_agent_can_receive_is_refused_and_sent_to_nobody() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let operator = bed.operator().await;
    let sized = |len: usize| CommandRequest {
        payload: vec![7; len].into(),
        ..command("c")
    };
    let overhead = sized(4 << 20).encoded_len() - (4 << 20);
    let too_large = sized((4 << 20) - overhead + 1);
    assert_eq!(too_large.encoded_len(), (4 << 20) + 1);
    let mut refused = operator.send(&[], too_large, 20).await.unwrap();
    let status = refused.rest().await.unwrap().1;
    assert_eq!(status.code, 8, "{status}");
    assert!(status.message.contains("4194304"), "{status}");
    let largest = sized((4 << 20) - overhead);
    let mut fanout = operator.send(&["a"], largest, 20).await.unwrap();
    serve_one(&mut agent).await;
    assert!(fanout.rest().await.unwrap().1.is_ok());
}
