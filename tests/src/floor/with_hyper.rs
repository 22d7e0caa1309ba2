//! The floor of hyper: an accept loop of its own, messages as bytes, one task for each stream.
//!
//! The body of a Subscribe's answer reads the request's body itself, so that a stream needs no
//! second task.

use super::Listeners;
use super::board::Board;
use super::transport::Transport;
use crate::raw::{Connection, Dialer, FrameReader, Options, Request, frame, frame_message};
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use yuzu_proto::agent::v1::HeartbeatResponse;
use yuzu_proto::peek::{
    CommandRequestPeek, CommandResponsePeek, RegisterAnswerPeek, RegisterPeek, SendCommandPeek,
};
use yuzu_proto::{SESSION_HEADER, path, wire};

/// Commands that may wait for one agent.
const COMMANDS_HELD: usize = 16;
/// Answers that leave in one DATA frame.
const ANSWERS_AT_ONCE: usize = 128;
const MESSAGE_LIMIT: usize = 4 << 20;

type Outbox = mpsc::Sender<Bytes>;
type Problem = Box<dyn std::error::Error + Send + Sync>;

struct Floor {
    board: Board<Outbox, Bytes, Bytes>,
    server: Connection,
    acknowledged: Bytes,
}

impl Floor {
    async fn start(server: SocketAddr) -> Result<Arc<Self>, String> {
        let server = Connection::open(server, &Options::default()).await;
        let acknowledged = HeartbeatResponse {
            acknowledged: true,
            ..HeartbeatResponse::default()
        };
        Ok(Arc::new(Self {
            board: Board::default(),
            server: server.map_err(|e| e.to_string())?,
            acknowledged: frame_message(&acknowledged),
        }))
    }
}

pub(super) async fn serve(listeners: Listeners, server: SocketAddr) -> Result<(), String> {
    let floor = Floor::start(server).await?;
    let agents = accept(listeners.agents, listeners.tls, Arc::clone(&floor));
    let operators = accept(listeners.management, None, floor);
    tokio::try_join!(agents, operators)
        .map(|_| ())
        .map_err(|e| e.to_string())
}

/// The floor of hyper on connections that no socket carries, served on `runtime`; it registers
/// agents at `server`.
///
/// # Errors
/// A sentence for the user.
pub async fn in_memory(server: SocketAddr, runtime: Handle) -> Result<Dialer, String> {
    let floor = Floor::start(server).await?;
    Ok(Dialer::pipes(runtime, move |pipe, _| {
        tokio::spawn(http2(pipe, Arc::clone(&floor)));
        true
    }))
}

async fn accept(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    floor: Arc<Floor>,
) -> std::io::Result<()> {
    loop {
        let (socket, _) = listener.accept().await?;
        let (floor, tls) = (Arc::clone(&floor), tls.clone());
        tokio::spawn(async move {
            if let Ok(transport) = Transport::over(socket, tls).await {
                http2(transport, floor).await;
            }
        });
    }
}

async fn http2(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, floor: Arc<Floor>) {
    let service = service_fn(move |request| answer(Arc::clone(&floor), request));
    let builder = http2::Builder::new(TokioExecutor::new());
    // How a connection ends does not matter to a floor.
    let _ = builder.serve_connection(TokioIo::new(io), service).await;
}

async fn answer(
    floor: Arc<Floor>,
    request: http::Request<Incoming>,
) -> Result<Response<Answer>, Problem> {
    let body = match request.uri().path() {
        path::SUBSCRIBE => subscribe(floor, request)?,
        path::REGISTER => {
            let framed = request.into_body().collect().await?.to_bytes();
            Answer::Whole(Some(register(&floor, framed).await?))
        }
        path::HEARTBEAT => {
            request.into_body().collect().await?;
            Answer::Whole(Some(floor.acknowledged.clone()))
        }
        path::SEND_COMMAND => {
            let framed = request.into_body().collect().await?.to_bytes();
            send_command(&floor, &framed)?
        }
        _ => return Err("a floor has no such method".into()),
    };
    let mut response = Response::new(body);
    let grpc = HeaderValue::from_static("application/grpc");
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, grpc);
    Ok(response)
}

async fn register(floor: &Floor, framed: Bytes) -> Result<Bytes, Problem> {
    let call = Request::new(path::PROXY_REGISTER);
    let answer = floor.server.unary_framed(call, framed.clone()).await?;
    let message = answer.message.ok_or("the server refuses")?;
    let agent_id = RegisterPeek::peek(&framed[wire::GRPC_PREFIX..])?.agent_id;
    let session_id = RegisterAnswerPeek::peek(&message)?.session_id;
    let session_id = String::from_utf8(session_id.to_vec())?;
    floor
        .board
        .registered(session_id, std::str::from_utf8(agent_id)?);
    Ok(frame(&message))
}

fn subscribe(floor: Arc<Floor>, request: http::Request<Incoming>) -> Result<Answer, Problem> {
    let session_id = request.headers().get(SESSION_HEADER);
    let session_id = session_id.ok_or("no session")?.to_str()?;
    let agent_id = floor.board.take_session(session_id);
    let agent_id = agent_id.ok_or("no such session")?;
    let (outbox, commands) = mpsc::channel(COMMANDS_HELD);
    floor.board.attach(Arc::clone(&agent_id), outbox);
    Ok(Answer::Agent(Stream {
        floor,
        agent_id,
        commands,
        inbound: request.into_body(),
        frames: FrameReader::new(MESSAGE_LIMIT),
    }))
}

fn send_command(floor: &Floor, framed: &Bytes) -> Result<Answer, Problem> {
    let request = framed.slice(wire::GRPC_PREFIX..);
    let request = SendCommandPeek::peek(&request)?;
    let command_id = CommandRequestPeek::peek(&request.command)?.command_id;
    let command_id = Bytes::copy_from_slice(command_id);
    let command = frame(&request.command);
    let targets = request.agent_ids.iter();
    let targets = targets.map(|id| std::str::from_utf8(id).unwrap_or_default());
    let send = |agent: &Outbox| agent.try_send(command.clone()).is_ok();
    let answers = floor.board.dispatch(&command_id, targets, send);
    Ok(Answer::Operator(answers))
}

/// The body of an answer.
enum Answer {
    Whole(Option<Bytes>),
    Agent(Stream),
    Operator(mpsc::Receiver<Bytes>),
    Ended,
}

/// Both halves of a Subscribe.
struct Stream {
    floor: Arc<Floor>,
    agent_id: Arc<str>,
    commands: mpsc::Receiver<Bytes>,
    inbound: Incoming,
    frames: FrameReader,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Problem;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Problem>>> {
        let this = self.get_mut();
        let data = match this {
            Self::Ended => return Poll::Ready(None),
            Self::Whole(message) => message.take(),
            Self::Agent(stream) => ready!(stream.poll_command(cx))?,
            Self::Operator(answers) => ready!(poll_answers(answers, cx)),
        };
        Poll::Ready(Some(Ok(match data {
            Some(data) => Frame::data(data),
            None => {
                *this = Self::Ended;
                let ok = HeaderValue::from_static("0");
                Frame::trailers(HeaderMap::from_iter([("grpc-status".parse()?, ok)]))
            }
        })))
    }
}

impl Stream {
    /// Takes what the agent has sent, then the next command.
    fn poll_command(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Problem>> {
        while let Poll::Ready(frame) = Pin::new(&mut self.inbound).poll_frame(cx) {
            let Some(frame) = frame.transpose()? else {
                return Poll::Ready(Ok(None));
            };
            if let Ok(data) = frame.into_data() {
                self.frames.push(data);
            }
            while let Some(message) = self.frames.take_message()? {
                self.take(&message)?;
            }
        }
        self.commands.poll_recv(cx).map(Ok)
    }

    fn take(&self, message: &Bytes) -> Result<(), Problem> {
        let command_id = CommandResponsePeek::peek(message)?.command_id;
        let command_id = message.slice_ref(command_id);
        self.floor
            .board
            .answered(&command_id, entry(&self.agent_id, message));
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.floor.board.detach(&self.agent_id);
    }
}

/// A framed SendCommandResponse.
fn entry(agent_id: &str, response: &[u8]) -> Bytes {
    let len = wire::bytes_field_len(1, agent_id.len()) + wire::bytes_field_len(2, response.len());
    let mut out = BytesMut::with_capacity(wire::GRPC_PREFIX + len);
    wire::put_grpc_prefix(&mut out, len);
    wire::put_bytes_field(&mut out, 1, agent_id.as_bytes());
    wire::put_bytes_field(&mut out, 2, response);
    out.freeze()
}

/// All answers that wait, in one piece.
fn poll_answers(answers: &mut mpsc::Receiver<Bytes>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
    let mut taken = Vec::new();
    match ready!(answers.poll_recv_many(cx, &mut taken, ANSWERS_AT_ONCE)) {
        0 => Poll::Ready(None),
        1 => Poll::Ready(taken.pop()),
        _ => {
            let mut all = BytesMut::with_capacity(taken.iter().map(Bytes::len).sum());
            for answer in taken {
                all.put(answer);
            }
            Poll::Ready(Some(all.freeze()))
        }
    }
}
