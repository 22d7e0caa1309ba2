//! Every kind of fault, as a gateway sees it, over a real socket.

mod common;

use std::time::{Duration, Instant};

use bytes::Bytes;
use common::raw::call_with_bytes;
use common::*;
use prost::Message as _;
use tonic::{Code, Request};
use yuzu_proto::agent::v1::{InventoryReport, RegisterResponse};
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_proto::gateway::v1::{ForwardGuardianRequest, StreamStatusAck};
use yuzu_server_stub::{Action, Fault, Garbage, Rpc, State, StubConfig, StubServer};

fn set(server: &StubServer, rpc: Rpc, action: Action) {
    server.fault(Fault::new(rpc, action)).unwrap();
}

fn hung(count: u64) -> impl FnMut(&State) -> Option<()> {
    move |state| (state.counts(Rpc::ProxyRegister).hung == count).then_some(())
}

fn idle(state: &State) -> Option<()> {
    (state.in_flight() == 0).then_some(())
}

async fn code_of_register(client: &mut Client) -> Code {
    client
        .proxy_register(registration("a1"))
        .await
        .map_or_else(|s| s.code(), |_| Code::Ok)
}

#[tokio::test]
async fn a_delay_holds_the_answer_back() {
    let (server, mut client) = start().await;
    let delay = Duration::from_millis(40);
    set(&server, Rpc::ProxyRegister, Action::Delay(delay));
    let asked = Instant::now();
    enrol(&mut client, "a1").await;
    assert!(asked.elapsed() >= delay);
    assert_eq!(
        server.view(|state| state.counts(Rpc::ProxyRegister).faulted),
        1
    );
}

#[tokio::test]
async fn a_status_comes_with_its_code_and_message_and_without_effect() {
    let (server, mut client) = start().await;
    let action = Action::Status(Code::Unavailable, "store is down, 100 %".into());
    server
        .fault(Fault::new(Rpc::ProxyRegister, action.clone()).times(1))
        .unwrap();
    let status = client.proxy_register(registration("a1")).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unavailable, "store is down, 100 %")
    );
    assert!(server.view(|state| state.route("a1").is_none()));
    server
        .fault(
            Fault::new(Rpc::ProxyRegister, action)
                .times(1)
                .with_effect(),
        )
        .unwrap();
    assert_eq!(code_of_register(&mut client).await, Code::Unavailable);
    assert!(
        server.view(|state| state.route("a1").is_some()),
        "the work was done before"
    );
    enrol(&mut client, "a2").await;
}

#[tokio::test]
async fn a_hang_ends_when_released() {
    let (server, client) = start().await;
    set(&server, Rpc::ProxyRegister, Action::Hang);
    let call = |agent: &'static str| {
        let mut client = client.clone();
        tokio::spawn(async move { enrol(&mut client, agent).await })
    };
    let calls = [call("a1"), call("a2")];
    server
        .wait_for("two hung registers", SOON, hung(2))
        .await
        .unwrap();
    assert_eq!(server.view(State::in_flight), 2);
    assert_eq!(server.release(Some(Rpc::BatchHeartbeat)), 0);
    assert_eq!(server.release(Some(Rpc::ProxyRegister)), 2);
    for call in calls {
        call.await.unwrap();
    }
    server.view(|state| {
        assert_eq!(
            (
                state.max_in_flight(),
                state.counts(Rpc::ProxyRegister).max_in_flight
            ),
            (2, 2)
        );
        assert_eq!(state.counts(Rpc::ProxyRegister).ok, 2);
    });
}

#[tokio::test]
async fn a_hung_call_that_is_given_up_counts_as_cancelled() {
    let (server, mut client) = start().await;
    set(&server, Rpc::ProxyRegister, Action::Hang);
    let mut request = Request::new(registration("a1"));
    request.set_timeout(Duration::from_millis(30));
    assert!(client.proxy_register(request).await.is_err());
    server
        .wait_for("the end of the call", SOON, idle)
        .await
        .unwrap();
    server.view(|state| {
        let counts = state.counts(Rpc::ProxyRegister);
        assert_eq!((counts.cancelled, counts.hung, counts.ok), (1, 0, 0));
        assert!(state.route("a1").is_none());
        let kept = state.received(Rpc::ProxyRegister).next().unwrap();
        assert_eq!(kept.grpc_timeout.as_deref(), Some("30000000n"));
    });
}

#[tokio::test]
async fn a_dropped_connection_takes_every_call_with_it() {
    let (server, client) = start().await;
    set(&server, Rpc::ProxyRegister, Action::Hang);
    let mut hanging = client.clone();
    let call = tokio::spawn(async move { hanging.proxy_register(registration("a1")).await });
    server
        .wait_for("a hung register", SOON, hung(1))
        .await
        .unwrap();
    set(&server, Rpc::ProxyInventory, Action::DropConnection);
    let mut dropping = client.clone();
    let dropped = dropping.proxy_inventory(InventoryReport::default());
    assert!(
        tokio::time::timeout(SOON, dropped)
            .await
            .expect("an end")
            .is_err()
    );
    assert!(
        tokio::time::timeout(SOON, call)
            .await
            .expect("an end")
            .unwrap()
            .is_err()
    );
    let gone = |s: &State| (s.in_flight() == 0 && s.connections().is_empty()).then_some(());
    server
        .wait_for("the end of the connection", SOON, gone)
        .await
        .unwrap();
    server.view(|state| {
        assert_eq!(state.counts(Rpc::ProxyRegister).cancelled, 1);
        assert_eq!(state.counts(Rpc::ProxyInventory).broken, 1);
    });
    server.clear_faults(None);
    enrol(&mut dial(&server).await, "a1").await;
    assert_eq!(server.view(State::connections_accepted), 2);
}

#[tokio::test]
async fn a_reset_stream_leaves_the_connection_open() {
    let (server, mut client) = start().await;
    let refused_stream = Action::ResetStream(7);
    server
        .fault(Fault::new(Rpc::ProxyRegister, refused_stream).times(1))
        .unwrap();
    let status = client.proxy_register(registration("a1")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "REFUSED_STREAM");
    let cancel = Action::ResetStream(8);
    server
        .fault(Fault::new(Rpc::ProxyRegister, cancel).times(1))
        .unwrap();
    assert_eq!(code_of_register(&mut client).await, Code::Cancelled);
    enrol(&mut client, "a1").await;
    assert_eq!(server.view(State::connections_accepted), 1);
    assert_eq!(
        server.view(|state| state.counts(Rpc::ProxyRegister).broken),
        2
    );
}

#[tokio::test]
async fn garbage_is_no_answer_and_leaves_the_connection_open() {
    let (server, mut client) = start().await;
    let kinds = [
        (Garbage::Message, Code::Internal),
        (Garbage::Frame, Code::Internal),
        (Garbage::Compressed, Code::Internal),
        // 14 by the gRPC standard; this client stumbles over the page before it sees the 502.
        (Garbage::Http, Code::Internal),
        (Garbage::NoStatus, Code::Unknown),
    ];
    for (kind, _) in kinds {
        let rule = Fault::new(Rpc::ProxyRegister, Action::Garbage(kind)).times(1);
        server.fault(rule).unwrap();
    }
    let mut seen = Vec::new();
    for (kind, _) in kinds {
        seen.push((kind, code_of_register(&mut client).await));
    }
    assert_eq!(seen, kinds);
    enrol(&mut client, "a1").await;
    assert_eq!(server.view(State::connections_accepted), 1);
}

#[tokio::test]
async fn a_refusal_is_an_ok_answer_for_every_rpc() {
    let (server, mut client) = start().await;
    let session = enrol(&mut client, "a1").await;
    Rpc::ALL
        .into_iter()
        .for_each(|rpc| set(&server, rpc, Action::Refuse));
    let register = client
        .proxy_register(registration("a2"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (register.accepted, register.enrollment_status.as_str()),
        (false, "denied")
    );
    let verdict = client
        .batch_heartbeat(batch(&[&session, &session]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(verdict.acknowledged_count, 0);
    assert_eq!(verdict.unknown_session_ids, std::slice::from_ref(&session));
    let report = InventoryReport {
        session_id: session.clone(),
        ..Default::default()
    };
    assert!(
        !client
            .proxy_inventory(report)
            .await
            .unwrap()
            .into_inner()
            .received
    );
    let notice = notice("a1", &session, Event::Connected);
    assert!(
        !client
            .notify_stream_status(notice)
            .await
            .unwrap()
            .into_inner()
            .acknowledged
    );
    let frame = ForwardGuardianRequest::default();
    assert!(
        !client
            .forward_guardian_message(frame)
            .await
            .unwrap()
            .into_inner()
            .acknowledged
    );
    server.view(|state| {
        assert!(
            Rpc::ALL
                .into_iter()
                .all(|rpc| state.counts(rpc).refused == 1)
        );
        assert!(state.knows_session(&session), "a refusal changes nothing");
        assert!(state.route("a2").is_none());
    });
}

#[tokio::test]
async fn rules_pick_agents_events_and_replays() {
    let (server, mut client) = start().await;
    let session = enrol(&mut client, "a1").await;
    let rule = Fault::new(Rpc::NotifyStreamStatus, Action::Refuse).agent("a1");
    server.fault(rule.event(Event::Connected).times(2)).unwrap();
    let mut acknowledged = Vec::new();
    for event in [
        Event::Connected,
        Event::Disconnected,
        Event::Connected,
        Event::Connected,
    ] {
        let answer = client
            .notify_stream_status(notice("a1", &session, event))
            .await;
        acknowledged.push(answer.unwrap().into_inner().acknowledged);
    }
    assert_eq!(acknowledged, [false, true, false, true]);
    let failed = Action::Status(Code::FailedPrecondition, String::new());
    let id = server
        .fault(Fault::new(Rpc::ProxyRegister, failed).replay(true))
        .unwrap();
    enrol(&mut client, "a2").await;
    let mut replay = Request::new(registration("a1"));
    replay
        .metadata_mut()
        .insert("x-yuzu-session-id", session.parse().unwrap());
    let status = client.proxy_register(replay).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(server.view(|state| state.faults().next().unwrap().fired), 1);
    assert!(server.remove_fault(id));
    assert!(!server.remove_fault(id));
}

#[tokio::test]
async fn scripted_bytes_and_received_bytes_are_not_re_encoded() {
    let (server, _) = start().await;
    // Field 1000 is unknown, and field 1 stands behind it.
    let request = b"\xc2\x3e\x03new\x0a\x04\x0a\x02a1".as_slice();
    let mut answer = b"\xc2\x3e\x05newer".to_vec();
    let response = RegisterResponse {
        accepted: true,
        ..Default::default()
    };
    answer.extend(response.encode_to_vec());
    let action = Action::Answer(Bytes::from(answer.clone()));
    server
        .fault(Fault::new(Rpc::ProxyRegister, action).times(1))
        .unwrap();
    let path = Rpc::ProxyRegister.path();
    assert_eq!(call_with_bytes(&server, path, request).await, answer);
    let kept = &server.received(Rpc::ProxyRegister)[0];
    assert_eq!(kept.raw, request);
    assert_eq!(kept.register().unwrap().info.unwrap().agent_id, "a1");
    let ack = StreamStatusAck {
        acknowledged: false,
    }
    .encode_to_vec();
    let notify = Rpc::NotifyStreamStatus.path();
    assert_eq!(call_with_bytes(&server, notify, b"").await, ack);
}

#[tokio::test]
async fn bad_requests_end_with_the_statuses_of_the_server() {
    let config = StubConfig {
        max_message_bytes: 1000,
        ..StubConfig::default()
    };
    let (server, mut client) = start_with(config).await;
    let mut large = registration("a1");
    large.csr_pem = "x".repeat(1001);
    let status = client.proxy_register(large).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let mut peer = raw::RawPeer::connect(&server).await;
    peer.call(1, "/yuzu.gateway.v1.GatewayUpstream/Nothing")
        .await;
    let unknown = |state: &State| (state.unknown_methods() == 1).then_some(());
    server
        .wait_for("a call of an unknown method", SOON, unknown)
        .await
        .unwrap();
    assert_eq!(
        server.view(|state| state.counts(Rpc::ProxyRegister).failed),
        1
    );
    enrol(&mut client, "a1").await;
}

#[tokio::test]
async fn records_tell_what_came_with_a_call() {
    let config = StubConfig {
        record_entries: 2,
        ..StubConfig::default()
    };
    let (server, mut client) = start_with(config).await;
    for agent in ["a1", "a2", "a3"] {
        let mut request = Request::new(registration(agent));
        request
            .metadata_mut()
            .insert("x-other", "1".parse().unwrap());
        client.proxy_register(request).await.unwrap();
    }
    let kept = server.received(Rpc::ProxyRegister);
    let agents: Vec<_> = kept
        .iter()
        .map(|r| r.register().unwrap().info.unwrap().agent_id)
        .collect();
    assert_eq!(agents, ["a2", "a3"]);
    assert_eq!((kept[1].seq, kept[1].connection), (3, 1));
    assert_eq!(kept[1].other_metadata, ["x-other"]);
    assert_eq!(
        (
            kept[1].grpc_timeout.as_ref(),
            kept[1].presented_session.as_ref()
        ),
        (None, None)
    );
    assert_eq!(
        kept[1].peer,
        server.view(|state| state.connections()[0].peer)
    );
    server.view(|state| {
        let counts = state.counts(Rpc::ProxyRegister);
        assert_eq!((counts.received, counts.forgotten), (3, 1));
    });
    server.clear_records();
    assert_eq!(server.received(Rpc::ProxyRegister).len(), 0);
    assert_eq!(
        server.view(|state| state.counts(Rpc::ProxyRegister).received),
        3
    );
}
