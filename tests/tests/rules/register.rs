//! REG: Register.

mod failures;

use crate::support::{accepted, session_id, soon};
use prost::Message;
use std::time::Duration;
use tonic::Code;
use yuzu_proto::agent::v1::{AgentInfo, RegisterRequest, RegisterResponse};
use yuzu_proto::path;
use yuzu_server_stub::{Action, Enrolment, Fault, Garbage, IssuedCertificate, Rpc, StubConfig};
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::fleet::Fleet;
use yuzu_tests::raw::{Answer, Request, code};
use yuzu_tests::testbed::{Setup, TestBed};

const WRONG_LENGTH: &str = "agent_id length exceeds 256 bytes or is empty";
const CEILING: usize = 4_194_304;

fn request(agent_id: &str) -> RegisterRequest {
    RegisterRequest {
        info: Some(AgentInfo {
            agent_id: agent_id.into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Registers `agent_id` on the agent's connection.
async fn register(agent: &Agent, agent_id: &str) -> Answer {
    let answer = agent.register_raw(&request(agent_id).encode_to_vec()).await;
    answer.expect("a status")
}

/// Registers with this deadline.
async fn register_within(agent: &Agent, timeout: Duration) -> Answer {
    let call = Request::new(path::REGISTER).timeout(timeout);
    let message = agent.register_request().encode_to_vec();
    let answer = agent.connection.unary(call, &message).await;
    answer.expect("a status before the agent's deadline")
}

fn hang() -> Fault {
    Fault::new(Rpc::ProxyRegister, Action::Hang)
}

async fn hung(bed: &TestBed, count: u64) {
    let look = |state: &yuzu_server_stub::State| {
        (state.counts(Rpc::ProxyRegister).hung >= count).then_some(())
    };
    let waited = bed.server.wait_for("hung registers", PATIENCE, look).await;
    waited.unwrap();
}

fn received(bed: &TestBed) -> u64 {
    bed.server.view(|s| s.counts(Rpc::ProxyRegister).received)
}

#[tokio::test]
async fn reg_1_the_id_is_checked_before_the_slot_and_the_server() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("a").await;
    for number in 0..8 {
        let answer = register(&agent, &format!("a{number}")).await;
        assert!(answer.status.is_ok(), "{}", answer.status);
    }
    // The connection is full: a good id is refused for that, a bad one still for itself.
    assert_eq!(register(&agent, "a8").await.status.code, code::UNAVAILABLE);
    assert_eq!(
        register(&agent, "").await.status.code,
        code::INVALID_ARGUMENT
    );
    assert_eq!(received(&bed), 8, "neither reached the server");
}

#[tokio::test]
async fn reg_2_refuses_an_agent_id_that_is_empty_missing_or_over_256_bytes() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("a").await;
    let refusals = [("reason", "agent_id_length")];
    assert_eq!(bed.metric("register_refused_total", &refusals).await, 0.0);
    let no_info = RegisterRequest::default().encode_to_vec();
    // 129 two-byte characters: 258 bytes, though far from 256 characters.
    let two_bytes = request(&"\u{e9}".repeat(129)).encode_to_vec();
    let long = request(&"a".repeat(257)).encode_to_vec();
    let empty = request("").encode_to_vec();
    for (count, message) in [no_info, empty, long, two_bytes].iter().enumerate() {
        let status = agent.register_raw(message).await.unwrap().status;
        assert_eq!((status.code, status.message.as_str()), (3, WRONG_LENGTH));
        let counted = bed.metric("register_refused_total", &refusals).await;
        assert_eq!(counted, count as f64 + 1.0);
    }
    assert_eq!(received(&bed), 0, "nothing was sent");
}

#[tokio::test]
async fn reg_2_accepts_an_agent_id_of_256_bytes() {
    let bed = TestBed::start().await;
    let answer = register(&bed.bare_agent("a").await, &"a".repeat(256)).await;
    assert!(answer.decode::<RegisterResponse>().unwrap().accepted);
}

#[tokio::test]
async fn reg_3_other_ids_are_the_servers_business_and_its_refusal_is_13() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("a").await;
    // Twice as many as would open the breaker.
    for _ in 0..10 {
        let status = register(&agent, "a,b\u{1}").await.status;
        assert_eq!(status.code, code::INTERNAL, "{status}");
    }
    assert_eq!(received(&bed), 10, "all reached the server");
    assert!(register(&agent, "a").await.status.is_ok());
    assert_eq!(bed.ready().await.1["checks"]["circuit_breaker"], true);
}

#[tokio::test]
async fn reg_4_the_observed_peer_is_always_the_gateways() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("a").await;
    for claimed in ["", "203.0.113.9"] {
        let mut message = request("a");
        message.gateway_observed_peer = claimed.into();
        message.csr_pem = "csr".into();
        let answer = agent.register_raw(&message.encode_to_vec()).await.unwrap();
        assert!(answer.status.is_ok());
        let arrived = bed.server.received(Rpc::ProxyRegister);
        let arrived = arrived.last().unwrap().register().unwrap();
        message.gateway_observed_peer = "127.0.0.1".into();
        assert!(arrived == message, "everything else is unchanged");
    }
}

#[tokio::test]
async fn reg_4_an_ipv4_peer_of_an_ipv6_socket_is_written_as_ipv4() {
    let setup = Setup::default().agent_listener(|l| l.address = "[::]:0".parse().unwrap());
    let bed = setup.start().await;
    let port = bed.agents().port();
    let agent = Agent::connect(([127, 0, 0, 1], port).into(), "a").await;
    assert!(register(&agent.unwrap(), "a").await.status.is_ok());
    let arrived = bed.server.received(Rpc::ProxyRegister);
    let arrived = arrived[0].register().unwrap();
    assert_eq!(arrived.gateway_observed_peer, "127.0.0.1");
}

#[tokio::test]
async fn reg_5_registers_run_at_once_up_to_the_permits() {
    let bed = TestBed::start().await;
    bed.server.fault(hang()).unwrap();
    let fleet = Fleet::start(bed.fleet(60));
    hung(&bed, 48).await;
    let class = [("class", "register")];
    bed.metric_becomes("upstream_permits_waiting", &class, 12.0)
        .await;
    assert_eq!(bed.metric("upstream_permits_held", &class).await, 48.0);
    assert_eq!(received(&bed), 48, "no more than the permits");
    bed.server.clear_faults(None);
    bed.server.release(None);
    fleet.all_subscribed(PATIENCE).await.unwrap();
    assert_eq!(received(&bed), 60, "one call for each agent");
    let most = bed
        .server
        .view(|s| s.counts(Rpc::ProxyRegister).max_in_flight);
    assert!(most <= 48, "{most} calls at once");
}

#[tokio::test]
async fn reg_6_the_servers_answer_is_relayed_with_certificate_and_chain() {
    let issued = IssuedCertificate::dummy();
    let server = StubConfig {
        issued: Some(issued.clone()),
        ..StubConfig::default()
    };
    let bed = Setup {
        server,
        ..Setup::default()
    };
    let bed = bed.start().await;
    let agent = bed.bare_agent("a").await;
    let mut message = request("a");
    message.csr_pem = "a certificate request".into();
    let answer = agent.register_raw(&message.encode_to_vec()).await.unwrap();
    let response: RegisterResponse = answer.decode().unwrap();
    assert!(response.accepted && response.session_id.starts_with("gw-session-"));
    assert_eq!(response.issued_certificate, issued.certificate);
    assert_eq!(response.issued_ca_chain, issued.chain);
}

#[tokio::test]
async fn reg_7_a_refusal_of_the_server_is_relayed_as_ok_and_leaves_nothing_behind() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("a").await;
    let refused = RegisterResponse {
        accepted: false,
        reject_reason: "not you".into(),
        session_id: session_id('1'),
        ..Default::default()
    };
    let answer = Action::Answer(refused.encode_to_vec().into());
    bed.server
        .fault(Fault::new(Rpc::ProxyRegister, answer).times(20))
        .unwrap();
    // More often than the connection has slots: each one must have been given back.
    for number in 0..20 {
        let answer = register(&agent, &format!("a{number}")).await;
        assert!(answer.decode::<RegisterResponse>().unwrap() == refused);
    }
    let subscribed = agent.subscribe_as(&session_id('1')).await;
    assert_eq!(subscribed.unwrap_err().code(), Some(code::NOT_FOUND));
    assert!(
        register(&agent, "b")
            .await
            .decode::<RegisterResponse>()
            .unwrap()
            .accepted
    );
}

#[tokio::test]
async fn reg_7_enrolment_pending_and_denied_reach_the_agent_in_the_servers_words() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("a").await;
    for (enrolment, status) in [
        (Enrolment::Pending, "pending"),
        (Enrolment::Denied, "denied"),
    ] {
        bed.server.set_enrolment(enrolment);
        let response: RegisterResponse = register(&agent, "a").await.decode().unwrap();
        assert_eq!(
            (response.accepted, response.enrollment_status.as_str()),
            (false, status)
        );
    }
}

#[tokio::test]
async fn reg_9_only_the_newest_of_two_registers_of_an_id_can_be_subscribed() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("a").await;
    let first: RegisterResponse = register(&agent, "a").await.decode().unwrap();
    let second: RegisterResponse = register(&agent, "a").await.decode().unwrap();
    assert_ne!(first.session_id, second.session_id);
    let old = agent.subscribe_as(&first.session_id).await;
    assert_eq!(old.unwrap_err().code(), Some(code::NOT_FOUND));
    agent.subscribe_as(&second.session_id).await.unwrap();
}

#[tokio::test]
async fn reg_10_a_register_that_a_newer_one_overtook_is_told_so() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("a").await;
    bed.server.fault(hang().times(1)).unwrap();
    let older = register(&agent, "a");
    let newer = async {
        hung(&bed, 1).await;
        let newer = register(&agent, "a").await;
        bed.server.release(None);
        newer
    };
    let both = Box::pin(async { tokio::join!(older, newer) });
    let (older, newer) = soon("both registers", both).await;
    let newer: RegisterResponse = newer.decode().unwrap();
    let text = "Registration superseded by a newer registration";
    assert_eq!(
        (older.status.code, older.status.message.as_str()),
        (14, text)
    );
    agent.subscribe_as(&newer.session_id).await.unwrap();
}

#[tokio::test]
async fn reg_11_a_request_no_encoder_takes_is_13_and_not_the_servers_fault() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("a").await;
    let mut not_text = request("a").encode_to_vec();
    // Field 2, enrollment_token, with a byte that is not UTF-8.
    not_text.extend([0x12, 1, 0xff]);
    let mut large = request("a");
    large.machine_certificate = vec![0; CEILING].into();
    let large = large.encode_to_vec();
    for message in [&not_text, &large] {
        for _ in 0..10 {
            let status = agent.register_raw(message).await.unwrap().status;
            assert_eq!(status.code, code::INTERNAL, "{status}");
        }
    }
    let labels = [("rpc_name", "register"), ("code", "encode")];
    assert_eq!(bed.metric("upstream_rpc_errors_total", &labels).await, 20.0);
    assert_eq!(received(&bed), 0, "nothing was sent");
    assert!(
        register(&agent, "a").await.status.is_ok(),
        "the breaker is closed"
    );
}
