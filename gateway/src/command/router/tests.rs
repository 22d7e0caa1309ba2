use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Wake, Waker};

use futures_util::FutureExt;
use http_body_util::BodyExt;
use prost::Message;
use yuzu_proto::server::v1::SendCommandResponse;
use yuzu_proto::wire::GRPC_PREFIX;

use super::*;
use crate::edge::{ConnectionKey, Sleeper};
use crate::session::Reply;
use crate::session::testing::{connect, registry};

struct Bench {
    registry: Arc<Registry>,
    router: Router,
    metrics: Arc<Metrics>,
}

impl Bench {
    fn new() -> Self {
        let metrics = Arc::new(Metrics::new("test").unwrap());
        let registry = Arc::new(registry());
        let config = config::Command {
            default_timeout: Duration::from_secs(300),
            mailbox: 2,
            mailbox_bytes: 1 << 20,
            caller_buffer_bytes: 1 << 20,
            slow_caller_timeout: Duration::from_secs(5),
            broadcast: config::Broadcast::Local,
        };
        Self {
            router: Router::new(Arc::clone(&registry), Arc::clone(&metrics), config),
            registry,
            metrics,
        }
    }

    fn connect(&self, agent: &str) -> Arc<Session> {
        let session = format!("s-{agent}");
        connect(&self.registry, agent, &session, ConnectionKey::next())
    }

    async fn send(&self, agents: &[&str]) -> (FanoutBody, Ticket) {
        self.send_with(agents, 0).await
    }

    async fn send_with(&self, agents: &[&str], timeout_seconds: i32) -> (FanoutBody, Ticket) {
        let command = Command {
            frame: Bytes::from_static(b"the command"),
            id: "c-1".to_owned(),
            plugin: "shell".to_owned(),
            timeout_seconds,
            caller: String::new(),
        };
        self.router.send(agents, command).await.unwrap()
    }
}

/// The commands that wait for the agent.
fn commands(session: &Session) -> Vec<Bytes> {
    let nobody = || Sleeper::Task(Waker::noop().clone());
    std::iter::from_fn(|| match session.poll_command(nobody) {
        Poll::Ready(Ok(frame)) => Some(frame),
        _ => None,
    })
    .collect()
}

/// The agent answers: a whole `SendCommandResponse`, as its owner makes it.
fn answer(session: &Session, status: i32) {
    let response = SendCommandResponse {
        agent_id: session.agent_id().to_string(),
        response: Some(yuzu_proto::agent::v1::CommandResponse {
            command_id: "c-1".into(),
            status,
            output: "own".into(),
            ..Default::default()
        }),
    };
    let mut frame = vec![0; GRPC_PREFIX];
    frame[1..].copy_from_slice(&(response.encoded_len() as u32).to_be_bytes());
    response.encode(&mut frame).unwrap();
    let reply = Reply {
        frame: frame.into(),
        terminal: (status != 0).then_some(status),
    };
    let waiters = session.waiters(b"c-1", status != 0);
    for waiter in waiters.iter().flat_map(|all| all.as_slice()) {
        assert!(waiter.sink.try_reply(waiter.target, &reply));
    }
}

/// All entries as (agent, output, exit code), and the status at the end.
async fn entries(body: &mut FanoutBody) -> (Vec<(String, String, i32)>, String) {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    loop {
        let frame = body.frame().await.expect("trailers").unwrap();
        match frame.into_data() {
            Ok(piece) => data.extend_from_slice(&piece),
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap();
                let mut rest = &data[..];
                while !rest.is_empty() {
                    let len = u32::from_be_bytes(rest[1..5].try_into().unwrap()) as usize;
                    let entry = SendCommandResponse::decode(&rest[5..5 + len]).unwrap();
                    let response = entry.response.unwrap();
                    assert_eq!(response.command_id, "c-1", "old fault 10");
                    entries.push((entry.agent_id, response.output, response.exit_code));
                    rest = &rest[5 + len..];
                }
                return (entries, trailers["grpc-status"].to_str().unwrap().into());
            }
        }
    }
}

fn entry(agent: &str, output: &str) -> (String, String, i32) {
    let exit_code = if output == "own" { 0 } else { -1 };
    (agent.to_owned(), output.to_owned(), exit_code)
}

#[tokio::test]
async fn cmd_1_no_ids_are_every_agent_of_this_node_and_all_share_the_bytes() {
    let b = Bench::new();
    let sessions = ["a", "b", "c"].map(|agent| b.connect(agent));
    let (mut body, _ticket) = b.send(&[]).await;
    let sent: Vec<_> = sessions.iter().flat_map(|s| commands(s)).collect();
    assert_eq!(sent, ["the command"; 3]);
    assert!(sent.iter().all(|frame| frame.as_ptr() == sent[0].as_ptr()));
    sessions.iter().for_each(|session| answer(session, 1));
    let (entries, status) = entries(&mut body).await;
    assert_eq!((entries.len(), &*status), (3, "0"));
}

/// Waits for a command as the stream of a session does.
#[derive(Default)]
struct Stream(AtomicUsize);

impl Wake for Stream {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn every_stream_that_waits_is_woken_also_when_the_caller_leaves_in_between() {
    let b = Bench::new();
    // More than one turn, and not a whole number of them.
    let count = 2 * TURN + 3;
    let streams: Vec<_> = (0..count)
        .map(|number| {
            let stream = Arc::<Stream>::default();
            let session = b.connect(&format!("a-{number}"));
            let waker = Waker::from(Arc::clone(&stream));
            assert!(session.poll_command(|| Sleeper::Task(waker)).is_pending());
            (stream, session)
        })
        .collect();
    let woken = || -> usize {
        streams
            .iter()
            .map(|(s, _)| s.0.load(Ordering::Relaxed))
            .sum()
    };
    let sent = || streams.iter().filter(|(_, s)| s.stream_state().1 > 0);
    {
        let send = std::pin::pin!(b.send(&[]));
        assert!(send.now_or_never().is_none(), "others have their turn");
        assert_eq!((woken(), sent().count()), (TURN, TURN));
    }
    let (_body, _ticket) = b.send(&[]).await;
    assert_eq!((woken(), sent().count()), (count, count));
}

#[tokio::test(start_paused = true)]
async fn cmd_9_who_was_not_sent_the_command_in_time_is_not_counted_as_silent() {
    let b = Bench::new();
    for number in 0..=TURN {
        b.connect(&format!("a-{number}"));
    }
    {
        let mut send = std::pin::pin!(b.send_with(&[], 1));
        assert!(send.as_mut().now_or_never().is_none());
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    assert_eq!(b.metrics.commands_timed_out_total.get(), TURN as u64);
}

#[tokio::test]
async fn cmd_1_no_agent_at_all_ends_at_once() {
    let (mut body, _ticket) = Bench::new().send(&[]).await;
    assert_eq!(entries(&mut body).await, (vec![], "0".into()));
}

#[tokio::test]
async fn cmd_3_an_agent_that_is_not_here_is_answered_at_once_and_the_others_get_the_command() {
    let b = Bench::new();
    let here = b.connect("here");
    let bystander = b.connect("bystander");
    let (mut body, _ticket) = b.send(&["gone", "here"]).await;
    assert!(commands(&bystander).is_empty());
    assert_eq!(commands(&here).len(), 1);
    answer(&here, 1);
    let expected = vec![entry("gone", "not_connected"), entry("here", "own")];
    assert_eq!(entries(&mut body).await, (expected, "0".into()));
}

#[tokio::test]
async fn cmd_4_a_command_still_in_the_mailbox_of_a_session_that_ends_is_answered() {
    let b = Bench::new();
    let session = b.connect("agent");
    let (mut body, _ticket) = b.send(&["agent"]).await;
    session.end_stream(tonic::Status::ok(""));
    let expected = vec![entry("agent", "agent_disconnected")];
    assert_eq!(entries(&mut body).await, (expected, "0".into()));
    // It ended, but is still in the table for a moment: nothing is sent.
    let (mut body, _ticket) = b.send(&["agent"]).await;
    let expected = vec![entry("agent", "not_connected")];
    assert_eq!(entries(&mut body).await, (expected, "0".into()));
}

#[tokio::test(start_paused = true)]
async fn cmd_10_the_timeout_is_clamped_and_none_is_the_default() {
    let b = Bench::new();
    b.connect("agent");
    for (asked, seconds) in [
        (0, 300),
        (-1, 300),
        (i32::MIN, 300),
        (1, 1),
        (3600, 3600),
        (3601, 3600),
        (99_999, 3600),
    ] {
        let start = Instant::now();
        let (mut body, _ticket) = b.send_with(&["agent"], asked).await;
        commands(&b.registry.route("agent").unwrap());
        assert_eq!(entries(&mut body).await, (vec![], "0".into()));
        assert_eq!(start.elapsed().as_secs(), seconds, "asked for {asked}");
    }
}

#[tokio::test]
async fn cmd_12_two_calls_with_one_command_id_both_get_the_answers() {
    let b = Bench::new();
    let session = b.connect("agent");
    let (mut first, _ticket) = b.send(&["agent"]).await;
    let (mut second, _ticket) = b.send(&["agent"]).await;
    assert_eq!(commands(&session).len(), 2, "sent once more");
    answer(&session, 0);
    answer(&session, 1);
    answer(&session, 1);
    let expected = (
        vec![entry("agent", "own"), entry("agent", "own")],
        "0".into(),
    );
    assert_eq!(entries(&mut first).await, expected);
    assert_eq!(entries(&mut second).await, expected);
}

#[tokio::test]
async fn cmd_13_repeated_ids_are_one_target() {
    let b = Bench::new();
    let session = b.connect("agent");
    let (mut body, _ticket) = b.send(&["agent", "gone", "agent", "gone"]).await;
    assert_eq!(commands(&session).len(), 1);
    answer(&session, 1);
    let expected = vec![entry("gone", "not_connected"), entry("agent", "own")];
    assert_eq!(entries(&mut body).await, (expected, "0".into()));
}

#[tokio::test]
async fn cmd_16_during_a_planned_stop_every_command_is_refused() {
    let b = Bench::new();
    let session = b.connect("agent");
    b.router.stop();
    let command = Command {
        caller: String::new(),
        frame: Bytes::new(),
        id: String::new(),
        plugin: String::new(),
        timeout_seconds: 0,
    };
    assert!(b.router.send(&[], command).await.is_err());
    assert!(commands(&session).is_empty());
}

#[tokio::test]
async fn cmd_17_a_full_mailbox_is_answered_at_once_and_counted() {
    let b = Bench::new();
    let (stuck, well) = (b.connect("stuck"), b.connect("well"));
    let waiting = [b.send(&["stuck"]).await, b.send(&["stuck"]).await];
    let (mut body, _ticket) = b.send(&["stuck", "well"]).await;
    answer(&well, 1);
    let expected = vec![entry("stuck", "backpressure"), entry("well", "own")];
    assert_eq!(entries(&mut body).await, (expected, "0".into()));
    assert_eq!(b.metrics.commands_dropped_backpressure_total.get(), 1);
    let queued = &b.metrics.stream_queue_len_distribution;
    assert_eq!(
        (queued.get_sample_count(), queued.get_sample_sum()),
        (1, 2.0)
    );
    drop(waiting);
    assert_eq!(commands(&stuck).len(), 2, "CMD-15: not recalled");
}

#[tokio::test]
async fn cmd_18_metrics_of_one_send_command() {
    let b = Bench::new();
    let session = b.connect("agent");
    let (mut body, _ticket) = b.send(&["agent", "gone"]).await;
    answer(&session, 0);
    answer(&session, 4);
    entries(&mut body).await;
    let m = &b.metrics;
    let dispatched = m.commands_dispatched_total.with_label_values(&["shell"]);
    assert_eq!(dispatched.get(), 1);
    for (histogram, sum) in [
        (&m.fanout_target_count, 2.0),
        (&m.fanout_dispatched_count, 1.0),
        (&m.fanout_skipped_count, 1.0),
        (&m.fanout_remote_dispatched_count, 0.0),
    ] {
        assert_eq!(histogram.get_sample_count(), 1);
        assert_eq!(histogram.get_sample_sum(), sum);
    }
    for (status, count) in [("REJECTED", 1), ("SUCCESS", 0)] {
        let family = &m.command_duration_ms;
        let series = family.with_label_values(&["shell", status]);
        assert_eq!(series.get_sample_count(), count, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn stop_3_waits_for_commands_in_flight_and_no_longer_than_its_time() {
    let b = Bench::new();
    b.connect("agent");
    let start = Instant::now();
    let running = b.send(&["agent"]).await;
    let by = start + Duration::from_secs(3);
    assert!(!b.router.finished(by).await);
    assert_eq!(start.elapsed(), Duration::from_secs(3));
    let (finished, ()) = tokio::join!(b.router.finished(by + Duration::from_secs(60)), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(running);
    });
    assert!(finished);
    assert_eq!(start.elapsed(), Duration::from_secs(4));
}

#[tokio::test]
async fn other_tasks_get_their_turn_while_many_ids_are_looked_up() {
    let b = Bench::new();
    let ids: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let done = std::cell::Cell::new(false);
    let turns = async {
        let mut turns = 0;
        while !done.get() {
            turns += 1;
            tokio::task::yield_now().await;
        }
        turns
    };
    let send = async {
        let sent = b.send(&ids).await;
        done.set(true);
        sent
    };
    let (turns, (mut body, _ticket)) = tokio::join!(turns, send);
    assert!(turns >= 100_000 / crate::command::TURN, "{turns} turns");
    assert_eq!(entries(&mut body).await.0.len(), 100_000);
}
