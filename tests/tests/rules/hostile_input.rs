//! Bad input: a status from the contract or a closed connection, never a panic, and nobody else
//! notices.

use crate::support::{command, serve_one, soon};
use bytes::Bytes;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use yuzu_proto::path;
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::operator::Operator;
use yuzu_tests::raw::{CallError, Connection, Options, Request, code, frame};
use yuzu_tests::testbed::{Setup, TestBed};

/// A good agent and a good operator beside the bad peer.
struct Witness {
    agent: Agent,
    operator: Operator,
    turns: u32,
}

impl Witness {
    async fn of(bed: &TestBed) -> Self {
        Self {
            agent: bed.agent("witness").await,
            operator: bed.operator().await,
            turns: 0,
        }
    }

    /// A command goes through, a heartbeat is acknowledged.
    async fn is_well(&mut self) {
        self.turns += 1;
        let id = format!("well-{}", self.turns);
        let mut fanout = self
            .operator
            .send(&["witness"], command(&id), 20)
            .await
            .unwrap();
        serve_one(&mut self.agent).await;
        let (entries, status) = fanout.rest().await.unwrap();
        assert!(entries.len() == 1 && entries[0].response.output == "done" && status.is_ok());
        assert!(self.agent.heartbeat().await.unwrap().status.is_ok());
    }
}

/// Random bytes that are the same in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = self.next() as usize % (most + 1);
        (0..length).map(|_| self.next() as u8).collect()
    }
}

async fn connect(address: std::net::SocketAddr) -> Connection {
    Connection::open(address, &Options::default())
        .await
        .unwrap()
}

const AGENT_CALLS: [&str; 3] = [path::REGISTER, path::HEARTBEAT, path::REPORT_INVENTORY];
const OPERATOR_CALLS: [&str; 5] = [
    path::LIST_AGENTS,
    path::GET_AGENT,
    path::SEND_COMMAND,
    path::WATCH_EVENTS,
    path::QUERY_INVENTORY,
];

/// Statuses that the contract knows for a call whose message is noise.
const KNOWN: [u16; 7] = [0, 3, 5, 8, 12, 13, 14];

#[tokio::test]
async fn random_bytes_as_any_message_on_any_call_get_a_status() {
    let bed = TestBed::start().await;
    let mut witness = Witness::of(&bed).await;
    let (agents, operators) = (connect(bed.agents()).await, connect(bed.operators()).await);
    let mut noise = Noise(0x5eed_0001);
    for round in 0..200 {
        for path in AGENT_CALLS {
            let call = Request::new(path).timeout(PATIENCE);
            let answer = agents.unary(call, &noise.bytes(200)).await;
            let status = answer
                .unwrap_or_else(|e| panic!("{path}, round {round}: {e}"))
                .status;
            assert!(
                KNOWN.contains(&status.code),
                "{path}, round {round}: {status}"
            );
        }
        for path in OPERATOR_CALLS {
            let call = Request::new(path);
            let started = operators.server_stream(call, &noise.bytes(200)).await;
            let mut receiver = started.unwrap_or_else(|e| panic!("{path}, round {round}: {e}"));
            // A watch that noise happens to describe stays open; that is an answer too.
            let ended = tokio::time::timeout(Duration::from_millis(20), receiver.finish()).await;
            if let Ok(status) = ended {
                let status = status.unwrap_or_else(|e| panic!("{path}, round {round}: {e}"));
                assert!(
                    KNOWN.contains(&status.code),
                    "{path}, round {round}: {status}"
                );
            }
        }
    }
    witness.is_well().await;
}

#[tokio::test]
async fn random_bytes_as_a_frame_of_a_subscribe_stream_end_that_stream_only() {
    let bed = TestBed::start().await;
    let mut witness = Witness::of(&bed).await;
    let mut noise = Noise(0x5eed_0002);
    for round in 0..50 {
        let mut agent = bed.bare_agent("noisy").await;
        agent.register().await.unwrap();
        agent.subscribe().await.unwrap();
        let (sender, mut receiver) = agent.take_stream().unwrap();
        // A field that ends in the middle: no parser takes it.
        let mut message = noise.bytes(100);
        message.extend([0x0a, 0x7f]);
        sender.send(&message).await.unwrap();
        let status = soon("the end of the stream", receiver.finish()).await;
        let status = status.unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert!(
            KNOWN.contains(&status.code) && !status.is_ok(),
            "round {round}: {status}"
        );
        assert!(!agent.connection.is_closed(), "the connection lives on");
    }
    witness.is_well().await;
}

#[tokio::test]
async fn random_bytes_as_the_body_of_any_call_get_a_status_or_a_reset() {
    let bed = TestBed::start().await;
    let mut witness = Witness::of(&bed).await;
    let mut noise = Noise(0x5eed_0003);
    let (agents, operators) = (connect(bed.agents()).await, connect(bed.operators()).await);
    for _ in 0..100 {
        for (connection, path) in [(&agents, path::REGISTER), (&operators, path::SEND_COMMAND)] {
            let call = Request::new(path).timeout(PATIENCE);
            match connection.unary_framed(call, noise.bytes(60).into()).await {
                Ok(answer) => assert!(KNOWN.contains(&answer.status.code), "{}", answer.status),
                Err(CallError::Reset(_)) => {}
                Err(error) => panic!("{path}: {error}"),
            }
        }
    }
    witness.is_well().await;
}

#[tokio::test]
async fn a_message_over_the_limit_is_8_and_nothing_else_breaks() {
    let limit = 64 << 10;
    let setup = Setup::default().agent_listener(|l| l.limits.max_message_bytes = limit);
    let bed = setup.start().await;
    let mut witness = Witness::of(&bed).await;
    for path in AGENT_CALLS {
        let call = Request::new(path).timeout(PATIENCE);
        let large = vec![0; limit + 1];
        // On the witness's own connection.
        let answer = witness.agent.connection.unary(call, &large).await.unwrap();
        assert_eq!(
            answer.status.code,
            code::RESOURCE_EXHAUSTED,
            "{path}: {}",
            answer.status
        );
    }
    witness.is_well().await;
    // The declared length alone is enough.
    let call = Request::new(path::REGISTER).timeout(PATIENCE);
    let (sender, started) = witness.agent.connection.begin_stream(&call);
    sender
        .send_raw(Bytes::from_static(&[0, 0x7f, 0xff, 0xff, 0xff]))
        .await
        .unwrap();
    let mut receiver = soon("the refusal", started).await.unwrap();
    let status = soon("the status", receiver.finish()).await.unwrap();
    assert_eq!(status.code, code::RESOURCE_EXHAUSTED, "{status}");
    witness.is_well().await;
}

#[tokio::test]
async fn a_message_of_exactly_the_limit_is_taken() {
    let limit = 64 << 10;
    let setup = Setup::default().agent_listener(|l| l.limits.max_message_bytes = limit);
    let bed = setup.start().await;
    let agent = bed.agent("a").await;
    let mut message = prost::Message::encode_to_vec(&yuzu_proto::agent::v1::HeartbeatRequest {
        session_id: agent.session_id.clone(),
        ..Default::default()
    });
    // fleet_snapshot_json fills the rest; three bytes of length.
    let rest = limit - message.len() - 4;
    message.extend([0x22]);
    prost::encoding::encode_varint(rest as u64, &mut message);
    message.resize(limit, b'x');
    assert_eq!(message.len(), limit);
    assert!(agent.heartbeat_raw(&message).await.unwrap().status.is_ok());
}

#[tokio::test]
async fn a_frame_over_the_limit_on_a_subscribe_stream_ends_it_with_8() {
    let limit = 64 << 10;
    let setup = Setup::default().agent_listener(|l| l.limits.max_message_bytes = limit);
    let bed = setup.start().await;
    let mut witness = Witness::of(&bed).await;
    let mut agent = bed.agent("a").await;
    let (sender, mut receiver) = agent.take_stream().unwrap();
    let large = vec![0; limit + 1];
    let sending = sender.send(&large);
    let (_, status) = soon("the end", async {
        tokio::join!(sending, receiver.finish())
    })
    .await;
    assert_eq!(status.unwrap().code, code::RESOURCE_EXHAUSTED);
    witness.is_well().await;
}

#[tokio::test]
async fn a_compressed_message_and_a_message_cut_short_get_a_status() {
    let bed = TestBed::start().await;
    let mut witness = Witness::of(&bed).await;
    let agents = connect(bed.agents()).await;
    let mut compressed = frame(b"abc").to_vec();
    compressed[0] = 1;
    let call = || Request::new(path::REGISTER).timeout(PATIENCE);
    let answer = agents
        .unary_framed(call(), compressed.into())
        .await
        .unwrap();
    assert_eq!(answer.status.code, code::UNIMPLEMENTED, "{}", answer.status);
    for body in [&b""[..], b"\0\0", b"\0\0\0\0\x09abc"] {
        let body = Bytes::copy_from_slice(body);
        let answer = agents.unary_framed(call(), body).await.unwrap();
        assert_eq!(answer.status.code, code::INTERNAL, "{}", answer.status);
    }
    witness.is_well().await;
}

#[tokio::test]
async fn a_request_body_that_never_ends_is_4_and_other_calls_live_on() {
    let setup =
        Setup::default().agent_listener(|l| l.limits.request_timeout = Duration::from_millis(300));
    let bed = setup.start().await;
    let mut witness = Witness::of(&bed).await;
    let (sender, started) = witness
        .agent
        .connection
        .begin_stream(&Request::new(path::REGISTER));
    sender
        .send_raw(Bytes::from_static(b"\0\0\0"))
        .await
        .unwrap();
    let mut receiver = soon("the answer", started).await.unwrap();
    let status = soon("the status", receiver.finish()).await.unwrap();
    assert_eq!(status.code, code::DEADLINE_EXCEEDED, "{status}");
    assert_eq!(bed.metric("grpc_recv_timeout_total", &[]).await, 1.0);
    // LSN-7 does not touch the witness's stream, which has been silent for longer than that.
    witness.is_well().await;
}

#[tokio::test]
async fn a_grpc_timeout_that_is_none_does_not_matter() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("a").await;
    let message = prost::Message::encode_to_vec(&agent.register_request());
    for value in [&b"soon"[..], b"", b"99999999999S", b"-1S", b"1X", b"\xff"] {
        let call = Request::new(path::REGISTER).metadata("grpc-timeout", value);
        let answer = soon("an answer", agent.connection.unary(call, &message))
            .await
            .unwrap();
        assert!(answer.status.is_ok(), "{value:?}: {}", answer.status);
    }
}

#[tokio::test]
async fn http_1_on_the_port_is_closed_and_nobody_else_notices() {
    let bed = TestBed::start().await;
    let mut witness = Witness::of(&bed).await;
    for address in [bed.agents(), bed.operators()] {
        let mut tcp = TcpStream::connect(address).await.unwrap();
        tcp.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        let mut answer = Vec::new();
        // The end may be a reset, since what was sent is not all read.
        let _ = soon("the end of the connection", tcp.read_to_end(&mut answer)).await;
        let text = String::from_utf8_lossy(&answer);
        assert!(!text.contains("200"), "{text}");
    }
    witness.is_well().await;
}

#[tokio::test]
async fn half_a_preface_and_noise_on_the_socket_harm_nobody() {
    let bed = TestBed::start().await;
    let mut witness = Witness::of(&bed).await;
    let mut noise = Noise(0x5eed_0004);
    let half = &b"PRI * HTTP/2.0\r\n"[..];
    // One stays open for the whole test, the others are closed by the peer.
    let mut waiting = TcpStream::connect(bed.agents()).await.unwrap();
    waiting.write_all(half).await.unwrap();
    for _ in 0..20 {
        let mut closed = TcpStream::connect(bed.agents()).await.unwrap();
        closed.write_all(half).await.unwrap();
        drop(closed);
        let mut noisy = TcpStream::connect(bed.agents()).await.unwrap();
        noisy
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await
            .unwrap();
        let mut bytes = noise.bytes(400);
        bytes.resize(bytes.len().max(50), 0xff);
        // The gateway may have closed it already.
        let _ = noisy.write_all(&bytes).await;
    }
    witness.is_well().await;
}

#[tokio::test]
async fn a_call_that_is_no_grpc_is_answered_415() {
    let bed = TestBed::start().await;
    let agents = connect(bed.agents()).await;
    let call = Request::new(path::REGISTER)
        .timeout(PATIENCE)
        .content_type(b"application/json");
    let answer = agents.unary(call, b"{}").await;
    assert!(
        matches!(&answer, Err(CallError::Http(status)) if status.as_u16() == 415),
        "{answer:?}"
    );
}
