//! OWNER and GEN-3: owners that die, and what becomes of their sessions.

use crate::support::{command, serve_one, soon};
use futures_util::FutureExt;
use std::time::Duration;
use tonic::Code;
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_server_stub::{Action, Fault, Received, Rpc, State};
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::fleet::Fleet;
use yuzu_tests::operator::{Fanout, Operator};
use yuzu_tests::testbed::{Setup, TestBed};

const CONNECTED: Event = Event::Connected;
const DISCONNECTED: Event = Event::Disconnected;

/// A server may keep a call for as long as a test needs.
async fn patient_bed() -> TestBed {
    let setup = Setup::default().gateway(|config| {
        config.upstream.rpc_timeout = PATIENCE * 2;
    });
    setup.start().await
}

/// Sends a command and takes it at the agent; the answer is owed.
async fn in_flight(operator: &Operator, agent: &mut Agent, id: &str) -> Fanout {
    let sent = operator.send(&[&agent.id], command(id), 60).await;
    assert_eq!(agent.command().await.unwrap().message.command_id, id);
    sent.unwrap()
}

async fn is_lost(fanout: &mut Fanout) {
    let entry = fanout.entry().await.unwrap();
    assert_eq!(entry.response.output, "agent_disconnected");
    assert!(fanout.next().await.unwrap().unwrap_err().is_ok());
}

async fn serves(operator: &Operator, agent: &mut Agent, id: &str) {
    let mut fanout = operator.send(&[&agent.id], command(id), 60).await.unwrap();
    serve_one(agent).await;
    assert_eq!(fanout.entry().await.unwrap().response.output, "done");
    assert!(fanout.next().await.unwrap().unwrap_err().is_ok());
}

fn notices_of(state: &State, session: &str, event: Event) -> Vec<Received> {
    let all = state.received(Rpc::NotifyStreamStatus);
    let of = all.filter(|received| {
        let notice = received.stream_status().unwrap();
        notice.session_id == session && notice.event() == event
    });
    of.cloned().collect()
}

/// Waits for so many notices of this session.
async fn told(bed: &TestBed, session: &str, event: Event, count: usize) -> Vec<Received> {
    let look = |state: &State| {
        let of = notices_of(state, session, event);
        (of.len() >= count).then_some(of)
    };
    let what = format!("{count} {event:?}");
    bed.server.wait_for(&what, PATIENCE, look).await.unwrap()
}

fn presented(bed: &TestBed) -> Vec<Received> {
    let registers = bed.server.received(Rpc::ProxyRegister);
    let presented = registers.into_iter();
    presented
        .filter(|call| call.presented_session.is_some())
        .collect()
}

async fn outcome(bed: &TestBed, outcome: &str, count: f64) {
    bed.metric_becomes("agent_owner_restarts_total", &[("outcome", outcome)], count)
        .await;
}

#[tokio::test]
async fn owner_5_disconnected_settled_then_presented_then_connected_with_the_same_home() {
    let bed = patient_bed().await;
    let operator = bed.operator().await;
    let mut agent = bed.agent("a").await;
    let session = agent.session_id.clone();
    let hang = Fault::new(Rpc::NotifyStreamStatus, Action::Hang).event(DISCONNECTED);
    let hang = bed.server.fault(hang).unwrap();
    assert!(bed.gateway.inject_owner_panic("a"));
    let gone = told(&bed, &session, DISCONNECTED, 1).await;

    // Nothing of this waits for the server (OWNER-6).
    for n in 0..3 {
        assert!(agent.heartbeat().await.unwrap().status.is_ok());
        serves(&operator, &mut agent, &format!("meanwhile-{n}")).await;
    }
    assert!(
        presented(&bed).is_empty(),
        "presented before it was settled"
    );

    bed.server.remove_fault(hang);
    bed.server.release(None);
    let came = told(&bed, &session, CONNECTED, 2).await;
    let presented = presented(&bed);
    assert_eq!(presented.len(), 1);
    assert_eq!(presented[0].presented_session.as_deref(), Some(&*session));
    let fresh = &bed.server.received(Rpc::ProxyRegister)[0];
    assert_eq!(presented[0].raw, fresh.raw, "the stored request");
    let order = [came[0].seq, gone[0].seq, presented[0].seq, came[1].seq];
    assert!(order.is_sorted(), "{order:?}");
    let home = |received: &Received| received.stream_status().unwrap().stream_home_id;
    assert_eq!(home(&gone[0]), home(&came[0]));
    assert_eq!(home(&came[1]), home(&came[0]));

    outcome(&bed, "recovered", 1.0).await;
    serves(&operator, &mut agent, "after").await;
    assert!(agent.heartbeat().await.unwrap().status.is_ok());
    let notices = bed.notices_of(&session);
    assert_eq!(notices.len(), 3, "one DISCONNECTED for one dead owner");
}

#[tokio::test]
async fn owner_5_a_disconnected_that_is_not_recorded_is_not_sent_again() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    let refuse = Fault::new(Rpc::NotifyStreamStatus, Action::Refuse).event(DISCONNECTED);
    bed.server.fault(refuse.times(1)).unwrap();
    assert!(bed.gateway.inject_owner_panic("a"));
    told(&bed, &agent.session_id, CONNECTED, 2).await;
    outcome(&bed, "recovered", 1.0).await;
    let gone = bed
        .server
        .view(|state| notices_of(state, &agent.session_id, DISCONNECTED));
    assert_eq!(gone.len(), 1);
    let ended = [("outcome", "superseded")];
    let ended = bed.metric("upstream_notify_unacked_ended_total", &ended);
    assert_eq!(ended.await, 1.0);
}

/// The server answers the presented session like this: the stream ends with OK after the one
/// DISCONNECTED, and the agent comes back by its own way.
async fn not_taken(action: Action) {
    let bed = TestBed::start().await;
    let operator = bed.operator().await;
    let mut agent = bed.agent("a").await;
    let session = agent.session_id.clone();
    let refused = Fault::new(Rpc::ProxyRegister, action).replay(true);
    bed.server.fault(refused.times(1)).unwrap();
    let mut lost = in_flight(&operator, &mut agent, "lost").await;
    assert!(bed.gateway.inject_owner_panic("a"));
    is_lost(&mut lost).await;
    let status = agent.stream_end().await.unwrap();
    assert!(status.is_ok(), "{status}");
    outcome(&bed, "disconnected_only", 1.0).await;

    agent.register().await.unwrap();
    agent.subscribe().await.unwrap();
    bed.notice(CONNECTED, &agent.session_id).await;
    serves(&operator, &mut agent, "after").await;
    let events: Vec<_> = bed.notices_of(&session).iter().map(|n| n.event()).collect();
    assert_eq!(events, [CONNECTED, DISCONNECTED]);
    outcome(&bed, "recovered", 0.0).await;
}

#[tokio::test]
async fn owner_7_another_holder() {
    not_taken(Action::Status(Code::FailedPrecondition, "held".into())).await;
}

#[tokio::test]
async fn owner_7_not_accepted() {
    not_taken(Action::Refuse).await;
}

#[tokio::test]
async fn owner_7_a_server_that_can_not_be_asked() {
    not_taken(Action::Status(Code::Unavailable, "away".into())).await;
}

#[tokio::test]
async fn owner_7_a_server_that_gives_it_another_session() {
    use prost::Message;
    let other = crate::support::accepted(&crate::support::session_id('f'));
    not_taken(Action::Answer(other.encode_to_vec().into())).await;
}

/// Lets the owner of "a" die while the server keeps the DISCONNECTED, does `meanwhile`, and gives
/// it free.
async fn while_it_recovers(bed: &TestBed, agent: &Agent, meanwhile: impl AsyncFnOnce()) {
    let hang = Fault::new(Rpc::NotifyStreamStatus, Action::Hang).event(DISCONNECTED);
    let hang = bed.server.fault(hang).unwrap();
    assert!(bed.gateway.inject_owner_panic("a"));
    told(bed, &agent.session_id, DISCONNECTED, 1).await;
    meanwhile().await;
    bed.server.remove_fault(hang);
    bed.server.release(None);
}

#[tokio::test]
async fn owner_7_a_stream_that_goes_while_it_is_recovered() {
    let bed = patient_bed().await;
    let mut agent = bed.agent("a").await;
    let session = agent.session_id.clone();
    let stream = agent.take_stream().unwrap();
    while_it_recovers(&bed, &agent, async || {
        drop(stream);
        outcome(&bed, "disconnected_only", 1.0).await;
        assert_eq!(bed.gateway.agents_connected(), 0);
    })
    .await;
    // Later notices have later numbers.
    let next = bed.agent("next").await;
    assert!(presented(&bed).is_empty());
    let events: Vec<_> = bed.notices_of(&session).iter().map(|n| n.event()).collect();
    assert_eq!(events, [CONNECTED, DISCONNECTED], "exactly one");
    drop(next);
}

#[tokio::test]
async fn owner_7_a_newer_session_is_left_in_peace() {
    let bed = patient_bed().await;
    let operator = bed.operator().await;
    let mut old = bed.agent("a").await;
    let session = old.session_id.clone();
    let mut new = None;
    while_it_recovers(&bed, &old, async || {
        new = Some(Agent::attach(bed.agents(), "a").await.unwrap());
    })
    .await;
    let mut new = new.unwrap();
    let status = old.stream_end().await.unwrap();
    assert!(status.is_ok(), "{status}");
    outcome(&bed, "disconnected_only", 1.0).await;
    assert!(presented(&bed).is_empty(), "the old one took it back");
    let events: Vec<_> = bed.notices_of(&session).iter().map(|n| n.event()).collect();
    assert_eq!(events, [CONNECTED, DISCONNECTED]);
    serves(&operator, &mut new, "after").await;
}

#[tokio::test]
async fn owner_8_successors_that_die_before_they_are_done_count_too() {
    let bed = patient_bed().await;
    let mut agent = bed.agent("a").await;
    let session = agent.session_id.clone();
    while_it_recovers(&bed, &agent, async || {
        for died in 1..=2 {
            assert!(bed.gateway.inject_owner_panic("a"));
            outcome(&bed, "disconnected_only", f64::from(died)).await;
        }
        assert!(bed.gateway.inject_owner_panic("a"));
        outcome(&bed, "gave_up", 1.0).await;
    })
    .await;
    assert!(agent.stream_end().await.unwrap().is_ok());
    outcome(&bed, "disconnected_only", 3.0).await;
    let events: Vec<_> = bed.notices_of(&session).iter().map(|n| n.event()).collect();
    assert_eq!(events, [CONNECTED, DISCONNECTED]);
}

/// A gateway that bears one dead owner in ten seconds.
async fn frail_bed() -> TestBed {
    let setup = Setup::default().gateway(|config| config.session.restart_intensity = 1);
    setup.start().await
}

#[tokio::test]
async fn owner_9_too_many_dead_owners_replace_all_and_every_session_is_recovered() {
    let bed = frail_bed().await;
    let operator = bed.operator().await;
    let mut agents = Vec::new();
    for id in ["a", "b", "c", "d", "e"] {
        agents.push(bed.agent(id).await);
    }
    let mut lost = in_flight(&operator, &mut agents[4], "lost").await;
    assert!(bed.gateway.inject_owner_panic("a"));
    outcome(&bed, "recovered", 1.0).await;
    assert!(bed.gateway.inject_owner_panic("b"));
    is_lost(&mut lost).await;
    for agent in &agents {
        let restarts = 1 + usize::from(agent.id == "a");
        told(&bed, &agent.session_id, CONNECTED, 1 + restarts).await;
        assert!(agent.heartbeat().await.unwrap().status.is_ok());
        let events = bed.notices_of(&agent.session_id);
        let gone = events.iter().filter(|n| n.event() == DISCONNECTED);
        assert_eq!(gone.count(), restarts, "{}", agent.id);
    }
    outcome(&bed, "recovered", 6.0).await;
    for agent in &mut agents {
        serves(&operator, agent, "after").await;
    }
    assert_eq!(bed.metric("agents_disconnected_total", &[]).await, 0.0);
}

#[tokio::test]
async fn gen_3_more_than_ten_such_breaches_give_the_node_up() {
    let bed = frail_bed().await;
    let mut agents = Vec::new();
    for n in 0..11 {
        agents.push(bed.agent(&format!("a-{n}")).await);
    }
    let mut given_up = Box::pin(bed.gateway.given_up());
    // Two of one owner are a breach, and an owner bears three.
    for (n, agent) in agents.iter().enumerate() {
        for _ in 0..2 {
            assert!((&mut given_up).now_or_never().is_none(), "breach {n}");
            let came = bed
                .server
                .view(|state| notices_of(state, &agent.session_id, CONNECTED).len());
            assert!(bed.gateway.inject_owner_panic(&agent.id));
            told(&bed, &agent.session_id, CONNECTED, came + 1).await;
        }
    }
    soon("the end of the node", given_up).await;
}

#[tokio::test]
async fn stop_4_an_owner_that_died_says_it_once_and_does_not_come_back() {
    let bed = patient_bed().await;
    let mut agent = bed.agent("a").await;
    let session = agent.session_id.clone();
    let hang = Fault::new(Rpc::NotifyStreamStatus, Action::Hang).event(DISCONNECTED);
    bed.server.fault(hang).unwrap();
    assert!(bed.gateway.inject_owner_panic("a"));
    told(&bed, &session, DISCONNECTED, 1).await;
    let TestBed { server, gateway } = bed;
    let stop = tokio::spawn(gateway.shutdown());
    assert!(agent.stream_end().await.unwrap().is_ok());
    server.clear_faults(None);
    server.release(None);
    let report = soon("the stop", stop).await.unwrap();
    assert_eq!(report.unsent, 0);
    let gone = server.view(|state| notices_of(state, &session, DISCONNECTED));
    assert_eq!(gone.len(), 1);
    let came = server.view(|state| notices_of(state, &session, CONNECTED));
    assert_eq!(came.len(), 1, "no session comes back");
    let calls = server.received(Rpc::ProxyRegister);
    assert!(calls.iter().all(|call| call.presented_session.is_none()));
}

#[tokio::test]
async fn owner_5_many_that_die_at_once_are_all_recovered_and_present_no_more_than_fit() {
    const AGENTS: usize = 60;
    let setup = Setup::default().gateway(|config| config.upstream.replay_concurrency = 2);
    let bed = setup.start().await;
    let fleet = Fleet::start(bed.fleet(AGENTS));
    fleet.all_subscribed(PATIENCE).await.unwrap();
    let connected = AGENTS as u64;
    let server = &bed.server;
    let all = server.wait_received(Rpc::NotifyStreamStatus, connected, PATIENCE);
    all.await.unwrap();
    let slow = Fault::new(Rpc::ProxyRegister, Action::Delay(Duration::from_millis(1)));
    server.fault(slow).unwrap();
    for n in 0..AGENTS {
        assert!(bed.gateway.inject_owner_panic(&fleet.options().agent_id(n)));
    }
    outcome(&bed, "recovered", AGENTS as f64).await;
    assert_eq!(presented(&bed).len(), AGENTS);
    assert_eq!(fleet.snapshot().reconnects, 0);
    let refused = bed.metric("upstream_permit_refused_total", &[]).await;
    assert_eq!(refused, 0.0);
}
