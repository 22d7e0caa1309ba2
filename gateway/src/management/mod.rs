//! ManagementService, as the server and operators call it.
//!
//! Responsible for reading requests and answering from the session table and the router. The
//! handlers never check the caller: [`authorization`] is the gate before them (MGMT-6).

mod agents;
pub(crate) mod authorization;
mod events;
mod inventory;
mod send_command;

use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use prost::Message;
use tonic::Status;
use yuzu_proto::path;

use crate::cluster::Sharing;
use crate::command::Router;
use crate::edge::connection::Connection;
use crate::edge::{Response, grpc};
use crate::gateways::Names;
use crate::session::{Events, Registry};

/// Most agent ids in one request. A message of 8 MiB holds fewer of any realistic length; very
/// short ones would cost many times their bytes.
const MAX_AGENT_IDS: usize = 1 << 18;
/// Bytes of a listing: under the 4 MiB that gRPC libraries receive by default.
const MAX_LISTING: usize = 3 << 20;

/// Serves `yuzu.server.v1.ManagementService`.
pub(crate) struct ManagementService {
    registry: Arc<Registry>,
    router: Arc<Router>,
    events: Arc<Events>,
    /// Of the agents of other nodes; absent outside of a cluster.
    sharing: Option<Arc<Sharing>>,
    /// Whose name agents are told under.
    names: Names,
}

impl ManagementService {
    pub(crate) fn new(
        registry: Arc<Registry>,
        router: Arc<Router>,
        events: Arc<Events>,
        sharing: Option<Arc<Sharing>>,
        names: Names,
    ) -> Self {
        Self {
            registry,
            router,
            events,
            sharing,
            names,
        }
    }

    /// Whether there may be other nodes.
    pub(crate) fn is_clustered(&self) -> bool {
        self.sharing.is_some()
    }

    /// Answers a call of this service, of a caller that was admitted so; `None` when the path is not served (LSN-9).
    pub(crate) async fn call(
        &self,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
        caller: String,
    ) -> Option<Response> {
        let path = request.uri().path().to_owned();
        let served = [
            path::SEND_COMMAND,
            path::LIST_AGENTS,
            path::GET_AGENT,
            path::WATCH_EVENTS,
            path::QUERY_INVENTORY,
        ];
        if !served.contains(&path.as_str()) {
            return None;
        }
        let (message, _charge) = match grpc::read_unary(request.into_body(), connection).await {
            Ok(read) => read,
            Err(status) => return Some(grpc::refuse(status)),
        };
        let answered = match path.as_str() {
            path::SEND_COMMAND => self.send_command(message, connection, caller).await,
            path::LIST_AGENTS => self.list_agents(message, connection).await,
            path::GET_AGENT => self.get_agent(message, connection).await,
            path::WATCH_EVENTS => self.watch_events(message, connection),
            _ => self.query_inventory(message, connection),
        };
        Some(answered.unwrap_or_else(grpc::refuse))
    }
}

fn decode<M: Message + Default>(message: bytes::Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|_| Status::internal("the request is malformed"))
}

fn check_agent_ids(count: usize) -> Result<(), Status> {
    if count <= MAX_AGENT_IDS {
        return Ok(());
    }
    Err(Status::resource_exhausted(format!(
        "{count} agent ids are over the limit of {MAX_AGENT_IDS}"
    )))
}

fn answer<M: Message>(message: &M, connection: &Arc<Connection>) -> Response {
    grpc::answer(message.encode_to_vec().into(), connection)
}

#[cfg(test)]
mod tests;
