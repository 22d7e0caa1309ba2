//! STOP: the planned stop.

use crate::frames::{self, Frame, Peer};
use crate::support::{command, soon};
use prost::Message;
use std::time::{Duration, Instant};
use yuzu_proto::agent::v1::{AgentInfo, RegisterRequest, RegisterResponse};
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_proto::path;
use yuzu_server_stub::{Action, Fault};
use yuzu_tests::agent::PATIENCE;
use yuzu_tests::fleet::{Fleet, Outcome, Rpc};
use yuzu_tests::raw::code;
use yuzu_tests::testbed::{Setup, TestBed};

#[tokio::test]
async fn stop_4_every_session_ends_with_ok_and_is_told_to_the_server() {
    let bed = TestBed::start().await;
    let fleet = Fleet::start(bed.fleet(100));
    fleet.all_subscribed(PATIENCE).await.unwrap();
    let counters = fleet.counters();
    // A CONNECTED that is still held would give way to its DISCONNECTED (NOTIFY-3).
    bed.server
        .wait_received(yuzu_server_stub::Rpc::NotifyStreamStatus, 100, PATIENCE)
        .await
        .unwrap();
    let TestBed { server, gateway } = bed;
    let report = soon("the stop", gateway.shutdown()).await;
    assert_eq!(report.unsent, 0);
    assert!(report.sent >= 100, "{} notices", report.sent);
    let ok = |s: &yuzu_tests::fleet::Snapshot| s.ends_of(Rpc::Subscribe, Outcome::Status(code::OK));
    counters
        .wait_for(PATIENCE, |s| ok(s) == 100)
        .await
        .expect("every stream ends with OK");
    let notices: Vec<_> = server
        .received(yuzu_server_stub::Rpc::NotifyStreamStatus)
        .iter()
        .filter_map(|received| received.stream_status())
        .collect();
    let of = |event| notices.iter().filter(|n| n.event() == event).count();
    assert_eq!((of(Event::Connected), of(Event::Disconnected)), (100, 100));
    for gone in notices.iter().filter(|n| n.event() == Event::Disconnected) {
        let came = notices
            .iter()
            .find(|n| n.event() == Event::Connected && n.session_id == gone.session_id);
        assert_eq!(came.unwrap().stream_home_id, gone.stream_home_id);
    }
}

#[tokio::test]
async fn stop_5_heartbeats_that_were_acknowledged_are_sent() {
    let setup = yuzu_tests::testbed::Setup::default()
        .gateway(|config| config.heartbeat.batch_interval = std::time::Duration::from_secs(60));
    let bed = setup.start().await;
    let agent = bed.agent("a").await;
    assert!(agent.heartbeat().await.unwrap().status.is_ok());
    let TestBed { server, gateway } = bed;
    soon("the stop", gateway.shutdown()).await;
    let batches = server.received(yuzu_server_stub::Rpc::BatchHeartbeat);
    let beats: Vec<_> = batches
        .iter()
        .flat_map(|b| b.heartbeats().unwrap().heartbeats)
        .collect();
    assert_eq!(beats.len(), 1);
    assert_eq!(beats[0].session_id, agent.session_id);
}

#[tokio::test]
async fn stop_6_a_server_that_never_answers_does_not_hold_the_stop_beyond_its_budget() {
    let budget = std::time::Duration::from_secs(2);
    let setup = yuzu_tests::testbed::Setup::default()
        .gateway(|config| config.shutdown.flush_budget = budget);
    let bed = setup.start().await;
    let fleet = Fleet::start(bed.fleet(20));
    fleet.all_subscribed(PATIENCE).await.unwrap();
    bed.server
        .wait_received(yuzu_server_stub::Rpc::NotifyStreamStatus, 20, PATIENCE)
        .await
        .unwrap();
    let hang = yuzu_server_stub::Action::Hang;
    bed.server
        .fault(yuzu_server_stub::Fault::new(
            yuzu_server_stub::Rpc::NotifyStreamStatus,
            hang,
        ))
        .unwrap();
    let started = std::time::Instant::now();
    let TestBed {
        server: _server,
        gateway,
    } = bed;
    let report = soon("the stop", gateway.shutdown()).await;
    let took = started.elapsed();
    // A second for a slow machine.
    assert!(took < budget + Duration::from_secs(1), "{took:?}");
    assert_eq!(report.unsent, 20);
}

#[tokio::test]
async fn mgmt_4_a_watch_ends_with_ok_when_the_node_stops_and_holds_it_up_for_nobody() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    let operator = bed.operator().await;
    let mut watch = operator.watch(&[]).await.unwrap();
    let TestBed {
        server: _server,
        gateway,
    } = bed;
    let started = std::time::Instant::now();
    let (report, seen) = tokio::join!(gateway.shutdown(), async {
        let gone = watch.next().await.unwrap().unwrap();
        (gone.agent_id, watch.next().await.unwrap().unwrap_err().code)
    });
    assert_eq!(seen, ("a".to_owned(), code::OK));
    assert_eq!(report.unsent, 0);
    // Connections that stay open would be cut after 4 s.
    assert!(started.elapsed() < std::time::Duration::from_secs(3));
    drop(agent);
}

/// A peer whose Register is at the server, which keeps it.
async fn registering(bed: &TestBed) -> Peer {
    let hang = Fault::new(yuzu_server_stub::Rpc::ProxyRegister, Action::Hang);
    bed.server.fault(hang).unwrap();
    let mut peer = Peer::open(bed.agents(), &[]).await;
    let request = RegisterRequest {
        info: Some(AgentInfo {
            agent_id: "a".into(),
            ..AgentInfo::default()
        }),
        ..RegisterRequest::default()
    };
    let register = Frame::request(1, path::REGISTER, &[]);
    peer.send(&[register, Frame::message(1, &request.encode_to_vec())])
        .await;
    let server = &bed.server;
    let arrived = server.wait_received(yuzu_server_stub::Rpc::ProxyRegister, 1, PATIENCE);
    arrived.await.unwrap();
    peer
}

/// The next GOAWAY: the last stream that it lets live. PINGs on the way are answered.
async fn goaway(peer: &mut Peer) -> u32 {
    loop {
        let wanted = |frame: &Frame| {
            let ping = frame.kind == frames::PING && frame.flags & frames::ACK == 0;
            ping || frame.kind == frames::GOAWAY
        };
        let frame = peer.until("a GOAWAY", wanted).await;
        if frame.kind == frames::GOAWAY {
            assert_eq!(frame.error_code(), 0, "{frame:?}");
            return u32::from_be_bytes(frame.payload[..4].try_into().unwrap());
        }
        peer.send(&[Frame::pong(&frame)]).await;
    }
}

#[tokio::test]
async fn stop_9_goaway_twice_and_an_open_call_may_still_end() {
    let bed = TestBed::start().await;
    let mut peer = registering(&bed).await;
    let TestBed { server, gateway } = bed;
    let agents = gateway.agent_address().unwrap();
    let stop = tokio::spawn(gateway.shutdown());
    assert_eq!(goaway(&mut peer).await, (1 << 31) - 1);
    assert_eq!(goaway(&mut peer).await, 1, "the Register");
    assert!(tokio::net::TcpStream::connect(agents).await.is_err());
    server.clear_faults(None);
    server.release(None);
    let answer = RegisterResponse::decode(&*peer.answer(1).await).unwrap();
    assert!(answer.accepted);
    peer.closed().await;
    assert_eq!(soon("the stop", stop).await.unwrap().unsent, 0);
}

#[tokio::test]
async fn stop_1_and_9_what_is_open_when_the_budget_ends_is_closed() {
    let budget = Duration::from_millis(500);
    let setup = Setup::default().gateway(|config| config.shutdown.flush_budget = budget);
    let bed = setup.start().await;
    let mut peer = registering(&bed).await;
    let TestBed {
        server: _server,
        gateway,
    } = bed;
    let started = Instant::now();
    let stop = tokio::spawn(gateway.shutdown());
    assert_eq!(goaway(&mut peer).await, (1 << 31) - 1);
    assert_eq!(goaway(&mut peer).await, 1);
    peer.closed().await;
    let took = started.elapsed();
    let in_time = budget..budget + Duration::from_secs(1);
    assert!(in_time.contains(&took), "closed after {took:?}");
    soon("the stop", stop).await.unwrap();
}

#[tokio::test]
async fn stop_2_and_3_new_work_is_refused_while_commands_end() {
    let setup = Setup::default().gateway(|config| config.notify.pending_max = 1_000);
    let bed = setup.start().await;
    let operator = bed.operator().await;
    let mut agents = Vec::new();
    for id in ["a", "b", "c"] {
        agents.push(bed.agent(id).await);
    }
    let mut fanout = operator.send(&["a"], command("last"), 60).await.unwrap();
    let taken = agents[0].command().await.unwrap();
    let metrics = bed.gateway.metrics_address();
    let TestBed { server, gateway } = bed;
    let stop = tokio::spawn(gateway.shutdown());

    // Until the stop has begun the answer is another one.
    let refused =
        async { while agents[1].inventory().await.unwrap().status.code != code::UNAVAILABLE {} };
    soon("a refused report", refused).await;
    let register = agents[2].register_request().encode_to_vec();
    let register = agents[2].register_raw(&register).await.unwrap();
    assert_eq!(register.status.code, code::UNAVAILABLE);
    let mut late = operator.send(&["b"], command("late"), 60).await.unwrap();
    let late = late.next().await.unwrap().unwrap_err();
    assert_eq!(late.code, code::UNAVAILABLE, "{late}");
    let text = yuzu_tests::http::get(metrics, "/metrics").await.unwrap();
    let room = "yuzu_gw_upstream_notify_pending_max 1006";
    assert!(text.body.contains(room), "two for each of three sessions");

    // The command in flight has its answer, and only then the sessions end.
    let answer = crate::support::success(&taken.message.command_id, "done");
    agents[0].answer(&answer).await.unwrap();
    assert_eq!(fanout.entry().await.unwrap().response.output, "done");
    for agent in &mut agents {
        assert!(agent.stream_end().await.unwrap().is_ok());
    }
    assert_eq!(soon("the stop", stop).await.unwrap().unsent, 0);
    server.kill().await;
}
