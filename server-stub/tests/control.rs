//! The control endpoint over HTTP/1.1.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;

use common::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;
use yuzu_proto::agent::v1::InventoryReport;
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_server_stub::{ControlServer, Rpc, StubConfig, StubServer};

struct Control {
    stub: Arc<StubServer>,
    server: ControlServer,
    client: Client,
}

async fn start_control() -> Control {
    let stub = Arc::new(StubServer::start(StubConfig::default()).await.unwrap());
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = ControlServer::start(listen, Arc::clone(&stub))
        .await
        .unwrap();
    let client = dial(&stub).await;
    Control {
        stub,
        server,
        client,
    }
}

impl Control {
    async fn ask(&self, method: &str, target: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(self.server.addr()).await.unwrap();
        let request = format!(
            "{method} {target} HTTP/1.1\r\nhost: stub\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("content-type: application/json"), "{head}");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap())
    }

    async fn get(&self, target: &str) -> Value {
        let (status, body) = self.ask("GET", target, "").await;
        assert_eq!(status, 200, "{body}");
        body
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.ask("POST", path, &body.to_string()).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }
}

#[tokio::test]
async fn state_routes_and_received_show_what_happened_and_no_secret() {
    let mut control = start_control().await;
    let mut request = registration("a1");
    request.enrollment_token = "s3cret-token".into();
    request.csr_pem = "s3cret-csr".into();
    let session = control
        .client
        .proxy_register(request)
        .await
        .unwrap()
        .into_inner()
        .session_id;
    let connected = notice("a1", &session, Event::Connected);
    control
        .client
        .notify_stream_status(connected)
        .await
        .unwrap();
    enrol(&mut control.client, "a2").await;

    let state = control.get("/state").await;
    assert_eq!(
        state["agents"],
        json!({ "registered": 1, "connected": 1, "disconnected": 0 })
    );
    assert_eq!(state["rpcs"]["ProxyRegister"]["ok"], 2);
    assert_eq!(
        (&state["stream_limit"], &state["enrolment"]),
        (&json!(128), &json!("open"))
    );
    assert_eq!(state["connections"][0]["streams"], 0);

    let routes = control.get("/routes?limit=1").await;
    assert_eq!(
        (&routes["next"], &routes["routes"][0]["agent_id"]),
        (&json!("a1"), &json!("a1"))
    );
    let routes = control.get("/routes?limit=1&after=a1").await;
    assert_eq!(
        (&routes["next"], &routes["routes"][0]["agent_id"]),
        (&json!(null), &json!("a2"))
    );
    let routes = control.get("/routes?state=connected").await;
    assert_eq!(routes["routes"].as_array().unwrap().len(), 1);
    assert_eq!(routes["routes"][0]["session_id"], session);

    let received = control.get("/received?rpc=ProxyRegister&limit=1").await;
    assert_eq!(
        (&received["received"], &received["forgotten"]),
        (&json!(2), &json!(0))
    );
    assert_eq!(received["last"].as_array().unwrap().len(), 1);
    assert_eq!(received["last"][0]["message"]["agent_id"], "a2");
    let both = control.get("/received?rpc=ProxyRegister").await;
    assert_eq!(both["last"][0]["message"]["enrollment_token_bytes"], 12);
    assert_eq!(both["last"][0]["message"]["csr_bytes"], 10);
    assert!(!both.to_string().contains("s3cret"));
    let raw = control
        .get("/received?rpc=NotifyStreamStatus&raw=true")
        .await;
    let hex = raw["last"][0]["raw_hex"].as_str().unwrap();
    assert!(
        hex.starts_with("0a026131"),
        "field 1, two bytes, `a1`: {hex}"
    );
}

#[tokio::test]
async fn rules_are_added_listed_fired_and_removed() {
    let mut control = start_control().await;
    let rule = json!({
        "rpc": "ProxyRegister", "action": "status", "code": "UNAVAILABLE", "times": 2,
    });
    let id = control.post("/faults", rule).await["id"].clone();
    let status = control
        .client
        .proxy_register(registration("a1"))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let rules = control.get("/faults").await;
    assert_eq!(
        (&rules["faults"][0]["fired"], &rules["faults"][0]["times"]),
        (&json!(1), &json!(2))
    );
    let (_, removed) = control.ask("DELETE", &format!("/faults?id={id}"), "").await;
    assert_eq!(removed, json!({ "removed": 1 }));
    enrol(&mut control.client, "a1").await;

    control
        .post(
            "/faults",
            json!({ "rpc": "ProxyInventory", "action": "hang" }),
        )
        .await;
    let mut hanging = control.client.clone();
    let call = tokio::spawn(async move {
        hanging
            .proxy_inventory(InventoryReport::default())
            .await
            .unwrap()
            .into_inner()
            .received
    });
    let hung =
        |s: &yuzu_server_stub::State| (s.counts(Rpc::ProxyInventory).hung == 1).then_some(());
    control
        .stub
        .wait_for("a hung report", SOON, hung)
        .await
        .unwrap();
    let released = control
        .post("/release", json!({ "rpc": "ProxyInventory" }))
        .await;
    assert_eq!(released, json!({ "released": 1 }));
    assert!(!call.await.unwrap(), "the session was unknown");
    let (_, removed) = control.ask("DELETE", "/faults?rpc=ProxyRegister", "").await;
    assert_eq!(removed, json!({ "removed": 0 }));
    let (_, removed) = control.ask("DELETE", "/faults", "").await;
    assert_eq!(removed, json!({ "removed": 1 }));
}

#[tokio::test]
async fn orders_reach_the_stub() {
    let mut control = start_control().await;
    let session = enrol(&mut control.client, "a1").await;
    let forgotten = control
        .post("/forget", json!({ "session_id": session }))
        .await;
    assert_eq!(forgotten, json!({ "was_known": true }));
    enrol(&mut control.client, "a2").await;
    let restart = control.post("/restart", json!({})).await;
    assert_eq!(restart, json!({ "forgotten_sessions": 1 }));
    assert_eq!(control.stub.view(|state| state.known_sessions()), 0);

    control
        .post(
            "/enrolment",
            json!({ "mode": "tokens", "tokens": ["good"] }),
        )
        .await;
    let refused = control
        .client
        .proxy_register(registration("a3"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(refused.reject_reason, "invalid token");
    control.post("/enrolment", json!({ "mode": "open" })).await;
    enrol(&mut control.client, "a3").await;

    control.post("/stream-limit", json!({ "limit": 9 })).await;
    let in_force =
        |s: &yuzu_server_stub::State| (s.connections()[0].stream_limit == 9).then_some(());
    control
        .stub
        .wait_for("a stream limit of 9", SOON, in_force)
        .await
        .unwrap();
    let dropped = control.post("/drop-connections", json!({})).await;
    assert_eq!(dropped, json!({ "dropped": 1 }));
    let closed = |s: &yuzu_server_stub::State| s.connections().is_empty().then_some(());
    control
        .stub
        .wait_for("the end of the connection", SOON, closed)
        .await
        .unwrap();
    dial(&control.stub).await;
    let (_, answer) = control
        .ask("POST", "/restart", r#"{"drop_connections":true}"#)
        .await;
    assert_eq!(answer["forgotten_sessions"], 1);
    control
        .stub
        .wait_for("the end of the connection", SOON, closed)
        .await
        .unwrap();
}

#[tokio::test]
async fn bad_input_is_a_400_that_names_the_field_and_the_fix() {
    let control = start_control().await;
    let cases = [
        ("POST", "/faults", "{", "body"),
        ("POST", "/faults", "[]", "body"),
        (
            "POST",
            "/faults",
            r#"{"rpc":"Register","action":"hang"}"#,
            "rpc",
        ),
        (
            "POST",
            "/faults",
            r#"{"rpc":"ProxyRegister","action":"nap"}"#,
            "action",
        ),
        (
            "POST",
            "/faults",
            r#"{"rpc":"ProxyRegister","action":"hang","time":3}"#,
            "time",
        ),
        ("POST", "/stream-limit", "{}", "limit"),
        ("POST", "/stream-limit", r#"{"limit":-1}"#, "limit"),
        ("POST", "/stream-limit", r#"{"limit":4294967295}"#, "limit"),
        ("POST", "/enrolment", r#"{"mode":"closed"}"#, "mode"),
        ("POST", "/enrolment", r#"{"mode":"tokens"}"#, "tokens"),
        (
            "POST",
            "/enrolment",
            r#"{"mode":"open","tokens":["s3cret"]}"#,
            "tokens",
        ),
        (
            "POST",
            "/restart",
            r#"{"drop_connections":"yes"}"#,
            "drop_connections",
        ),
        ("POST", "/forget", "{}", "session_id"),
        ("POST", "/release", r#"{"rpc":7}"#, "rpc"),
        ("POST", "/drop-connections", r#"{"all":true}"#, "all"),
        ("GET", "/received", "", "rpc"),
        ("GET", "/received?rpc=ProxyRegister&limit=0", "", "limit"),
        ("GET", "/routes?state=lost", "", "state"),
        ("GET", "/state?verbose", "", "verbose"),
        ("DELETE", "/faults?id=x", "", "id"),
        ("DELETE", "/faults?id=1&rpc=ProxyRegister", "", "rpc"),
    ];
    for (method, target, body, field) in cases {
        let (status, answer) = control.ask(method, target, body).await;
        assert_eq!(
            (status, &answer["field"]),
            (400, &json!(field)),
            "{method} {target} {body}"
        );
        assert!(
            answer["fix"].as_str().is_some_and(|fix| !fix.is_empty()),
            "{answer}"
        );
        assert!(!answer.to_string().contains("s3cret"));
    }
    for (method, path) in [
        ("GET", "/"),
        ("PUT", "/faults"),
        ("GET", "/restart"),
        ("POST", "/x"),
    ] {
        let (status, answer) = control.ask(method, path, "").await;
        assert_eq!(status, 404, "{method} {path}");
        assert!(answer["fix"].as_str().unwrap().contains("/stream-limit"));
    }
    assert_eq!(control.stub.view(|state| state.faults().count()), 0);
}
