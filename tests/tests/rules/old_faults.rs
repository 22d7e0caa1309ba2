//! Faults of the old gateway: each has a test of its own that ours does not show it.

use crate::support::{WHILE, command, serve_one, soon, success};
use prost::Message;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use yuzu_proto::agent::v1::RegisterRequest;
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_proto::path;
use yuzu_proto::server::v1::{GetAgentResponse, ListAgentsResponse, QueryInventoryResponse};
use yuzu_server_stub::{Action, Fault, Rpc, State};
use yuzu_tests::agent::PATIENCE;
use yuzu_tests::fleet::{Answer, Fleet, Options};
use yuzu_tests::raw::{self, Request, code};
use yuzu_tests::testbed::{Setup, TestBed};

#[tokio::test]
async fn old_fault_1_registers_do_not_queue_behind_each_other() {
    let bed = TestBed::start().await;
    let slow = Action::Delay(Duration::from_millis(50));
    bed.server
        .fault(Fault::new(Rpc::ProxyRegister, slow))
        .unwrap();
    let started = Instant::now();
    let fleet = Fleet::start(bed.fleet(96));
    fleet.all_subscribed(PATIENCE).await.unwrap();
    // One at a time would take 4.8 s, 48 at a time takes 0.1 s.
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
    let calls = bed.server.view(|s| s.counts(Rpc::ProxyRegister).received);
    assert_eq!(calls, 96, "one call for each agent");
}

#[tokio::test]
async fn old_fault_2_the_server_hears_of_every_connect_and_disconnect() {
    let bed = TestBed::start().await;
    let fleet = Fleet::start(bed.fleet(300));
    fleet.all_subscribed(PATIENCE).await.unwrap();
    let heard = |state: &State, event: Event| {
        let notices = state.received(Rpc::NotifyStreamStatus);
        notices
            .filter(|r| r.stream_status().is_some_and(|n| n.event() == event))
            .count()
    };
    let all = |event| move |state: &State| (heard(state, event) == 300).then_some(());
    bed.server
        .wait_for("300 CONNECTED", PATIENCE, all(Event::Connected))
        .await
        .unwrap();
    // All at once, without a farewell.
    drop(fleet);
    bed.server
        .wait_for("300 DISCONNECTED", PATIENCE, all(Event::Disconnected))
        .await
        .unwrap();
}

#[tokio::test]
async fn old_fault_3_the_peer_address_is_the_peers() {
    let bed = TestBed::start().await;
    let options = raw::Options {
        source: Some("127.0.0.9".parse().unwrap()),
        ..raw::Options::default()
    };
    let agent = yuzu_tests::agent::Agent::connect_with(bed.agents(), "a", &options).await;
    let mut agent = agent.unwrap();
    agent.register().await.unwrap();
    agent.subscribe().await.unwrap();
    let register = bed.server.received(Rpc::ProxyRegister)[0]
        .register()
        .unwrap();
    assert_eq!(register.gateway_observed_peer, "127.0.0.9");
    let notice = bed.notice(Event::Connected, &agent.session_id).await;
    assert_eq!(notice.peer_addr, "127.0.0.9");
}

#[tokio::test]
async fn old_fault_4_list_get_and_inventory_answer() {
    let bed = TestBed::start().await;
    let _agent = bed.agent("a").await;
    let operator = bed.operator().await;
    let list: ListAgentsResponse = operator.list(10, "").await.unwrap().decode().unwrap();
    assert_eq!(list.agents.len(), 1);
    let get: GetAgentResponse = operator.get("a").await.unwrap().decode().unwrap();
    assert_eq!(get.summary.unwrap().agent_id, "a");
    let answer = operator.inventory("", "").await.unwrap();
    assert_eq!(
        answer
            .decode::<QueryInventoryResponse>()
            .unwrap()
            .plugin_data
            .len(),
        1
    );
}

#[tokio::test]
async fn old_fault_5_a_refused_subscribe_says_why() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    let missing = agent.subscribe_without_session().await.unwrap_err();
    let unknown = agent.subscribe_as("gw-session-unknown").await.unwrap_err();
    let used = agent.subscribe_as(&agent.session_id).await.unwrap_err();
    let codes = [missing.code(), unknown.code(), used.code()];
    assert_eq!(codes, [Some(3), Some(5), Some(5)]);
}

#[tokio::test]
async fn old_fault_6_the_headers_of_a_subscribe_come_at_once() {
    let bed = TestBed::start().await;
    let mut agent = bed.bare_agent("a").await;
    agent.register().await.unwrap();
    // No command is sent: a gateway that waits for one would not answer within the patience.
    let (_sender, receiver) = agent.subscribe_as(&agent.session_id).await.unwrap();
    assert_eq!(receiver.headers()["content-type"], "application/grpc");
}

#[tokio::test]
async fn old_fault_7_the_newer_of_two_streams_keeps_the_route() {
    let bed = TestBed::start().await;
    let mut old = bed.agent("a").await;
    let mut new = bed.agent("a").await;
    old.half_close().await.unwrap();
    bed.notice(Event::Disconnected, &old.session_id).await;
    let mut fanout = bed
        .operator()
        .await
        .send(&["a"], command("c"), 20)
        .await
        .unwrap();
    serve_one(&mut new).await;
    assert_eq!(fanout.entry().await.unwrap().response.output, "done");
}

#[tokio::test]
async fn old_fault_8_a_command_without_a_timeout_waits_for_its_answer() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let mut fanout = bed
        .operator()
        .await
        .send(&["a"], command("c"), 0)
        .await
        .unwrap();
    let taken = agent.command().await.unwrap();
    assert!(
        tokio::time::timeout(WHILE, fanout.next()).await.is_err(),
        "still open"
    );
    agent
        .answer(&success(&taken.message.command_id, "done"))
        .await
        .unwrap();
    assert_eq!(fanout.entry().await.unwrap().response.output, "done");
    assert!(fanout.next().await.unwrap().unwrap_err().is_ok());
}

#[tokio::test]
async fn old_fault_9_an_id_listed_twice_and_a_command_sent_twice_are_answered() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let operator = bed.operator().await;
    let mut one = operator.send(&["a", "a"], command("c"), 20).await.unwrap();
    let mut two = operator.send(&["a"], command("c"), 20).await.unwrap();
    agent.command().await.unwrap();
    agent.command().await.unwrap();
    agent.answer(&success("c", "done")).await.unwrap();
    for fanout in [&mut one, &mut two] {
        let (entries, status) = fanout.rest().await.unwrap();
        assert!(entries.len() == 1 && status.is_ok());
    }
}

#[tokio::test]
async fn old_fault_10_entries_of_the_gateway_carry_the_command_id() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let operator = bed.operator().await;
    let mut fanout = operator
        .send(&["nobody", "a"], command("c-10"), 20)
        .await
        .unwrap();
    agent.command().await.unwrap();
    agent.connection.cut();
    let (entries, _) = fanout.rest().await.unwrap();
    let got: Vec<_> = entries
        .iter()
        .map(|e| (e.response.output.as_str(), e.response.command_id.as_str()))
        .collect();
    assert_eq!(
        got,
        [("not_connected", "c-10"), ("agent_disconnected", "c-10")]
    );
}

#[tokio::test]
async fn old_fault_11_execute_command_is_unimplemented() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    let call = Request::new("/yuzu.agent.v1.AgentService/ExecuteCommand").timeout(PATIENCE);
    let answer = agent
        .connection
        .unary(call, &command("c").encode_to_vec())
        .await
        .unwrap();
    assert_eq!(
        (answer.status.code, answer.message),
        (code::UNIMPLEMENTED, None)
    );
}

#[tokio::test]
async fn old_fault_12_no_empty_id_registers_and_no_unknown_session_beats() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("").await;
    let empty = RegisterRequest::default().encode_to_vec();
    for message in [agent.register_request().encode_to_vec(), empty] {
        let status = agent.register_raw(&message).await.unwrap().status;
        assert_eq!(status.code, code::INVALID_ARGUMENT);
    }
    assert_eq!(
        agent.heartbeat().await.unwrap().status.code,
        code::NOT_FOUND
    );
    assert!(bed.server.received(Rpc::ProxyRegister).is_empty());
}

#[tokio::test]
async fn old_fault_13_readiness_does_not_wait_for_the_busy() {
    let bed = TestBed::start().await;
    bed.server
        .fault(Fault::new(Rpc::ProxyRegister, Action::Hang))
        .unwrap();
    let fleet = Fleet::start(bed.fleet(200));
    bed.server
        .wait_received(Rpc::ProxyRegister, 48, PATIENCE)
        .await
        .unwrap();
    let started = Instant::now();
    for _ in 0..10 {
        assert_eq!(bed.ready().await.0, 200);
    }
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    drop(fleet);
}

#[tokio::test]
async fn old_fault_18_an_operator_that_stops_reading_is_given_up() {
    // 40 MB of answers against 8 MiB of buffer, the default.
    let setup = Setup::default()
        .gateway(|config| config.command.slow_caller_timeout = Duration::from_millis(500));
    let bed = setup.start().await;
    let answer = Answer {
        bytes: 1_000_000,
        delay: Duration::ZERO,
        running_frames: 0,
    };
    let fleet = Fleet::start(Options {
        answer,
        ..bed.fleet(40)
    });
    fleet.all_subscribed(PATIENCE).await.unwrap();
    let operator = bed.operator().await;
    let mut unread = operator.send(&[], command("c"), 60).await.unwrap();
    let counters = fleet.counters();
    counters
        .wait_for(PATIENCE, |s| s.answers == 40)
        .await
        .unwrap();
    // The agents are free: another command passes though nobody ever read.
    let mut next = operator
        .send(&["sim-0"], command("next"), 60)
        .await
        .unwrap();
    assert_eq!(next.entry().await.unwrap().response.command_id, "next");
    bed.metric_becomes("command_slow_callers_total", &[], 1.0)
        .await;
    let (entries, status) = unread.rest().await.unwrap();
    assert_eq!(status.code, code::RESOURCE_EXHAUSTED, "{status}");
    let held: usize = entries.iter().map(|e| e.raw.len()).sum();
    assert!(held < 20 << 20, "{held} bytes were still there");
}

#[tokio::test]
async fn old_fault_19_a_thousand_agents_may_dial_before_the_first_is_accepted() {
    let bed = TestBed::start().await;
    let agents = bed.agents();
    // Blocks the only thread of this runtime, so that nothing is accepted meanwhile: the kernel's
    // backlog must hold them all. A dropped SYN would be sent again after a second.
    let dialled: Vec<_> = (0..1_000)
        .map(|_| TcpStream::connect_timeout(&agents, Duration::from_millis(900)))
        .collect();
    let refused = dialled.iter().filter(|tcp| tcp.is_err()).count();
    assert_eq!(refused, 0, "of 1,000");
    drop(dialled);
    soon("an agent after them", bed.agent("a")).await;
}

#[tokio::test]
async fn old_fault_1_a_register_that_waited_too_long_is_told_so_before_its_deadline() {
    let setup = Setup::default().gateway(|config| {
        config.upstream.register_concurrency = 1;
        config.upstream.replay_concurrency = 1;
    });
    let bed = setup.start().await;
    bed.server
        .fault(Fault::new(Rpc::ProxyRegister, Action::Hang))
        .unwrap();
    let (first, second) = (bed.bare_agent("a").await, bed.bare_agent("b").await);
    let holding = first.register_raw(&[0x0a, 3, 0x0a, 1, b'a']);
    let waiting = async {
        bed.server
            .wait_received(Rpc::ProxyRegister, 1, PATIENCE)
            .await
            .unwrap();
        // The gateway answers half a second before: room for a machine with other work.
        let call = Request::new(path::REGISTER).timeout(Duration::from_secs(3));
        second
            .connection
            .unary(call, &second.register_request().encode_to_vec())
            .await
    };
    tokio::select! {
        _ = holding => panic!("it hangs"),
        answer = waiting => assert_eq!(answer.unwrap().status.code, code::UNAVAILABLE),
    }
    let calls = bed.server.view(|s| s.counts(Rpc::ProxyRegister).received);
    assert_eq!(calls, 1, "no call is left running for nobody");
}

#[tokio::test]
async fn old_fault_17_batches_go_on_however_fast_heartbeats_come() {
    let bed = TestBed::start().await;
    // 5,000 a second where the machine can; each is acknowledged as fast as it comes.
    let fleet = Fleet::start(Options {
        heartbeat: Some(Duration::from_millis(20)),
        ..bed.fleet(100)
    });
    fleet.all_subscribed(PATIENCE).await.unwrap();
    bed.server
        .wait_received(Rpc::BatchHeartbeat, 30, PATIENCE)
        .await
        .unwrap();
    let acknowledged = fleet.snapshot().heartbeats_acked;
    assert!(acknowledged > 1_000, "{acknowledged} heartbeats");
    let times: Vec<_> = bed
        .server
        .received(Rpc::BatchHeartbeat)
        .iter()
        .map(|batch| batch.at)
        .collect();
    let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max();
    // One every 100 ms; the old gateway paused for 40 s.
    assert!(longest < Some(Duration::from_secs(5)), "{longest:?}");
    drop(fleet);
}
