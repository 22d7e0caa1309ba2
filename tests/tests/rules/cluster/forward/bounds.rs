//! FWD-2, FWD-5, FWD-9: bounds, and callers that read slowly.

use yuzu_tests::raw;

use super::*;

async fn rejected(node: &Node, limit: &str) -> f64 {
    let labels = [("limit", limit)];
    node.metric("forward_rejected_total", &labels).await
}

#[tokio::test]
async fn fwd_5_a_session_over_the_bound_is_not_opened_and_a_reload_raises_the_bound() {
    let pair = Pair::with(|config| config.routing.max_sessions = 1).await;
    let (a, b) = (&pair.a, &pair.b);
    let mut agent = known(b, a, "agent").await;
    let operator = operator(a).await;
    let mut first = operator.send(&["agent"], command("c-0"), 20).await.unwrap();
    agent.command().await.unwrap();
    let mut second = operator.send(&["agent"], command("c-1"), 20).await.unwrap();
    ends_as(&mut second, "not_connected").await;
    assert_eq!(rejected(a, "max_sessions").await, 1.0);
    assert_eq!(outcome(a, "rejected").await, 1.0);
    assert!(agent.command_within(crate::support::WHILE).await.is_none());

    for node in [a, b] {
        let mut config = node.gateway.config();
        config.routing.max_sessions = 2;
        let loaded = yuzu_gateway::config::Loaded {
            config,
            warnings: Vec::new(),
            origins: Default::default(),
        };
        node.gateway.reload(Ok(loaded)).await.expect("a reload");
    }
    let mut third = operator.send(&["agent"], command("c-2"), 20).await.unwrap();
    serve_one(&mut agent).await;
    assert_eq!(third.entry().await.unwrap().response.output, "done");
    agent.answer(&success("c-0", "first")).await.unwrap();
    assert_eq!(first.entry().await.unwrap().response.output, "first");
}

#[tokio::test]
async fn fwd_5_fwd_9_the_owner_has_a_bound_as_well_and_is_left_alone_for_a_second() {
    let server = server().await;
    let a = Node::start(served("a", &server)).await;
    let mut config = served("b", &server);
    config.routing.max_sessions = 1;
    let b = Node::join(config, &[&a]).await;
    a.lists(&["b"]).await;
    let mut agent = known(&b, &a, "agent").await;
    let operator = operator(&a).await;
    let _first = operator.send(&["agent"], command("c-0"), 20).await.unwrap();
    agent.command().await.unwrap();
    for _ in 0..3 {
        let mut next = operator.send(&["agent"], command("c-1"), 20).await.unwrap();
        ends_as(&mut next, "not_connected").await;
    }
    // The owner was asked once; the others failed fast.
    assert_eq!(rejected(&a, "owner").await, 1.0);
    assert_eq!(outcome(&a, "rejected").await, 1.0);
    assert_eq!(outcome(&a, "not_connected").await, 2.0);
    let limit = [("reason", "limit")];
    assert_eq!(b.metric("forwarded_refused_total", &limit).await, 1.0);
}

#[tokio::test]
async fn fwd_2_a_caller_that_does_not_read_stalls_only_its_own_session() {
    for from_dialler in [true, false] {
        let Pair {
            a,
            b,
            server: _server,
        } = Pair::start().await;
        let (entry, owner) = if from_dialler { (&a, &b) } else { (&b, &a) };
        let mut agent = known(owner, entry, "agent").await;
        let address = entry.gateway.management_address().expect("a listener");
        let narrow = raw::Options {
            stream_window: 64 << 10,
            ..raw::Options::default()
        };
        let slow = Operator::connect_with(address, &narrow).await.unwrap();
        // Several of them: together they fill more than the window of a connection.
        let mut unread = Vec::new();
        for n in 0..8 {
            let id = format!("slow-{n}");
            let fanout = slow.send(&["agent"], command(&id), 60).await.unwrap();
            unread.push(fanout);
            agent.command().await.unwrap();
        }
        let output = "x".repeat(256 << 10);
        for n in 0..8 {
            for _ in 0..6 {
                let answer = running(&format!("slow-{n}"), &output);
                agent.answer(&answer).await.unwrap();
            }
        }
        let quick = operator(entry).await;
        for _ in 0..5 {
            let mut fanout = quick.send(&["agent"], command("c-1"), 20).await.unwrap();
            serve_one(&mut agent).await;
            assert_eq!(fanout.entry().await.unwrap().response.output, "done");
        }
        drop(unread);
        becomes(entry, "forward_sessions", 0.0).await;
        becomes(entry, "forward_inflight_bytes", 0.0).await;
        becomes(owner, "forwarded_sessions", 0.0).await;
    }
}

#[tokio::test]
async fn fwd_6_an_owner_that_gives_the_caller_up_ends_its_own_targets_and_no_others() {
    for from_dialler in [true, false] {
        let server = server().await;
        let config = |name: &str, is_owner: bool| {
            let mut config = served(name, &server);
            config.command.caller_buffer_bytes = 64 << 10;
            if is_owner {
                config.command.slow_caller_timeout = Duration::from_secs(1);
            }
            config
        };
        let a = Node::start(config("a", !from_dialler)).await;
        let b = Node::join(config("b", from_dialler), &[&a]).await;
        a.lists(&["b"]).await;
        b.lists(&["a"]).await;
        let (entry, owner) = if from_dialler { (&a, &b) } else { (&b, &a) };
        let mut far = known(owner, entry, "far").await;
        let mut near = attach(entry, "near").await;
        let address = entry.gateway.management_address().expect("a listener");
        let narrow = raw::Options {
            stream_window: 64 << 10,
            ..raw::Options::default()
        };
        let slow = Operator::connect_with(address, &narrow).await.unwrap();
        let ids = ["near", "far"];
        let mut fanout = slow.send(&ids, command("c-1"), 60).await.unwrap();
        near.command().await.unwrap();
        far.command().await.unwrap();
        let flood = tokio::spawn(async move {
            let output = "x".repeat(64 << 10);
            for _ in 0..40 {
                far.answer(&running("c-1", &output)).await.unwrap();
            }
            far
        });
        owner.counts("command_slow_callers_total", &[], 1.0).await;
        let _far = soon("the flood", flood).await.unwrap();
        near.answer(&success("c-1", "done")).await.unwrap();
        let (entries, status) = fanout.rest().await.unwrap();
        assert!(status.is_ok(), "{status}");
        let last = |id: &str| {
            let mut of = entries.iter().filter(|entry| entry.agent_id == id);
            of.next_back().map(|entry| &*entry.response.output)
        };
        assert_eq!(last("near"), Some("done"));
        assert_eq!(last("far"), Some("agent_disconnected"));
        assert_eq!(outcome(entry, "agent_disconnected").await, 1.0);
        becomes(entry, "forward_inflight_bytes", 0.0).await;
    }
}

#[tokio::test]
async fn fwd_2_many_calls_after_each_other_leave_the_link_as_it_is() {
    for from_dialler in [true, false] {
        let Pair {
            a,
            b,
            server: _server,
        } = Pair::start().await;
        let (entry, owner) = if from_dialler { (&a, &b) } else { (&b, &a) };
        let mut agent = known(owner, entry, "agent").await;
        let operator = operator(entry).await;
        for n in 0..1_500 {
            let mut fanout = operator.send(&["agent"], command("c-1"), 20).await.unwrap();
            match n % 3 {
                // Half of them leave before there is an answer.
                0 => drop((agent.command().await.unwrap(), fanout)),
                _ => {
                    serve_one(&mut agent).await;
                    assert_eq!(fanout.entry().await.unwrap().response.output, "done");
                }
            }
        }
        let failed =
            outcome(entry, "not_connected").await + outcome(entry, "outcome_unknown").await;
        assert_eq!(failed, 0.0);
        let down = [
            ("event", "node_down"),
            ("node", if from_dialler { "b" } else { "a" }),
        ];
        assert_eq!(entry.metric("cluster_events_total", &down).await, 0.0);
        becomes(owner, "forwarded_sessions", 0.0).await;
    }
}
