//! An agent driven by hand: nothing happens that the test did not ask for.
//!
//! Responsible for the calls of one agent on one connection, with the messages as bytes on
//! request. Every wait is bounded by [`PATIENCE`]. Must never answer, beat or reconnect by itself.

use crate::raw::{Answer, CallError, Connection, Options, Receiver, Request, Sender, Status};
use bytes::Bytes;
use prost::Message;
use std::net::SocketAddr;
use std::time::Duration;
use yuzu_proto::agent::v1::{
    AgentInfo, CommandRequest, CommandResponse, HeartbeatRequest, InventoryReport, RegisterRequest,
    RegisterResponse,
};
use yuzu_proto::{SESSION_HEADER, path};

/// Bound of every wait in tests; far above what anything should take.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// One agent with its connection, and its stream once it has subscribed.
#[derive(Debug)]
pub struct Agent {
    /// The agent id it registers with.
    pub id: String,
    /// Its connection.
    pub connection: Connection,
    /// The session the server gave it; empty before.
    pub session_id: String,
    stream: Option<(Sender, Receiver)>,
}

/// A command as it arrived.
#[derive(Debug)]
pub struct Command {
    /// The bytes on the wire.
    pub raw: Bytes,
    /// The known fields.
    pub message: CommandRequest,
}

impl Agent {
    /// Connects; does not register.
    ///
    /// # Errors
    /// When there is no connection.
    pub async fn connect(gateway: SocketAddr, id: &str) -> Result<Self, CallError> {
        Self::connect_with(gateway, id, &Options::default()).await
    }

    /// As [`Agent::connect`], with a connection set up otherwise.
    ///
    /// # Errors
    /// When there is no connection.
    pub async fn connect_with(
        gateway: SocketAddr,
        id: &str,
        options: &Options,
    ) -> Result<Self, CallError> {
        let connection = Connection::open(gateway, options).await?;
        Ok(Self {
            id: id.into(),
            connection,
            session_id: String::new(),
            stream: None,
        })
    }

    /// Connects, registers and subscribes.
    ///
    /// # Errors
    /// What went wrong, as text.
    pub async fn attach(gateway: SocketAddr, id: &str) -> Result<Self, String> {
        Self::attach_with(gateway, id, &Options::default()).await
    }

    /// As [`Agent::attach`], with a connection set up otherwise.
    ///
    /// # Errors
    /// What went wrong, as text.
    pub async fn attach_with(
        gateway: SocketAddr,
        id: &str,
        options: &Options,
    ) -> Result<Self, String> {
        let mut agent = Self::connect_with(gateway, id, options)
            .await
            .map_err(|e| e.to_string())?;
        agent.register().await?;
        agent.subscribe().await?;
        Ok(agent)
    }

    /// The request [`Agent::register`] sends.
    pub fn register_request(&self) -> RegisterRequest {
        RegisterRequest {
            info: Some(AgentInfo {
                agent_id: self.id.clone(),
                hostname: format!("{}.example", self.id),
                ..AgentInfo::default()
            }),
            ..RegisterRequest::default()
        }
    }

    /// Registers and keeps the session id.
    ///
    /// # Errors
    /// When the call fails or is not accepted.
    pub async fn register(&mut self) -> Result<RegisterResponse, String> {
        let request = self.register_request().encode_to_vec();
        let answer = self
            .register_raw(&request)
            .await
            .map_err(|e| e.to_string())?;
        let response: RegisterResponse = answer.decode()?;
        if !response.accepted {
            return Err(format!("not accepted: {}", response.reject_reason));
        }
        self.session_id.clone_from(&response.session_id);
        Ok(response)
    }

    /// Sends an encoded RegisterRequest, with the real agent's deadline of 30 s.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn register_raw(&self, request: &[u8]) -> Result<Answer, CallError> {
        let call = Request::new(path::REGISTER).timeout(Duration::from_secs(30));
        self.connection.unary(call, request).await
    }

    /// Opens the stream for the kept session id.
    ///
    /// # Errors
    /// The status or the failure, as text.
    pub async fn subscribe(&mut self) -> Result<(), String> {
        match self.subscribe_as(&self.session_id).await {
            Ok(stream) => {
                self.stream = Some(stream);
                Ok(())
            }
            Err(SubscribeError::Refused(status)) => Err(status.to_string()),
            Err(SubscribeError::Failed(error)) => Err(error.to_string()),
        }
    }

    /// Opens a stream with this session id and hands it out.
    ///
    /// # Errors
    /// The status of a refusal, or why there is none.
    pub async fn subscribe_as(
        &self,
        session_id: &str,
    ) -> Result<(Sender, Receiver), SubscribeError> {
        let call = Request::new(path::SUBSCRIBE).metadata(SESSION_HEADER, session_id.as_bytes());
        open(&self.connection, call).await
    }

    /// Opens a stream without a session id.
    ///
    /// # Errors
    /// The status of a refusal, or why there is none.
    pub async fn subscribe_without_session(&self) -> Result<(Sender, Receiver), SubscribeError> {
        open(&self.connection, Request::new(path::SUBSCRIBE)).await
    }

    /// The next command.
    ///
    /// # Errors
    /// When the stream ended, is not open, or nothing came within [`PATIENCE`].
    pub async fn command(&mut self) -> Result<Command, String> {
        let (_, receiver) = self.stream.as_mut().ok_or("no stream is open")?;
        let message = tokio::time::timeout(PATIENCE, receiver.message()).await;
        let raw = match message.map_err(|_| "no command came")? {
            Ok(Some(raw)) => raw,
            Ok(None) => return Err(format!("the stream ended: {:?}", receiver.status())),
            Err(error) => return Err(error.to_string()),
        };
        let message = CommandRequest::decode(raw.clone()).map_err(|e| e.to_string())?;
        Ok(Command { raw, message })
    }

    /// Whether a command arrives within `wait`.
    pub async fn command_within(&mut self, wait: Duration) -> Option<Command> {
        tokio::time::timeout(wait, self.command()).await.ok()?.ok()
    }

    /// Sends an answer.
    ///
    /// # Errors
    /// When the stream has ended or is not open.
    pub async fn answer(&self, response: &CommandResponse) -> Result<(), String> {
        self.answer_raw(&response.encode_to_vec()).await
    }

    /// Sends an encoded answer.
    ///
    /// # Errors
    /// When the stream has ended or is not open.
    pub async fn answer_raw(&self, response: &[u8]) -> Result<(), String> {
        let (sender, _) = self.stream.as_ref().ok_or("no stream is open")?;
        sender.send(response).await.map_err(|e| e.to_string())
    }

    /// Takes the stream out, to be used or dropped (which resets it).
    ///
    /// # Errors
    /// When no stream is open.
    pub fn take_stream(&mut self) -> Result<(Sender, Receiver), String> {
        self.stream.take().ok_or_else(|| "no stream is open".into())
    }

    /// Half-closes the stream and waits for its status.
    ///
    /// # Errors
    /// When no stream is open or it ends without a status.
    pub async fn half_close(&mut self) -> Result<Status, String> {
        let (mut sender, mut receiver) = self.take_stream()?;
        sender.half_close();
        ended(&mut receiver).await
    }

    /// Waits for the gateway to end the stream.
    ///
    /// # Errors
    /// When no stream is open or it ends without a status.
    pub async fn stream_end(&mut self) -> Result<Status, String> {
        let (_, receiver) = self.stream.as_mut().ok_or("no stream is open")?;
        ended(receiver).await
    }

    /// Sends a heartbeat for the kept session.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn heartbeat(&self) -> Result<Answer, CallError> {
        let request = HeartbeatRequest {
            session_id: self.session_id.clone(),
            ..Default::default()
        };
        self.heartbeat_raw(&request.encode_to_vec()).await
    }

    /// Sends an encoded heartbeat.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn heartbeat_raw(&self, request: &[u8]) -> Result<Answer, CallError> {
        self.connection
            .unary(Request::new(path::HEARTBEAT).timeout(PATIENCE), request)
            .await
    }

    /// Sends an inventory report for the kept session.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn inventory(&self) -> Result<Answer, CallError> {
        let report = InventoryReport {
            session_id: self.session_id.clone(),
            ..Default::default()
        };
        self.inventory_raw(&report.encode_to_vec()).await
    }

    /// Sends an encoded inventory report.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn inventory_raw(&self, report: &[u8]) -> Result<Answer, CallError> {
        self.connection
            .unary(
                Request::new(path::REPORT_INVENTORY).timeout(PATIENCE),
                report,
            )
            .await
    }
}

/// Why a stream did not open.
#[derive(Debug, thiserror::Error)]
pub enum SubscribeError {
    /// The gateway answered with this status.
    #[error("refused: {0}")]
    Refused(Status),
    /// There was no status.
    #[error(transparent)]
    Failed(#[from] CallError),
}

impl SubscribeError {
    /// The status code of a refusal.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(status) => Some(status.code),
            Self::Failed(_) => None,
        }
    }
}

async fn open(
    connection: &Connection,
    call: Request,
) -> Result<(Sender, Receiver), SubscribeError> {
    // No deadline on the wire, as the real agent; only the wait for the headers is bounded.
    let opened = tokio::time::timeout(PATIENCE, connection.stream(call)).await;
    let (sender, receiver) = opened.unwrap_or(Err(CallError::Deadline))?;
    match receiver.status() {
        Some(status) => Err(SubscribeError::Refused(status.clone())),
        None => Ok((sender, receiver)),
    }
}

async fn ended(receiver: &mut Receiver) -> Result<Status, String> {
    let finished = tokio::time::timeout(PATIENCE, receiver.finish()).await;
    finished
        .map_err(|_| "the stream did not end")?
        .map_err(|e| e.to_string())
}
