//! MGMT: ListAgents, GetAgent, WatchEvents, QueryInventory.

use crate::support::WHILE;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use yuzu_proto::agent::v1::RegisterRequest;
use yuzu_proto::common::v1::PluginInfo;
use yuzu_proto::server::v1::agent_event::Event as Change;
use yuzu_proto::server::v1::{
    GetAgentRequest, GetAgentResponse, ListAgentsResponse, QueryInventoryResponse,
};
use yuzu_server_stub::Rpc;
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::fleet::{Fleet, Options};
use yuzu_tests::raw::code;
use yuzu_tests::testbed::TestBed;

use prost::Message;

fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis() as i64
}

/// An agent with plugins, attached.
async fn agent_with(bed: &TestBed, id: &str, plugins: &[&str]) -> Agent {
    let mut agent = bed.bare_agent(id).await;
    let mut request: RegisterRequest = agent.register_request();
    let info = request.info.as_mut().unwrap();
    info.agent_version = "0.15.0".into();
    info.plugins = plugins
        .iter()
        .map(|&name| PluginInfo {
            name: name.into(),
            version: "1".into(),
            ..Default::default()
        })
        .collect();
    let answer = agent.register_raw(&request.encode_to_vec()).await.unwrap();
    let response: yuzu_proto::agent::v1::RegisterResponse = answer.decode().unwrap();
    agent.session_id = response.session_id;
    agent.subscribe().await.unwrap();
    agent
}

async fn page(bed: &TestBed, limit: i32, cursor: &str) -> (Vec<String>, String) {
    let answer = bed.operator().await.list(limit, cursor).await.unwrap();
    let page: ListAgentsResponse = answer.decode().unwrap();
    (
        page.agents.into_iter().map(|a| a.agent_id).collect(),
        page.next_cursor,
    )
}

#[tokio::test]
async fn mgmt_1_pages_are_ascending_and_the_cursor_is_exclusive() {
    let bed = TestBed::start().await;
    let mut agents = Vec::new();
    // By bytes: upper case before lower case, "a" before "a-", "b10" before "b2".
    for id in ["b2", "a", "B", "b10", "a-"] {
        agents.push(bed.agent(id).await);
    }
    assert_eq!(
        page(&bed, 2, "").await,
        (vec!["B".into(), "a".into()], "a".into())
    );
    assert_eq!(
        page(&bed, 2, "a").await,
        (vec!["a-".into(), "b10".into()], "b10".into())
    );
    assert_eq!(
        page(&bed, 2, "b10").await,
        (vec!["b2".into()], String::new())
    );
    assert_eq!(
        page(&bed, 5, "").await.1,
        "",
        "a page that is exactly full is the last one"
    );
    assert_eq!(page(&bed, 2, "zzz").await, (vec![], String::new()));
    // A cursor whose agent has left still points to its place.
    let left = agents.remove(1);
    drop(left);
    bed.metric_becomes("agents_disconnected_total", &[], 1.0)
        .await;
    assert_eq!(page(&bed, 1, "a").await.0, ["a-"]);
}

#[tokio::test]
async fn mgmt_1_a_limit_out_of_range_is_100() {
    let bed = TestBed::start().await;
    let fleet = Fleet::start(bed.fleet(150));
    fleet.all_subscribed(PATIENCE).await.unwrap();
    for (limit, rows) in [(0, 100), (-5, 100), (1_001, 100), (120, 120), (1_000, 150)] {
        assert_eq!(page(&bed, limit, "").await.0.len(), rows, "limit {limit}");
    }
}

#[tokio::test]
async fn mgmt_1_pages_stay_correct_while_agents_come_and_go() {
    let bed = TestBed::start().await;
    let stay = Fleet::start(Options {
        prefix: "stay-".into(),
        ..bed.fleet(60)
    });
    stay.all_subscribed(PATIENCE).await.unwrap();
    let churn = async {
        loop {
            let fleet = Fleet::start(Options {
                prefix: "go-".into(),
                ..bed.fleet(20)
            });
            fleet.all_subscribed(PATIENCE).await.unwrap();
            fleet.stop().await;
        }
    };
    let walk = async {
        for _ in 0..20 {
            let (mut cursor, mut ids) = (String::new(), Vec::new());
            loop {
                let (rows, next) = page(&bed, 7, &cursor).await;
                ids.extend(rows);
                cursor = next;
                if cursor.is_empty() {
                    break;
                }
            }
            assert!(ids.is_sorted(), "ascending over all pages");
            let mut distinct = ids.clone();
            distinct.dedup();
            assert_eq!(distinct.len(), ids.len(), "no agent twice");
            let stayed = ids.iter().filter(|id| id.starts_with("stay-")).count();
            assert_eq!(stayed, 60, "none of those who stayed is missing");
        }
    };
    tokio::select! {
        () = walk => {}
        () = churn => {}
    }
}

#[tokio::test]
async fn mgmt_2_a_summary_holds_id_host_and_the_time_of_connecting() {
    let bed = TestBed::start().await;
    let before = now_ms();
    let _agent = agent_with(&bed, "a", &["shell"]).await;
    let answer = bed.operator().await.list(0, "").await.unwrap();
    let agents = answer.decode::<ListAgentsResponse>().unwrap().agents;
    let [summary] = agents.as_slice() else {
        panic!("one row")
    };
    assert_eq!(
        (summary.agent_id.as_str(), summary.hostname.as_str()),
        ("a", "a.example")
    );
    assert!(summary.online && summary.platform.is_none() && summary.agent_version.is_empty());
    let seen = summary.last_seen.unwrap().millis_epoch;
    assert!((before..=now_ms()).contains(&seen), "{seen}");
}

#[tokio::test]
async fn mgmt_3_get_agent_names_the_plugins() {
    let bed = TestBed::start().await;
    let agent = agent_with(&bed, "a", &["shell", "patch"]).await;
    // Through tonic's own client, as an operator's tool would.
    let mut client = bed.management().await;
    let ask = |id: &str| GetAgentRequest {
        agent_id: id.into(),
    };
    let found: GetAgentResponse = client.get_agent(ask("a")).await.unwrap().into_inner();
    assert_eq!(found.summary.unwrap().agent_id, "a");
    let named = |name: &str| PluginInfo {
        name: name.into(),
        ..Default::default()
    };
    assert_eq!(found.plugins, [named("shell"), named("patch")]);
    let unknown = client.get_agent(ask("b")).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound);
    drop(agent);
    bed.metric_becomes("agents_disconnected_total", &[], 1.0)
        .await;
    let gone = client.get_agent(ask("a")).await.unwrap_err();
    assert_eq!(gone.code(), tonic::Code::NotFound);
}

#[tokio::test]
async fn mgmt_3_a_registration_without_a_stream_is_no_agent() {
    let bed = TestBed::start().await;
    let mut agent = bed.bare_agent("a").await;
    agent.register().await.unwrap();
    let operator = bed.operator().await;
    assert_eq!(
        operator.get("a").await.unwrap().status.code,
        code::NOT_FOUND
    );
    assert!(page(&bed, 0, "").await.0.is_empty());
}

#[tokio::test]
async fn mgmt_4_a_watch_sees_what_happens_from_its_start_for_the_ids_it_asked_for() {
    let bed = TestBed::start().await;
    let operator = bed.operator().await;
    let _before = bed.agent("before").await;
    let mut all = operator.watch(&[]).await.unwrap();
    let mut some = operator.watch(&["b", "before"]).await.unwrap();
    let started = now_ms();
    let a = bed.agent("a").await;
    let b = bed.agent("b").await;
    let (a_session, b_session) = (a.session_id.clone(), b.session_id.clone());
    drop(a);
    bed.metric_becomes("agents_disconnected_total", &[], 1.0)
        .await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let event = all.next().await.unwrap().unwrap();
        let at = event.occurred_at.unwrap().millis_epoch;
        assert!((started..=now_ms()).contains(&at), "{at}");
        seen.push((event.agent_id, event.event.unwrap()));
    }
    let connected = |session: &str| {
        Change::Connected(yuzu_proto::server::v1::AgentConnected {
            session_id: session.into(),
        })
    };
    let normal = yuzu_proto::server::v1::AgentDisconnected {
        reason: "normal".into(),
    };
    assert_eq!(
        seen,
        [
            ("a".to_owned(), connected(&a_session)),
            ("b".to_owned(), connected(&b_session)),
            ("a".to_owned(), Change::Disconnected(normal)),
        ]
    );
    let event = some.next().await.unwrap().unwrap();
    assert_eq!(
        (event.agent_id.as_str(), event.event),
        ("b", Some(connected(&b_session)))
    );
    assert!(
        tokio::time::timeout(WHILE, some.next()).await.is_err(),
        "nothing else"
    );
}

#[tokio::test]
async fn mgmt_4_a_watcher_that_falls_behind_is_told_how_much_it_missed() {
    let bed = TestBed::start().await;
    let options = yuzu_tests::raw::Options {
        // Nearly nothing fits into the stream unread.
        stream_window: 1_024,
        ..Default::default()
    };
    let operator = yuzu_tests::operator::Operator::connect_with(bed.operators(), &options)
        .await
        .unwrap();
    let mut watch = operator.watch(&[]).await.unwrap();
    // Two events a turn, in all more than the 16,384 that are kept for a watcher.
    // No agent resets streams at a rate the edge takes for a flood.
    let turns = (0..40).map(async |number| {
        let mut agent = bed.bare_agent(&format!("a{number}")).await;
        for _ in 0..240 {
            agent.register().await.unwrap();
            // The stream of the turn before is dropped, which resets it.
            agent.subscribe().await.unwrap();
        }
    });
    let mut events = 0;
    // Reads far too slowly, but reads: a caller that takes nothing at all loses its connection.
    let reads_slowly = async {
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            match watch.next().await.unwrap() {
                Ok(_) => events += 1,
                Err(status) => return status,
            }
        }
    };
    let ended = tokio::select! {
        _ = futures_util::future::join_all(turns) => None,
        status = reads_slowly => Some(status),
    };
    let status = match ended {
        Some(status) => status,
        None => loop {
            match watch.next().await.unwrap() {
                Ok(_) => events += 1,
                Err(status) => break status,
            }
        },
    };
    assert_eq!(status.code, code::RESOURCE_EXHAUSTED, "{status}");
    let missed = status
        .message
        .strip_prefix("missed ")
        .map(str::parse::<u64>);
    assert!(matches!(missed, Some(Ok(1..))), "{status}");
    assert!(events > 0 && events < 19_200, "{events} events came before");
}

#[tokio::test]
async fn mgmt_5_inventory_is_what_this_node_knows() {
    let bed = TestBed::start().await;
    let agent = agent_with(&bed, "a", &["shell", "patch"]).await;
    let _other = agent_with(&bed, "b", &["shell"]).await;
    let operator = bed.operator().await;
    let ask = async |agent_id: &str, plugin: &str| -> QueryInventoryResponse {
        operator
            .inventory(agent_id, plugin)
            .await
            .unwrap()
            .decode()
            .unwrap()
    };
    let all = ask("", "").await;
    assert_eq!((all.agent_id.as_str(), all.plugin_data.len()), ("", 2));
    let about: serde_json::Value = serde_json::from_slice(&all.plugin_data["a"]).unwrap();
    assert_eq!(about["agent_id"], "a");
    assert_eq!(about["session_id"], agent.session_id);
    assert_eq!(about["node"], "yuzu_gw@127.0.0.1");
    assert_eq!(about["plugins"], serde_json::json!(["shell", "patch"]));
    assert!(about["connected_at"].as_i64().unwrap() <= now_ms());
    let one = ask("b", "").await;
    assert_eq!((one.agent_id.as_str(), one.plugin_data.len()), ("b", 1));
    let patched = ask("", "patch").await;
    assert_eq!(patched.plugin_data.keys().collect::<Vec<_>>(), ["a"]);
    assert!(ask("b", "patch").await.plugin_data.is_empty());
    assert!(ask("nobody", "").await.plugin_data.is_empty());
    let before = now_ms();
    let collected = ask("", "").await.collected_at.unwrap().millis_epoch;
    assert!((before..=now_ms()).contains(&collected), "{collected}");
    assert!(
        bed.server.received(Rpc::ProxyInventory).is_empty(),
        "it never reaches the server"
    );
}
