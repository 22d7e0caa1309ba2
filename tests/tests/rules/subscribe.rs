//! SUB: Subscribe.

use crate::support::{WHILE, command, serve_one, soon, success};
use std::collections::HashSet;
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_proto::server::v1::ListAgentsResponse;
use yuzu_proto::server::v1::agent_event::Event as Change;
use yuzu_tests::agent::Agent;
use yuzu_tests::operator::Operator;
use yuzu_tests::raw::code;
use yuzu_tests::testbed::TestBed;

/// Sends a command to `agent` and answers it there: the session is routable.
async fn answers(operator: &Operator, agent: &mut Agent, command_id: &str) {
    let id = agent.id.clone();
    let mut fanout = operator
        .send(&[&id], command(command_id), 20)
        .await
        .unwrap();
    serve_one(agent).await;
    let entry = fanout.entry().await.unwrap();
    assert_eq!(
        (entry.agent_id, entry.response.output),
        (id, "done".to_owned())
    );
    assert!(fanout.next().await.unwrap().unwrap_err().is_ok());
}

#[tokio::test]
async fn sub_1_without_a_session_header_it_is_3() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("a").await;
    let refused = agent.subscribe_without_session().await.unwrap_err();
    assert_eq!(refused.code(), Some(code::INVALID_ARGUMENT), "{refused}");
}

#[tokio::test]
async fn sub_2_and_6_without_a_pending_registration_it_is_5() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    let unknown = agent.subscribe_as("gw-session-0").await.unwrap_err();
    assert_eq!(unknown.code(), Some(code::NOT_FOUND), "{unknown}");
    let empty = agent.subscribe_as("").await.unwrap_err();
    assert_eq!(empty.code(), Some(code::NOT_FOUND), "{empty}");
    let taken = agent.subscribe_as(&agent.session_id).await.unwrap_err();
    assert_eq!(taken.code(), Some(code::NOT_FOUND), "{taken}");
}

#[tokio::test]
async fn sub_3_of_concurrent_subscribes_exactly_one_wins() {
    let bed = TestBed::start().await;
    let mut agent = bed.bare_agent("a").await;
    agent.register().await.unwrap();
    let agent = &agent;
    let attempts = (0..20).map(|_| agent.subscribe_as(&agent.session_id));
    let results = soon("20 Subscribes", futures_util::future::join_all(attempts)).await;
    let won = results.iter().filter(|r| r.is_ok()).count();
    let lost = results
        .iter()
        .filter(|r| matches!(r, Err(e) if e.code() == Some(code::NOT_FOUND)))
        .count();
    assert_eq!((won, lost), (1, 19));
    bed.notice(Event::Connected, &agent.session_id).await;
    drop(results);
    bed.notice(Event::Disconnected, &agent.session_id).await;
    assert_eq!(bed.notices_of(&agent.session_id).len(), 2, "one of each");
}

#[tokio::test]
async fn sub_5_the_session_belongs_to_the_connection_of_the_subscribe() {
    let bed = TestBed::start().await;
    let mut registered = bed.bare_agent("a").await;
    registered.register().await.unwrap();
    let mut subscribed = bed.bare_agent("a").await;
    subscribed.session_id.clone_from(&registered.session_id);
    // While pending, the Register's connection is the one.
    assert!(registered.heartbeat().await.unwrap().status.is_ok());
    assert_eq!(
        subscribed.heartbeat().await.unwrap().status.code,
        code::NOT_FOUND
    );
    subscribed.subscribe().await.unwrap();
    assert!(subscribed.heartbeat().await.unwrap().status.is_ok());
    assert_eq!(
        registered.heartbeat().await.unwrap().status.code,
        code::NOT_FOUND
    );
    // The end of the other connection does not touch it.
    registered.connection.cut();
    answers(&bed.operator().await, &mut subscribed, "c").await;
}

#[tokio::test]
async fn sub_7_the_connected_notice_says_who_where_and_what_this_gateway_can() {
    let setup = yuzu_tests::testbed::Setup::default().gateway(|config| {
        config.node.name = "yuzu_gw@node-7".into();
        config.node.cluster_id = "blue".into();
    });
    let bed = setup.start().await;
    let mut watch = bed.operator().await.watch(&[]).await.unwrap();
    let agent = bed.agent("a").await;
    let notice = bed.notice(Event::Connected, &agent.session_id).await;
    assert_eq!(notice.agent_id, "a");
    assert_eq!(notice.peer_addr, "127.0.0.1");
    assert_eq!(notice.gateway_node, "yuzu_gw@node-7");
    assert_eq!(notice.cluster_id, "blue");
    assert_eq!(notice.wire_capabilities, ["command_dispatch_tag_v1"]);
    assert_eq!(notice.stream_home_id.len(), 32);
    let hex = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
    assert!(
        notice.stream_home_id.bytes().all(hex),
        "{}",
        notice.stream_home_id
    );
    assert_eq!(bed.metric("agents_connected_total", &[]).await, 1.0);
    let event = watch.next().await.unwrap().unwrap();
    assert_eq!(event.agent_id, "a");
    assert!(matches!(event.event, Some(Change::Connected(c)) if c.session_id == agent.session_id));
}

#[tokio::test]
async fn sub_7_every_stream_has_a_home_of_its_own() {
    let bed = TestBed::start().await;
    let mut homes = HashSet::new();
    for id in ["a", "b", "a"] {
        let agent = bed.agent(id).await;
        let notice = bed.notice(Event::Connected, &agent.session_id).await;
        homes.insert(notice.stream_home_id);
    }
    assert_eq!(homes.len(), 3);
}

#[tokio::test]
async fn sub_8_a_superseded_session_loses_route_and_admission_but_not_its_stream() {
    let bed = TestBed::start().await;
    let operator = bed.operator().await;
    let mut old = bed.agent("a").await;
    let mut new = bed.agent("a").await;
    assert_eq!(old.heartbeat().await.unwrap().status.code, code::NOT_FOUND);
    answers(&operator, &mut new, "c-1").await;
    assert!(
        old.command_within(WHILE).await.is_none(),
        "neither a command nor an end"
    );
    assert!(old.half_close().await.unwrap().is_ok());
    let gone = bed.notice(Event::Disconnected, &old.session_id).await;
    let came = bed.notice(Event::Connected, &old.session_id).await;
    assert_eq!(
        gone.stream_home_id, came.stream_home_id,
        "it reports its own end"
    );
    assert_eq!(
        bed.notices_of(&new.session_id).len(),
        1,
        "and not the newer one's"
    );
    assert!(new.heartbeat().await.unwrap().status.is_ok());
    answers(&operator, &mut new, "c-2").await;
    let list: ListAgentsResponse = operator.list(0, "").await.unwrap().decode().unwrap();
    assert_eq!(list.agents.len(), 1, "the newer one is listed");
}

#[tokio::test]
async fn sub_9_every_way_to_leave_ends_the_session_once() {
    for way in ["half-close", "reset", "cut", "abort"] {
        let bed = TestBed::start().await;
        let operator = bed.operator().await;
        let mut watch = operator.watch(&["a"]).await.unwrap();
        let mut agent = bed.agent("a").await;
        let mut fanout = operator.send(&["a"], command("c"), 20).await.unwrap();
        agent.command().await.unwrap();
        match way {
            "half-close" => assert!(agent.half_close().await.unwrap().is_ok()),
            "reset" => drop(agent.take_stream().unwrap()),
            "cut" => agent.connection.cut(),
            _ => agent.connection.abort(),
        }
        let entry = fanout.entry().await.unwrap();
        assert_eq!(
            (entry.response.output.as_str(), entry.response.exit_code),
            ("agent_disconnected", -1)
        );
        assert!(fanout.next().await.unwrap().unwrap_err().is_ok(), "{way}");
        let gone = bed.notice(Event::Disconnected, &agent.session_id).await;
        let came = bed.notice(Event::Connected, &agent.session_id).await;
        assert_eq!(gone.stream_home_id, came.stream_home_id, "{way}");
        assert_eq!(gone.wire_capabilities, came.wire_capabilities, "{way}");
        assert!(matches!(
            watch.next().await.unwrap().unwrap().event,
            Some(Change::Connected(_))
        ));
        let event = watch.next().await.unwrap().unwrap();
        assert!(
            matches!(event.event, Some(Change::Disconnected(d)) if d.reason == "normal"),
            "{way}"
        );
        assert_eq!(
            bed.metric("agents_disconnected_total", &[]).await,
            1.0,
            "{way}"
        );
        assert_eq!(
            bed.metric("agent_session_duration_ms_count", &[]).await,
            1.0,
            "{way}"
        );
        assert_eq!(
            operator.get("a").await.unwrap().status.code,
            code::NOT_FOUND,
            "{way}"
        );
        assert_eq!(
            bed.notices_of(&agent.session_id).len(),
            2,
            "{way}: one of each"
        );
    }
}

#[tokio::test]
async fn sub_10_a_session_ended_by_the_gateway_ends_with_ok() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    assert!(bed.gateway.end_session("a"));
    assert!(agent.stream_end().await.unwrap().is_ok());
    bed.notice(Event::Disconnected, &agent.session_id).await;
}

#[tokio::test]
async fn sub_12_frames_of_an_agent_keep_their_order() {
    let bed = TestBed::start().await;
    let agent = &mut bed.agent("a").await;
    let operator = bed.operator().await;
    let mut fanout = operator.send(&["a"], command("c"), 20).await.unwrap();
    agent.command().await.unwrap();
    let send = async {
        for number in 0..500 {
            let frame = crate::support::running("c", &number.to_string());
            agent.answer(&frame).await.unwrap();
        }
        agent.answer(&success("c", "last")).await.unwrap();
    };
    let (entries, ()) = tokio::join!(fanout.rest(), send);
    let (entries, status) = entries.unwrap();
    assert!(status.is_ok());
    let outputs: Vec<_> = entries.into_iter().map(|e| e.response.output).collect();
    let mut expected: Vec<_> = (0..500).map(|n: u32| n.to_string()).collect();
    expected.push("last".into());
    assert_eq!(outputs, expected);
}

#[tokio::test]
async fn owner_5_a_panic_of_the_owner_leaves_the_stream_and_the_session() {
    let bed = TestBed::start().await;
    let operator = bed.operator().await;
    let mut agent = bed.agent("a").await;
    let mut other = bed.agent("b").await;
    let mut waiting = operator.send(&["a"], command("c-1"), 20).await.unwrap();
    agent.command().await.unwrap();
    assert!(bed.gateway.inject_owner_panic("a"));
    let entry = waiting.entry().await.unwrap();
    assert_eq!(entry.response.output, "agent_disconnected");
    answers(&operator, &mut agent, "c-2").await;
    assert!(agent.heartbeat().await.unwrap().status.is_ok());
    answers(&operator, &mut other, "c-3").await;
    let recovered = [("outcome", "recovered")];
    assert_eq!(
        bed.metric("agent_owner_restarts_total", &recovered).await,
        1.0
    );
}
