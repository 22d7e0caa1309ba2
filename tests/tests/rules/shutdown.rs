//! STOP: the planned stop.

use crate::support::soon;
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_tests::agent::PATIENCE;
use yuzu_tests::fleet::{Fleet, Outcome, Rpc};
use yuzu_tests::raw::code;
use yuzu_tests::testbed::TestBed;

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
    // The budget, the listeners' GOAWAY, and a second for a slow machine.
    assert!(
        took < budget + std::time::Duration::from_secs(5),
        "{took:?}"
    );
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
