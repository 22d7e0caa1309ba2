//! PERMIT and BREAKER as agents and server see them: deadlines, what waits, what follows an outage.

use crate::support::soon;
use prost::Message;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use yuzu_proto::path;
use yuzu_server_stub::{Action, Fault, Rpc, State};
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::raw::{Request, code, frame};
use yuzu_tests::testbed::{Setup, TestBed};

/// Registers with this deadline of the agent's.
async fn register(agent: &Agent, timeout: Option<Duration>) -> Option<u16> {
    let call = Request::new(path::REGISTER);
    let call = match timeout {
        Some(timeout) => call.timeout(timeout),
        None => call,
    };
    let request = agent.register_request().encode_to_vec();
    let answer = soon("an answer", agent.connection.unary(call, &request)).await;
    answer.ok().map(|answer| answer.status.code)
}

/// The deadline that the server was told last, in milliseconds.
fn told(bed: &TestBed) -> u64 {
    let calls = bed.server.received(Rpc::ProxyRegister);
    let timeout = calls.last().and_then(|call| call.grpc_timeout.clone());
    let timeout = timeout.expect("a deadline");
    timeout.strip_suffix('m').unwrap().parse().unwrap()
}

#[tokio::test]
async fn permit_4_the_agents_deadline_less_a_margin_bounds_wait_and_call() {
    let setup = Setup::default().gateway(|config| {
        // Above every other bound, so that what is left of the agent's time shows.
        config.upstream.rpc_timeout = Duration::from_secs(60);
        config.upstream.call_timeout = Duration::from_secs(20);
    });
    let bed = setup.start().await;
    let agent = bed.bare_agent("a").await;
    // 30 s less 5 s; 6 s less a sixth; without a deadline the configured one.
    for (own, most) in [(Some(30), 25_000), (Some(6), 5_000), (None, 20_000)] {
        let own = own.map(Duration::from_secs);
        assert_eq!(register(&agent, own).await, Some(code::OK));
        let told = told(&bed);
        assert!((most - 1_000..=most).contains(&told), "{own:?}: {told}");
    }
    bed.stop().await;
}

#[tokio::test]
async fn permit_4_a_register_that_waits_is_refused_a_margin_before_the_agents_deadline() {
    let setup = Setup::default().gateway(|config| config.upstream.register_concurrency = 1);
    let bed = setup.start().await;
    let hang = Fault::new(Rpc::ProxyRegister, Action::Hang).times(1);
    bed.server.fault(hang).unwrap();
    let (first, second) = (bed.bare_agent("a").await, bed.bare_agent("b").await);
    let mut holds = JoinSet::new();
    holds.spawn(async move { register(&first, None).await });
    let received = bed.server.wait_received(Rpc::ProxyRegister, 1, PATIENCE);
    received.await.unwrap();
    let started = Instant::now();
    let answer = register(&second, Some(Duration::from_millis(1_200))).await;
    // The agent hears it before it would give up by itself.
    assert_eq!(answer, Some(code::UNAVAILABLE));
    assert!(started.elapsed() >= Duration::from_millis(1_000));
    bed.server.release(None);
    assert_eq!(holds.join_next().await.unwrap().unwrap(), Some(code::OK));
    let received = bed
        .server
        .view(|state| state.counts(Rpc::ProxyRegister).received);
    assert_eq!(received, 1, "the refused one was never sent");
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permit_15_what_waits_for_a_permit_counts_against_its_own_connection() {
    let setup = Setup::default()
        .gateway(|config| config.upstream.register_concurrency = 1)
        .agent_listener(|listener| {
            listener.limits.max_connection_memory_bytes = 1 << 20;
            listener.limits.max_message_bytes = 1 << 20;
        });
    let bed = setup.start().await;
    let hang = Fault::new(Rpc::ProxyRegister, Action::Hang);
    bed.server.fault(hang).unwrap();
    let (hoarder, modest) = (
        bed.bare_agent("hoarder").await,
        bed.bare_agent("modest").await,
    );
    let modest = tokio::spawn(async move { register(&modest, None).await });
    let received = bed.server.wait_received(Rpc::ProxyRegister, 1, PATIENCE);
    received.await.unwrap();
    // One after the other and each of them complete: no more is unfinished at once than one. Three
    // fit.
    let mut calls = JoinSet::new();
    for number in 0..4 {
        let mut request = hoarder.register_request();
        request.info.as_mut().unwrap().agent_id = format!("hoarder-{number}");
        request.enrollment_token = "x".repeat(300 << 10);
        let call = Request::new(path::REGISTER);
        let body = frame(&request.encode_to_vec());
        calls.spawn(hoarder.connection.begin_unary(&call, body));
        if number < 3 {
            let waiting = f64::from(number + 1);
            let class = [("class", "register")];
            bed.metric_becomes("upstream_permits_waiting", &class, waiting)
                .await;
        }
    }
    soon("the end of the connection", hoarder.connection.closed()).await;
    let ended = calls.join_all().await;
    assert!(ended.iter().all(Result::is_err));
    assert_eq!(bed.metric("grpc_connection_killed_total", &[]).await, 1.0);
    bed.server.clear_faults(None);
    bed.server.release(None);
    assert_eq!(modest.await.unwrap(), Some(code::OK));
    bed.stop().await;
}

/// The server answers again after an outage: what it does not know is for it to say.
#[tokio::test]
async fn breaker_10_a_breaker_that_closes_replays_nothing() {
    let setup = Setup::default().gateway(|config| {
        config.upstream.breaker.failure_threshold = 1;
        config.upstream.breaker.reset_timeout = Duration::from_millis(50);
    });
    let bed = setup.start().await;
    let mut agents = Vec::new();
    for id in ["a", "b", "c"] {
        agents.push(bed.agent(id).await);
    }
    let down = Action::Status(tonic::Code::Unavailable, "down".into());
    let down = Fault::new(Rpc::ProxyRegister, down).times(1);
    bed.server.fault(down).unwrap();
    let late = bed.bare_agent("late").await;
    assert_eq!(register(&late, None).await, Some(code::INTERNAL));
    // The notice of one that leaves is the probe.
    let mut leaver = agents.pop().unwrap();
    leaver.half_close().await.unwrap();
    let closed = [("state", "closed")];
    bed.metric_becomes("upstream_circuit_transitions_total", &closed, 1.0)
        .await;
    // Whatever the close had started would be before this one.
    assert_eq!(register(&late, None).await, Some(code::OK));
    let replays = |state: &State| {
        let calls = state.received(Rpc::ProxyRegister);
        calls
            .filter(|call| call.presented_session.is_some())
            .count()
    };
    assert_eq!(bed.server.view(replays), 0);
    assert_eq!(bed.server.received(Rpc::ProxyRegister).len(), 5);
    bed.stop().await;
}
