//! LSN and READY: what a listener serves, and what the health endpoint says.

use crate::support::command;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use yuzu_gateway::config::{Listener, OriginMode, OriginSource};
use yuzu_proto::agent::v1::CommandResponse;
use yuzu_proto::agent::v1::command_response::Status;
use yuzu_proto::path;
use yuzu_server_stub::{Action, Fault, Rpc};
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::http;
use yuzu_tests::raw::{Connection, Options, Request, code};
use yuzu_tests::testbed::{Setup, TestBed, in_memory};

async fn ask(connection: &Connection, path: &str) -> u16 {
    let request = Request::new(path).timeout(PATIENCE);
    connection
        .unary(request, &[])
        .await
        .expect("a status")
        .status
        .code
}

#[tokio::test]
async fn lsn_9_what_a_listener_does_not_serve_is_12() {
    let bed = TestBed::start().await;
    let agents = Connection::open(bed.agents(), &Options::default())
        .await
        .unwrap();
    let operators = Connection::open(bed.operators(), &Options::default())
        .await
        .unwrap();
    for path in [
        "/yuzu.agent.v1.AgentService/ExecuteCommand",
        "/yuzu.agent.v1.AgentService/CheckForUpdate",
        "/yuzu.agent.v1.AgentService/DownloadUpdate",
        "/yuzu.agent.v1.AgentService/NoSuchMethod",
        "/no.such.Service/Method",
        "/",
        path::LIST_AGENTS,
        path::SEND_COMMAND,
        path::PROXY_REGISTER,
    ] {
        assert_eq!(
            ask(&agents, path).await,
            code::UNIMPLEMENTED,
            "agent listener: {path}"
        );
    }
    for path in [
        path::REGISTER,
        path::HEARTBEAT,
        "/yuzu.server.v1.ManagementService/X",
        "/x/y",
    ] {
        assert_eq!(
            ask(&operators, path).await,
            code::UNIMPLEMENTED,
            "management: {path}"
        );
    }
}

#[tokio::test]
async fn lsn_9_a_subscribe_on_the_management_listener_is_12() {
    let bed = TestBed::start().await;
    let operators = Connection::open(bed.operators(), &Options::default())
        .await
        .unwrap();
    let request = Request::new(path::SUBSCRIBE).metadata("x-yuzu-session-id", b"x");
    let (_, receiver) = operators.stream(request).await.unwrap();
    assert_eq!(receiver.status().map(|s| s.code), Some(code::UNIMPLEMENTED));
}

#[tokio::test]
async fn ready_1_and_2_the_health_endpoint_answers_json() {
    let bed = TestBed::start().await;
    let health = bed.gateway.health_address();
    let alive = http::get(health, "/healthz").await.unwrap();
    assert_eq!(
        (alive.status, alive.content_type.as_str()),
        (200, "application/json")
    );
    let body: serde_json::Value = serde_json::from_str(&alive.body).unwrap();
    assert_eq!(
        (&body["status"], &body["node"]),
        (&"ok".into(), &"yuzu_gw@127.0.0.1".into())
    );
    let (status, body) = bed.ready().await;
    assert_eq!((status, &body["status"]), (200, &"ready".into()));
    for check in [
        "registry",
        "upstream",
        "agent_sup",
        "router",
        "sessions_index",
        "upstream_tls_files",
        "circuit_breaker",
        "listeners",
    ] {
        assert_eq!(body["checks"][check], true, "{check}");
    }
    let other = http::get(health, "/other").await.unwrap();
    assert_eq!(other.status, 404);
    assert!(other.body.contains("not_found"), "{}", other.body);
}

#[tokio::test]
async fn ready_5_a_server_that_does_not_answer_leaves_it_green() {
    let bed = TestBed::start().await;
    for rpc in [
        Rpc::ProxyRegister,
        Rpc::NotifyStreamStatus,
        Rpc::BatchHeartbeat,
    ] {
        bed.server.fault(Fault::new(rpc, Action::Hang)).unwrap();
    }
    let fleet = yuzu_tests::fleet::Fleet::start(bed.fleet(100));
    bed.server
        .wait_received(Rpc::ProxyRegister, 40, PATIENCE)
        .await
        .unwrap();
    assert_eq!(bed.ready().await.0, 200);
    drop(fleet);
}

#[tokio::test]
async fn ready_3_the_checks_have_the_names_of_the_contract() {
    let bed = TestBed::start().await;
    let (_, body) = bed.ready().await;
    let checks = body["checks"].as_object().unwrap();
    let names: Vec<_> = checks.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "agent_sup",
            "circuit_breaker",
            "listeners",
            "registry",
            "router",
            "sessions_index",
            "upstream",
            "upstream_tls_files"
        ]
    );
}

#[tokio::test]
async fn ready_4_without_a_listener_for_agents_it_is_red_unless_that_is_allowed() {
    for (allowed, status) in [(false, 503), (true, 200)] {
        let setup = Setup::default().gateway(|config| {
            config.listeners.remove(0);
            config.lab.allow_no_listeners = allowed;
        });
        let bed = setup.start().await;
        let (answered, body) = bed.ready().await;
        assert_eq!(answered, status);
        assert_eq!(body["checks"]["listeners"], allowed);
    }
}

#[tokio::test]
async fn shed_2_3_6_a_node_over_its_mark_refuses_agents_and_says_so_while_commands_go_on() {
    // Any process uses more.
    let setup = Setup::default().gateway(|config| {
        config.memory.shedding.high_bytes = Some(1_000);
        config.memory.shedding.interval = Duration::from_millis(10);
    });
    let bed = setup.start().await;
    bed.metric_becomes("memory_shedding_active", &[], 1.0).await;
    let (status, body) = bed.ready().await;
    assert_eq!(status, 503);
    assert_eq!(body["checks"]["listeners"], false, "{body}");
    let refused = tokio::net::TcpStream::connect(bed.agents()).await;
    assert_eq!(
        refused.unwrap_err().kind(),
        std::io::ErrorKind::ConnectionRefused
    );
    let operator = bed.operator().await;
    let mut fanout = operator.send(&["a"], command("c"), 20).await.unwrap();
    let (entries, status) = fanout.rest().await.unwrap();
    assert!(status.is_ok());
    assert_eq!(entries[0].response.output, "not_connected");
    assert_eq!(
        bed.metric("memory_shedding_suspensions_total", &[]).await,
        1.0
    );
}

#[tokio::test]
async fn a_connection_that_never_becomes_a_session_is_closed_whatever_it_sends() {
    let setup = Setup::default().agent_listener(|listener| {
        listener.limits.unregistered_timeout = Duration::from_secs(1);
    });
    let bed = setup.start().await;
    let mut agent = bed.agent("a").await;
    let pings = Options {
        keepalive: Some(Duration::from_millis(50)),
        ..Options::default()
    };
    let silent = Connection::open(bed.agents(), &pings).await.unwrap();
    let chatty = Connection::open(bed.agents(), &pings).await.unwrap();
    let chat = async {
        while !chatty.is_closed() {
            let request = Request::new(path::HEARTBEAT).timeout(PATIENCE);
            if chatty.unary(request, &[]).await.is_err() {
                break;
            }
        }
    };
    let both = async { tokio::join!(silent.closed(), chat, chatty.closed()) };
    tokio::time::timeout(PATIENCE, both).await.expect("closed");
    assert_eq!(
        bed.metric("listener_closed_total", &[("reason", "unregistered")])
            .await,
        2.0
    );
    // It was there before them, and serves on.
    let operator = bed.operator().await;
    let mut fanout = operator.send(&["a"], command("c"), 20).await.unwrap();
    crate::support::serve_one(&mut agent).await;
    assert!(fanout.rest().await.unwrap().1.is_ok());
}

fn two_of_each_source(listener: &mut Listener) {
    listener.limits.max_connections_per_source = 2;
}

/// A connection that answers, if there is one.
async fn open(bed: &TestBed, preamble: &[u8]) -> Option<Connection> {
    let options = Options {
        preamble: preamble.to_vec(),
        ..Options::default()
    };
    let connection = Connection::open(bed.agents(), &options).await.ok()?;
    let request = Request::new(path::HEARTBEAT).timeout(PATIENCE);
    connection.unary(request, &[]).await.ok()?;
    Some(connection)
}

const AGENT: [(&str, &str); 1] = [("listener", "agent")];

#[tokio::test]
async fn connections_of_one_source_are_bounded() {
    let setup = Setup::default().agent_listener(two_of_each_source);
    let bed = setup.start().await;
    let first = open(&bed, b"").await.expect("within the bound");
    let _second = open(&bed, b"").await.expect("within the bound");
    assert!(open(&bed, b"").await.is_none());
    bed.metric_becomes("listener_source_refused_total", &AGENT, 1.0)
        .await;
    first.cut();
    bed.metric_becomes("listener_connections", &AGENT, 1.0)
        .await;
    let _third = open(&bed, b"").await.expect("a place is free again");
    // Of those that were taken one has ended.
    let taken = bed.metric("listener_accepted_total", &AGENT).await;
    assert_eq!(taken, 3.0);
    assert_eq!(bed.metric("listener_connections", &AGENT).await, 2.0);
}

#[tokio::test]
async fn behind_a_trusted_proxy_each_client_is_a_source_and_the_proxy_is_none() {
    let setup = Setup::default().agent_listener(|listener| {
        two_of_each_source(listener);
        listener.origin.mode = OriginMode::ProxyProtocol;
        listener.origin.sources = vec![OriginSource::parse("127.0.0.1").unwrap()];
    });
    let bed = setup.start().await;
    let client = |n: u8| format!("PROXY TCP4 192.0.2.{n} 198.51.100.1 1 2\r\n");
    let mut kept = Vec::new();
    for n in [1, 1, 2, 2, 3] {
        let connection = open(&bed, client(n).as_bytes()).await;
        kept.push(connection.expect("each client has two"));
    }
    assert!(open(&bed, client(1).as_bytes()).await.is_none());
    bed.metric_becomes("listener_source_refused_total", &AGENT, 1.0)
        .await;
}

#[tokio::test]
async fn agents_that_no_socket_carries_are_served_like_others() {
    let bed = TestBed::start().await;
    let operator = bed.operator().await;
    let gateway = Arc::new(bed.gateway);
    let through_memory = Options {
        dialer: Some(in_memory(&gateway, Handle::current())),
        ..Options::default()
    };
    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let agent = Agent::attach_with(nowhere, "agent-1", &through_memory).await;
    let mut agent = agent.unwrap();
    let mut fanout = operator.send(&[], command("c-1"), 10).await.unwrap();
    assert_eq!(agent.command().await.unwrap().message.command_id, "c-1");
    let answer = CommandResponse {
        command_id: "c-1".into(),
        status: Status::Success.into(),
        ..CommandResponse::default()
    };
    agent.answer(&answer).await.unwrap();
    assert_eq!(fanout.successes().await, Ok(1));
    drop(agent);
    let gone = async {
        while gateway.agents_connected() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
}
