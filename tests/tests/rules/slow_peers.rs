//! Peers that do not read: they cost their own answers, never another peer's.

use crate::support::{command, serve_one, soon, success};
use std::time::{Duration, Instant};
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::fleet::{Answer, Fleet, Misbehaviour, Options};
use yuzu_tests::operator::Operator;
use yuzu_tests::raw::{self, code};
use yuzu_tests::testbed::Setup;

fn big(id: &str, bytes: usize) -> CommandRequest {
    CommandRequest {
        payload: vec![7; bytes].into(),
        ..command(id)
    }
}

/// Sends commands of `bytes` to an agent that does not read, until one is refused; the number of
/// those that were taken.
async fn fill(operator: &Operator, bytes: usize) -> usize {
    let mut open = Vec::new();
    for number in 0..500 {
        let id = format!("fill-{number}");
        let mut fanout = operator.send(&["deaf"], big(&id, bytes), 60).await.unwrap();
        let refused = async {
            let entry = fanout.entry().await.unwrap();
            let response = &entry.response;
            assert_eq!(
                (entry.agent_id.as_str(), response.command_id.as_str()),
                ("deaf", &*id)
            );
            assert_eq!((response.status, response.exit_code), (2, -1));
            assert_eq!(response.output, "backpressure");
            assert!(fanout.next().await.unwrap().unwrap_err().is_ok());
        };
        // A refusal is there with the headers; a command that was taken stays silent.
        if tokio::time::timeout(Duration::from_millis(50), refused)
            .await
            .is_ok()
        {
            return number;
        }
        open.push(fanout);
    }
    panic!("500 commands of {bytes} bytes were taken")
}

#[tokio::test]
async fn cmd_17_a_full_mailbox_is_answered_at_once_and_counted() {
    let setup = Setup::default().gateway(|config| config.command.mailbox = 20);
    let bed = setup.start().await;
    let _deaf = bed.agent("deaf").await;
    let mut well = bed.agent("well").await;
    let operator = bed.operator().await;
    // 20,000 bytes each: the window of 65,535 and what is under way take a few.
    let taken = fill(&operator, 20_000).await;
    assert!(
        (20..40).contains(&taken),
        "{taken} taken, with a mailbox of 20"
    );
    assert_eq!(
        bed.metric("commands_dropped_backpressure_total", &[]).await,
        1.0
    );
    assert_eq!(
        bed.metric("stream_queue_len_distribution_count", &[]).await,
        1.0
    );
    let mut fanout = operator.send(&["well"], command("c"), 20).await.unwrap();
    serve_one(&mut well).await;
    assert!(fanout.rest().await.unwrap().1.is_ok());
}

#[tokio::test]
async fn cmd_17_the_mailbox_is_bounded_in_bytes_too() {
    let setup = Setup::default().gateway(|config| config.command.mailbox_bytes = 500_000);
    let bed = setup.start().await;
    let _deaf = bed.agent("deaf").await;
    let taken = fill(&bed.operator().await, 100_000).await;
    assert!(
        (4..12).contains(&taken),
        "{taken} x 100,000 taken, with a mailbox of 500,000"
    );
}

#[tokio::test]
async fn cmd_17_an_agent_whose_socket_is_full_is_bounded_alike() {
    let setup = Setup::default().gateway(|config| config.command.mailbox_bytes = 500_000);
    let bed = setup.start().await;
    let options = raw::Options {
        // Wide open windows: only the socket holds back.
        stream_window: 1 << 30,
        connection_window: 1 << 30,
        ..raw::Options::default()
    };
    let mut deaf = Agent::connect_with(bed.agents(), "deaf", &options)
        .await
        .unwrap();
    deaf.register().await.unwrap();
    deaf.subscribe().await.unwrap();
    deaf.connection.pause_reading(true);
    let taken = fill(&bed.operator().await, 200_000).await;
    // Socket buffers of both ends grow to a few MiB.
    assert!(
        taken < 120,
        "{taken} x 200,000 taken, with a mailbox of 500,000"
    );
    let mut well = bed.agent("well").await;
    let operator = bed.operator().await;
    let mut fanout = operator.send(&["well"], command("c"), 20).await.unwrap();
    serve_one(&mut well).await;
    assert!(fanout.rest().await.unwrap().1.is_ok());
}

#[tokio::test]
async fn a_broadcast_over_deaf_and_well_agents_reaches_the_well_ones_at_once() {
    let setup = Setup::default().gateway(|config| config.command.mailbox_bytes = 200_000);
    let bed = setup.start().await;
    let misbehaviour = Misbehaviour::StopReading { after: 0 };
    let deaf = Fleet::start(Options {
        prefix: "deaf-".into(),
        misbehaviour,
        ..bed.fleet(20)
    });
    let well = Fleet::start(Options {
        prefix: "well-".into(),
        ..bed.fleet(20)
    });
    deaf.all_subscribed(PATIENCE).await.unwrap();
    well.all_subscribed(PATIENCE).await.unwrap();
    let operator = bed.operator().await;
    for round in 0..10_u64 {
        let id = format!("c-{round}");
        let mut fanout = operator.send(&[], big(&id, 50_000), 60).await.unwrap();
        let started = Instant::now();
        let mut answered = 0;
        while answered < 20 {
            let entry = fanout.entry().await.unwrap();
            if entry.agent_id.starts_with("well-") {
                assert_eq!(entry.response.status, 1);
                answered += 1;
            }
        }
        assert!(started.elapsed() < Duration::from_secs(5), "round {round}");
    }
    let now = well.snapshot();
    assert_eq!(
        (now.commands, now.duplicates, now.out_of_order),
        (200, 0, 0)
    );
}

#[tokio::test]
async fn cmd_22_a_caller_that_does_not_read_ends_with_8_and_agents_read_on() {
    let setup = Setup::default().gateway(|config| {
        config.command.caller_buffer_bytes = 600_000;
        config.command.slow_caller_timeout = Duration::from_millis(300);
    });
    let bed = setup.start().await;
    let answer = Answer {
        bytes: 50_000,
        delay: Duration::ZERO,
        running_frames: 0,
    };
    let fleet = Fleet::start(Options {
        answer,
        ..bed.fleet(40)
    });
    fleet.all_subscribed(PATIENCE).await.unwrap();
    let slow = raw::Options {
        stream_window: 65_535,
        ..raw::Options::default()
    };
    let slow = Operator::connect_with(bed.operators(), &slow)
        .await
        .unwrap();
    let mut unread = slow.send(&[], command("unread"), 60).await.unwrap();
    // Every agent's answer is taken, though nobody reads them.
    let counters = fleet.counters();
    counters
        .wait_for(PATIENCE, |s| s.answers == 40)
        .await
        .unwrap();
    let quick = bed.operator().await;
    let round = soon(
        "a second caller",
        yuzu_tests::broadcast::broadcast(&quick, command("c"), 20),
    );
    let round = round.await.unwrap();
    assert_eq!((round.tally.answered(), round.tally.failures), (40, 0));
    bed.metric_becomes("command_slow_callers_total", &[], 1.0)
        .await;
    let (entries, status) = unread.rest().await.unwrap();
    assert_eq!(status.code, code::RESOURCE_EXHAUSTED, "{status}");
    assert!(
        entries.len() < 40,
        "what did not fit is gone: {} came",
        entries.len()
    );
}

#[tokio::test]
async fn cmd_22_a_slow_caller_that_reads_loses_nothing() {
    let setup = Setup::default().gateway(|config| {
        config.command.caller_buffer_bytes = 100_000;
        config.command.slow_caller_timeout = Duration::from_millis(500);
    });
    let bed = setup.start().await;
    let answer = Answer {
        bytes: 50_000,
        delay: Duration::ZERO,
        running_frames: 0,
    };
    let fleet = Fleet::start(Options {
        answer,
        ..bed.fleet(40)
    });
    fleet.all_subscribed(PATIENCE).await.unwrap();
    let slow = raw::Options {
        stream_window: 65_535,
        ..raw::Options::default()
    };
    let slow = Operator::connect_with(bed.operators(), &slow)
        .await
        .unwrap();
    let mut fanout = slow.send(&[], command("c"), 60).await.unwrap();
    let mut answered = 0;
    let status = loop {
        // A reader that needs 20 ms for each: 2 MB in 0.8 s, longer than the timeout in all.
        tokio::time::sleep(Duration::from_millis(20)).await;
        match fanout.next().await.unwrap() {
            Ok(_) => answered += 1,
            Err(status) => break status,
        }
    };
    assert!(status.is_ok(), "{status}");
    assert_eq!(answered, 40);
}

#[tokio::test]
async fn cmd_22_a_caller_that_reads_gets_60_mb_of_answers_at_once() {
    let bed = Setup::default().start().await;
    let answer = Answer {
        bytes: 1_000_000,
        delay: Duration::ZERO,
        running_frames: 0,
    };
    let fleet = Fleet::start(Options {
        answer,
        ..bed.fleet(60)
    });
    fleet.all_subscribed(PATIENCE).await.unwrap();
    let operator = bed.operator().await;
    let round = yuzu_tests::broadcast::broadcast(&operator, command("c"), 60)
        .await
        .unwrap();
    assert!(round.status.is_ok(), "{}", round.status);
    assert_eq!((round.tally.answered(), round.tally.failures), (60, 0));
}

#[tokio::test]
async fn cmd_22_answers_of_many_unread_broadcasts_end_the_largest_and_others_go_on() {
    let bed = Setup::default().start().await;
    let answer = Answer {
        bytes: 100_000,
        delay: Duration::ZERO,
        running_frames: 0,
    };
    let fleet = Fleet::start(Options {
        answer,
        ..bed.fleet(40)
    });
    fleet.all_subscribed(PATIENCE).await.unwrap();
    let window = raw::Options {
        stream_window: 65_535,
        // What is unread holds back its own stream only.
        connection_window: 1 << 30,
        ..raw::Options::default()
    };
    let slow = Operator::connect_with(bed.operators(), &window)
        .await
        .unwrap();
    let quick = bed.operator().await;
    let mut unread = Vec::new();
    // 4 MB each, below what one caller may have waiting: 80 MB in all, of 64 MiB.
    for number in 0..20 {
        let id = format!("unread-{number}");
        unread.push(slow.send(&[], command(&id), 60).await.unwrap());
    }
    let round = soon(
        "another caller",
        yuzu_tests::broadcast::broadcast(&quick, command("read"), 20),
    );
    let round = round.await.unwrap();
    assert_eq!((round.tally.answered(), round.tally.failures), (40, 0));
    let given_up = &bed.gateway.metrics().command_slow_callers_total;
    let pressed = async {
        while given_up.get() == 0 {
            tokio::task::yield_now().await;
        }
    };
    soon("callers are given up", pressed).await;
    let mut ended = 0;
    for mut fanout in unread {
        let (entries, status) = soon("an end", fanout.rest()).await.unwrap();
        match status.code {
            code::OK => assert_eq!(entries.len(), 40),
            code::RESOURCE_EXHAUSTED => ended += 1,
            _ => panic!("{status}"),
        }
    }
    assert!(ended >= 1);
    assert_eq!(ended, given_up.get());
}

#[tokio::test]
async fn an_answer_nobody_takes_does_not_hold_the_agents_heartbeat() {
    let setup = Setup::default().gateway(|config| {
        config.command.caller_buffer_bytes = 50_000;
        config.command.slow_caller_timeout = Duration::from_secs(10);
    });
    let bed = setup.start().await;
    let mut agent = bed.agent("a").await;
    let slow = raw::Options {
        stream_window: 65_535,
        ..raw::Options::default()
    };
    let slow = Operator::connect_with(bed.operators(), &slow)
        .await
        .unwrap();
    let _unread = slow.send(&["a"], command("c"), 60).await.unwrap();
    agent.command().await.unwrap();
    for _ in 0..4 {
        let frame = crate::support::running("c", &"x".repeat(40_000));
        agent.answer(&frame).await.unwrap();
    }
    agent.answer(&success("c", "end")).await.unwrap();
    let started = Instant::now();
    assert!(agent.heartbeat().await.unwrap().status.is_ok());
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn a_stream_left_unread_does_not_cost_its_connection_the_others() {
    let setup = Setup::default().gateway(|config| {
        config.command.slow_caller_timeout = Duration::from_millis(200);
        config.listeners[1].limits.request_timeout = Duration::from_millis(400);
    });
    let bed = setup.start().await;
    let answer = Answer {
        bytes: 3_000_000,
        delay: Duration::ZERO,
        running_frames: 0,
    };
    let fleet = Fleet::start(Options {
        answer,
        ..bed.fleet(1)
    });
    fleet.all_subscribed(PATIENCE).await.unwrap();
    let mut agent = bed.agent("well").await;
    let window = raw::Options {
        stream_window: 65_535,
        ..raw::Options::default()
    };
    let operator = Operator::connect_with(bed.operators(), &window)
        .await
        .unwrap();
    let _unread = operator
        .send(&["sim-0"], command("unread"), 60)
        .await
        .unwrap();
    let started = Instant::now();
    let mut round = 0;
    // Three times as long as an answer may wait that is the only one.
    while started.elapsed() < Duration::from_millis(1_200) {
        round += 1;
        let id = format!("well-{round}");
        let mut fanout = operator.send(&["well"], command(&id), 60).await.unwrap();
        agent.command().await.unwrap();
        agent.answer(&success(&id, "done")).await.unwrap();
        let (entries, status) = soon("an answer", fanout.rest()).await.unwrap();
        assert!(status.is_ok(), "round {round}: {status}");
        assert_eq!(entries.len(), 1, "round {round}");
    }
}
