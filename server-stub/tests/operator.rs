//! The operator's side, as a library and as the binary, against a scripted management service.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::SOON;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};
use tower::Service;
use yuzu_proto::agent::v1::CommandResponse;
use yuzu_proto::server::v1::management_service_server::{
    ManagementService, ManagementServiceServer,
};
use yuzu_proto::server::v1::*;
use yuzu_server_stub::operator::{ConnectError, Dispatch, Operator, Tally};

const AGENTS: usize = 5;

/// Answers a broadcast with two entries per agent; listed ids beyond `agent-4` are unknown.
#[derive(Default, Clone)]
struct Scripted {
    last: Arc<Mutex<Option<SendCommandRequest>>>,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn names() -> Vec<String> {
    (0..AGENTS).map(|n| format!("agent-{n}")).collect()
}

fn entry(agent: &str, id: &str, status: i32, code: i32, output: &str) -> SendCommandResponse {
    let (command_id, output) = (id.to_owned(), output.to_owned());
    let response = CommandResponse {
        command_id,
        status,
        exit_code: code,
        output,
        ..Default::default()
    };
    SendCommandResponse {
        agent_id: agent.into(),
        response: Some(response),
    }
}

#[tonic::async_trait]
impl ManagementService for Scripted {
    type SendCommandStream = Answers<SendCommandResponse>;
    type WatchEventsStream = Answers<AgentEvent>;

    async fn send_command(
        &self,
        request: Request<SendCommandRequest>,
    ) -> Result<Response<Self::SendCommandStream>, Status> {
        let request = request.into_inner();
        *self.last.lock().unwrap() = Some(request.clone());
        let command = request.command.unwrap();
        if command.plugin == "refuse" {
            return Err(Status::unavailable("stopping\x1b[0m"));
        }
        let listed = request.agent_ids;
        let targets = if listed.is_empty() { names() } else { listed };
        let mut entries = Vec::new();
        for agent in &targets {
            if names().contains(agent) {
                entries.push(Ok(entry(agent, &command.command_id, 0, 0, "a line\n")));
                entries.push(Ok(entry(agent, &command.command_id, 1, 0, "done")));
            } else {
                entries.push(Ok(entry(
                    agent,
                    &command.command_id,
                    2,
                    -1,
                    "not_connected",
                )));
            }
        }
        Ok(Response::new(Box::pin(tokio_stream::iter(entries))))
    }

    async fn list_agents(
        &self,
        request: Request<ListAgentsRequest>,
    ) -> Result<Response<ListAgentsResponse>, Status> {
        let request = request.into_inner();
        let limit = usize::try_from(request.limit).unwrap();
        let after: Vec<_> = names()
            .into_iter()
            .filter(|id| *id > request.cursor)
            .collect();
        let page: Vec<_> = after.iter().take(limit).cloned().collect();
        let more = after.len() > limit;
        let next_cursor = page.last().filter(|_| more).cloned().unwrap_or_default();
        let summary = |agent_id| AgentSummary {
            agent_id,
            online: true,
            ..Default::default()
        };
        let agents = page.into_iter().map(summary).collect();
        Ok(Response::new(ListAgentsResponse {
            agents,
            next_cursor,
        }))
    }

    async fn watch_events(
        &self,
        request: Request<WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let events = request.into_inner().agent_ids.into_iter().map(|agent_id| {
            let reason = AgentDisconnected {
                reason: "normal".into(),
            };
            let event = Some(agent_event::Event::Disconnected(reason));
            Ok(AgentEvent {
                agent_id,
                occurred_at: None,
                event,
            })
        });
        let events: Vec<_> = events.collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(events))))
    }

    async fn get_agent(
        &self,
        _: Request<GetAgentRequest>,
    ) -> Result<Response<GetAgentResponse>, Status> {
        Err(Status::not_found("not scripted"))
    }

    async fn query_inventory(
        &self,
        _: Request<QueryInventoryRequest>,
    ) -> Result<Response<QueryInventoryResponse>, Status> {
        Err(Status::not_found("not scripted"))
    }
}

async fn start() -> (Scripted, SocketAddr) {
    let service = Scripted::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let server = ManagementServiceServer::new(service.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let server = server.clone();
            let serve = service_fn(move |request| server.clone().call(request));
            let builder = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), serve));
        }
    });
    (service, addr)
}

/// A port where nobody listens, held so that nobody will.
fn closed_port() -> (socket2::Socket, SocketAddr) {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket
        .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    let addr = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, addr)
}

async fn binary(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_yuzu-server-stub"));
    command.args(args).stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8(bytes.to_vec())
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn a_dispatch_arrives_whole_and_its_answers_are_tallied() {
    let (service, addr) = start().await;
    let mut operator = Operator::connect(&addr.to_string(), SOON).await.unwrap();
    let dispatch = Dispatch {
        agents: vec!["agent-1".into(), "agent-9".into()],
        command_id: "c1".into(),
        plugin: "sys".into(),
        action: "info".into(),
        parameters: [("k".into(), "v".into())].into(),
        payload: vec![0, 255].into(),
        timeout_seconds: 7,
    };
    let mut answers = operator.send(&dispatch).await.unwrap();
    let mut tally = Tally::new(&dispatch.agents);
    while let Some(answer) = answers.message().await.unwrap() {
        tally.take(&answer, Duration::ZERO);
    }
    let summary = tally.summary();
    assert_eq!(
        (summary.heard, summary.succeeded, summary.entries),
        (2, 1, 3)
    );
    assert_eq!(
        summary.failures,
        BTreeMap::from([("not_connected".into(), 1)])
    );
    let seen = service.last.lock().unwrap().take().unwrap();
    assert!(seen == dispatch.request());
    assert_eq!(seen.command.unwrap().payload.as_ref(), [0, 255]);
    assert_eq!((seen.agent_ids.len(), seen.timeout_seconds), (2, 7));
}

#[tokio::test]
async fn a_gateway_that_is_not_there_is_a_connect_error() {
    let (_held, addr) = closed_port();
    let error = Operator::connect(&addr.to_string(), SOON)
        .await
        .unwrap_err();
    assert!(matches!(error, ConnectError::Connection { .. }));
    let error = Operator::connect("not an address", SOON).await.unwrap_err();
    assert!(matches!(error, ConnectError::Address(_)));
}

#[tokio::test]
async fn send_prints_answers_and_a_summary_and_exits_by_the_result() {
    let (service, addr) = start().await;
    let gateway = addr.to_string();
    let send = [
        "send",
        "--gateway",
        &gateway,
        "--plugin",
        "sys",
        "--action",
        "info",
    ];
    let with = |more: &[&'static str]| [&send[..], more].concat();

    let broadcast = binary(&with(&["--all", "--timeout", "9", "--param", "k=v=w"])).await;
    assert_eq!(broadcast.status.code(), Some(0));
    let out = lines(&broadcast.stdout);
    assert_eq!(out.len(), 2 * AGENTS);
    assert!(
        out[0].contains("agent-0  RUNNING  exit 0  a line"),
        "{}",
        out[0]
    );
    let end = lines(&broadcast.stderr).pop().unwrap();
    assert!(
        end.contains("5 targets answered, 5 succeeded, no failures, 0 unfinished"),
        "{end}"
    );
    let seen = service.last.lock().unwrap().take().unwrap();
    assert_eq!((seen.agent_ids.len(), seen.timeout_seconds), (0, 9));
    assert_eq!(seen.command.unwrap().parameters["k"], "v=w");

    let mixed = with(&[
        "--agent",
        "agent-1",
        "--agent",
        "x",
        "--json",
        "--command-id",
        "c7",
    ]);
    let mixed = binary(&mixed).await;
    assert_eq!(mixed.status.code(), Some(1));
    let out: Vec<Value> = lines(&mixed.stdout)
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        (&out[1]["status"], &out[1]["command_id"]),
        (&"SUCCESS".into(), &"c7".into())
    );
    assert_eq!(out[2]["output"], "not_connected");
    assert_eq!(out[3]["summary"]["failures"]["not_connected"], 1);

    let refused = [
        "send",
        "--gateway",
        &gateway,
        "--plugin",
        "refuse",
        "--action",
        "x",
        "--all",
    ];
    let refused = binary(&refused).await;
    assert_eq!(refused.status.code(), Some(3));
    assert!(
        lines(&refused.stderr)
            .pop()
            .unwrap()
            .contains("Unavailable: stopping?[0m")
    );
}

#[tokio::test]
async fn a_wrong_command_line_exits_2_and_an_absent_gateway_3() {
    let base = ["send", "--plugin", "sys", "--action", "info"];
    let wrong: [&[&str]; 6] = [
        &[],
        &["--all", "--agent", "a"],
        &["--all", "--timeout", "0"],
        &["--all", "--param", "novalue"],
        &["--all", "--payload-file", "/nonexistent/payload"],
        &["--all", "--gateway", "not an address"],
    ];
    for more in wrong {
        let output = binary(&[&base[..], more].concat()).await;
        assert_eq!(output.status.code(), Some(2), "{more:?}");
        assert!(!output.stderr.is_empty());
    }
    for more in [["--enrolment", "tokens"], ["--token", "t"]] {
        let ports = [
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--control",
            "127.0.0.1:0",
        ];
        assert_eq!(
            binary(&[&ports[..], &more].concat()).await.status.code(),
            Some(2)
        );
    }
    let (_held, addr) = closed_port();
    let absent = addr.to_string();
    let absent = [&base[..], &["--all", "--gateway", &absent]].concat();
    assert_eq!(binary(&absent).await.status.code(), Some(3));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let busy = listener.local_addr().unwrap().to_string();
    let taken = ["serve", "--listen", &busy, "--control", "127.0.0.1:0"];
    let output = binary(&taken).await;
    assert_eq!(output.status.code(), Some(3));
    assert!(lines(&output.stderr)[0].contains(&busy));
}

#[tokio::test]
async fn agents_pages_through_and_watch_prints_events() {
    let (_, addr) = start().await;
    let gateway = addr.to_string();
    let agents = binary(&["agents", "--gateway", &gateway, "--page", "2"]).await;
    assert_eq!(agents.status.code(), Some(0));
    let ids: Vec<_> = lines(&agents.stdout)
        .iter()
        .map(|l| l.split('\t').next().unwrap().to_owned())
        .collect();
    assert_eq!(ids, names());
    let watch = [
        "watch",
        "--gateway",
        &gateway,
        "--agent",
        "a",
        "--agent",
        "b",
    ];
    let two = binary(&[&watch[..], &["--count", "2", "--json"]].concat()).await;
    assert_eq!(two.status.code(), Some(0));
    let second: Value = serde_json::from_str(&lines(&two.stdout)[1]).unwrap();
    assert_eq!(
        (&second["agent_id"], &second["event"]),
        (&"b".into(), &"disconnected".into())
    );
    let ended = binary(&watch).await;
    assert_eq!(ended.status.code(), Some(3), "the gateway ended the stream");
}

#[tokio::test]
async fn serve_says_where_it_is_and_stops_cleanly_on_sigterm() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_yuzu-server-stub"))
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--control",
            "127.0.0.1:0",
        ])
        .args(["--stream-limit", "77", "--enrolment", "denied"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut last_word = || {
        out.next()
            .unwrap()
            .unwrap()
            .rsplit(' ')
            .next()
            .unwrap()
            .to_owned()
    };
    let upstream = last_word();
    let control = last_word();
    assert!(control.starts_with("http://127.0.0.1:") && control.ends_with("/state"));
    let channel = tonic::transport::Channel::from_shared(format!("http://{upstream}")).unwrap();
    let mut client = common::Client::new(channel.connect().await.unwrap());
    let answer = client
        .proxy_register(common::registration("a1"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (answer.accepted, answer.enrollment_status.as_str()),
        (false, "denied")
    );
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    let status = tokio::task::spawn_blocking(move || child.wait().unwrap())
        .await
        .unwrap();
    assert_eq!(status.code(), Some(0));
}
