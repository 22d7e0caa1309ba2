mod slow;

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
        let fanout = Fanout::new(
            targets as usize,
            "c-1".to_owned(),
            MetricsOfCommands::new(Arc::clone(&metrics)).of("shell"),
            callers,
            timeout,
        );
        fanout.expect(0..targets);
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

/// The agent of a target.
fn agent(target: u32) -> Arc<str> {
    target.to_string().into()
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
    b.fanout.refuse(0, &agent(0), NoAnswer::NotConnected);
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
    b.fanout.lost(0, &agent(0));
    assert_eq!(b.data().await, "123");
    assert_eq!(b.status().await, 0);
}

#[tokio::test]
async fn cmd_4_a_lost_agent_is_one_entry_and_terminal() {
    let mut b = Bench::new(2);
    b.fanout.lost(1, &agent(1));
    b.fanout.lost(1, &agent(1));
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
    b.fanout.lost(1, &agent(1));
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
    assert_eq!(state.command_id.capacity(), 0);
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
        fanout.lost(1, &agent(1));
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

#[tokio::test(start_paused = true)]
async fn fwd_5_other_nodes_do_not_keep_a_caller_past_its_time() {
    let mut b = Bench::ending_after(1, TIMEOUT);
    let feed = Feed::new(&b.fanout);
    let offer = |piece: &'static str| feed.offer(0, &piece.into(), Waker::noop());
    advance(TIMEOUT + LINGER - Duration::from_millis(1)).await;
    assert!(offer("in time"));
    assert_eq!(b.data().await, "in time");
    assert!(!feed.is_late());
    advance(Duration::from_millis(1)).await;
    assert!(feed.is_late());
    assert!(offer("late"));
    assert_eq!(b.status().await, 0);
}
