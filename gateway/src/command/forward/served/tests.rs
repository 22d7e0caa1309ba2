mod bounds;
mod resume;

use std::task::{Poll, Waker};

use prost::Message;
use yuzu_proto::agent::v1::{CommandRequest, CommandResponse};
use yuzu_proto::node::v1::{ForwardDispatch, ForwardEnd, ForwardReceived};
use yuzu_proto::server::v1::SendCommandResponse;

use super::*;
use crate::cluster::channel_testing::{Link, pair};
use crate::config::{self, Config};
use crate::edge::{ConnectionKey, Sleeper, grpc};
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
    let nobody = || Sleeper::Task(Waker::noop().clone());
    std::iter::from_fn(|| match session.poll_command(nobody) {
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
