//! The pace of replays, and what goes before them.

use super::*;
use crate::support::WHILE;
use yuzu_server_stub::{Action, Fault};

/// Agents that the server is about to be asked about one by one.
async fn agents(bed: &TestBed, count: usize) -> Vec<Agent> {
    let mut agents = Vec::new();
    for number in 0..count {
        agents.push(bed.agent(&format!("agent-{number:02}")).await);
    }
    agents
}

#[tokio::test]
async fn replay_11_no_more_at_once_than_half_of_the_permits_in_force() {
    let setup = Setup::default().gateway(|config| config.replay.start_jitter = Duration::ZERO);
    let setup = Setup {
        server: yuzu_server_stub::StubConfig {
            stream_limit: 69,
            ..setup.server
        },
        ..setup
    };
    let bed = setup.start().await;
    // 8 streams beside the reserved ones: 6 for registrations, half of them for replays.
    let class = [("class", "replay")];
    bed.metric_becomes("upstream_permit_limit", &class, 3.0)
        .await;
    let agents = agents(&bed, 10).await;
    let hang = Fault::new(Rpc::ProxyRegister, Action::Hang).replay(true);
    let hang = bed.server.fault(hang).unwrap();
    forget_and_beat(&bed, &agents[0]).await;
    replayed(&bed, 3).await;
    // Live registrations take what replays leave.
    let late = bed.agent("late").await;
    tokio::time::sleep(WHILE).await;
    let counts = bed.server.view(|state| *state.counts(Rpc::ProxyRegister));
    assert_eq!(counts.hung, 3);
    bed.server.remove_fault(hang);
    bed.server.release(None);
    all_connected(&bed, 11).await;
    assert_eq!(attempts(&bed).await, 10.0);
    assert_eq!(events(&bed, &late.session_id), [Event::Connected]);
}

#[tokio::test]
async fn replay_12_an_agent_that_left_before_its_turn_is_not_replayed() {
    let bed = bed_with(|config| config.upstream.replay_concurrency = 1).await;
    let mut agents = agents(&bed, 3).await;
    let hang = Fault::new(Rpc::ProxyRegister, Action::Hang)
        .replay(true)
        .times(1);
    bed.server.fault(hang).unwrap();
    forget_and_beat(&bed, &agents[0]).await;
    replayed(&bed, 1).await;
    let gone = agents.remove(1).session_id;
    bed.notice(Event::Disconnected, &gone).await;
    bed.server.release(None);
    let all = replayed(&bed, 2).await;
    assert!(all[1] == agents[1].session_id);
    bed.metric_becomes("registration_replay_queue_depth", &[], 0.0)
        .await;
    assert_eq!(attempts(&bed).await, 2.0);
    assert!(!events(&bed, &gone).ends_with(&[Event::Connected]));
}

#[tokio::test]
async fn replay_11_a_drip_begins_after_a_random_pause() {
    let bed = bed_with(|config| config.replay.start_jitter = Duration::from_secs(60)).await;
    let agent = bed.agent("a").await;
    forget_and_beat(&bed, &agent).await;
    // One in 400 such pauses is shorter than this.
    bed.metric_becomes("registration_replay_queue_depth", &[], 1.0)
        .await;
    tokio::time::sleep(WHILE).await;
    assert!(bed.server.view(replays).is_empty());
    assert_eq!(triggered(&bed, "heartbeat").await, 1.0);
}

#[tokio::test]
async fn replay_19_a_planned_stop_lets_one_end_and_starts_no_other() {
    let bed = bed_with(|config| config.upstream.replay_concurrency = 1).await;
    let agents = agents(&bed, 5).await;
    let slow = Action::Delay(Duration::from_millis(300));
    let slow = Fault::new(Rpc::ProxyRegister, slow).replay(true);
    bed.server.fault(slow).unwrap();
    forget_and_beat(&bed, &agents[0]).await;
    replayed(&bed, 1).await;
    let TestBed { server, gateway } = bed;
    soon("the stop", gateway.shutdown()).await;
    assert_eq!(server.view(replays).len(), 1);
    // Its DISCONNECTED came after its adoption, so that it does not look online.
    let state = server.view(|state| state.route("agent-00").map(|route| route.state));
    assert_eq!(state, Some(RouteState::Disconnected));
    let kept = agents
        .iter()
        .filter(|a| server.view(|s| s.knows_session(&a.session_id)));
    assert_eq!(kept.count(), 1);
}
