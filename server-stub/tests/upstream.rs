//! The stub as a gateway sees it, over a real socket.

mod common;

use std::collections::HashSet;
use std::time::Duration;

use common::*;
use socket2::{Domain, Socket, Type};
use tonic::{Code, Request};
use yuzu_proto::agent::v1::InventoryReport;
use yuzu_proto::gateway::v1::ForwardGuardianRequest;
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_server_stub::{Enrolment, Restart, RouteState, Rpc, StubConfig};

#[tokio::test]
async fn a_gateway_registers_connects_beats_and_reports() {
    let (server, mut client) = start().await;
    let session = enrol(&mut client, "a1").await;
    assert_eq!(session.len(), 43);
    let ack = client
        .notify_stream_status(notice("a1", &session, Event::Connected))
        .await;
    assert!(ack.unwrap().into_inner().acknowledged);
    let verdict = client
        .batch_heartbeat(batch(&[&session]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (
            verdict.acknowledged_count,
            verdict.unknown_session_ids.len()
        ),
        (1, 0)
    );
    let mut report = InventoryReport {
        session_id: session.clone(),
        ..Default::default()
    };
    assert!(
        client
            .proxy_inventory(report.clone())
            .await
            .unwrap()
            .into_inner()
            .received
    );
    report.session_id = "someone".into();
    assert!(
        !client
            .proxy_inventory(report)
            .await
            .unwrap()
            .into_inner()
            .received
    );
    let frame = ForwardGuardianRequest {
        agent_id: "a1".into(),
        ..Default::default()
    };
    let ack = client
        .forward_guardian_message(frame)
        .await
        .unwrap()
        .into_inner();
    assert!(ack.acknowledged);
    server.view(|state| {
        let route = state.route("a1").unwrap();
        assert_eq!(
            (route.state, &*route.session_id),
            (RouteState::Connected, &*session)
        );
        assert_eq!(route.gateway_node, "yuzu_gw@10.0.0.1");
        assert_eq!(state.counts(Rpc::ProxyInventory).received, 2);
        assert_eq!(state.counts(Rpc::ProxyInventory).refused, 1);
        assert_eq!(state.counts(Rpc::ForwardGuardianMessage).ok, 1);
        assert_eq!(state.connections_accepted(), 1);
    });
}

#[tokio::test]
async fn enrolment_modes_answer_as_configured() {
    let tokens = Enrolment::Tokens(HashSet::from(["good".to_owned()]));
    let config = StubConfig {
        enrolment: tokens,
        ..StubConfig::default()
    };
    let (server, mut client) = start_with(config).await;
    let mut request = registration("a1");
    request.enrollment_token = "good".into();
    let answer = client
        .proxy_register(request.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (answer.accepted, answer.enrollment_status.as_str()),
        (true, "enrolled")
    );
    request.enrollment_token = "bad".into();
    let answer = client
        .proxy_register(request.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (answer.accepted, answer.reject_reason.as_str()),
        (false, "invalid token")
    );
    server.set_enrolment(Enrolment::Pending);
    let answer = client
        .proxy_register(request.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (answer.accepted, answer.enrollment_status.as_str()),
        (false, "pending")
    );
    server.set_enrolment(Enrolment::Denied);
    let answer = client
        .proxy_register(request.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (answer.accepted, answer.enrollment_status.as_str()),
        (false, "denied")
    );
    let bad_id = client
        .proxy_register(registration("a,b"))
        .await
        .unwrap_err();
    assert_eq!(bad_id.code(), Code::InvalidArgument);
    server.view(|state| {
        let counts = state.counts(Rpc::ProxyRegister);
        assert_eq!((counts.ok, counts.refused, counts.failed), (1, 3, 1));
    });
}

fn presenting(agent: &str, session: &str) -> Request<yuzu_proto::agent::v1::RegisterRequest> {
    let mut request = Request::new(registration(agent));
    request
        .metadata_mut()
        .insert(yuzu_proto::SESSION_HEADER, session.parse().unwrap());
    request
}

#[tokio::test]
async fn a_restart_lists_sessions_as_unknown_until_they_are_presented_again() {
    let (server, mut client) = start().await;
    let first = enrol(&mut client, "a1").await;
    let second = enrol(&mut client, "a2").await;
    server.simulate_restart(Restart::default());
    let verdict = client
        .batch_heartbeat(batch(&[&first, &second]))
        .await
        .unwrap()
        .into_inner();
    let listed: HashSet<_> = verdict.unknown_session_ids.into_iter().collect();
    assert_eq!(verdict.acknowledged_count, 0);
    assert_eq!(listed, HashSet::from([first.clone(), second.clone()]));
    let ack = client
        .notify_stream_status(notice("a1", &first, Event::Connected))
        .await;
    assert!(!ack.unwrap().into_inner().acknowledged);

    let adopted = client
        .proxy_register(presenting("a1", &first))
        .await
        .unwrap()
        .into_inner();
    assert!(adopted.accepted);
    assert_eq!(adopted.session_id, first);
    let stolen = client
        .proxy_register(presenting("a1", &second))
        .await
        .unwrap_err();
    assert_eq!(stolen.code(), Code::FailedPrecondition);
    let malformed = client
        .proxy_register(presenting("a2", "gw-session-1"))
        .await
        .unwrap_err();
    assert_eq!(malformed.code(), Code::FailedPrecondition);
    let verdict = client
        .batch_heartbeat(batch(&[&first, &second]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(verdict.acknowledged_count, 1);
    assert_eq!(verdict.unknown_session_ids, [second]);
    let kept = server.received(Rpc::ProxyRegister);
    let presented: Vec<_> = kept
        .iter()
        .map(|r| r.presented_session.as_deref())
        .collect();
    assert_eq!(presented[..3], [None, None, Some(first.as_str())]);
}

#[tokio::test]
async fn one_forgotten_session_is_the_only_unknown_one() {
    let (server, mut client) = start().await;
    let first = enrol(&mut client, "a1").await;
    let second = enrol(&mut client, "a2").await;
    assert!(server.forget_session(&first));
    assert!(!server.forget_session(&first));
    let verdict = client
        .batch_heartbeat(batch(&[&first, &second]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(verdict.unknown_session_ids, [first]);
}

#[tokio::test]
async fn kill_and_start_again_keep_the_port_and_the_state() {
    let (server, mut client) = start().await;
    let session = enrol(&mut client, "a1").await;
    server.kill().await;
    assert_eq!(server.view(|state| state.connections().len()), 0);
    let refused = tokio::net::TcpStream::connect(server.addr())
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    for _ in 0..2 {
        let rival = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let taken = rival.bind(&server.addr().into()).unwrap_err();
        assert_eq!(
            taken.kind(),
            std::io::ErrorKind::AddrInUse,
            "the port stays ours"
        );
        server.start_again().await.unwrap();
        server.kill().await;
    }
    server.start_again().await.unwrap();
    let mut again = dial(&server).await;
    let verdict = again
        .batch_heartbeat(batch(&[&session]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(verdict.acknowledged_count, 1);
}

#[tokio::test]
async fn shutdown_lets_open_calls_end() {
    let (server, mut client) = start().await;
    let rule = yuzu_server_stub::Fault::new(Rpc::ProxyRegister, yuzu_server_stub::Action::Hang);
    server.fault(rule).unwrap();
    let call = tokio::spawn(async move { enrol(&mut client, "a1").await });
    let hung = |s: &yuzu_server_stub::State| (s.counts(Rpc::ProxyRegister).hung == 1).then_some(());
    server
        .wait_for("a hung register", SOON, hung)
        .await
        .unwrap();
    let after_the_order = async {
        assert_eq!(server.release(None), 1);
        call.await.unwrap()
    };
    let ((), session) = tokio::join!(biased; server.shutdown(), after_the_order);
    assert!(server.view(|state| state.knows_session(&session)));
    assert_eq!(server.view(|state| state.connections().len()), 0);
    assert!(tokio::net::TcpStream::connect(server.addr()).await.is_err());
}

#[tokio::test]
async fn a_shutdown_that_takes_too_long_cuts() {
    let grace = Duration::from_millis(50);
    let config = StubConfig {
        shutdown_grace: grace,
        ..StubConfig::default()
    };
    let (server, mut client) = start_with(config).await;
    let rule = yuzu_server_stub::Fault::new(Rpc::ProxyRegister, yuzu_server_stub::Action::Hang);
    server.fault(rule).unwrap();
    let call = tokio::spawn(async move { client.proxy_register(registration("a1")).await });
    server
        .wait_received(Rpc::ProxyRegister, 1, SOON)
        .await
        .unwrap();
    server.shutdown().await;
    assert!(call.await.unwrap().is_err());
    assert_eq!(server.view(|state| state.connections().len()), 0);
}

#[tokio::test]
async fn connections_beyond_the_bound_are_closed_and_counted() {
    let config = StubConfig {
        max_connections: 1,
        ..StubConfig::default()
    };
    let (server, mut first) = start_with(config).await;
    enrol(&mut first, "a1").await;
    let mut second = tokio::net::TcpStream::connect(server.addr()).await.unwrap();
    let refused = |s: &yuzu_server_stub::State| (s.connections_refused() == 1).then_some(());
    server
        .wait_for("a refused connection", SOON, refused)
        .await
        .unwrap();
    let read = tokio::io::AsyncReadExt::read(&mut second, &mut [0; 1]).await;
    assert!(matches!(read, Ok(0) | Err(_)));
    enrol(&mut first, "a2").await;
}

#[tokio::test]
async fn a_wait_that_runs_out_says_what_was_missing() {
    let (server, mut client) = start().await;
    enrol(&mut client, "a1").await;
    let wait = server
        .wait_received(Rpc::ProxyInventory, 3, Duration::from_millis(5))
        .await;
    let text = wait.unwrap_err().to_string();
    assert!(text.contains("3 x ProxyInventory") && text.contains("ProxyRegister 1/1/0/0/0"));
}
