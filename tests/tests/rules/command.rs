//! CMD: SendCommand.

use crate::support::{WHILE, command, running, serve_one, soon, success, with_unknown_fields};
use prost::Message;
use std::collections::HashSet;
use std::time::{Duration, Instant};
use yuzu_proto::agent::v1::command_response::Status;
use yuzu_proto::agent::v1::{CommandRequest, CommandResponse};
use yuzu_tests::agent::PATIENCE;
use yuzu_tests::broadcast::broadcast;
use yuzu_tests::fleet::Fleet;
use yuzu_tests::operator::Entry;
use yuzu_tests::raw::code;
use yuzu_tests::testbed::{Setup, TestBed};

/// The entry the gateway makes for a target that gave no answer.
fn is_error_entry(entry: &Entry, agent: &str, command_id: &str, output: &str) {
    let expected = CommandResponse {
        command_id: command_id.into(),
        status: Status::Failure.into(),
        output: output.into(),
        exit_code: -1,
        ..Default::default()
    };
    assert_eq!(entry.agent_id, agent);
    assert!(entry.response == expected, "{:?}", entry.response.output);
}

#[tokio::test]
async fn cmd_1_no_ids_means_every_agent() {
    let bed = TestBed::start().await;
    let fleet = Fleet::start(bed.fleet(50));
    fleet.all_subscribed(PATIENCE).await.unwrap();
    let round = broadcast(&bed.operator().await, command("c"), 20)
        .await
        .unwrap();
    assert!(round.status.is_ok());
    let ids: Vec<String> = (0..50).map(|i| fleet.options().agent_id(i)).collect();
    assert_eq!(round.tally.missing(ids.iter().map(String::as_str)), 0);
    assert_eq!((round.tally.frames, round.tally.failures), (50, 0));
    assert_eq!(fleet.snapshot().commands, 50, "one copy for each");
}

#[tokio::test]
async fn cmd_1_a_broadcast_to_nobody_ends_at_once_with_ok() {
    let bed = TestBed::start().await;
    let mut fanout = bed
        .operator()
        .await
        .send(&[], command("c"), 20)
        .await
        .unwrap();
    let (entries, status) = fanout.rest().await.unwrap();
    assert!(entries.is_empty() && status.is_ok());
}

#[tokio::test]
async fn cmd_1_listed_ids_and_nobody_else() {
    let bed = TestBed::start().await;
    let (mut one, mut two) = (bed.agent("one").await, bed.agent("two").await);
    let mut other = bed.agent("other").await;
    let operator = bed.operator().await;
    let mut fanout = operator
        .send(&["one", "two"], command("c"), 20)
        .await
        .unwrap();
    tokio::join!(serve_one(&mut one), serve_one(&mut two));
    let (entries, status) = fanout.rest().await.unwrap();
    let answered: HashSet<_> = entries.iter().map(|e| e.agent_id.as_str()).collect();
    assert_eq!(answered, HashSet::from(["one", "two"]));
    assert!(status.is_ok());
    assert!(other.command_within(WHILE).await.is_none());
}

#[tokio::test]
async fn cmd_3_an_unknown_target_is_answered_not_connected_at_once() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let operator = bed.operator().await;
    let mut fanout = operator
        .send(&["nobody", "a"], command("c-7"), 20)
        .await
        .unwrap();
    // Before the connected target has answered.
    is_error_entry(
        &fanout.entry().await.unwrap(),
        "nobody",
        "c-7",
        "not_connected",
    );
    serve_one(&mut agent).await;
    assert_eq!(fanout.entry().await.unwrap().agent_id, "a");
    assert!(fanout.next().await.unwrap().unwrap_err().is_ok());
}

#[tokio::test]
async fn cmd_4_a_target_lost_before_its_answer_is_agent_disconnected() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let mut fanout = bed
        .operator()
        .await
        .send(&["a"], command("c-7"), 20)
        .await
        .unwrap();
    agent.command().await.unwrap();
    agent.answer(&running("c-7", "working")).await.unwrap();
    assert_eq!(fanout.entry().await.unwrap().response.output, "working");
    agent.connection.cut();
    is_error_entry(
        &fanout.entry().await.unwrap(),
        "a",
        "c-7",
        "agent_disconnected",
    );
    assert!(fanout.next().await.unwrap().unwrap_err().is_ok());
}

#[tokio::test]
async fn cmd_5_the_command_arrives_as_it_was_sent() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let sent = CommandRequest {
        action: "run".into(),
        parameters: [("key".to_owned(), "value".to_owned())].into(),
        stagger_seconds: 3,
        delay_seconds: 4,
        payload: vec![0, 255, 1].into(),
        dispatch_tag: "v1|ro|none|00ff".into(),
        ..command("c")
    };
    let raw = with_unknown_fields(&sent);
    let mut request = vec![0x0a, 1, b'a'];
    prost::encoding::bytes::encode(2, &raw, &mut request);
    let mut fanout = bed.operator().await.send_raw(&request).await.unwrap();
    assert_eq!(serve_one(&mut agent).await.raw, raw);
    assert!(fanout.rest().await.unwrap().1.is_ok());
}

#[tokio::test]
async fn cmd_6_frames_are_relayed_as_they_are_and_as_they_come() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let mut fanout = bed
        .operator()
        .await
        .send(&["a"], command("c"), 20)
        .await
        .unwrap();
    agent.command().await.unwrap();
    let frames = [
        with_unknown_fields(&running("c", "one")),
        with_unknown_fields(&CommandResponse {
            payload: vec![0, 255].into(),
            plugin_result_status: 4,
            ..success("c", "two")
        }),
    ];
    for frame in &frames {
        agent.answer_raw(frame).await.unwrap();
        // Relayed before the next one is sent.
        let entry = fanout.entry().await.unwrap();
        assert_eq!((entry.agent_id.as_str(), &entry.response_raw), ("a", frame));
    }
    assert!(fanout.next().await.unwrap().unwrap_err().is_ok());
}

#[tokio::test]
async fn cmd_7_running_frames_complete_nothing_and_any_other_status_does() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let operator = bed.operator().await;
    // FAILURE, TIMEOUT, REJECTED, and a status no contract knows.
    for (number, status) in [2, 3, 4, 77].into_iter().enumerate() {
        let id = format!("c-{number}");
        let mut fanout = operator.send(&["a"], command(&id), 20).await.unwrap();
        agent.command().await.unwrap();
        for output in ["line", "__keepalive__", "__timing__|exec_ms=12"] {
            agent.answer(&running(&id, output)).await.unwrap();
            assert_eq!(fanout.entry().await.unwrap().response.output, output);
        }
        let last = CommandResponse {
            status,
            ..success(&id, "end")
        };
        agent.answer(&last).await.unwrap();
        assert_eq!(fanout.entry().await.unwrap().response.status, status);
        assert!(
            fanout.next().await.unwrap().unwrap_err().is_ok(),
            "status {status}"
        );
    }
}

#[tokio::test]
async fn cmd_8_the_stream_ends_when_the_last_target_is_terminal() {
    let bed = TestBed::start().await;
    let (mut a, mut b) = (bed.agent("a").await, bed.agent("b").await);
    let mut fanout = bed
        .operator()
        .await
        .send(&["a", "b"], command("c"), 20)
        .await
        .unwrap();
    serve_one(&mut a).await;
    assert_eq!(fanout.entry().await.unwrap().agent_id, "a");
    assert!(
        tokio::time::timeout(WHILE, fanout.next()).await.is_err(),
        "b is open"
    );
    serve_one(&mut b).await;
    assert_eq!(fanout.entry().await.unwrap().agent_id, "b");
    assert!(fanout.next().await.unwrap().unwrap_err().is_ok());
}

#[tokio::test]
async fn cmd_8_with_nothing_dispatched_it_ends_right_after_the_error_entries() {
    let bed = TestBed::start().await;
    let mut fanout = bed
        .operator()
        .await
        .send(&["x", "y"], command("c"), 20)
        .await
        .unwrap();
    let (entries, status) = fanout.rest().await.unwrap();
    assert_eq!(entries.len(), 2);
    assert!(status.is_ok());
}

#[tokio::test]
async fn cmd_9_silent_targets_get_no_entry_and_are_counted() {
    let bed = TestBed::start().await;
    let (mut a, mut b) = (bed.agent("a").await, bed.agent("b").await);
    let operator = bed.operator().await;
    let started = Instant::now();
    let mut fanout = operator.send(&["a", "b"], command("c"), 1).await.unwrap();
    serve_one(&mut a).await;
    b.command().await.unwrap();
    let (entries, status) = fanout.rest().await.unwrap();
    let took = started.elapsed();
    assert!(
        took >= Duration::from_millis(950) && took < Duration::from_secs(5),
        "{took:?}"
    );
    assert_eq!(entries.len(), 1);
    assert!(status.is_ok());
    assert_eq!(bed.metric("commands_timed_out_total", &[]).await, 1.0);
    // A late frame is dropped, and the agent is as good as before.
    b.answer(&success("c", "late")).await.unwrap();
    let mut next = operator.send(&["b"], command("c-2"), 20).await.unwrap();
    serve_one(&mut b).await;
    let (entries, _) = next.rest().await.unwrap();
    assert_eq!(
        (entries.len(), entries[0].response.output.as_str()),
        (1, "done")
    );
}

#[tokio::test]
async fn cmd_10_no_timeout_means_the_default() {
    let default = Duration::from_secs(1);
    let setup = Setup::default().gateway(|config| config.command.default_timeout = default);
    let bed = setup.start().await;
    let mut agent = bed.agent("a").await;
    let operator = bed.operator().await;
    for seconds in [0, -1, i32::MIN] {
        let started = Instant::now();
        let mut fanout = operator.send(&["a"], command("c"), seconds).await.unwrap();
        agent.command().await.unwrap();
        let (entries, status) = fanout.rest().await.unwrap();
        let took = started.elapsed();
        assert!(
            took >= Duration::from_millis(950) && took < Duration::from_secs(5),
            "{took:?}"
        );
        assert!(entries.is_empty() && status.is_ok());
    }
}

#[tokio::test]
async fn cmd_11_frames_nobody_waits_for_are_dropped() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    agent.answer(&success("never sent", "x")).await.unwrap();
    let mut fanout = bed
        .operator()
        .await
        .send(&["a"], command("c"), 20)
        .await
        .unwrap();
    agent.command().await.unwrap();
    agent.answer(&success("never sent", "x")).await.unwrap();
    agent.answer(&success("", "x")).await.unwrap();
    agent.answer(&success("c", "done")).await.unwrap();
    agent.answer(&success("c", "again")).await.unwrap();
    let (entries, status) = fanout.rest().await.unwrap();
    assert!(status.is_ok());
    assert_eq!(
        (entries.len(), entries[0].response.output.as_str()),
        (1, "done")
    );
}

#[tokio::test]
async fn cmd_12_two_callers_of_one_id_both_get_the_frames() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let (first, second) = (bed.operator().await, bed.operator().await);
    let mut one = first.send(&["a"], command("c"), 20).await.unwrap();
    agent.command().await.unwrap();
    let mut two = second.send(&["a"], command("c"), 20).await.unwrap();
    agent.command().await.expect("sent once more");
    agent.answer(&running("c", "both")).await.unwrap();
    agent.answer(&success("c", "done")).await.unwrap();
    for fanout in [&mut one, &mut two] {
        let (entries, status) = fanout.rest().await.unwrap();
        let outputs: Vec<_> = entries.iter().map(|e| e.response.output.as_str()).collect();
        assert_eq!(outputs, ["both", "done"]);
        assert!(status.is_ok());
    }
}

#[tokio::test]
async fn cmd_13_a_repeated_id_is_one_target() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let ids = ["a", "nobody", "a", "nobody", "a"];
    let mut fanout = bed
        .operator()
        .await
        .send(&ids, command("c"), 20)
        .await
        .unwrap();
    serve_one(&mut agent).await;
    let (entries, status) = fanout.rest().await.unwrap();
    let mut answered: Vec<_> = entries.iter().map(|e| e.agent_id.as_str()).collect();
    answered.sort_unstable();
    assert_eq!(answered, ["a", "nobody"]);
    assert!(status.is_ok());
    assert!(agent.command_within(WHILE).await.is_none(), "sent once");
}

#[tokio::test]
async fn cmd_15_a_caller_that_leaves_leaves_nothing_behind() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let operator = bed.operator().await;
    let fanout = operator.send(&["a"], command("c"), 20).await.unwrap();
    agent.command().await.expect("it was dispatched");
    drop(fanout);
    agent.answer(&success("c", "for nobody")).await.unwrap();
    // A round trip, after which that answer has been dropped for certain.
    let mut between = operator.send(&["a"], command("d"), 20).await.unwrap();
    serve_one(&mut agent).await;
    between.rest().await.unwrap();
    let mut again = operator.send(&["a"], command("c"), 20).await.unwrap();
    agent.command().await.unwrap();
    agent.answer(&success("c", "for the second")).await.unwrap();
    let (entries, _) = again.rest().await.unwrap();
    assert_eq!(entries.last().unwrap().response.output, "for the second");
    assert_eq!(bed.metric("commands_timed_out_total", &[]).await, 0.0);
}

#[tokio::test]
async fn cmd_16_during_a_planned_stop_a_command_is_14() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let operator = bed.operator().await;
    // In flight, so that the stop has to wait for it.
    let mut held = operator.send(&["a"], command("c"), 20).await.unwrap();
    agent.command().await.unwrap();
    let TestBed {
        server: _server,
        gateway,
    } = bed;
    let stopping = tokio::spawn(gateway.shutdown());
    let refused = async {
        loop {
            let mut fanout = operator
                .send(&["nobody"], command("late"), 20)
                .await
                .unwrap();
            let (entries, status) = fanout.rest().await.unwrap();
            if !status.is_ok() {
                assert!(entries.is_empty());
                return status;
            }
        }
    };
    let status = soon("the refusal", refused).await;
    assert_eq!(status.code, code::UNAVAILABLE, "{status}");
    agent.answer(&success("c", "in time")).await.unwrap();
    assert_eq!(held.entry().await.unwrap().response.output, "in time");
    assert!(held.next().await.unwrap().unwrap_err().is_ok());
    soon("the stop", stopping).await.unwrap();
}

#[tokio::test]
async fn cmd_18_dispatches_fan_outs_and_durations_are_counted() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let operator = bed.operator().await;
    let ids = ["a", "nobody"];
    let mut fanout = operator.send(&ids, command("c"), 20).await.unwrap();
    agent.command().await.unwrap();
    agent.answer(&running("c", "x")).await.unwrap();
    let failure = CommandResponse {
        status: Status::Failure.into(),
        ..success("c", "x")
    };
    agent.answer(&failure).await.unwrap();
    fanout.rest().await.unwrap();
    let metrics = bed.metrics().await;
    let value = |name: &str, labels: &[(&str, &str)]| {
        metrics
            .value(&format!("yuzu_gw_{name}"), labels)
            .unwrap_or_default()
    };
    assert_eq!(
        value("commands_dispatched_total", &[("plugin", "shell")]),
        1.0
    );
    assert_eq!(value("fanout_target_count_sum", &[]), 2.0);
    assert_eq!(value("fanout_dispatched_count_sum", &[]), 1.0);
    assert_eq!(value("fanout_skipped_count_sum", &[]), 1.0);
    assert_eq!(value("fanout_remote_dispatched_count_sum", &[]), 0.0);
    assert_eq!(value("fanout_target_count_count", &[]), 1.0);
    let labels = [("plugin", "shell"), ("status", "FAILURE")];
    assert_eq!(value("command_duration_ms_count", &labels), 1.0);
    assert_eq!(
        value("command_duration_ms_count", &[]),
        1.0,
        "terminal frames only"
    );
}

#[tokio::test]
async fn cmd_21_an_empty_command_id_is_an_id_like_any_other() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let mut fanout = bed
        .operator()
        .await
        .send(&["a"], command(""), 20)
        .await
        .unwrap();
    serve_one(&mut agent).await;
    let (entries, status) = fanout.rest().await.unwrap();
    assert_eq!(
        (entries.len(), entries[0].response.output.as_str()),
        (1, "done")
    );
    assert!(status.is_ok());
}

#[tokio::test]
async fn cmd_23_at_most_64_plugins_are_named_in_metrics() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let operator = bed.operator().await;
    for number in 0..70 {
        let command = CommandRequest {
            plugin: format!("plugin-{number}"),
            ..command("c")
        };
        let mut fanout = operator.send(&["a"], command, 20).await.unwrap();
        serve_one(&mut agent).await;
        fanout.rest().await.unwrap();
    }
    let metrics = bed.metrics().await;
    let name = "yuzu_gw_commands_dispatched_total";
    let named = metrics
        .of(name)
        .filter(|s| s.labels[0].1.starts_with("plugin-"))
        .count();
    assert_eq!(named, 64);
    assert_eq!(metrics.value(name, &[("plugin", "other")]), Some(6.0));
}

#[tokio::test]
async fn a_payload_of_3_mib_passes() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let payload: Vec<u8> = (0..3 << 20).map(|i: u32| i as u8).collect();
    let sent = CommandRequest {
        payload: payload.into(),
        ..command("c")
    };
    let mut fanout = bed
        .operator()
        .await
        .send(&["a"], sent.clone(), 20)
        .await
        .unwrap();
    let arrived = serve_one(&mut agent).await;
    assert!(arrived.raw == sent.encode_to_vec(), "byte for byte");
    assert!(fanout.rest().await.unwrap().1.is_ok());
}
