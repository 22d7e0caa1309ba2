//! The simulated fleet against a server that is not ours: does it act like the real agent?

mod support;

use std::collections::HashSet;
use std::time::Duration;
use support::agent_server::{AgentServer, Subscriber};
use tokio_stream::StreamExt;
use yuzu_proto::agent::v1::{CommandRequest, CommandResponse, RegisterResponse};
use yuzu_tests::agent::PATIENCE;
use yuzu_tests::fleet::{Answer, Fleet, Misbehaviour, Options, Outcome, Periodic, Rpc};
use yuzu_tests::raw::code;

/// Real backoff waits, 200 times faster: 2 s become 10 ms.
const FAST: f64 = 0.005;

fn options(server: &AgentServer, agents: usize) -> Options {
    Options {
        backoff_scale: FAST,
        heartbeat: None,
        ..Options::new(server.address, agents)
    }
}

fn command(id: &str) -> CommandRequest {
    CommandRequest {
        command_id: id.into(),
        plugin: "shell".into(),
        ..Default::default()
    }
}

async fn next_answer(subscriber: &mut Subscriber) -> CommandResponse {
    let next = tokio::time::timeout(PATIENCE, subscriber.answers.next()).await;
    next.expect("an answer in time")
        .expect("an answer")
        .expect("no error")
}

/// The number of answers until the stream ends, and how it ends.
async fn drain(subscriber: &mut Subscriber) -> (usize, Result<(), tonic::Status>) {
    let mut answers = 0;
    let all = async {
        loop {
            match subscriber.answers.next().await {
                Some(Ok(_)) => answers += 1,
                Some(Err(status)) => return Err(status),
                None => return Ok(()),
            }
        }
    };
    let end = tokio::time::timeout(PATIENCE, all)
        .await
        .expect("an end in time");
    (answers, end)
}

#[tokio::test]
async fn agents_register_and_subscribe_on_one_connection_each() {
    let server = AgentServer::start().await;
    let fleet = Fleet::start(Options {
        prefix: "a".into(),
        first: 7,
        ..options(&server, 5)
    });
    fleet.all_subscribed(PATIENCE).await.unwrap();
    let mut homes = HashSet::new();
    for _ in 0..5 {
        let subscriber = server.recorder.subscriber().await;
        homes.insert((subscriber.session_id.clone(), subscriber.peer));
    }
    server.recorder.registers(|registers| {
        let ids: HashSet<&str> = registers.iter().map(|r| r.agent_id.as_str()).collect();
        assert_eq!(ids, HashSet::from(["a7", "a8", "a9", "a10", "a11"]));
        let peers: HashSet<_> = registers.iter().map(|r| r.peer).collect();
        assert_eq!(peers.len(), 5, "one connection each");
        for (number, register) in registers.iter().enumerate() {
            assert_eq!(register.grpc_timeout.as_deref(), Some("30000m"));
            let session = format!("session-{}-{number}", register.agent_id);
            assert!(
                homes.contains(&(session, register.peer)),
                "subscribed where it registered"
            );
        }
    });
    let last = fleet.stop().await;
    assert_eq!((last.running, last.subscribed, last.connected), (0, 0, 0));
}

#[tokio::test]
async fn answers_come_in_order_with_the_frames_and_sizes_asked_for() {
    let server = AgentServer::start().await;
    let answer = Answer {
        delay: Duration::from_millis(5),
        bytes: 1_000,
        running_frames: 2,
    };
    let fleet = Fleet::start(Options {
        answer,
        ..options(&server, 1)
    });
    let mut subscriber = server.recorder.subscriber().await;
    for id in ["c-1", "c-2", "c-3"] {
        subscriber.commands.send(Ok(command(id))).await.unwrap();
    }
    for id in ["c-1", "c-2", "c-3"] {
        for number in 1..=2 {
            let frame = next_answer(&mut subscriber).await;
            assert_eq!((frame.command_id.as_str(), frame.status), (id, 0));
            assert_eq!(frame.output, format!("frame {number}"));
        }
        let last = next_answer(&mut subscriber).await;
        assert_eq!((last.command_id.as_str(), last.status), (id, 1));
        assert_eq!(last.output.len(), 1_000);
    }
    let now = fleet.snapshot();
    assert_eq!((now.commands, now.answers, now.running_frames), (3, 3, 6));
    assert_eq!((now.duplicates, now.out_of_order), (0, 0));
}

#[tokio::test]
async fn commands_out_of_order_or_twice_are_counted() {
    let server = AgentServer::start().await;
    let fleet = Fleet::start(options(&server, 1));
    let subscriber = server.recorder.subscriber().await;
    for id in ["c-1", "c-3", "c-3", "c-2"] {
        subscriber.commands.send(Ok(command(id))).await.unwrap();
    }
    let counters = fleet.counters();
    let now = counters
        .wait_for(PATIENCE, |s| s.commands == 4)
        .await
        .unwrap();
    assert_eq!((now.duplicates, now.out_of_order), (1, 1));
}

#[tokio::test]
async fn a_lost_stream_is_followed_by_register_and_subscribe_on_the_same_connection() {
    let server = AgentServer::start().await;
    let fleet = Fleet::start(options(&server, 1));
    let first = server.recorder.subscriber().await;
    drop(first.commands);
    let second = server.recorder.subscriber().await;
    assert_ne!(first.session_id, second.session_id);
    assert_eq!(first.peer, second.peer);
    let now = fleet.all_subscribed(PATIENCE).await.unwrap();
    assert_eq!((now.connects, now.registrations, now.reconnects), (1, 2, 1));
    assert_eq!(now.ends_of(Rpc::Subscribe, Outcome::Status(code::OK)), 1);
}

#[tokio::test]
async fn a_refused_register_is_tried_again_and_a_denied_one_is_not() {
    let server = AgentServer::start().await;
    let answer = |reason: &str, status: &str| {
        Ok(RegisterResponse {
            reject_reason: reason.into(),
            enrollment_status: status.into(),
            ..Default::default()
        })
    };
    server.recorder.script_registers(vec![
        Err(tonic::Status::unavailable("later")),
        answer("enrollment pending", ""),
        answer("", "pending"),
        answer("no", "denied"),
    ]);
    let fleet = Fleet::start(options(&server, 1));
    let counters = fleet.counters();
    let now = counters
        .wait_for(PATIENCE, |s| s.running == 0)
        .await
        .unwrap();
    assert_eq!((now.denied, now.reconnects, now.registrations), (1, 3, 0));
    assert_eq!(
        now.ends_of(Rpc::Register, Outcome::Status(code::UNAVAILABLE)),
        1
    );
    assert_eq!(now.ends_of(Rpc::Register, Outcome::Status(code::OK)), 3);
}

#[tokio::test]
async fn heartbeats_carry_the_session_and_not_found_makes_the_agent_register_again() {
    let server = AgentServer::start().await;
    server.recorder.script_heartbeats(vec![
        tonic::Status::internal("nothing to see"),
        tonic::Status::not_found("unknown session"),
    ]);
    let heartbeat = Some(Duration::from_millis(20));
    let fleet = Fleet::start(Options {
        heartbeat,
        ..options(&server, 1)
    });
    let first = server.recorder.subscriber().await;
    let second = server.recorder.subscriber().await;
    let counters = fleet.counters();
    let now = counters
        .wait_for(PATIENCE, |s| s.heartbeats_acked >= 2)
        .await
        .unwrap();
    assert_eq!(now.registrations, 2);
    assert_eq!(
        now.ends_of(Rpc::Heartbeat, Outcome::Status(code::NOT_FOUND)),
        1
    );
    let sessions: Vec<String> = server
        .recorder
        .heartbeats()
        .into_iter()
        .map(|h| h.session_id)
        .collect();
    assert_eq!(sessions[..2], [first.session_id.clone(), first.session_id]);
    assert!(sessions[2..].iter().all(|s| *s == second.session_id));
}

#[tokio::test]
async fn inventory_and_guardian_frames_are_sent_on_request() {
    let server = AgentServer::start().await;
    let each = Some(Periodic {
        interval: Duration::from_millis(20),
        bytes: 300,
    });
    let fleet = Fleet::start(Options {
        inventory: each,
        guardian: each,
        ..options(&server, 1)
    });
    let mut subscriber = server.recorder.subscriber().await;
    let frame = next_answer(&mut subscriber).await;
    assert_eq!(
        (frame.plugin.as_str(), frame.command_id.as_str()),
        ("__guard__", "")
    );
    assert_eq!((frame.status, frame.payload.len()), (1, 300));
    let counters = fleet.counters();
    counters
        .wait_for(PATIENCE, |s| s.inventories_acked >= 1)
        .await
        .unwrap();
    let report = &server.recorder.inventories()[0];
    assert_eq!(report.session_id, subscriber.session_id);
    assert_eq!(report.plugin_data["inventory"].len(), 300);
}

#[tokio::test]
async fn an_agent_that_stops_reading_leaves_its_stream_full() {
    let server = AgentServer::start().await;
    let misbehaviour = Misbehaviour::StopReading { after: 1 };
    let fleet = Fleet::start(Options {
        misbehaviour,
        ..options(&server, 1)
    });
    let subscriber = server.recorder.subscriber().await;
    let big = |id: &str| CommandRequest {
        payload: vec![0; 10_000].into(),
        ..command(id)
    };
    // 100 x 10,000 bytes: the stream's window of 65,535 and tonic's own buffers take a part.
    for number in 0..100 {
        subscriber
            .commands
            .send(Ok(big(&format!("c-{number}"))))
            .await
            .unwrap();
    }
    let counters = fleet.counters();
    counters
        .wait_for(PATIENCE, |s| s.answers == 1)
        .await
        .unwrap();
    let waiting = 1_000 - subscriber.commands.capacity();
    assert!(waiting >= 80, "only {waiting} commands are held back");
    assert_eq!(fleet.snapshot().commands, 1);
}

#[tokio::test]
async fn ways_to_leave_look_different_to_the_server() {
    // tonic hides a reset of the request's half (it looks like its end) but drops the answer's.
    for (misbehaviour, request_ends_well, answer_lives) in [
        (Misbehaviour::HalfClose { after: 1 }, true, true),
        (Misbehaviour::Reset { after: 1 }, true, false),
        (Misbehaviour::Disconnect { after: 1 }, false, false),
        (Misbehaviour::Abort { after: 1 }, false, false),
    ] {
        let server = AgentServer::start().await;
        let fleet = Fleet::start(Options {
            misbehaviour,
            ..options(&server, 1)
        });
        let mut subscriber = server.recorder.subscriber().await;
        subscriber.commands.send(Ok(command("c-1"))).await.unwrap();
        let (answers, end) = drain(&mut subscriber).await;
        assert_eq!(end.is_ok(), request_ends_well, "{misbehaviour:?}: {end:?}");
        if answer_lives {
            assert_eq!(answers, 1, "a half-close loses nothing");
            assert!(!subscriber.commands.is_closed(), "{misbehaviour:?}");
        } else {
            let closed = tokio::time::timeout(PATIENCE, subscriber.commands.closed()).await;
            assert!(closed.is_ok(), "{misbehaviour:?}");
        }
        drop(subscriber.commands);
        server.recorder.subscriber().await;
        assert!(fleet.snapshot().reconnects >= 1, "{misbehaviour:?}");
    }
}

#[tokio::test]
async fn a_connection_can_be_held_without_registering() {
    let server = AgentServer::start().await;
    let misbehaviour = Misbehaviour::NeverRegister;
    let fleet = Fleet::start(Options {
        misbehaviour,
        ..options(&server, 3)
    });
    let counters = fleet.counters();
    counters
        .wait_for(PATIENCE, |s| s.connected == 3)
        .await
        .unwrap();
    server
        .recorder
        .registers(|registers| assert!(registers.is_empty()));
    assert_eq!(fleet.stop().await.connected, 0);
}
