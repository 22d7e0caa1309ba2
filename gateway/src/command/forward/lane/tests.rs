use super::super::frames::decode;
use super::super::ledger::Ledger;
use super::*;
use crate::cluster::channel_testing::pair;
use crate::config::Routing;
use crate::observe::metrics::Metrics;

/// A lane over a stream, its owner's end, and the bytes that are on their way.
struct Bench {
    lane: Lane,
    owner: Channel,
    ledger: Arc<Ledger>,
    metrics: Arc<Metrics>,
}

impl Bench {
    fn new() -> Self {
        let metrics = Arc::new(Metrics::new("a").unwrap());
        let bytes_out = metrics.forward_bytes_out_total.clone();
        let mut lane = Lane::new("b".into(), 1, bytes_out);
        let (near, owner, _) = pair();
        lane.connect(near);
        Self {
            lane,
            owner,
            ledger: Ledger::new(Arc::clone(&metrics), false),
            metrics,
        }
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
