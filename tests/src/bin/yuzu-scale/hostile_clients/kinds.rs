//! What each kind of hostile client does on one connection.

use super::attack::Governor;
use prost::Message;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{interval, sleep};
use yuzu_proto::agent::v1::{AgentInfo, HeartbeatRequest, RegisterRequest, RegisterResponse};
use yuzu_proto::{SESSION_HEADER, path};
use yuzu_tests::frames::{
    CONTINUATION, DATA, END_HEADERS, Frame, HEADERS, INITIAL_WINDOW_SIZE, Peer, literal,
    request_headers,
};
use yuzu_tests::raw::Tls;

/// Whom the forged PROXY header names.
pub(super) const FORGED: &str = "203.0.113.7";
/// Streams that a connection may have, by the gateway's default.
const STREAMS: u32 = 32;
const MESSAGE: u32 = 4 << 20;
/// Streams or frames that a flood sends in one write.
const BURST: u32 = 50;

/// One kind of hostile client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    SilentAfterTcp,
    SilentAfterTls,
    Pings,
    HalfHeader,
    SlowMessage,
    Resets,
    Continuation,
    ZeroWindow,
    StalledStreams,
    ForgedProxy,
}

impl Kind {
    pub(super) const ALL: [Self; 10] = [
        Self::SilentAfterTcp,
        Self::SilentAfterTls,
        Self::Pings,
        Self::HalfHeader,
        Self::SlowMessage,
        Self::Resets,
        Self::Continuation,
        Self::ZeroWindow,
        Self::StalledStreams,
        Self::ForgedProxy,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::SilentAfterTcp => "silent after TCP",
            Self::SilentAfterTls => "silent after TLS",
            Self::Pings => "PING every second",
            Self::HalfHeader => "half a header",
            Self::SlowMessage => "4 MiB at a byte a second",
            Self::Resets => "reset flood",
            Self::Continuation => "CONTINUATION flood",
            Self::ZeroWindow => "zero window",
            Self::StalledStreams => "32 stalled streams",
            Self::ForgedProxy => "forged PROXY header",
        }
    }
}

/// Where one hostile client goes.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// The listener of the agents, with TLS.
    pub(super) agents: SocketAddr,
    /// A listener in mode `proxy_protocol` that believes nobody here.
    pub(super) proxied: SocketAddr,
    pub(super) tls: Tls,
}

/// One hostile client.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) kind: Kind,
    /// Among those of its kind.
    pub(super) number: u8,
    pub(super) target: Target,
}

impl Client {
    /// Connects and does what its kind does, until the other side ends it.
    ///
    /// # Errors
    /// When there is no connection, or it ends before the hostile part.
    pub(super) async fn attack(&self, governor: &Governor) -> Result<(), String> {
        match self.kind {
            Kind::ForgedProxy => {
                let socket = self.dial(self.target.proxied).await?;
                self.forged_proxy(socket).await
            }
            Kind::SilentAfterTcp => {
                let socket = self.dial(self.target.agents).await?;
                end_of(Peer::over(socket)).await;
                Ok(())
            }
            _ => {
                let socket = self.dial(self.target.agents).await?;
                let secured = self.target.tls.connect(socket).await;
                self.over_tls(Peer::over(secured.map_err(text)?), governor)
                    .await
            }
        }
    }

    /// From an address that no agent has.
    async fn dial(&self, to: SocketAddr) -> Result<TcpStream, String> {
        let source = IpAddr::from(Ipv4Addr::new(127, 9, self.kind as u8, self.number));
        let socket = TcpSocket::new_v4().map_err(text)?;
        // Thousands of short connections must not use up the ports of an address.
        socket.set_reuseaddr(true).map_err(text)?;
        socket.bind((source, 0).into()).map_err(text)?;
        let stream = socket.connect(to).await.map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        Ok(stream)
    }

    async fn over_tls<S: Carrier>(
        &self,
        mut peer: Peer<S>,
        governor: &Governor,
    ) -> Result<(), String> {
        if self.kind == Kind::SilentAfterTls {
            end_of(peer).await;
            return Ok(());
        }
        peer.begin(&[]).await.map_err(text)?;
        match self.kind {
            Kind::Pings => pings(peer).await,
            Kind::HalfHeader => half_header(peer).await,
            Kind::SlowMessage => slow_message(peer).await,
            Kind::Resets => resets(peer, governor).await,
            Kind::Continuation => continuation(peer, governor).await,
            Kind::StalledStreams => stalled_streams(peer).await,
            _ => return self.zero_window(peer).await,
        }
        Ok(())
    }

    /// Enrols like an agent, so that only the untaken answers speak against it: the window of every
    /// later stream is nothing.
    async fn zero_window<S: Carrier>(&self, mut peer: Peer<S>) -> Result<(), String> {
        let id = format!("zero-window-{}", self.number);
        let register = register(&id).encode_to_vec();
        let calls = [
            Frame::request(1, path::REGISTER, &[]),
            Frame::message(1, &register),
        ];
        peer.try_send(&calls).await.map_err(text)?;
        let answer = body_of(&mut peer, 1).await?;
        let answer = RegisterResponse::decode(&answer[..]).map_err(text)?;
        let session = answer.session_id;
        let subscribe = Frame::request(3, path::SUBSCRIBE, &[(SESSION_HEADER, &session)]);
        peer.try_send(&[subscribe]).await.map_err(text)?;
        let headers = |frame: &Frame| frame.kind == HEADERS && frame.stream == 3;
        until(&mut peer, headers).await?;
        let beat = HeartbeatRequest {
            session_id: session,
            ..HeartbeatRequest::default()
        };
        let mut frames = vec![Frame::settings(&[(INITIAL_WINDOW_SIZE, 0)])];
        for stream in (5..2 * STREAMS + 3).step_by(2) {
            frames.push(Frame::request(stream, path::HEARTBEAT, &[]));
            frames.push(Frame::message(stream, &beat.encode_to_vec()));
        }
        peer.try_send(&frames).await.map_err(text)?;
        end_of(peer).await;
        Ok(())
    }

    /// A header of the PROXY protocol from a source that is not listed, then a Register, which shows
    /// the server whom the gateway believes; then nothing.
    async fn forged_proxy(&self, mut socket: TcpStream) -> Result<(), String> {
        let header = format!("PROXY TCP4 {FORGED} 198.51.100.1 1024 443\r\n");
        socket.write_all(header.as_bytes()).await.map_err(text)?;
        let mut peer = Peer::over(socket);
        peer.begin(&[]).await.map_err(text)?;
        let register = register(&format!("forged-{}", self.number)).encode_to_vec();
        let call = [
            Frame::request(1, path::REGISTER, &[]),
            Frame::message(1, &register),
        ];
        peer.try_send(&call).await.map_err(text)?;
        body_of(&mut peer, 1).await?;
        end_of(peer).await;
        Ok(())
    }
}

/// What carries a peer's bytes.
trait Carrier: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Carrier for S {}

/// Reads until the other side closes, so that it is never held up by a full socket.
async fn end_of<S: Carrier>(mut peer: Peer<S>) {
    while peer.receive().await.is_some() {}
}

async fn pings<S: Carrier>(mut peer: Peer<S>) {
    let mut second = interval(Duration::from_secs(1));
    let mut number = 0;
    loop {
        tokio::select! {
            frame = peer.receive() => if frame.is_none() { return },
            _ = second.tick() => {
                number += 1;
                // The end of it shows when it is read.
                let _ = peer.try_send(&[Frame::ping(number)]).await;
            }
        }
    }
}

async fn half_header<S: Carrier>(mut peer: Peer<S>) {
    let block = request_headers(path::REGISTER, &[]);
    let mut frame = (block.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([HEADERS, END_HEADERS, 0, 0, 0, 1]);
    frame.extend(&block[..block.len() / 2]);
    let _ = peer.write(&frame).await;
    end_of(peer).await;
}

async fn slow_message<S: Carrier>(mut peer: Peer<S>) {
    let mut prefix = vec![0];
    prefix.extend(MESSAGE.to_be_bytes());
    let begin = [
        Frame::request(1, path::REGISTER, &[]),
        Frame::new(DATA, 0, 1, prefix),
    ];
    let _ = peer.try_send(&begin).await;
    let mut second = interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            frame = peer.receive() => if frame.is_none() { return },
            _ = second.tick() => {
                let _ = peer.try_send(&[Frame::new(DATA, 0, 1, [0])]).await;
            }
        }
    }
}

async fn stalled_streams<S: Carrier>(mut peer: Peer<S>) {
    let stalled: Vec<_> = (0..STREAMS)
        .map(|n| Frame::request(2 * n + 1, path::REGISTER, &[]))
        .collect();
    let _ = peer.try_send(&stalled).await;
    end_of(peer).await;
}

async fn resets<S: Carrier>(mut peer: Peer<S>, governor: &Governor) {
    let mut stream = 1;
    loop {
        let mut burst = Vec::new();
        for _ in 0..BURST {
            burst.push(Frame::request(stream, path::HEARTBEAT, &[]));
            burst.push(Frame::reset(stream));
            stream += 2;
        }
        if !sent(&mut peer, &burst).await {
            return;
        }
        governor.pause().await;
    }
}

async fn continuation<S: Carrier>(mut peer: Peer<S>, governor: &Governor) {
    let headers = request_headers(path::HEARTBEAT, &[]);
    if !sent(&mut peer, &[Frame::new(HEADERS, 0, 1, headers)]).await {
        return;
    }
    let frame = Frame::new(CONTINUATION, 0, 1, literal("x", "y"));
    let burst = vec![frame; BURST as usize];
    while sent(&mut peer, &burst).await {
        governor.pause().await;
    }
}

/// Whether the connection is there after these frames.
async fn sent<S: Carrier>(peer: &mut Peer<S>, frames: &[Frame]) -> bool {
    if peer.try_send(frames).await.is_err() {
        return false;
    }
    loop {
        tokio::select! {
            biased;
            frame = peer.receive() => if frame.is_none() { return false },
            () = tokio::task::yield_now() => return true,
        }
    }
}

fn register(id: &str) -> RegisterRequest {
    RegisterRequest {
        info: Some(AgentInfo {
            agent_id: id.into(),
            ..AgentInfo::default()
        }),
        ..RegisterRequest::default()
    }
}

/// The message of a unary answer.
async fn body_of<S: Carrier>(peer: &mut Peer<S>, stream: u32) -> Result<Vec<u8>, String> {
    let data = |frame: &Frame| frame.kind == DATA && frame.stream == stream;
    let frame = until(peer, data).await?;
    frame
        .payload
        .get(5..)
        .map(<[u8]>::to_vec)
        .ok_or_else(|| "an answer without a prefix".into())
}

async fn until<S: Carrier>(
    peer: &mut Peer<S>,
    wanted: impl Fn(&Frame) -> bool,
) -> Result<Frame, String> {
    let found = async {
        loop {
            match peer.receive().await {
                Some(frame) if wanted(&frame) => return Ok(frame),
                Some(_) => {}
                None => return Err("the connection ended early".to_owned()),
            }
        }
    };
    tokio::select! {
        frame = found => frame,
        () = sleep(Duration::from_secs(20)) => Err("nothing came".into()),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
