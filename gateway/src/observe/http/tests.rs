//! Bytes in, bytes out.

use std::sync::Mutex;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::*;

fn routes() -> Routes {
    Routes::new()
        .get("/healthz", || {
            Reply::json(StatusCode::OK, &json!({ "status": "ok" }))
        })
        .get_heavy("/metrics", || Reply {
            status: StatusCode::OK,
            content_type: "text/plain; version=0.0.4",
            body: "a 1\n".into(),
        })
        .get_heavy("/broken", || panic!("a handler that panics"))
}

/// Serves one connection in memory, without a socket, and returns the peer's end of it.
fn connected(buffer: usize) -> (DuplexStream, JoinHandle<()>) {
    let (client, server) = duplex(buffer);
    let serving = tokio::spawn(async move { serve(server, &routes()).await });
    (client, serving)
}

async fn exchange(request: &str) -> String {
    let (mut client, serving) = connected(1 << 20);
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    serving.await.unwrap();
    answer
}

fn has(answer: &str, header: &str) -> bool {
    let head = answer.split("\r\n\r\n").next().unwrap();
    head.lines()
        .skip(1)
        .any(|line| line.eq_ignore_ascii_case(header))
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

#[tokio::test]
async fn ready_6_answers_are_json_and_close_the_connection() {
    let answer = exchange("GET /healthz?x=1 HTTP/1.1\r\nHost: gw\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(has(&answer, "content-type: application/json"), "{answer}");
    assert!(has(&answer, "connection: close"), "{answer}");
    assert!(has(&answer, "content-length: 15"), "{answer}");
    assert_eq!(body(&answer), r#"{"status":"ok"}"#);
}

#[tokio::test]
async fn ready_6_another_path_is_404_not_found() {
    for path in ["/", "/healthz/", "/metrics2", "/%68ealthz"] {
        let answer = exchange(&format!("GET {path} HTTP/1.1\r\nHost: gw\r\n\r\n")).await;
        assert!(
            answer.starts_with("HTTP/1.1 404 Not Found\r\n"),
            "{path}: {answer}"
        );
        assert!(has(&answer, "content-type: application/json"), "{answer}");
        assert!(has(&answer, "connection: close"), "{answer}");
        assert_eq!(body(&answer), r#"{"status":"not_found"}"#);
    }
}

#[tokio::test]
async fn another_method_is_405_and_names_the_allowed_ones() {
    let answer =
        exchange("POST /healthz HTTP/1.1\r\nHost: gw\r\nContent-Length: 2\r\n\r\nhi").await;
    assert!(
        answer.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"),
        "{answer}"
    );
    assert!(has(&answer, "allow: GET, HEAD"), "{answer}");
    assert_eq!(body(&answer), r#"{"status":"method_not_allowed"}"#);
}

#[tokio::test]
async fn head_has_the_header_of_get_without_the_body() {
    let answer = exchange("HEAD /metrics HTTP/1.1\r\nHost: gw\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(
        has(&answer, "content-type: text/plain; version=0.0.4"),
        "{answer}"
    );
    assert!(has(&answer, "content-length: 4"), "{answer}");
    assert_eq!(body(&answer), "");
}

#[tokio::test]
async fn a_second_request_on_the_connection_is_not_answered() {
    let request = "GET /metrics HTTP/1.1\r\nHost: gw\r\n\r\n";
    let answer = exchange(&request.repeat(2)).await;
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 1, "{answer}");
    assert_eq!(body(&answer), "a 1\n");
}

#[tokio::test]
async fn a_handler_that_panics_is_answered_500() {
    let answer = exchange("GET /broken HTTP/1.1\r\nHost: gw\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    assert_eq!(body(&answer), r#"{"status":"internal"}"#);
}

#[tokio::test]
async fn a_head_that_is_too_large_or_no_http_is_refused() {
    let large = format!("GET /healthz HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    assert!(exchange(&large).await.starts_with("HTTP/1.1 431 "));
    let many = format!("GET /healthz HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(65));
    assert!(exchange(&many).await.starts_with("HTTP/1.1 431 "));
    assert!(
        exchange("\x16\x03\x01\x02\0\x01\0\x01\n\n")
            .await
            .starts_with("HTTP/1.1 400 ")
    );
}

#[tokio::test(start_paused = true)]
async fn ready_6_a_request_that_trickles_in_is_cut_after_two_seconds() {
    let (mut client, serving) = connected(1 << 20);
    let start = Instant::now();
    let trickle = async {
        client
            .write_all(b"GET /healthz HTTP/1.1\r\n")
            .await
            .unwrap();
        while client.write_all(b"X: y\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    trickle.await;
    serving.await.unwrap();
    assert!((Duration::from_secs(2)..Duration::from_millis(2400)).contains(&start.elapsed()));
}

#[tokio::test(start_paused = true)]
async fn ready_6_a_peer_that_says_nothing_is_cut_after_two_seconds() {
    let (mut client, serving) = connected(1 << 20);
    let start = Instant::now();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    serving.await.unwrap();
    assert!(answer.is_empty());
    assert_eq!(start.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn ready_6_a_peer_that_does_not_read_is_cut_after_two_seconds() {
    let (mut client, serving) = connected(48);
    let start = Instant::now();
    client
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: gw\r\n\r\n")
        .await
        .unwrap();
    serving.await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 2);
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

async fn get(address: SocketAddr, path: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    send(&mut socket, path).await;
    answer_of(&mut socket).await
}

async fn send(socket: &mut TcpStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: gw\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
}

async fn answer_of(socket: &mut TcpStream) -> String {
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_port_is_served_until_it_is_stopped() {
    let server = HttpServer::start(bind(loopback()).unwrap(), routes()).unwrap();
    let address = server.local_addr();
    assert_ne!(address.port(), 0);
    assert!(
        get(address, "/healthz")
            .await
            .starts_with("HTTP/1.1 200 OK")
    );
    assert!(get(address, "/metrics").await.ends_with("a 1\n"));
    assert!(bind(address).is_err(), "the port is taken");
    server.stop().await;
    assert!(TcpStream::connect(address).await.is_err());
    let again = HttpServer::start(bind(address).unwrap(), routes()).unwrap();
    assert!(
        get(address, "/healthz")
            .await
            .starts_with("HTTP/1.1 200 OK")
    );
    again.stop().await;
}

#[tokio::test]
async fn stopping_lets_an_open_request_end() {
    let server = HttpServer::start(bind(loopback()).unwrap(), routes()).unwrap();
    let mut early = TcpStream::connect(server.local_addr()).await.unwrap();
    early.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
    // An answer to a later connection shows that the earlier one was accepted.
    get(server.local_addr(), "/healthz").await;
    let ((), answer) = tokio::join!(server.stop(), async {
        early.write_all(b"Host: gw\r\n\r\n").await.unwrap();
        answer_of(&mut early).await
    });
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

#[tokio::test]
async fn ready_6_a_65th_connection_waits_for_a_place() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let note = |word: &'static str| {
        let asked = asked.clone();
        move || {
            asked.lock().unwrap().push(word);
            Reply::json(StatusCode::OK, &json!({}))
        }
    };
    let routes = Routes::new()
        .get("/first", note("first"))
        .get("/late", note("late"));
    let server = HttpServer::start(bind(loopback()).unwrap(), routes).unwrap();
    let mut open = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        open.push(TcpStream::connect(server.local_addr()).await.unwrap());
    }
    let mut late = TcpStream::connect(server.local_addr()).await.unwrap();
    send(&mut late, "/late").await;
    // Each round trip to another port gives this one the chance to serve the late request.
    let witness = HttpServer::start(bind(loopback()).unwrap(), self::routes()).unwrap();
    for _ in 0..20 {
        get(witness.local_addr(), "/healthz").await;
    }
    assert!(asked.lock().unwrap().is_empty());

    send(&mut open[0], "/first").await;
    assert!(answer_of(&mut open[0]).await.starts_with("HTTP/1.1 200 OK"));
    assert!(answer_of(&mut late).await.starts_with("HTTP/1.1 200 OK"));
    assert_eq!(*asked.lock().unwrap(), ["first", "late"]);
    drop(open);
    server.stop().await;
}
