use futures_util::FutureExt;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::time::{advance, sleep, timeout};

use super::super::callers::CallerLimits;
use super::super::metrics::MetricsOfCommands;
use super::*;
use crate::observe::metrics::Metrics;

const BUFFER: usize = 64 << 10;
const SLOW: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(300);

struct Bench {
    fanout: Arc<Fanout>,
    body: FanoutBody,
    metrics: Arc<Metrics>,
}

impl Bench {
    /// A fan-out that is dispatched to `targets` agents.
    fn new(targets: u32) -> Self {
        Self::ending_after(targets, TIMEOUT)
    }

    fn ending_after(targets: u32, timeout: Duration) -> Self {
        Self::among(&callers(), targets, timeout)
    }

    /// One of several callers of a node.
    fn among(callers: &Arc<Callers>, targets: u32, timeout: Duration) -> Self {
        let metrics = Arc::new(Metrics::new("test").unwrap());
        let names = Names {
            targets: (0..targets).map(|n| Arc::from(n.to_string())).collect(),
            command_id: "c-1".to_owned(),
        };
        let fanout = Fanout::new(
            names,
            MetricsOfCommands::new(Arc::clone(&metrics)).of("shell"),
            callers,
            timeout,
        );
        for target in 0..targets {
            fanout.expect(target);
        }
        fanout.dispatched();
        Self {
            body: FanoutBody::new(Arc::clone(&fanout)),
            fanout,
            metrics,
        }
    }

    fn try_running(&self, target: u32, len: usize) -> bool {
        self.fanout.try_reply(target, &running(len))
    }

    /// Fills the buffer with the answers of `target`.
    fn fill(&self, target: u32) {
        assert!(self.try_running(target, BUFFER));
    }

    async fn frame(&mut self) -> Option<Frame<Bytes>> {
        let next = timeout(TIMEOUT * 2, self.body.frame()).await;
        next.expect("no lost wake-up").map(Result::unwrap)
    }

    async fn data(&mut self) -> Bytes {
        let frame = self.frame().await.expect("a frame");
        frame.into_data().expect("data")
    }

    /// The status of the trailers, which come next and are the last frame.
    async fn status(&mut self) -> i32 {
        let frame = self.frame().await.expect("a frame");
        let trailers = frame.into_trailers().expect("trailers");
        let status = trailers["grpc-status"].to_str().unwrap().parse().unwrap();
        assert!(self.body.is_end_stream());
        assert!(self.frame().await.is_none());
        status
    }
}

fn callers() -> Arc<Callers> {
    Callers::new(CallerLimits {
        buffer_bytes: BUFFER,
        slow_timeout: SLOW,
    })
}

fn running(len: usize) -> Reply {
    Reply {
        frame: Bytes::from(vec![b'r'; len]),
        terminal: None,
    }
}

fn terminal(text: &'static str) -> Reply {
    Reply {
        frame: Bytes::from_static(text.as_bytes()),
        terminal: Some(1),
    }
}

#[tokio::test]
async fn cmd_8_ends_with_ok_when_every_target_is_terminal() {
    let mut b = Bench::new(2);
    assert!(b.fanout.try_reply(0, &terminal("a")));
    assert_eq!(b.data().await, "a");
    assert!(
        b.body.frame().now_or_never().is_none(),
        "one target is left"
    );
    assert!(b.fanout.try_reply(1, &terminal("b")));
    assert_eq!(b.data().await, "b");
    assert_eq!(b.status().await, 0);
}

#[tokio::test]
async fn cmd_8_nothing_dispatched_ends_right_after_the_entries() {
    let mut b = Bench::new(1);
    b.fanout.refuse(0, NoAnswer::NotConnected);
    assert!(!b.data().await.is_empty());
    assert_eq!(b.status().await, 0);
    assert_eq!(b.metrics.commands_timed_out_total.get(), 0);
}

#[tokio::test]
async fn cmd_8_does_not_end_while_targets_are_being_dispatched() {
    let mut b = Bench::new(1);
    b.fanout.state().dispatching = true;
    b.fanout.try_reply(0, &terminal("a"));
    assert_eq!(b.data().await, "a");
    assert!(b.body.frame().now_or_never().is_none());
    b.fanout.dispatched();
    assert_eq!(b.status().await, 0);
}

#[tokio::test]
async fn cmd_7_running_frames_complete_nothing_and_frames_after_the_terminal_one_are_dropped() {
    let mut b = Bench::new(1);
    for text in ["1", "2"] {
        let frame = Bytes::from_static(text.as_bytes());
        let reply = Reply {
            frame,
            terminal: None,
        };
        assert!(b.fanout.try_reply(0, &reply));
    }
    b.fanout.try_reply(0, &terminal("3"));
    b.fanout.try_reply(0, &terminal("4"));
    b.fanout.lost(0);
    assert_eq!(b.data().await, "123");
    assert_eq!(b.status().await, 0);
}

#[tokio::test]
async fn cmd_4_a_lost_agent_is_one_entry_and_terminal() {
    let mut b = Bench::new(2);
    b.fanout.lost(1);
    b.fanout.lost(1);
    b.fanout.try_reply(0, &terminal("a"));
    let mut expected = bytes::BytesMut::new();
    NoAnswer::AgentDisconnected.put(&mut expected, "1", "c-1");
    expected.extend_from_slice(b"a");
    assert_eq!(b.data().await, expected);
    assert_eq!(b.status().await, 0);
}

#[tokio::test(start_paused = true)]
async fn cmd_9_the_timeout_ends_with_ok_and_counts_the_silent() {
    let mut b = Bench::new(3);
    b.fanout.try_reply(0, &terminal("a"));
    assert_eq!(b.data().await, "a");
    let start = Instant::now();
    assert_eq!(b.status().await, 0);
    assert_eq!(start.elapsed(), TIMEOUT);
    assert_eq!(b.metrics.commands_timed_out_total.get(), 2);
    drop(b.body);
    assert_eq!(b.metrics.commands_timed_out_total.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn cmd_9_what_came_before_the_timeout_is_delivered_and_later_frames_are_dropped() {
    let mut b = Bench::new(2);
    // Nobody polls the body meanwhile: its window is closed.
    b.fanout.try_reply(0, &terminal("in time"));
    advance(TIMEOUT).await;
    b.fanout.try_reply(1, &terminal("late"));
    b.fanout.lost(1);
    assert!(b.fanout.is_over());
    assert_eq!(b.data().await, "in time");
    assert_eq!(b.status().await, 0);
    assert_eq!(b.metrics.commands_timed_out_total.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn cmd_9_an_agent_that_never_stops_talking_does_not_stretch_the_timeout() {
    let mut b = Bench::new(1);
    let start = Instant::now();
    let fanout = Arc::clone(&b.fanout);
    tokio::spawn(async move {
        while !fanout.is_over() {
            fanout.reply_when_room(0, &running(1 << 10)).await;
            sleep(Duration::from_millis(100)).await;
        }
    });
    while b.fanout.state().end.is_none() {
        b.data().await;
        // Another answer is always there when the caller comes back.
        sleep(Duration::from_millis(150)).await;
    }
    while !b.fanout.state().backlog.is_empty() {
        b.data().await;
    }
    assert_eq!(b.status().await, 0);
    assert!(start.elapsed() < TIMEOUT + Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn cmd_22_a_caller_that_does_not_read_ends_with_8_at_its_timeout_and_agents_read_on() {
    let mut b = Bench::new(2);
    advance(Duration::from_secs(60)).await;
    let start = Instant::now();
    b.fill(0);
    assert!(b.try_running(0, 8 << 10), "the allowance");
    let reply = running(1);
    assert!(!b.fanout.try_reply(0, &reply));
    // The agent is paused until the caller is given up, to the millisecond.
    let paused = timeout(SLOW * 2, b.fanout.reply_when_room(0, &reply));
    paused.await.expect("the agent is released");
    assert_eq!(start.elapsed(), SLOW);
    assert!(b.fanout.is_over());
    assert!(b.try_running(1, 1 << 20), "agents read on");
    assert!(b.fanout.state().backlog.is_empty(), "what waited is gone");
    assert_eq!(b.status().await, 8);
}

#[tokio::test(start_paused = true)]
async fn cmd_22_it_ends_as_well_when_no_agent_waits() {
    let b = Bench::new(2);
    b.fill(0);
    assert!(b.try_running(1, 1));
    sleep(SLOW - Duration::from_millis(1)).await;
    assert!(!b.fanout.is_over());
    sleep(Duration::from_millis(2)).await;
    assert_eq!(b.fanout.state().end, Some(End::SlowCaller));
}

#[tokio::test(start_paused = true)]
async fn cmd_22_a_caller_is_not_given_up_while_the_bound_is_not_reached() {
    let mut b = Bench::new(1);
    b.fill(0);
    sleep(SLOW * 10).await;
    assert_eq!(b.data().await.len(), BUFFER);
    assert!(!b.fanout.is_over());
}

#[tokio::test(start_paused = true)]
async fn cmd_22_a_caller_that_reads_is_never_ended_and_gets_everything_in_order() {
    let mut b = Bench::new(1);
    let fanout = Arc::clone(&b.fanout);
    tokio::spawn(async move {
        for n in 0..50_u8 {
            let reply = Reply {
                frame: Bytes::from(vec![n; 40 << 10]),
                terminal: (n == 49).then_some(1),
            };
            if !fanout.try_reply(0, &reply) {
                fanout.reply_when_room(0, &reply).await;
            }
        }
    });
    for n in 0..50_u8 {
        assert_eq!(b.data().await, vec![n; 40 << 10]);
        sleep(SLOW - Duration::from_millis(1)).await;
    }
    assert_eq!(b.status().await, 0);
}

#[tokio::test(start_paused = true)]
async fn cmd_22_a_caller_that_16_mib_pass_by_has_a_quarter_of_a_second() {
    let b = Bench::new(200);
    let start = Instant::now();
    for target in 0..17 {
        b.fanout.try_reply(target, &running(1 << 20));
    }
    while !b.fanout.is_over() {
        sleep(Duration::from_millis(1)).await;
    }
    // The watchdog looked ten times within the whole time.
    let took = start.elapsed().as_millis();
    assert!((250..=251).contains(&took), "{took} ms");
    assert_eq!(b.metrics.command_slow_callers_total.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn fwd_8_cmd_22_a_caller_that_can_not_be_reached_has_its_time_when_it_can_be() {
    let b = Bench::new(200);
    b.fill(0);
    b.fill(0);
    sleep(SLOW / 2).await;
    b.fanout.cut_off(true);
    for target in 0..64 {
        b.fanout.try_reply(target, &running(1 << 20));
    }
    sleep(SLOW * 3).await;
    assert!(!b.fanout.is_over());

    let b = Bench::new(2);
    b.fill(0);
    b.fill(0);
    b.fanout.cut_off(true);
    sleep(SLOW * 3).await;
    b.fanout.cut_off(false);
    sleep(SLOW - Duration::from_millis(1)).await;
    assert!(!b.fanout.is_over());
    sleep(SLOW / 5).await;
    assert!(b.fanout.is_over());
}

#[tokio::test(start_paused = true)]
async fn cmd_22_up_to_16_mib_it_has_its_whole_time() {
    let b = Bench::new(200);
    for target in 0..16 {
        b.fanout.try_reply(target, &running(1 << 20));
    }
    sleep(SLOW - Duration::from_millis(1)).await;
    assert!(!b.fanout.is_over());
}

#[tokio::test(start_paused = true)]
async fn cmd_22_a_caller_that_64_mib_pass_by_has_no_time_at_all() {
    let b = Bench::new(200);
    for target in 0..64 {
        b.fanout.try_reply(target, &running(1 << 20));
    }
    assert!(!b.fanout.is_over());
    let callers = Arc::clone(&b.fanout.callers);
    assert_eq!(callers.pool.held(), 8 << 20);
    assert!(b.fanout.try_reply(64, &running(1)), "taken, and dropped");
    assert_eq!(b.fanout.state().end, Some(End::SlowCaller));
    assert_eq!(callers.pool.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn cmd_22_a_flood_does_not_end_a_caller_that_reads() {
    let mut b = Bench::new(200);
    let megabyte = running(1 << 20);
    for round in 0..4 {
        for target in 0..16 {
            b.fanout.try_reply(round * 16 + target, &megabyte);
        }
        advance(SLOW - Duration::from_millis(1)).await;
        assert_eq!(b.data().await.len(), 1 << 20);
    }
    assert!(!b.fanout.is_over());
}

#[tokio::test]
async fn cmd_22_a_reply_larger_than_the_buffer_passes() {
    let mut b = Bench::new(2);
    for target in [0, 1] {
        assert!(b.try_running(target, BUFFER * 3));
        assert_eq!(b.data().await.len(), BUFFER * 3);
    }
}

#[tokio::test]
async fn sub_12_an_agent_with_answers_for_a_full_caller_goes_on_serving_others() {
    let (full, other) = (Bench::new(10), Bench::new(10));
    full.fill(0);
    for target in 1..10 {
        assert!(full.try_running(target, 8 << 10));
        assert!(other.fanout.try_reply(target, &terminal("b")));
    }
}

#[tokio::test]
async fn cmd_15_a_caller_that_leaves_frees_everything_whoever_holds_the_fan_out() {
    let mut b = Bench::new(2);
    let answer = running(BUFFER);
    assert!(b.fanout.try_reply(0, &answer));
    assert!(b.try_running(0, 8 << 10));
    let reply = running(1);
    let mut paused = b.fanout.reply_when_room(0, &reply);
    assert!(paused.as_mut().now_or_never().is_none());
    assert!(b.body.frame().now_or_never().is_some());

    drop(b.body);
    assert!(paused.now_or_never().is_some(), "the agent reads on");
    assert!(b.fanout.is_over());
    assert!(answer.frame.is_unique(), "no answer is held");
    let state = b.fanout.state();
    assert_eq!(state.names.targets.capacity(), 0);
    assert_eq!(state.names.command_id.capacity(), 0);
    drop(state);
    assert!(b.fanout.try_reply(1, &reply), "what comes now is dropped");
    assert!(b.fanout.state().backlog.is_empty());
    assert_eq!(b.metrics.commands_timed_out_total.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_caller_is_woken_for_an_answer_an_entry_and_the_end() {
    let mut b = Bench::new(2);
    let fanout = Arc::clone(&b.fanout);
    let agents = async move {
        tokio::task::yield_now().await;
        fanout.try_reply(0, &terminal("a"));
        tokio::task::yield_now().await;
        fanout.lost(1);
    };
    let caller = async {
        assert_eq!(b.data().await, "a");
        assert!(!b.data().await.is_empty());
        b.status().await
    };
    let both = async { tokio::join!(caller, agents) };
    let (status, ()) = timeout(SLOW, both).await.expect("no lost wake-up");
    assert_eq!(status, 0);
}

#[tokio::test(start_paused = true)]
async fn answers_of_many_agents_at_once_arrive_whole_in_order_and_once() {
    const AGENTS: u32 = 50;
    const EACH: u32 = 200;
    let mut b = Bench::new(AGENTS);
    for target in 0..AGENTS {
        let fanout = Arc::clone(&b.fanout);
        tokio::spawn(async move {
            for n in 0..EACH {
                let len = 8 + (n * 37 + target * 101) % 3000;
                let mut frame = vec![0xAA; len as usize];
                frame[..4].copy_from_slice(&target.to_be_bytes());
                frame[4..8].copy_from_slice(&(n << 12 | len).to_be_bytes());
                let reply = Reply {
                    frame: frame.into(),
                    terminal: (n == EACH - 1).then_some(2),
                };
                if !fanout.try_reply(target, &reply) {
                    fanout.reply_when_room(target, &reply).await;
                }
            }
        });
    }
    let word = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().unwrap());
    let mut next = vec![0; AGENTS as usize];
    while next.iter().any(|n| *n < EACH) {
        let piece = b.data().await;
        assert!(piece.len() <= 32 << 10);
        let mut rest = &piece[..];
        while !rest.is_empty() {
            let (target, head) = (word(rest), word(&rest[4..]));
            let (n, len) = (head >> 12, (head & 0xFFF) as usize);
            assert_eq!(n, next[target as usize], "order of agent {target}");
            assert!(rest[8..len].iter().all(|byte| *byte == 0xAA));
            next[target as usize] += 1;
            rest = &rest[len..];
        }
    }
    assert_eq!(b.status().await, 0);
}

#[tokio::test(start_paused = true)]
async fn cmd_14_a_silent_fan_out_lives_as_long_as_its_timeout_says() {
    let mut b = Bench::ending_after(1, Duration::from_secs(3_600));
    advance(Duration::from_secs(3_599)).await;
    assert!(b.body.frame().now_or_never().is_none(), "no idle guard");
    assert!(b.fanout.try_reply(0, &terminal("late")));
    assert!(b.body.frame().await.unwrap().unwrap().is_data());
}

/// Each may have 16 MiB waiting, all together 64.
fn roomy() -> Arc<Callers> {
    Callers::new(CallerLimits {
        buffer_bytes: 16 << 20,
        slow_timeout: SLOW,
    })
}

/// Callers that have taken nothing, each with `count` answers of 1 MiB waiting.
fn unread(callers: &Arc<Callers>, count: u32) -> Bench {
    let b = Bench::among(callers, 64, TIMEOUT);
    for target in 0..count {
        assert!(b.fanout.try_reply(target, &running(1 << 20)));
    }
    b
}

fn ended(b: &Bench) -> bool {
    b.fanout.state().end == Some(End::SlowCaller)
}

#[tokio::test(start_paused = true)]
async fn cmd_22_a_node_without_room_gives_up_callers_that_read_nothing_largest_first() {
    let callers = roomy();
    let (small, large) = (unread(&callers, 10), unread(&callers, 16));
    let others = [13, 13, 12].map(|count| unread(&callers, count));
    let mut reader = Bench::among(&callers, 2, TIMEOUT);
    assert!(reader.try_running(0, 1 << 10), "one is always taken");
    let reply = running(1 << 20);
    assert!(!reader.fanout.try_reply(1, &reply), "64 MiB wait");
    let start = Instant::now();
    let agent = reader.fanout.reply_when_room(1, &reply);
    timeout(SLOW, agent).await.expect("the agent goes on");
    let took = start.elapsed().as_millis();
    assert!((250..=301).contains(&took), "{took} ms");
    // Without 16, 13 and 13 MiB of the 64 less than half is left.
    assert!(ended(&large));
    assert_eq!(others.each_ref().map(ended), [true, true, false]);
    assert!(!ended(&small) && !ended(&reader));
    assert_eq!(reader.data().await.len(), 1 << 10);
    assert_eq!(reader.data().await.len(), 1 << 20);
}

#[tokio::test(start_paused = true)]
async fn cmd_22_a_caller_that_reads_is_not_given_up_for_the_node() {
    let callers = roomy();
    let mut reader = unread(&callers, 15);
    let stuck = unread(&callers, 15);
    let others = [16, 16].map(|count| unread(&callers, count));
    for _ in 0..6 {
        assert_eq!(reader.data().await.len(), 1 << 20);
        for target in 40..44 {
            if !reader.fanout.try_reply(target, &running(1 << 20)) {
                break;
            }
        }
        sleep(Duration::from_millis(200)).await;
    }
    assert!(!ended(&reader));
    assert!(ended(&stuck) || others.iter().any(ended));
}

#[tokio::test(start_paused = true)]
async fn cmd_22_after_its_timeout_a_caller_that_does_not_read_is_given_up_as_well() {
    let callers = callers();
    let mut b = Bench::among(&callers, 2, Duration::from_secs(1));
    b.fill(0);
    assert!(b.try_running(0, 8 << 10));
    b.fanout.finish(End::TimedOut);
    sleep(SLOW + Duration::from_millis(1)).await;
    assert_eq!(callers.pool.held(), 0);
    assert_eq!(b.status().await, 8);
}

#[tokio::test]
async fn a_caller_that_left_is_forgotten() {
    let callers = callers();
    let benches: Vec<_> = (0..10).map(|_| unread(&callers, 1)).collect();
    drop(benches);
    assert_eq!(callers.pool.held(), 0);
    assert_eq!(callers.callers(), 0);
}

#[tokio::test(start_paused = true)]
async fn fwd_5_other_nodes_do_not_keep_a_caller_past_its_time() {
    let mut b = Bench::ending_after(1, TIMEOUT);
    let feed = Feed::new(&b.fanout);
    let offer = |piece: &'static str| feed.offer(0, &piece.into(), Waker::noop());
    advance(TIMEOUT + LINGER - Duration::from_millis(1)).await;
    assert!(offer("in time"));
    assert_eq!(b.data().await, "in time");
    advance(Duration::from_millis(1)).await;
    assert!(offer("late"));
    assert_eq!(b.status().await, 0);
}
