//! An HTTP/2 client by hand, for what a library would not send or show.

use std::collections::VecDeque;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use yuzu_server_stub::StubServer;

pub(crate) const SETTINGS: u8 = 4;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const PING: u8 = 6;
pub(crate) const ACK: u8 = 1;

#[derive(Debug, PartialEq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// Value of `SETTINGS_MAX_CONCURRENT_STREAMS`.
    pub(crate) fn stream_limit(&self) -> Option<u32> {
        let plain_settings = self.kind == SETTINGS && self.flags & ACK == 0;
        let pairs = plain_settings.then(|| self.payload.chunks(6))?;
        let found = pairs.into_iter().find(|pair| pair[..2] == [0, 3])?;
        Some(u32::from_be_bytes(found[2..].try_into().unwrap()))
    }
}

pub(crate) struct RawPeer {
    stream: TcpStream,
    skipped: VecDeque<Frame>,
}

impl RawPeer {
    /// Connects and sends the preface with an empty SETTINGS frame.
    pub(crate) async fn connect(server: &StubServer) -> RawPeer {
        let mut stream = TcpStream::connect(server.addr()).await.unwrap();
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await
            .unwrap();
        let mut peer = RawPeer {
            stream,
            skipped: VecDeque::new(),
        };
        peer.send(SETTINGS, 0, 0, &[]).await;
        peer
    }

    pub(crate) async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// A gRPC request with an empty message.
    pub(crate) async fn call(&mut self, stream: u32, path: &str) {
        let mut block = Vec::new();
        let headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "stub"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        for (name, value) in headers {
            block.push(0);
            for text in [name, value] {
                block.push(u8::try_from(text.len()).unwrap());
                block.extend(text.as_bytes());
            }
        }
        self.send(1, 4, stream, &block).await;
        self.send(0, 1, stream, &[0; 5]).await;
    }

    async fn next(&mut self) -> Frame {
        let mut header = [0; 9];
        self.stream.read_exact(&mut header).await.unwrap();
        let len = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let mut payload = vec![0; len as usize];
        self.stream.read_exact(&mut payload).await.unwrap();
        let stream = u32::from_be_bytes(header[5..].try_into().unwrap());
        Frame {
            kind: header[3],
            flags: header[4],
            stream,
            payload,
        }
    }

    /// The next frame that `wanted` picks; others are kept for later calls.
    pub(crate) async fn expect(&mut self, wanted: impl Fn(&Frame) -> bool) -> Frame {
        if let Some(at) = self.skipped.iter().position(&wanted) {
            return self.skipped.remove(at).unwrap();
        }
        let search = async {
            loop {
                let frame = self.next().await;
                if wanted(&frame) {
                    return frame;
                }
                self.skipped.push_back(frame);
            }
        };
        tokio::time::timeout(super::SOON, search)
            .await
            .expect("frame did not come")
    }
}

/// Calls an RPC with these message bytes; returns the answer's bytes as they came.
pub(crate) async fn call_with_bytes(server: &StubServer, path: &str, message: &[u8]) -> Vec<u8> {
    let stream = TcpStream::connect(server.addr()).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post(format!("{}{path}", server.uri()))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let (response, mut body) = client.send_request(request, false).unwrap();
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend(message);
    body.send_data(Bytes::from(framed), true).unwrap();
    let mut answer = response.await.unwrap().into_body();
    let mut bytes = Vec::new();
    while let Some(data) = answer.data().await {
        bytes.extend(data.unwrap());
    }
    let trailers = answer.trailers().await.unwrap().expect("trailers");
    assert_eq!(trailers["grpc-status"], "0");
    bytes.split_off(5)
}
