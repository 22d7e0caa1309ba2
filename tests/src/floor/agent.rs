//! An agent of the load over gRPC, as cheap as it can be: the load shares the cores with what is
//! measured, so whatever an agent costs blurs the difference between two subjects.
//!
//! Responsible for Register, Subscribe, an answer to each command and heartbeats, on one connection
//! in one task. It is no real agent: it sends no PINGs, and any failure ends it, since what is
//! measured must lose nobody. For everything else there is [`crate::fleet`].

use super::load::Target;
use crate::fleet::message;
use crate::raw::{FrameReader, Request, Status};
use bytes::Bytes;
use h2::client::{Connection, SendRequest};
use h2::{RecvStream, SendStream};
use http::uri::{Authority, Scheme};
use prost::Message;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use yuzu_proto::agent::v1::RegisterResponse;
use yuzu_proto::peek::CommandRequestPeek;
use yuzu_proto::{SESSION_HEADER, path};

/// As an agent of the fleet gives its connection.
const CONNECTION_WINDOW: u32 = 1 << 20;
const REGISTER_TIMEOUT: Duration = Duration::from_secs(30);
const MESSAGE_BYTES: usize = 4 << 20;
/// 64 bytes, as of an agent of the fleet.
const OUTPUT: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

type Socket = Either<TcpStream, Box<TlsStream<TcpStream>>>;
type Call = Pin<Box<dyn Future<Output = Result<Option<Bytes>, String>> + Send>>;

/// A connection without a session.
pub(super) struct Agent {
    connection: Connection<Socket, Bytes>,
    requests: SendRequest<Bytes>,
    scheme: Scheme,
    authority: Authority,
}

/// When an agent sends heartbeats.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beats {
    pub(super) first: Instant,
    pub(super) every: Duration,
}

impl Agent {
    /// Dials and starts HTTP/2.
    pub(super) async fn open(target: &Target) -> Result<Self, String> {
        let tcp = TcpStream::connect(target.agents).await.map_err(text)?;
        tcp.set_nodelay(true).map_err(text)?;
        let (socket, scheme) = match &target.tls {
            None => (Socket::Left(tcp), Scheme::HTTP),
            Some(tls) => {
                let tls = tls.connect(tcp).await.map_err(text)?;
                (Socket::Right(Box::new(tls)), Scheme::HTTPS)
            }
        };
        let mut builder = h2::client::Builder::new();
        builder
            .initial_connection_window_size(CONNECTION_WINDOW)
            .enable_push(false);
        let (requests, connection) = builder.handshake(socket).await.map_err(text)?;
        Ok(Self {
            connection,
            requests,
            scheme,
            authority: target.agents.to_string().parse().map_err(text)?,
        })
    }

    /// Registers under this id with a request of about so many bytes; the session's id.
    pub(super) async fn register(&mut self, id: &str, bytes: usize) -> Result<String, String> {
        let body = message::register("", bytes, id);
        let request = Request::new(path::REGISTER).timeout(REGISTER_TIMEOUT);
        let call = unary(self.requests.clone(), self.http(&request), body);
        let answer = self.drive(call).await?.unwrap_or_default();
        let answer = RegisterResponse::decode(answer).map_err(text)?;
        match answer.accepted {
            true => Ok(answer.session_id),
            false => Err(format!("{id} is not accepted: {}", answer.reject_reason)),
        }
    }

    /// Opens the stream of commands; completes with its headers. The session ends when the sender
    /// of `stop` is dropped.
    pub(super) async fn subscribe(
        mut self,
        session_id: String,
        beats: Option<Beats>,
        stop: oneshot::Receiver<()>,
    ) -> Result<Session, String> {
        let request = Request::new(path::SUBSCRIBE).metadata(SESSION_HEADER, session_id.as_bytes());
        let request = self.http(&request);
        let requests = self.requests.clone();
        let opened = async move {
            let mut requests = requests.ready().await.map_err(text)?;
            let (response, answers) = requests.send_request(request, false).map_err(text)?;
            let (parts, commands) = response.await.map_err(text)?.into_parts();
            match Status::from_headers(&parts.headers) {
                Some(status) => Err(format!("Subscribe: {status}")),
                None => Ok((answers, commands)),
            }
        };
        let (answers, commands) = self.drive(opened).await?;
        let beats = beats.map(|beats| (Box::pin(sleep_until(beats.first)), beats.every));
        Ok(Session {
            agent: self,
            id: session_id,
            answers,
            commands,
            frames: FrameReader::new(MESSAGE_BYTES),
            beats,
            call: None,
            stop: Some(stop),
        })
    }

    fn http(&self, request: &Request) -> http::Request<()> {
        request.to_http(self.scheme.clone(), self.authority.clone(), ())
    }

    /// Runs the connection until the call has ended.
    async fn drive<T>(
        &mut self,
        call: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let mut call = pin!(call);
        poll_fn(|cx| {
            self.poll_connection(cx)?;
            call.as_mut().poll(cx)
        })
        .await
    }

    /// Reads and writes what there is; an error when the connection has ended.
    fn poll_connection(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        match Pin::new(&mut self.connection).poll(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(())) => Err("the connection has ended".into()),
            Poll::Ready(Err(error)) => Err(text(error)),
        }
    }
}

/// An agent with its stream: a future that completes when it has left.
pub(super) struct Session {
    agent: Agent,
    id: String,
    answers: SendStream<Bytes>,
    commands: RecvStream,
    frames: FrameReader,
    beats: Option<(Pin<Box<Sleep>>, Duration)>,
    call: Option<Call>,
    /// Gone as soon as the stream is half-closed.
    stop: Option<oneshot::Receiver<()>>,
}

impl Session {
    /// Lives until told to leave and the stream has ended; `acknowledged` is called for each
    /// heartbeat.
    pub(super) async fn run(mut self, acknowledged: impl Fn()) -> Result<(), String> {
        poll_fn(|cx| self.poll(cx, &acknowledged)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>, acknowledged: &impl Fn()) -> Poll<Result<(), String>> {
        loop {
            self.agent.poll_connection(cx)?;
            let beat = self.poll_beat(cx, acknowledged)?;
            match self.poll_commands(cx)? {
                // Written before anything else is waited for.
                Poll::Ready(Some(())) => continue,
                Poll::Ready(None) if self.stop.is_none() => return Poll::Ready(Ok(())),
                Poll::Ready(None) => return Poll::Ready(Err("the stream has ended".into())),
                Poll::Pending => {}
            }
            if !beat && !self.poll_stop(cx)? {
                return Poll::Pending;
            }
        }
    }

    /// Answers the commands of one piece of the stream; `None` at its end.
    fn poll_commands(&mut self, cx: &mut Context<'_>) -> Result<Poll<Option<()>>, String> {
        let data = match self.commands.poll_data(cx) {
            Poll::Pending => return Ok(Poll::Pending),
            Poll::Ready(None) => return Ok(Poll::Ready(None)),
            Poll::Ready(Some(data)) => data.map_err(text)?,
        };
        let capacity = self.commands.flow_control();
        capacity.release_capacity(data.len()).map_err(text)?;
        self.frames.push(data);
        while let Some(command) = self.frames.take_message().map_err(text)? {
            let command = CommandRequestPeek::peek(&command).map_err(text)?;
            let name = str::from_utf8(command.command_id).map_err(text)?;
            let answer = message::success(name, OUTPUT);
            self.answers.send_data(answer, false).map_err(text)?;
        }
        Ok(Poll::Ready(Some(())))
    }

    /// Sends a heartbeat when it is time and the last one was answered; true when there is more to do.
    fn poll_beat(
        &mut self,
        cx: &mut Context<'_>,
        acknowledged: &impl Fn(),
    ) -> Result<bool, String> {
        let Some((timer, every)) = &mut self.beats else {
            return Ok(false);
        };
        let mut new = false;
        if self.call.is_none() {
            if timer.as_mut().poll(cx).is_pending() {
                return Ok(false);
            }
            let next = (timer.deadline() + *every).max(Instant::now());
            timer.as_mut().reset(next);
            let request = self.agent.http(&Request::new(path::HEARTBEAT));
            let body = message::heartbeat(&self.id);
            let call = unary(self.agent.requests.clone(), request, body);
            self.call = Some(Box::pin(call));
            new = true;
        }
        if let Some(call) = &mut self.call
            && let Poll::Ready(answer) = call.as_mut().poll(cx)
        {
            answer?;
            self.call = None;
            acknowledged();
            return Ok(true);
        }
        Ok(new)
    }

    /// Half-closes the stream when told to leave; true when that was just now.
    fn poll_stop(&mut self, cx: &mut Context<'_>) -> Result<bool, String> {
        let told = match &mut self.stop {
            None => false,
            Some(stop) => Pin::new(stop).poll(cx).is_ready(),
        };
        if told {
            self.stop = None;
            self.beats = None;
            self.answers.send_data(Bytes::new(), true).map_err(text)?;
        }
        Ok(told)
    }
}

/// A unary call; its answer's message.
async fn unary(
    requests: SendRequest<Bytes>,
    request: http::Request<()>,
    body: Bytes,
) -> Result<Option<Bytes>, String> {
    let mut requests = requests.ready().await.map_err(text)?;
    let (response, mut send) = requests.send_request(request, false).map_err(text)?;
    send.send_data(body, true).map_err(text)?;
    let (parts, mut stream) = response.await.map_err(text)?.into_parts();
    let mut frames = FrameReader::new(MESSAGE_BYTES);
    let mut message = None;
    while let Some(data) = stream.data().await {
        let data = data.map_err(text)?;
        let capacity = stream.flow_control();
        capacity.release_capacity(data.len()).map_err(text)?;
        frames.push(data);
        while let Some(next) = frames.take_message().map_err(text)? {
            message = Some(next);
        }
    }
    let trailers = stream.trailers().await.map_err(text)?;
    match Status::from_headers(trailers.as_ref().unwrap_or(&parts.headers)) {
        Some(status) if status.is_ok() => Ok(message),
        Some(status) => Err(status.to_string()),
        None => Err("an answer without a status".into()),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
