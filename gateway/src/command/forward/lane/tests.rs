use super::super::super::callers::{CallerLimits, Callers};
use super::super::super::fanout::Fanout;
use super::super::super::metrics::MetricsOfCommands;
use super::super::frames::{decode, encode_answers};
use super::super::ledger::Ledger;
use super::*;
use crate::cluster::channel_testing::pair;
use crate::config::Routing;
use crate::observe::metrics::Metrics;

const BUFFER: usize = 1 << 20;

/// A lane over a stream, its owner's end, and the bytes that are on their way.
struct Bench {
    lane: Lane,
    owner: Channel,
    ledger: Arc<Ledger>,
    metrics: Arc<Metrics>,
    feed: Feed,
}

impl Bench {
    fn new() -> Self {
        let metrics = Arc::new(Metrics::new("a").unwrap());
        let bytes_out = metrics.forward_bytes_out_total.clone();
        let mut lane = Lane::new("b".into(), 1, bytes_out);
        let (near, owner, _) = pair();
        lane.connect(near);
        let limits = CallerLimits {
            buffer_bytes: BUFFER,
            slow_timeout: Duration::from_secs(5),
        };
        let counted = MetricsOfCommands::new(Arc::clone(&metrics)).of("shell");
        let fanout = Fanout::new(
            0,
            "c-1".to_owned(),
            counted,
            &Callers::new(limits),
            60 * PARTING,
        );
        Self {
            lane,
            owner,
            ledger: Ledger::new(Arc::clone(&metrics), false),
            metrics,
            feed: Feed::new(&fanout),
        }
    }

    /// A frame of answers comes; how many bytes it has for its owner.
    fn answers(&mut self, len: usize) -> usize {
        let entries = Bytes::from(vec![0; len]);
        let bytes = encode_answers(&entries).len();
        let load = self.ledger.hold(len);
        self.lane.answers(entries, load, bytes);
        bytes
    }

    /// What has come is handed on.
    fn deliver(&mut self) {
        let cx = Context::from_waker(std::task::Waker::noop());
        while self.lane.deliver(0, &self.feed, &cx) {}
    }

    fn dispatch(&mut self, agent: &str) {
        let command = Bytes::from_static(b"command");
        let frame = self.lane.next_dispatch(&command, vec![agent.to_owned()]);
        let load = self.ledger.load(frame.len(), &Routing::default()).unwrap();
        self.lane.dispatch(frame, load, ForwardOpen::default());
    }

    fn on_their_way(&self) -> i64 {
        self.metrics.forward_inflight_bytes.get()
    }

    /// The same, and the stream has ended.
    fn heard_to_the_end(&mut self) -> Vec<Kind> {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let next = |owner: &mut Channel, cx: &mut Context<'_>| match owner.source.poll_next(cx) {
            Poll::Ready(Ok(message)) => message,
            other => panic!("{other:?}"),
        };
        let all = std::iter::from_fn(|| next(&mut self.owner, &mut cx));
        all.map(|message| decode(message).unwrap()).collect()
    }

    /// Everything that the owner has got.
    fn heard(&mut self) -> Vec<Kind> {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut all = Vec::new();
        while let Poll::Ready(next) = self.owner.source.poll_next(&mut cx) {
            all.push(decode(next.unwrap().unwrap()).unwrap());
        }
        all
    }
}

fn dispatched(agent: &str, with_command: bool) -> Kind {
    Kind::Dispatch(ForwardDispatch {
        command: with_command.then(|| Bytes::from_static(b"command")),
        agent_ids: vec![agent.to_owned()],
    })
}

fn marker() -> Kind {
    Kind::Open(ForwardOpen::default())
}

#[tokio::test]
async fn fwd_8_the_command_is_sent_again_when_the_owner_says_it_never_had_it() {
    let mut b = Bench::new();
    b.dispatch("1");
    assert_eq!(b.heard(), [marker(), dispatched("1", true)]);
    assert!(b.on_their_way() > 0);
    b.lane.resumed(0, 1);
    assert_eq!(b.on_their_way(), 0, "nothing of it is on its way");
    b.dispatch("2");
    assert_eq!(b.heard(), [dispatched("2", true)], "and no second marker");
    b.dispatch("3");
    b.lane.resumed(1, 1);
    b.dispatch("4");
    let again = [dispatched("3", false), dispatched("4", false)];
    assert_eq!(b.heard(), again);
}

#[tokio::test]
async fn fwd_2_the_owner_is_told_when_it_counts_as_much_as_it_waits_for() {
    let mut b = Bench::new();
    let (mut kept, mut frames) = (0, 0);
    while kept < TELL {
        assert!(b.heard().is_empty(), "told after {frames} frames");
        kept += b.answers(10);
        frames += 1;
        b.deliver();
    }
    let told = Kind::Received(ForwardReceived { count: frames });
    assert_eq!(b.heard(), [told]);
}

#[test]
fn fwd_2_an_owner_that_does_not_wait_for_the_caller_keeps_no_bound() {
    let mut b = Bench::new();
    let fill = |b: &mut Bench| {
        let mut came = 0;
        while b.lane.has_room() {
            came += b.answers(1 << 10);
        }
        came
    };
    let frame = 1 << 11;
    let one_window = WINDOW..WINDOW + frame;
    assert!(one_window.contains(&fill(&mut b)));
    // The owner of a session that goes on does not count what has come.
    b.lane.resume();
    assert!(one_window.contains(&fill(&mut b)));
    b.lane.resume();
    let came = fill(&mut b);
    assert!(one_window.contains(&came));
}

#[tokio::test]
async fn fwd_2_the_owner_is_told_after_some_dispatches_without_answers() {
    let mut b = Bench::new();
    for frame in 1..=TELL_FRAMES {
        assert!(b.heard().is_empty(), "told before {frame}");
        b.lane.frame(10);
        b.deliver();
    }
    let count = TELL_FRAMES.into();
    let told = Kind::Received(ForwardReceived { count });
    assert_eq!(b.heard(), [told]);
}

#[tokio::test(start_paused = true)]
async fn fwd_5_a_command_counts_as_long_as_a_stream_holds_it() {
    let mut b = Bench::new();
    b.dispatch("1");
    b.lane.unload();
    assert!(b.on_their_way() > 0, "it lies in the stream");
    b.heard();
    assert_eq!(b.on_their_way(), 0, "written, and taken");
    // An owner that takes nothing has it until the session has parted.
    b.dispatch("2");
    b.lane.close();
    assert!(b.on_their_way() > 0);
    tokio::time::sleep(PARTING / 2).await;
    assert!(b.on_their_way() > 0);
    tokio::time::sleep(PARTING).await;
    assert_eq!(b.on_their_way(), 0);
    assert!(b.heard_to_the_end().is_empty());
}

#[tokio::test]
async fn fwd_2_a_slow_caller_is_behind_when_dispatches_wait_for_it() {
    let mut b = Bench::new();
    // More than the caller has room for.
    while b.lane.is_delivered() {
        b.answers(BUFFER);
        b.deliver();
    }
    for _ in 1..BEHIND {
        b.lane.frame(10);
    }
    assert!(!b.lane.is_behind());
    b.lane.frame(10);
    b.deliver();
    assert!(b.lane.is_behind());
}
