use std::task::{Context, Poll, Waker};

use prost::Message;
use yuzu_proto::agent::v1::{CommandRequest, CommandResponse};
use yuzu_proto::node::v1::{ForwardDispatch, ForwardEnd, ForwardReceived};
use yuzu_proto::server::v1::SendCommandResponse;

use super::*;
use crate::cluster::channel_testing::{Link, pair};
use crate::config::{self, Config};
use crate::edge::{ConnectionKey, grpc};
use crate::session::testing::{connect, registry};
use crate::session::{Events, Reply, Session};

/// An owner.
struct Bench {
    served: Arc<Served>,
    registry: Arc<Registry>,
    metrics: Arc<Metrics>,
}

/// An entry node by hand, with one session of its own.
struct Entry {
    channel: Channel,
    link: Arc<Link>,
}

impl Bench {
    fn new() -> Self {
        let metrics = Arc::new(Metrics::new("b").unwrap());
        let registry = Arc::new(registry());
        let sharing = Sharing::new(&registry, &Arc::new(Events::new()), &metrics, false);
        let command = config::Command {
            mailbox: 1,
            ..Config::default().command
        };
        let router = Router::new(Arc::clone(&registry), Arc::clone(&metrics), command);
        let routing = Routing {
            max_sessions: 2,
            ..Routing::default()
        };
        let served = Served::new(&Arc::new(router), &registry, sharing, &metrics, &routing);
        Self {
            served,
            registry,
            metrics,
        }
    }

    fn connect(&self, agent: &str) -> Arc<Session> {
        let session = format!("s-{agent}");
        connect(&self.registry, agent, &session, ConnectionKey::next())
    }

    /// A channel of the node `a`.
    fn channel(&self) -> Entry {
        let (near, far, link) = pair();
        let peer = Peer {
            name: "a".into(),
            incarnation: 7,
            instance: [1; 16],
        };
        Arc::clone(&self.served).accept(peer, far);
        Entry {
            channel: near,
            link,
        }
    }

    /// A session with its marker.
    fn open(&self, session: u64) -> Entry {
        let entry = self.channel();
        entry.say(Kind::Open(ForwardOpen {
            session,
            ..marker()
        }));
        entry
    }

    fn refused(&self, reason: &str) -> u64 {
        let family = &self.metrics.forwarded_refused_total;
        family.with_label_values(&[reason]).get()
    }

    fn sessions(&self) -> i64 {
        self.metrics.forwarded_sessions.get()
    }
}

fn marker() -> ForwardOpen {
    ForwardOpen {
        version: VERSION,
        origin: "a".to_owned(),
        hop: 1,
        identity: "pin:00".to_owned(),
        call: 1,
        session: 1,
        timeout_ms: 60_000,
    }
}

fn dispatch(agents: &[&str]) -> ForwardDispatch {
    let command = CommandRequest {
        command_id: "c-1".to_owned(),
        plugin: "shell".to_owned(),
        ..Default::default()
    };
    ForwardDispatch {
        command: Some(command.encode_to_vec().into()),
        agent_ids: agents.iter().map(|&id| id.to_owned()).collect(),
    }
}

impl Entry {
    fn say(&self, kind: Kind) {
        self.channel.sink.push(encode(kind));
    }

    async fn hear(&mut self) -> Option<Kind> {
        let next = timeout(Duration::from_secs(600), self.channel.source.next()).await;
        let message = next
            .expect("something happens")
            .expect("the link is whole")?;
        Some(decode(message).expect("a frame"))
    }

    async fn refusal(&mut self) -> Reason {
        match self.hear().await {
            Some(Kind::Refused(refused)) => refused.reason(),
            other => panic!("{other:?}"),
        }
    }

    async fn moved(&mut self) -> Vec<u32> {
        match self.hear().await {
            Some(Kind::Written(written)) => written.moved,
            other => panic!("{other:?}"),
        }
    }

    /// The next answers: whose they are, and their outputs.
    async fn answers(&mut self) -> Vec<(String, String)> {
        let Some(Kind::Answers(answers)) = self.hear().await else {
            panic!("no answers");
        };
        let (mut all, mut rest) = (Vec::new(), &answers.entries[..]);
        while !rest.is_empty() {
            let len = u32::from_be_bytes(rest[1..5].try_into().unwrap()) as usize;
            let entry = SendCommandResponse::decode(&rest[5..5 + len]).unwrap();
            all.push((entry.agent_id, entry.response.unwrap().output));
            rest = &rest[5 + len..];
        }
        all
    }
}

/// The commands that wait for the agent.
fn commands(session: &Session) -> Vec<Bytes> {
    let mut cx = Context::from_waker(Waker::noop());
    std::iter::from_fn(|| match session.poll_command(&mut cx) {
        Poll::Ready(Ok(frame)) => Some(frame),
        _ => None,
    })
    .collect()
}

/// The agent answers, as its owner makes it. False: nobody waits.
fn answer(session: &Session, output: &str, status: i32) -> bool {
    let response = SendCommandResponse {
        agent_id: session.agent_id().to_string(),
        response: Some(CommandResponse {
            command_id: "c-1".to_owned(),
            status,
            output: output.to_owned(),
            ..Default::default()
        }),
    };
    let reply = Reply {
        frame: grpc::frame(&response.encode_to_vec()),
        terminal: (status != 0).then_some(status),
    };
    let waiters = session.waiters(b"c-1", status != 0);
    let waiters = waiters.as_ref().map_or(&[][..], |all| all.as_slice());
    let wanted = |waiter: &crate::session::Waiter| !waiter.sink.is_over();
    let is_wanted = waiters.iter().any(wanted);
    for waiter in waiters {
        assert!(waiter.sink.try_reply(waiter.target, &reply));
    }
    is_wanted
}

fn entry(agent: &str, output: &str) -> (String, String) {
    (agent.to_owned(), output.to_owned())
}

#[tokio::test(start_paused = true)]
async fn fwd_1_fwd_7_the_owner_answers_for_what_it_holds_and_says_what_has_moved() {
    let b = Bench::new();
    let (one, two) = (b.connect("one"), b.connect("two"));
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["one", "gone", "two"])));
    assert_eq!(a.moved().await, [1]);
    let sent = [grpc::frame(&dispatch(&[]).command.unwrap())];
    assert_eq!(
        (commands(&one), commands(&two)),
        (sent.to_vec(), sent.to_vec())
    );
    answer(&two, "done", 1);
    assert_eq!(a.answers().await, [entry("two", "done")]);
    // The session goes on until the entry node ends it.
    assert_eq!(b.sessions(), 1);
    drop(a.channel.sink);
    assert!(a.channel.source.next().await.unwrap().is_none());
    assert_eq!(b.sessions(), 0);
    assert!(!answer(&one, "late", 1), "nobody waits any more");
}

#[tokio::test(start_paused = true)]
async fn fwd_2_more_targets_may_follow_in_the_same_session() {
    let b = Bench::new();
    let (one, two) = (b.connect("one"), b.connect("two"));
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["one"])));
    assert!(a.moved().await.is_empty());
    answer(&one, "1", 1);
    assert_eq!(a.answers().await, [entry("one", "1")]);
    let more = ForwardDispatch {
        command: None,
        ..dispatch(&["two"])
    };
    a.say(Kind::Dispatch(more));
    assert!(a.moved().await.is_empty());
    assert_eq!(commands(&two).len(), 1);
    answer(&two, "2", 1);
    assert_eq!(a.answers().await, [entry("two", "2")]);
}

#[tokio::test(start_paused = true)]
async fn fwd_4_the_owner_enforces_mailbox_and_timeout_and_counts_them() {
    let b = Bench::new();
    let busy = b.connect("busy");
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["busy"])));
    assert!(a.moved().await.is_empty());
    let mut other = b.open(2);
    other.say(Kind::Dispatch(dispatch(&["busy"])));
    assert!(other.moved().await.is_empty());
    assert_eq!(other.answers().await, [entry("busy", "backpressure")]);
    assert_eq!(b.metrics.commands_dropped_backpressure_total.get(), 1);
    let end = Kind::End(ForwardEnd { code: 0 });
    assert_eq!(a.hear().await, Some(end));
    assert_eq!(b.metrics.commands_timed_out_total.get(), 1);
    busy.end_stream(tonic::Status::ok(""));
}

#[tokio::test(start_paused = true)]
async fn fwd_3_a_session_begins_with_a_marker_that_is_served_here() {
    let b = Bench::new();
    let refused = [
        (
            ForwardOpen {
                version: 2,
                ..marker()
            },
            Reason::Version,
            "version",
        ),
        (ForwardOpen { hop: 2, ..marker() }, Reason::Hop, "hop"),
        (ForwardOpen { hop: 0, ..marker() }, Reason::Hop, "hop"),
        (
            ForwardOpen {
                origin: "c".to_owned(),
                ..marker()
            },
            Reason::NoMarker,
            "no_marker",
        ),
    ];
    for (marker, reason, label) in refused {
        let before = b.refused(label);
        let mut a = b.channel();
        a.say(Kind::Open(marker));
        a.say(Kind::Dispatch(dispatch(&["one"])));
        assert_eq!(a.refusal().await, reason);
        assert_eq!(b.refused(label), before + 1);
        assert!(a.hear().await.is_none());
    }
    let mut a = b.channel();
    a.say(Kind::Dispatch(dispatch(&["one"])));
    assert_eq!(a.refusal().await, Reason::NoMarker);
    let mut silent = b.channel();
    assert_eq!(silent.refusal().await, Reason::NoMarker);
    assert_eq!(b.sessions(), 0);
}

#[tokio::test(start_paused = true)]
async fn fwd_3_a_second_marker_ends_the_session_and_its_correlation() {
    let b = Bench::new();
    let one = b.connect("one");
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["one"])));
    assert!(a.moved().await.is_empty());
    a.say(Kind::Open(marker()));
    assert_eq!(a.refusal().await, Reason::SecondMarker);
    assert_eq!(b.refused("second_marker"), 1);
    assert!(!answer(&one, "late", 1));
    // The number of a session that lives is no other's either.
    let _lives = b.open(2);
    let mut twin = b.open(2);
    assert_eq!(twin.refusal().await, Reason::SecondMarker);
}

#[tokio::test(start_paused = true)]
async fn fwd_3_frames_that_make_no_sense_end_the_session() {
    let b = Bench::new();
    let one = b.connect("one");
    let broken = ForwardDispatch {
        command: Some(Bytes::from_static(b"\xff\xff")),
        ..dispatch(&["one"])
    };
    let without = ForwardDispatch {
        command: None,
        ..dispatch(&["one"])
    };
    let too_many = ForwardDispatch {
        agent_ids: vec!["one".to_owned(); 2_049],
        ..dispatch(&[])
    };
    let sense = [
        Kind::Dispatch(too_many),
        Kind::Dispatch(broken),
        Kind::Dispatch(without),
        Kind::Received(ForwardReceived { count: 1 }),
        Kind::End(ForwardEnd { code: 0 }),
    ];
    for kind in sense {
        let mut a = b.open(1);
        a.say(kind);
        assert_eq!(a.refusal().await, Reason::Malformed);
        assert!(a.hear().await.is_none());
    }
    assert_eq!(b.refused("malformed"), 5);
    assert!(commands(&one).is_empty());
}

#[tokio::test(start_paused = true)]
async fn fwd_5_so_many_sessions_are_served_and_no_more() {
    let b = Bench::new();
    let (_one, two) = (b.open(1), b.open(2));
    let mut three = b.open(3);
    assert_eq!(three.refusal().await, Reason::Limit);
    assert_eq!(b.refused("limit"), 1);
    drop(two);
    tokio::task::yield_now().await;
    let mut three = b.open(3);
    three.say(Kind::Dispatch(dispatch(&["gone"])));
    assert_eq!(three.moved().await, [0]);
    // Another bound is in force at once.
    b.served.retune(&Routing {
        max_sessions: 3,
        ..Routing::default()
    });
    let mut four = b.open(4);
    four.say(Kind::Dispatch(dispatch(&["gone"])));
    assert_eq!(four.moved().await, [0]);
}

#[tokio::test(start_paused = true)]
async fn fwd_5_a_session_without_a_command_is_closed_when_it_is_idle() {
    let b = Bench::new();
    let mut a = b.open(1);
    assert!(a.hear().await.is_none());
    assert_eq!(b.sessions(), 0);
}

#[tokio::test(start_paused = true)]
async fn fwd_10_a_stopping_owner_serves_what_it_has_and_refuses_more() {
    let b = Bench::new();
    let one = b.connect("one");
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["one"])));
    assert!(a.moved().await.is_empty());
    b.served.router.stop();
    let mut late = b.open(2);
    assert_eq!(late.refusal().await, Reason::Stopping);
    answer(&one, "done", 1);
    assert_eq!(a.answers().await, [entry("one", "done")]);
    drop(a);
    let soon = tokio::time::Instant::now() + Duration::from_secs(1);
    assert!(b.served.router.finished(soon).await);
}

/// Another stream for a session of `a`.
fn resume(b: &Bench, session: u64, received: u64) -> Entry {
    let entry = b.channel();
    entry.say(Kind::Resume(ForwardResume { session, received }));
    entry
}

#[tokio::test(start_paused = true)]
async fn fwd_8_a_broken_session_is_resumed_and_nothing_comes_twice_or_not_at_all() {
    let b = Bench::new();
    let one = b.connect("one");
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["one"])));
    assert!(a.moved().await.is_empty());
    answer(&one, "1", 0);
    assert_eq!(a.answers().await, [entry("one", "1")]);
    // This one is on its way when the link breaks, that one comes while there is none.
    answer(&one, "2", 0);
    tokio::task::yield_now().await;
    a.link.cut();
    tokio::time::advance(Duration::from_secs(4)).await;
    answer(&one, "3", 0);
    let mut a = resume(&b, 1, 2);
    let Some(Kind::Resumed(resumed)) = a.hear().await else {
        panic!("not resumed");
    };
    assert_eq!(resumed.dispatches, 1);
    assert_eq!(a.answers().await, [entry("one", "2")]);
    assert_eq!(a.answers().await, [entry("one", "3")]);
    answer(&one, "4", 1);
    assert_eq!(a.answers().await, [entry("one", "4")]);
    assert_eq!(b.sessions(), 1);
}

#[tokio::test(start_paused = true)]
async fn fwd_8_a_stream_that_is_not_known_to_be_broken_gives_way() {
    let b = Bench::new();
    let one = b.connect("one");
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["one"])));
    assert!(a.moved().await.is_empty());
    let mut again = resume(&b, 1, 1);
    assert!(matches!(again.hear().await, Some(Kind::Resumed(_))));
    assert!(a.hear().await.is_none());
    answer(&one, "1", 1);
    assert_eq!(again.answers().await, [entry("one", "1")]);
}

#[tokio::test(start_paused = true)]
async fn fwd_8_after_its_grace_the_correlation_is_dropped() {
    let b = Bench::new();
    let one = b.connect("one");
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["one"])));
    assert!(a.moved().await.is_empty());
    a.link.cut();
    tokio::time::sleep(Duration::from_millis(5_001)).await;
    assert_eq!(b.sessions(), 0);
    assert!(!answer(&one, "late", 1));
    let mut a = resume(&b, 1, 1);
    assert_eq!(a.refusal().await, Reason::UnknownSession);
    assert_eq!(b.refused("unknown_session"), 1);
}

#[tokio::test(start_paused = true)]
async fn fwd_2_an_entry_node_that_confirms_nothing_is_sent_no_more_than_the_window() {
    let b = Bench::new();
    let one = b.connect("one");
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["one"])));
    assert!(a.moved().await.is_empty());
    let output = "x".repeat(30 << 10);
    for _ in 0..20 {
        answer(&one, &output, 0);
    }
    let mut count = 1;
    let more = async |a: &mut Entry| {
        let next = timeout(Duration::from_millis(10), a.channel.source.next()).await;
        next.is_ok()
    };
    while more(&mut a).await {
        count += 1;
    }
    // 256 KiB hold nine of them.
    assert_eq!(count, 1 + 9);
    a.say(Kind::Received(ForwardReceived { count: 3 }));
    assert!(more(&mut a).await && more(&mut a).await);
    assert!(!more(&mut a).await);
    let kept = b.served.kept.load(std::sync::atomic::Ordering::Relaxed);
    assert!(
        (9 * output.len()..10 * output.len()).contains(&kept),
        "{kept}"
    );
    drop(a);
    tokio::task::yield_now().await;
}

#[tokio::test(start_paused = true)]
async fn fwd_5_a_peer_has_so_many_streams_without_a_marker_and_no_more() {
    let b = Bench::new();
    let most = |max_sessions_per_owner| {
        b.served.retune(&Routing {
            max_sessions_per_owner,
            ..Routing::default()
        });
    };
    most(3);
    let mut silent: Vec<_> = (0..3).map(|_| b.channel()).collect();
    let mut more = b.open(1);
    assert!(more.hear().await.is_none());
    assert_eq!((b.refused("limit"), b.sessions()), (1, 0));
    // Another bound is in force at once.
    most(4);
    silent.push(b.channel());
    most(2);
    assert!(b.open(1).hear().await.is_none());
    assert_eq!(b.refused("limit"), 2);
    drop(silent);
    tokio::task::yield_now().await;
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["gone"])));
    assert_eq!(a.moved().await, [0]);
    assert!(b.served.waiting().is_empty());
}

#[tokio::test(start_paused = true)]
async fn fwd_3_what_is_larger_than_a_marker_is_refused_before_there_is_one() {
    let b = Bench::new();
    let one = b.connect("one");
    let mut a = b.channel();
    a.say(Kind::Open(ForwardOpen {
        identity: "x".repeat(64 << 10),
        ..marker()
    }));
    assert_eq!(a.refusal().await, Reason::NoMarker);
    assert_eq!((b.refused("no_marker"), b.sessions()), (1, 0));
    // Behind its marker a command is as large as any, and no larger.
    let large = |len| {
        let command = CommandRequest {
            command_id: "c-1".to_owned(),
            plugin: "x".repeat(len),
            ..Default::default()
        };
        Kind::Dispatch(ForwardDispatch {
            command: Some(command.encode_to_vec().into()),
            ..dispatch(&["one"])
        })
    };
    let mut a = b.open(1);
    a.say(large(super::super::super::MAX_COMMAND - 64));
    assert!(a.moved().await.is_empty());
    assert_eq!(commands(&one).len(), 1);
    let mut a = b.open(2);
    a.say(large(6 << 20));
    assert_eq!(a.refusal().await, Reason::Malformed);
}

#[tokio::test(start_paused = true)]
async fn fwd_2_dispatches_that_are_never_confirmed_end_the_session() {
    let b = Bench::new();
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["gone"])));
    assert_eq!(a.moved().await, [0]);
    let more = ForwardDispatch {
        command: None,
        ..dispatch(&["gone"])
    };
    for _ in 1..256 {
        a.say(Kind::Dispatch(more.clone()));
        assert_eq!(a.moved().await, [0]);
    }
    a.say(Kind::Dispatch(more));
    assert_eq!(a.refusal().await, Reason::Malformed);
}

#[tokio::test(start_paused = true)]
async fn fwd_5_a_session_that_confirms_nothing_ends_with_its_time_and_grace() {
    let b = Bench::new();
    let one = b.connect("one");
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["one"])));
    assert!(a.moved().await.is_empty());
    let output = "x".repeat(30 << 10);
    for _ in 0..20 {
        answer(&one, &output, 0);
        tokio::task::yield_now().await;
    }
    // The caller's time, a second for clocks, and the grace.
    tokio::time::sleep(Duration::from_millis(60_000 + 1_000 + 4_990)).await;
    assert_eq!(b.sessions(), 1);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(b.sessions(), 0);
}

#[tokio::test(start_paused = true)]
async fn fwd_5_commands_of_all_sessions_together_have_so_much_room() {
    let b = Bench::new();
    b.served.retune(&Routing {
        max_inflight_bytes: 6 << 20,
        ..Routing::default()
    });
    let large = || {
        let command = CommandRequest {
            command_id: "c-1".to_owned(),
            plugin: "x".repeat(3 << 20),
            ..Default::default()
        };
        Kind::Dispatch(ForwardDispatch {
            command: Some(command.encode_to_vec().into()),
            ..dispatch(&["gone"])
        })
    };
    let mut a = b.open(1);
    a.say(large());
    assert_eq!(a.moved().await, [0]);
    let mut more = b.open(2);
    more.say(large());
    assert_eq!(more.refusal().await, Reason::Limit);
    assert_eq!(b.refused("limit"), 1);
    let mut small = b.open(3);
    small.say(Kind::Dispatch(dispatch(&["gone"])));
    assert_eq!(small.moved().await, [0]);
    drop((a, small));
    tokio::task::yield_now().await;
    assert_eq!(b.served.commands.held(), 0);
    let mut a = b.open(4);
    a.say(large());
    assert_eq!(a.moved().await, [0]);
}
