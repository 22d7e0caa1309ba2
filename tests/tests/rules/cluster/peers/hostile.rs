//! FWD-2, FWD-3, FWD-5, FWD-8: what a peer that knows the secret may do to a node, and what not.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use yuzu_proto::node::v1::forward_frame::Kind;
use yuzu_proto::node::v1::forward_refused::Reason;
use yuzu_proto::node::v1::{
    ForwardAnswers, ForwardDispatch, ForwardEnd, ForwardReceived, ForwardResume, ForwardResumed,
    ForwardWritten,
};
use yuzu_proto::server::v1::SendCommandResponse;
use yuzu_tests::agent::Agent;
use yuzu_tests::operator::Fanout;
use yuzu_tests::peer::{Stream, next_offer};
use yuzu_tests::raw::Receiver;

use super::super::adjacency::{attach, knows};
use super::*;
use crate::support::{command, running, serve_one, soon, success};

fn dispatch(id: &str, agent: &str) -> Kind {
    Kind::Dispatch(ForwardDispatch {
        command: Some(command(id).encode_to_vec().into()),
        agent_ids: vec![agent.to_owned()],
    })
}

/// Framed answers, as an owner sends them.
fn answers(agents: &[&str], response: &yuzu_proto::agent::v1::CommandResponse) -> Kind {
    let mut entries = Vec::new();
    for agent in agents {
        let entry = SendCommandResponse {
            agent_id: (*agent).to_owned(),
            response: Some(response.clone()),
        }
        .encode_to_vec();
        entries.push(0);
        entries.extend_from_slice(&(entry.len() as u32).to_be_bytes());
        entries.extend_from_slice(&entry);
    }
    let entries = entries.into();
    Kind::Answers(ForwardAnswers { entries })
}

async fn refusal(session: &mut Stream) -> Reason {
    match session.hear().await {
        Some(Kind::Refused(refused)) => refused.reason(),
        other => panic!("{other:?}"),
    }
}

async fn refused(node: &Node, reason: &str) -> f64 {
    let labels = [("reason", reason)];
    node.metric("forwarded_refused_total", &labels).await
}

/// The agents and the callers of the node notice nothing.
async fn works(node: &Node, near: &mut Agent) {
    let operator = operator(node).await;
    let mut fanout = operator.send(&["near"], command("ok"), 20).await.unwrap();
    serve_one(near).await;
    assert_eq!(fanout.entry().await.unwrap().response.output, "done");
}

#[tokio::test]
async fn fwd_3_wrong_frames_before_a_marker_are_refused_and_cost_nothing() {
    let (node, _server) = node(|_| ()).await;
    let mut near = attach(&node, "near").await;
    let peer = link(&node).await;
    let firsts = [
        dispatch("c-1", "near"),
        Kind::Received(ForwardReceived { count: 1 }),
        Kind::Written(ForwardWritten { moved: vec![0] }),
        Kind::End(ForwardEnd { code: 0 }),
        answers(&["near"], &success("c-1", "forged")),
    ];
    let count = firsts.len() as f64;
    for first in firsts {
        let mut session = peer.forward().await;
        session.say(first).await;
        assert_eq!(refusal(&mut session).await, Reason::NoMarker);
        assert_eq!(session.hear().await, None);
    }
    // No frame at all: compressed, endless, or larger than any marker.
    let declared = |flag, len: u32| [&[flag], &len.to_be_bytes()[..]].concat();
    let lengths = [
        declared(1, 10),
        declared(0, u32::MAX),
        declared(0, 60 << 20),
    ];
    for bytes in lengths {
        let mut session = peer.forward().await;
        session.sender.send_raw(Bytes::from(bytes)).await.unwrap();
        assert_eq!(refusal(&mut session).await, Reason::NoMarker);
    }
    assert_eq!(refused(&node, "no_marker").await, count + 3.0);
    let resume = ForwardResume {
        session: 9,
        received: 0,
    };
    let mut session = peer.forward().await;
    session.say(Kind::Resume(resume)).await;
    assert_eq!(refusal(&mut session).await, Reason::UnknownSession);
    assert_eq!(node.metric("forwarded_sessions", &[]).await, 0.0);
    assert_eq!(node.metric("cluster_peers_connected", &[]).await, 1.0);
    works(&node, &mut near).await;
}

#[tokio::test]
async fn fwd_3_fwd_8_a_marker_twice_and_the_session_of_another_node_are_refused() {
    let (node, _server) = node(|_| ()).await;
    let mut near = attach(&node, "near").await;
    let peer = link(&node).await;
    let who = Introduction::of("b-peer");
    let other = Peer::link(node.address(), &who, SECRET, &Options::default()).await;
    let other = other.expect("a link");

    let mut session = peer.forward().await;
    session.say(Kind::Open(peer.marker(1))).await;
    session.say(dispatch("c-1", "near")).await;
    near.command().await.unwrap();
    assert!(matches!(session.hear().await, Some(Kind::Written(_))));
    // Under the name of the one that has it, and under its own.
    let mut stolen = other.forward().await;
    stolen.say(Kind::Open(peer.marker(1))).await;
    assert_eq!(refusal(&mut stolen).await, Reason::NoMarker);
    let mut stolen = other.forward().await;
    let resume = ForwardResume {
        session: 1,
        received: 0,
    };
    stolen.say(Kind::Resume(resume)).await;
    assert_eq!(refusal(&mut stolen).await, Reason::UnknownSession);
    let mut twin = peer.forward().await;
    twin.say(Kind::Open(peer.marker(1))).await;
    assert_eq!(refusal(&mut twin).await, Reason::SecondMarker);
    // The one that has it goes on.
    near.answer(&running("c-1", "1")).await.unwrap();
    assert!(matches!(session.hear().await, Some(Kind::Answers(_))));
    session.say(Kind::Open(peer.marker(1))).await;
    assert_eq!(refusal(&mut session).await, Reason::SecondMarker);
    assert_eq!(refused(&node, "second_marker").await, 2.0);
    node.metric_becomes("forwarded_sessions", &[], 0.0).await;
    works(&node, &mut near).await;
}

#[tokio::test]
async fn fwd_5_streams_and_commands_without_end_find_a_bound() {
    let (node, _server) = node(|config| {
        config.routing.max_sessions_per_owner = 8;
        config.routing.max_inflight_bytes = 4 << 20;
        config.routing.idle_close = Duration::from_secs(2);
    })
    .await;
    let mut near = attach(&node, "near").await;
    let peer = link(&node).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(peer.forward().await);
    }
    node.counts("forwarded_refused_total", &[("reason", "limit")], 12.0)
        .await;
    works(&node, &mut near).await;
    // They are let go when they have said nothing for a while.
    node.counts("forwarded_refused_total", &[("reason", "no_marker")], 8.0)
        .await;
    drop(silent);

    // Commands that never become whole: together they find no more room than all commands have.
    let declared = [&[0], &(4_u32 << 20).to_be_bytes()[..]].concat();
    let mut unfinished = Vec::new();
    for n in 0..6 {
        let session = peer.forward().await;
        session.say(Kind::Open(peer.marker(n))).await;
        session
            .sender
            .send_raw(declared.clone().into())
            .await
            .unwrap();
        unfinished.push(session);
    }
    let piece = Bytes::from(vec![0; 64 << 10]);
    let flood = async {
        for _ in 0..32 {
            for session in &unfinished {
                let _ = session.sender.send_raw(piece.clone()).await;
            }
        }
    };
    soon("the flood", flood).await;
    node.counts("forwarded_refused_total", &[("reason", "limit")], 13.0)
        .await;
    assert_eq!(refused(&node, "malformed").await, 0.0);
    works(&node, &mut near).await;
    drop(unfinished);
    node.metric_becomes("forwarded_sessions", &[], 0.0).await;
}

/// A node that believes an agent to be at a hostile peer.
struct Prey {
    node: Node,
    near: Agent,
    peer: Peer,
    offers: Receiver,
    _share: Stream,
    _server: StubServer,
}

impl Prey {
    async fn new(change: impl FnOnce(&mut Config)) -> Self {
        let (node, server) = node(change).await;
        let near = attach(&node, "near").await;
        let peer = link(&node).await;
        let share = peer.share().await;
        share.came(0, "far", 1).await;
        knows(&node, 1).await;
        let offers = peer.offers().await;
        Self {
            near,
            peer,
            offers,
            _share: share,
            _server: server,
            node,
        }
    }

    /// A command for the peer's agent and one of the node, and the session at the peer.
    async fn send(&mut self, operator: &Operator) -> (Fanout, Stream) {
        let ids = ["near", "far"];
        let fanout = operator.send(&ids, command("c-1"), 20).await.unwrap();
        let offer = next_offer(&mut self.offers).await;
        (fanout, self.peer.accept(offer.offer).await)
    }

    /// The call ends in order: this node's agent has answered, and of the other is said what is known.
    async fn ends(&mut self, fanout: &mut Fanout, output: &str) {
        serve_one(&mut self.near).await;
        let (entries, status) = fanout.rest().await.unwrap();
        assert!(status.is_ok(), "{status}");
        let last = |id: &str| {
            let mut of = entries.iter().filter(|entry| entry.agent_id == id);
            of.next_back().map(|entry| &*entry.response.output)
        };
        assert_eq!((last("near"), last("far")), (Some("done"), Some(output)));
        self.node.metric_becomes("forward_sessions", &[], 0.0).await;
        self.node
            .metric_becomes("forward_inflight_bytes", &[], 0.0)
            .await;
    }
}

#[tokio::test]
async fn fwd_6_an_owner_that_says_what_it_can_not_know_loses_its_targets_and_no_others() {
    let mut prey = Prey::new(|_| ()).await;
    let operator = operator(&prey.node).await;
    let forged = success("c-1", "forged");
    let wrong = [
        answers(&["near"], &forged),
        answers(&["far", "nobody"], &forged),
        answers(&["far", "far"], &forged),
        answers(&[], &forged),
        Kind::Answers(ForwardAnswers {
            entries: Bytes::from_static(b"not an answer"),
        }),
        // Too many at once, and too many positions.
        answers(&vec!["far"; 3_000], &running("c-1", "0123456789")),
        Kind::Written(ForwardWritten {
            moved: vec![0; 65 << 10],
        }),
        Kind::Written(ForwardWritten { moved: vec![1] }),
        Kind::Resumed(ForwardResumed { dispatches: 1 }),
        Kind::Open(prey.peer.marker(1)),
        dispatch("c-2", "near"),
        Kind::Received(ForwardReceived { count: 9 }),
        Kind::End(ForwardEnd { code: 8 }),
    ];
    for frame in wrong {
        let (mut fanout, session) = prey.send(&operator).await;
        session.say(frame).await;
        prey.ends(&mut fanout, "outcome_unknown").await;
    }
    // What is said after a target has ended, or of a Dispatch that is written, is as wrong.
    let written = Kind::Written(ForwardWritten { moved: Vec::new() });
    let (mut fanout, session) = prey.send(&operator).await;
    session.say(written.clone()).await;
    session.say(answers(&["far"], &running("c-1", "1"))).await;
    session.say(written).await;
    prey.ends(&mut fanout, "agent_disconnected").await;
    let (mut fanout, session) = prey.send(&operator).await;
    session.say(answers(&["far"], &forged)).await;
    session
        .say(answers(&["far"], &success("c-1", "twice")))
        .await;
    prey.ends(&mut fanout, "forged").await;
}

#[tokio::test]
async fn fwd_2_an_owner_that_sends_without_end_is_lost_and_its_caller_is_not() {
    let mut prey = Prey::new(|config| config.command.caller_buffer_bytes = 64 << 10).await;
    let address = prey.node.gateway.management_address().expect("a listener");
    let narrow = Options {
        stream_window: 64 << 10,
        ..Options::default()
    };
    let slow = Operator::connect_with(address, &narrow).await.unwrap();
    let (mut fanout, session) = prey.send(&slow).await;
    let output = "x".repeat(32 << 10);
    let flood = async {
        while session
            .say(answers(&["far"], &running("c-1", &output)))
            .await
        {}
    };
    soon("the end of the session", flood).await;
    prey.ends(&mut fanout, "agent_disconnected").await;
}
