//! What the server's answer to a replay means.

use super::*;
use crate::support::{command, serve_one};
use tonic::Code;
use yuzu_server_stub::{Action, Fault};
use yuzu_tests::raw::code;

/// A replay of `a` ends its session, and only that one: `b` is replayed as well, since one unknown
/// session in a batch of one is evidence of a lost state.
async fn ends_the_session(bed: TestBed, mut ended: Agent, mut other: Agent) {
    ended.heartbeat().await.unwrap();
    let status = ended.stream_end().await.unwrap();
    assert_eq!(status.code, code::OK);
    bed.notice(Event::Disconnected, &ended.session_id).await;
    let told = events(&bed, &ended.session_id);
    assert_eq!(told, [Event::Connected, Event::Disconnected]);
    let all = replayed(&bed, 2).await;
    assert!(all == [ended.session_id.clone(), other.session_id.clone()]);
    let opened = [("state", "open")];
    let opened = bed.metric("upstream_circuit_transitions_total", &opened);
    assert_eq!(opened.await, 0.0, "a success for the breaker");

    // It comes back by itself, and nobody else noticed.
    bed.server.clear_faults(None);
    ended.register().await.unwrap();
    ended.subscribe().await.unwrap();
    bed.notice(Event::Connected, &ended.session_id).await;
    let operator = bed.operator().await;
    let mut fanout = operator.send(&["a", "b"], command("c"), 20).await.unwrap();
    tokio::join!(serve_one(&mut ended), serve_one(&mut other));
    assert_eq!(fanout.rest().await.unwrap().0.len(), 2);
}

/// With two agents, a breaker that one failure opens, and a server that forgot the first of them.
async fn forgotten() -> (TestBed, Agent, Agent) {
    let bed = bed_with(|config| {
        config.upstream.breaker.failure_threshold = 1;
        config.upstream.breaker.reset_timeout = Duration::from_millis(100);
    })
    .await;
    let (a, b) = (bed.agent("a").await, bed.agent("b").await);
    assert!(bed.server.forget_session(&a.session_id));
    (bed, a, b)
}

#[tokio::test]
async fn replay_15_a_replay_that_is_not_accepted_ends_that_session() {
    let (bed, a, b) = forgotten().await;
    let refuse = Fault::new(Rpc::ProxyRegister, Action::Refuse).agent("a");
    bed.server.fault(refuse).unwrap();
    ends_the_session(bed, a, b).await;
}

#[tokio::test]
async fn replay_16_a_superseded_session_ends() {
    let (bed, a, b) = forgotten().await;
    let superseded = Action::Status(Code::FailedPrecondition, "superseded".into());
    let superseded = Fault::new(Rpc::ProxyRegister, superseded).agent("a");
    bed.server.fault(superseded).unwrap();
    ends_the_session(bed, a, b).await;
}

#[tokio::test]
async fn replay_15_a_refusal_does_not_touch_the_session_that_took_its_place() {
    let (bed, a, _b) = forgotten().await;
    let late = Fault::new(
        Rpc::ProxyRegister,
        Action::Delay(Duration::from_millis(300)),
    );
    bed.server.fault(late.replay(true)).unwrap();
    let refuse = Fault::new(Rpc::ProxyRegister, Action::Refuse).replay(true);
    bed.server.fault(refuse.agent("a")).unwrap();
    a.heartbeat().await.unwrap();
    replayed(&bed, 1).await;
    let mut newer = bed.agent("a").await;
    let mut old = a;
    assert_eq!(old.stream_end().await.unwrap().code, code::OK);
    let operator = bed.operator().await;
    let mut fanout = operator.send(&["a"], command("c"), 20).await.unwrap();
    serve_one(&mut newer).await;
    assert_eq!(fanout.rest().await.unwrap().0.len(), 1);
    assert_eq!(events(&bed, &newer.session_id), [Event::Connected]);
}

#[tokio::test]
async fn replay_17_a_failed_replay_keeps_the_session_until_it_is_named_again() {
    let bed = bed_with(|config| config.replay.session_guard = Duration::from_millis(200)).await;
    let agent = bed.agent("a").await;
    let down = Action::Status(Code::Unavailable, "store down".into());
    bed.server
        .fault(Fault::new(Rpc::ProxyRegister, down).times(1))
        .unwrap();
    forget_and_beat(&bed, &agent).await;
    replayed(&bed, 1).await;
    soon("the second replay", async {
        while bed.server.view(|s| !s.knows_session(&agent.session_id)) {
            agent.heartbeat().await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    all_connected(&bed, 1).await;
    assert_eq!(attempts(&bed).await, 2.0);
    let expected = [Event::Connected, Event::Connected];
    notices_settled(&bed).await;
    assert_eq!(events(&bed, &agent.session_id), expected);
}

#[tokio::test]
async fn replay_18_a_failure_that_opens_the_breaker_ends_the_drip() {
    let bed = bed_with(|config| {
        config.replay.session_guard = Duration::from_millis(200);
        config.upstream.replay_concurrency = 1;
        config.upstream.breaker.failure_threshold = 1;
        config.upstream.breaker.reset_timeout = Duration::from_millis(100);
    })
    .await;
    let mut agents = Vec::new();
    for number in 0..8 {
        agents.push(bed.agent(&format!("agent-{number}")).await);
    }
    let down = Action::Status(Code::Unavailable, "store down".into());
    bed.server
        .fault(Fault::new(Rpc::ProxyRegister, down).after(3).times(1))
        .unwrap();
    forget_and_beat(&bed, &agents[7]).await;
    let open = [("state", "open")];
    bed.metric_becomes("upstream_circuit_transitions_total", &open, 1.0)
        .await;
    bed.metric_becomes("registration_replay_queue_depth", &[], 0.0)
        .await;
    assert_eq!(attempts(&bed).await, 4.0);
    // No second full replay so soon, but whoever is named: the first of them is the probe.
    soon("everybody", async {
        while bed.server.view(State::known_sessions) < agents.len() {
            for agent in &agents {
                agent.heartbeat().await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    all_connected(&bed, agents.len()).await;
    assert_eq!(triggered(&bed, "server_lost_state").await, 1.0);
    assert!(triggered(&bed, "heartbeat").await >= 2.0);
}
