//! ORIGIN: where a call comes from, behind a proxy and without one.

use crate::support::soon;
use prost::Message;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use yuzu_gateway::config::{CallerOrigin, OriginMode, OriginSource};
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_proto::path;
use yuzu_server_stub::Rpc;
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::raw::{self, Request};
use yuzu_tests::testbed::{Setup, TestBed};

/// A listener that believes `source`.
async fn bed(mode: OriginMode, source: &str, trusted_hops: usize) -> TestBed {
    let sources = vec![OriginSource::parse(source).unwrap()];
    let setup = Setup::default().agent_listener(|listener| {
        listener.origin = CallerOrigin {
            mode,
            sources,
            trusted_hops,
        };
        listener.limits.proxy_header_timeout = Duration::from_millis(300);
    });
    setup.start().await
}

async fn behind(bed: &TestBed, header: &[u8]) -> Agent {
    let options = raw::Options {
        preamble: header.to_vec(),
        ..raw::Options::default()
    };
    let agent = Agent::connect_with(bed.agents(), "a", &options).await;
    agent.unwrap()
}

/// The `gateway_observed_peer` of the last Register that the server got.
fn observed(bed: &TestBed) -> String {
    let received = bed.server.received(Rpc::ProxyRegister);
    let request = received.last().unwrap().register().unwrap();
    request.gateway_observed_peer
}

async fn ignored(bed: &TestBed, mode: &str) -> [f64; 3] {
    let mut counts = [0.0; 3];
    let reasons = ["untrusted_source", "no_claim", "bad_claim"];
    for (count, reason) in counts.iter_mut().zip(reasons) {
        let labels = [("mode", mode), ("reason", reason)];
        *count = bed.metric("grpc_origin_ignored_total", &labels).await;
    }
    counts
}

const V1: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 50051\r\n";

#[tokio::test]
async fn origin_3_6_a_proxy_names_the_client_in_every_register_and_notice() {
    let bed = bed(OriginMode::ProxyProtocol, "127.0.0.0/8", 0).await;
    let mut agent = behind(&bed, V1).await;
    agent.register().await.unwrap();
    assert_eq!(observed(&bed), "192.0.2.7");
    agent.subscribe().await.unwrap();
    let notice = bed.notice(Event::Connected, &agent.session_id).await;
    assert_eq!(notice.peer_addr, "192.0.2.7");
    assert_eq!(ignored(&bed, "proxy_protocol").await, [0.0; 3]);
}

#[tokio::test]
async fn origin_2_a_header_of_an_unlisted_source_is_read_and_ignored() {
    let bed = bed(OriginMode::ProxyProtocol, "10.0.0.1", 0).await;
    let mut agent = behind(&bed, V1).await;
    agent.register().await.unwrap();
    assert_eq!(observed(&bed), "127.0.0.1");
    assert_eq!(ignored(&bed, "proxy_protocol").await, [1.0, 0.0, 0.0]);
    assert!(agent.heartbeat().await.is_ok());
    let [untrusted, ..] = ignored(&bed, "proxy_protocol").await;
    assert_eq!(untrusted, 2.0, "ORIGIN-5: each call counts");
}

#[tokio::test]
async fn origin_3_6_local_names_nobody_and_unix_badly() {
    let bed = bed(OriginMode::ProxyProtocol, "127.0.0.1", 0).await;
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    let mut agent = behind(&bed, local).await;
    agent.register().await.unwrap();
    assert_eq!(observed(&bed), "");
    agent.subscribe().await.unwrap();
    let notice = bed.notice(Event::Connected, &agent.session_id).await;
    assert_eq!(notice.peer_addr, "unknown");
    assert_eq!(ignored(&bed, "proxy_protocol").await, [0.0, 2.0, 0.0]);

    let unspecified = b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0";
    let mut agent = behind(&bed, unspecified).await;
    agent.register().await.unwrap();
    assert_eq!(observed(&bed), "");
    assert_eq!(ignored(&bed, "proxy_protocol").await, [0.0, 2.0, 1.0]);
}

/// Reads until the gateway closes.
async fn closed(mut socket: TcpStream) {
    let mut rest = Vec::new();
    match soon("the end of the connection", socket.read_to_end(&mut rest)).await {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
    }
    assert_eq!(rest, b"");
}

#[tokio::test]
async fn origin_6_lsn_3_without_a_whole_header_in_time_the_connection_is_closed() {
    let bed = bed(OriginMode::ProxyProtocol, "127.0.0.1", 0).await;
    let wrong: [(&[u8], &str); 4] = [
        (b"", "timeout"),
        (&V1[..20], "timeout"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "malformed"),
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00",
            "malformed",
        ),
    ];
    for (bytes, kind) in wrong {
        let labels = [("listener", "agent"), ("kind", kind)];
        let name = "listener_proxy_header_failures_total";
        let before = bed.metric(name, &labels).await;
        let mut socket = TcpStream::connect(bed.agents()).await.unwrap();
        socket.write_all(bytes).await.unwrap();
        closed(socket).await;
        bed.metric_becomes(name, &labels, before + 1.0).await;
    }
    assert_eq!(ignored(&bed, "proxy_protocol").await, [0.0; 3], "ORIGIN-5");
    bed.metric_becomes("listener_connections", &[("listener", "agent")], 0.0)
        .await;
}

#[tokio::test]
async fn origin_7_a_router_names_the_client_in_a_header() {
    let bed = bed(OriginMode::ForwardedFor, "127.0.0.1", 1).await;
    let agent = Agent::connect(bed.agents(), "a").await.unwrap();
    let register = async |claim: Option<&[u8]>| {
        let mut call = Request::new(path::REGISTER).timeout(PATIENCE);
        if let Some(claim) = claim {
            call = call.metadata("x-forwarded-for", claim);
        }
        let request = agent.register_request().encode_to_vec();
        let answer = agent.connection.unary(call, &request).await.unwrap();
        assert!(answer.status.is_ok());
        observed(&bed)
    };
    assert_eq!(
        register(Some(b"6.6.6.6, 192.0.2.7, 10.0.0.2")).await,
        "192.0.2.7"
    );
    assert_eq!(register(Some(b"192.0.2.7")).await, "");
    assert_eq!(register(None).await, "");
    assert_eq!(ignored(&bed, "forwarded_for").await, [0.0, 1.0, 1.0]);
}

#[tokio::test]
async fn origin_1_a_header_means_nothing_on_a_plain_listener() {
    let bed = TestBed::start().await;
    let agent = Agent::connect(bed.agents(), "a").await.unwrap();
    let call = Request::new(path::REGISTER).timeout(PATIENCE);
    let call = call.metadata("x-forwarded-for", b"192.0.2.7");
    let request = agent.register_request().encode_to_vec();
    let answer = agent.connection.unary(call, &request).await.unwrap();
    assert!(answer.status.is_ok());
    assert_eq!(observed(&bed), "127.0.0.1");
}
