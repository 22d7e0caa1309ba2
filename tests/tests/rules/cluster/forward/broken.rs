//! FWD-6, FWD-8: links that break, and owners that are lost.

use yuzu_tests::relay::Relay;

use super::super::seed;
use super::*;

/// Two nodes, the way between them through a relay: `a` dials it.
struct Split {
    pair: Pair,
    relay: Relay,
}

const GRACE: Duration = Duration::from_millis(1_500);

async fn split() -> Split {
    split_with(|_| ()).await
}

/// Both nodes set up so.
async fn split_with(change: impl Fn(&mut Config)) -> Split {
    let server = server().await;
    let relay = Relay::start().await.expect("a relay");
    let config = |name| {
        let mut config = served(name, &server);
        config.routing.resume_grace = GRACE;
        config.routing.connect_timeout = GRACE;
        change(&mut config);
        config
    };
    let mut a = config("a");
    a.cluster.seed_nodes = vec![seed(relay.address())];
    let mut b = config("b");
    b.node.peer_advertise = Some(seed(relay.address()));
    let b = Node::start(b).await;
    relay.lead_to(b.address());
    let a = Node::start(a).await;
    a.lists(&["b"]).await;
    b.lists(&["a"]).await;
    Split {
        pair: Pair { server, a, b },
        relay,
    }
}

impl Split {
    /// The entry node and the owner.
    fn roles(&self, from_dialler: bool) -> (&Node, &Node) {
        let Pair { a, b, .. } = &self.pair;
        if from_dialler { (a, b) } else { (b, a) }
    }
}

async fn resumes(node: &Node, outcome: &str) -> f64 {
    let labels = [("outcome", outcome)];
    node.metric("forward_resumes_total", &labels).await
}

#[tokio::test]
async fn fwd_8_a_session_goes_on_over_the_next_link_and_each_answer_comes_once() {
    for from_dialler in [true, false] {
        let split = split().await;
        let (entry, owner) = split.roles(from_dialler);
        let mut agent = known(owner, entry, "agent").await;
        let operator = operator(entry).await;
        let mut fanout = operator.send(&["agent"], command("c-1"), 20).await.unwrap();
        agent.command().await.unwrap();
        agent.answer(&running("c-1", "0")).await.unwrap();
        assert_eq!(fanout.entry().await.unwrap().response.output, "0");
        split.relay.cut();
        for n in 1..=20 {
            agent.answer(&running("c-1", &n.to_string())).await.unwrap();
        }
        split.relay.heal();
        for n in 1..=20 {
            assert_eq!(fanout.entry().await.unwrap().response.output, n.to_string());
        }
        agent.answer(&success("c-1", "done")).await.unwrap();
        let (entries, status) = fanout.rest().await.unwrap();
        assert!(status.is_ok());
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].response.output, "done");
        assert_eq!(resumes(entry, "resumed").await, 1.0);
        assert_eq!(resumes(entry, "lost").await, 0.0);
        assert_eq!(outcome(entry, "ok").await, 1.0);
    }
}

#[tokio::test]
async fn fwd_6_sent_and_lost_before_an_answer_is_unknown_and_never_sent_again() {
    for from_dialler in [true, false] {
        let split = split().await;
        let (entry, owner) = split.roles(from_dialler);
        let mut agent = known(owner, entry, "agent").await;
        let operator = operator(entry).await;
        let mut fanout = operator.send(&["agent"], command("c-1"), 20).await.unwrap();
        agent.command().await.unwrap();
        split.relay.cut();
        ends_as(&mut fanout, "outcome_unknown").await;
        assert_eq!(resumes(entry, "lost").await, 1.0);
        assert_eq!(outcome(entry, "outcome_unknown").await, 1.0);
        becomes(owner, "forwarded_sessions", 0.0).await;
        split.relay.heal();
        entry.lists(&[if from_dialler { "b" } else { "a" }]).await;
        assert!(agent.command_within(crate::support::WHILE).await.is_none());
    }
}

#[tokio::test]
async fn fwd_8_a_link_that_breaks_under_a_slow_caller_costs_it_nothing() {
    let split = split_with(|config| {
        config.command.slow_caller_timeout = Duration::from_secs(1);
        config.command.caller_buffer_bytes = 64 << 10;
        config.routing.resume_grace = PATIENCE;
    })
    .await;
    let (entry, owner) = split.roles(true);
    let mut agent = known(owner, entry, "agent").await;
    let operator = operator(entry).await;
    let mut fanout = operator.send(&["agent"], command("c-1"), 60).await.unwrap();
    agent.command().await.unwrap();
    agent.answer(&running("c-1", "0")).await.unwrap();
    fanout.entry().await.unwrap();
    split.relay.cut();
    let flood = tokio::spawn(async move {
        let output = "x".repeat(64 << 10);
        for _ in 0..20 {
            agent.answer(&running("c-1", &output)).await.unwrap();
        }
        agent.answer(&success("c-1", "done")).await.unwrap();
        agent
    });
    // Longer than a caller may take nothing.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    split.relay.heal();
    let (entries, status) = fanout.rest().await.unwrap();
    assert!(status.is_ok(), "{status}");
    assert_eq!(entries.len(), 21);
    assert_eq!(entries[20].response.output, "done");
    assert_eq!(resumes(entry, "resumed").await, 1.0);
    assert_eq!(owner.metric("command_slow_callers_total", &[]).await, 0.0);
    soon("the flood", flood).await.unwrap();
}

#[tokio::test]
async fn fwd_6_lost_after_an_answer_is_disconnected() {
    let split = split().await;
    let (entry, owner) = split.roles(true);
    let mut agent = known(owner, entry, "agent").await;
    let operator = operator(entry).await;
    let mut fanout = operator.send(&["agent"], command("c-1"), 20).await.unwrap();
    agent.command().await.unwrap();
    agent.answer(&running("c-1", "1")).await.unwrap();
    fanout.entry().await.unwrap();
    split.relay.cut();
    ends_as(&mut fanout, "agent_disconnected").await;
    assert_eq!(outcome(entry, "agent_disconnected").await, 1.0);
}

/// Its caller is told nothing any more.
#[tokio::test]
async fn fwd_6_a_target_whose_time_ends_while_its_owner_is_lost_is_counted() {
    let split = split_with(|config| config.routing.resume_grace = PATIENCE).await;
    let (entry, owner) = split.roles(true);
    let mut agent = known(owner, entry, "agent").await;
    let operator = operator(entry).await;
    let mut fanout = operator.send(&["agent"], command("c-1"), 1).await.unwrap();
    agent.command().await.unwrap();
    split.relay.cut();
    let (entries, status) = fanout.rest().await.unwrap();
    assert!(status.is_ok(), "{status}");
    assert!(entries.is_empty(), "CMD-9");
    let labels = [("outcome", "outcome_unknown")];
    let counted = entry.metric_becomes("forward_requests_total", &labels, 1.0);
    counted.await;
    assert_eq!(resumes(entry, "lost").await, 1.0);
}

#[tokio::test]
async fn fwd_10_a_node_that_stops_is_linked_again_when_its_link_breaks() {
    let split = split_with(|config| config.routing.resume_grace = PATIENCE).await;
    let mut agent = known(&split.pair.b, &split.pair.a, "agent").await;
    let operator = operator(&split.pair.a).await;
    let mut fanout = operator.send(&["agent"], command("c-1"), 20).await.unwrap();
    agent.command().await.unwrap();
    let Split { pair, relay } = split;
    let stopping = tokio::spawn(pair.b.gateway.shutdown());
    pair.a.lists_draining().await;
    relay.cut();
    becomes(&pair.a, "cluster_peers_connected", 0.0).await;
    relay.heal();
    agent.answer(&success("c-1", "done")).await.unwrap();
    let (entries, status) = fanout.rest().await.unwrap();
    assert!(status.is_ok());
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].response.output, "done");
    assert_eq!(resumes(&pair.a, "resumed").await, 1.0);
    soon("the stop", stopping).await.unwrap();
    // Nobody is warned of a node that has stopped.
    for reason in ["connect", "refused", "timeout"] {
        let labels = [("reason", reason)];
        let failures = pair.a.metric("cluster_connect_failures_total", &labels);
        assert_eq!(failures.await, 0.0, "{reason}");
    }
}

#[tokio::test]
async fn cluster_5_fwd_6_fwd_9_an_owner_that_is_not_linked_gets_nothing_and_fails_fast_then() {
    for from_dialler in [true, false] {
        let split = split().await;
        let (entry, owner) = split.roles(from_dialler);
        let mut agent = known(owner, entry, "agent").await;
        split.relay.cut();
        becomes(entry, "cluster_peers_connected", 0.0).await;
        let operator = operator(entry).await;
        let started = tokio::time::Instant::now();
        let mut fanout = operator.send(&["agent"], command("c-1"), 20).await.unwrap();
        ends_as(&mut fanout, "not_connected").await;
        assert!(started.elapsed() >= GRACE, "it waits for a link");
        // For a second it does not wait again. A busy machine may take longer than that to ask.
        let (mut sent, mut failed_fast) = (1, false);
        while !failed_fast && sent < 6 {
            let started = tokio::time::Instant::now();
            let mut fanout = operator.send(&["agent"], command("c-1"), 20).await.unwrap();
            ends_as(&mut fanout, "not_connected").await;
            failed_fast = started.elapsed() < GRACE / 2;
            sent += 1;
        }
        assert!(failed_fast);
        assert_eq!(outcome(entry, "not_connected").await, f64::from(sent));
        split.relay.heal();
        becomes(entry, "cluster_peers_connected", 1.0).await;
        assert!(agent.command_within(crate::support::WHILE).await.is_none());
    }
}

#[tokio::test]
async fn fwd_5_a_command_waits_for_a_link_that_is_coming() {
    let split = split().await;
    let (entry, owner) = split.roles(true);
    let mut agent = known(owner, entry, "agent").await;
    split.relay.cut();
    becomes(entry, "cluster_peers_connected", 0.0).await;
    let operator = operator(entry).await;
    let mut fanout = operator.send(&["agent"], command("c-1"), 20).await.unwrap();
    split.relay.heal();
    serve_one(&mut agent).await;
    assert_eq!(fanout.entry().await.unwrap().response.output, "done");
}
