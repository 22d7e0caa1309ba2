//! An operator at a management listener.
//!
//! Responsible for SendCommand, WatchEvents and the unary calls, with the messages as bytes on
//! request. An answer stream is read only when asked, so that a slow operator can be played.
//! Every wait is bounded by [`PATIENCE`].

use crate::agent::PATIENCE;
use crate::raw::{Answer, CallError, Connection, Options, Receiver, Request, Status};
use bytes::Bytes;
use prost::Message;
use std::net::SocketAddr;
use yuzu_proto::agent::v1::command_response::Status as Outcome;
use yuzu_proto::agent::v1::{CommandRequest, CommandResponse};
use yuzu_proto::path;
use yuzu_proto::peek::CommandResponsePeek;
use yuzu_proto::server::v1::{
    AgentEvent, GetAgentRequest, ListAgentsRequest, QueryInventoryRequest, SendCommandRequest,
    WatchEventsRequest,
};
use yuzu_proto::wire;

/// An operator with one connection.
#[derive(Debug)]
pub struct Operator {
    /// The connection.
    pub connection: Connection,
}

/// One entry of a fan-out.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The bytes of the whole entry.
    pub raw: Bytes,
    /// Whose answer it is.
    pub agent_id: String,
    /// The bytes of the answer inside.
    pub response_raw: Bytes,
    /// The known fields of the answer.
    pub response: CommandResponse,
}

/// `SendCommandResponse` with the answer left as bytes.
#[derive(Clone, PartialEq, Message)]
struct RawEntry {
    #[prost(string, tag = "1")]
    agent_id: String,
    #[prost(bytes = "bytes", tag = "2")]
    response: Bytes,
}

impl Operator {
    /// Connects, with windows wide enough for large fan-outs.
    ///
    /// # Errors
    /// When there is no connection.
    pub async fn connect(management: SocketAddr) -> Result<Self, CallError> {
        let options = Options {
            stream_window: 1 << 20,
            connection_window: 16 << 20,
            max_message_bytes: 16 << 20,
            ..Options::default()
        };
        Self::connect_with(management, &options).await
    }

    /// As [`Operator::connect`], with a connection set up otherwise.
    ///
    /// # Errors
    /// When there is no connection.
    pub async fn connect_with(
        management: SocketAddr,
        options: &Options,
    ) -> Result<Self, CallError> {
        Ok(Self {
            connection: Connection::open(management, options).await?,
        })
    }

    /// Sends `command` to these agents (none: to all) and waits for the answer's headers.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn send(
        &self,
        agents: &[&str],
        command: CommandRequest,
        timeout_seconds: i32,
    ) -> Result<Fanout, CallError> {
        let agent_ids = agents.iter().map(|&id| id.to_owned()).collect();
        let request = SendCommandRequest {
            agent_ids,
            command: Some(command),
            timeout_seconds,
        };
        self.send_raw(&request.encode_to_vec()).await
    }

    /// Sends an encoded SendCommandRequest.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn send_raw(&self, request: &[u8]) -> Result<Fanout, CallError> {
        let receiver = self.server_stream(path::SEND_COMMAND, request).await?;
        Ok(Fanout { receiver })
    }

    /// Watches these agents (none: all).
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn watch(&self, agents: &[&str]) -> Result<Watch, CallError> {
        let agent_ids = agents.iter().map(|&id| id.to_owned()).collect();
        let request = WatchEventsRequest { agent_ids }.encode_to_vec();
        let receiver = self.server_stream(path::WATCH_EVENTS, &request).await?;
        Ok(Watch { receiver })
    }

    async fn server_stream(&self, path: &str, request: &[u8]) -> Result<Receiver, CallError> {
        let call = self.connection.server_stream(Request::new(path), request);
        tokio::time::timeout(PATIENCE, call)
            .await
            .unwrap_or(Err(CallError::Deadline))
    }

    /// ListAgents.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn list(&self, limit: i32, cursor: &str) -> Result<Answer, CallError> {
        let request = ListAgentsRequest {
            limit,
            cursor: cursor.into(),
            ..Default::default()
        };
        self.unary(path::LIST_AGENTS, &request).await
    }

    /// GetAgent.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn get(&self, agent_id: &str) -> Result<Answer, CallError> {
        self.unary(
            path::GET_AGENT,
            &GetAgentRequest {
                agent_id: agent_id.into(),
            },
        )
        .await
    }

    /// QueryInventory.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn inventory(&self, agent_id: &str, plugin: &str) -> Result<Answer, CallError> {
        let request = QueryInventoryRequest {
            agent_id: agent_id.into(),
            plugin: plugin.into(),
        };
        self.unary(path::QUERY_INVENTORY, &request).await
    }

    async fn unary(&self, path: &str, request: &impl Message) -> Result<Answer, CallError> {
        let call = Request::new(path).timeout(PATIENCE);
        self.connection.unary(call, &request.encode_to_vec()).await
    }
}

/// The answers to one SendCommand. Dropping it cancels the call.
#[derive(Debug)]
pub struct Fanout {
    /// The stream.
    pub receiver: Receiver,
}

impl Fanout {
    /// The next entry, or the status when the stream has ended.
    ///
    /// # Errors
    /// When nothing came within [`PATIENCE`], the stream broke or an entry is no entry.
    pub async fn next(&mut self) -> Result<Result<Entry, Status>, String> {
        Ok(match next(&mut self.receiver).await? {
            Ok(raw) => Ok(entry(raw)?),
            Err(status) => Err(status),
        })
    }

    /// The next entry.
    ///
    /// # Errors
    /// As [`Fanout::next`], and when the stream has ended.
    pub async fn entry(&mut self) -> Result<Entry, String> {
        self.next()
            .await?
            .map_err(|status| format!("the fan-out ended with {status}"))
    }

    /// Reads to the end, without decoding more than it must: the answers with SUCCESS.
    ///
    /// # Errors
    /// As [`Fanout::next`], and when the stream ends otherwise than with OK.
    pub async fn successes(&mut self) -> Result<usize, String> {
        let mut answers = 0;
        loop {
            match next(&mut self.receiver).await? {
                Ok(entry) => answers += usize::from(is_success(&entry)),
                Err(status) if status.is_ok() => return Ok(answers),
                Err(status) => return Err(format!("a command ended with {status}")),
            }
        }
    }

    /// All entries that are left, and how the stream ended.
    ///
    /// # Errors
    /// As [`Fanout::next`].
    pub async fn rest(&mut self) -> Result<(Vec<Entry>, Status), String> {
        let mut entries = Vec::new();
        loop {
            match self.next().await? {
                Ok(entry) => entries.push(entry),
                Err(status) => return Ok((entries, status)),
            }
        }
    }
}

/// Events of a WatchEvents call. Dropping it cancels the call.
#[derive(Debug)]
pub struct Watch {
    /// The stream.
    pub receiver: Receiver,
}

impl Watch {
    /// The next event, or the status when the stream has ended.
    ///
    /// # Errors
    /// When nothing came within [`PATIENCE`] or the stream broke.
    pub async fn next(&mut self) -> Result<Result<AgentEvent, Status>, String> {
        Ok(match next(&mut self.receiver).await? {
            Ok(raw) => Ok(AgentEvent::decode(raw).map_err(|e| e.to_string())?),
            Err(status) => Err(status),
        })
    }
}

async fn next(receiver: &mut Receiver) -> Result<Result<Bytes, Status>, String> {
    let message = tokio::time::timeout(PATIENCE, receiver.message()).await;
    match message
        .map_err(|_| "nothing came")?
        .map_err(|e| e.to_string())?
    {
        Some(raw) => Ok(Ok(raw)),
        None => Ok(Err(receiver.status().cloned().ok_or("no status")?)),
    }
}

/// Whether an entry is an answer with SUCCESS.
fn is_success(entry: &[u8]) -> bool {
    let response = wire::fields(entry)
        .filter_map(Result::ok)
        .find(|field| field.number == 2);
    let response = response.and_then(|field| field.bytes().ok());
    let peek = response.and_then(|response| CommandResponsePeek::peek(response).ok());
    peek.is_some_and(|peek| peek.status == Outcome::Success as i32)
}

fn entry(raw: Bytes) -> Result<Entry, String> {
    let parts = RawEntry::decode(raw.clone()).map_err(|e| e.to_string())?;
    let response = CommandResponse::decode(parts.response.clone()).map_err(|e| e.to_string())?;
    Ok(Entry {
        raw,
        agent_id: parts.agent_id,
        response_raw: parts.response,
        response,
    })
}
