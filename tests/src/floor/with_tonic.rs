//! The floor of tonic's users: its own server, generated code, a channel for each stream.

use super::Listeners;
use super::board::Board;
use super::transport::Transport;
use rustls::ServerConfig;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};
use yuzu_proto::SESSION_HEADER;
use yuzu_proto::agent::v1::agent_service_server::{AgentService, AgentServiceServer};
use yuzu_proto::agent::v1::{
    CheckForUpdateRequest, CheckForUpdateResponse, CommandRequest, CommandResponse,
    DownloadUpdateChunk, DownloadUpdateRequest, HeartbeatRequest, HeartbeatResponse, InventoryAck,
    InventoryReport, RegisterRequest, RegisterResponse,
};
use yuzu_proto::gateway::v1::gateway_upstream_client::GatewayUpstreamClient;
use yuzu_proto::server::v1::management_service_server::{
    ManagementService, ManagementServiceServer,
};
use yuzu_proto::server::v1::{
    AgentEvent, GetAgentRequest, GetAgentResponse, ListAgentsRequest, ListAgentsResponse,
    QueryInventoryRequest, QueryInventoryResponse, SendCommandRequest, SendCommandResponse,
    WatchEventsRequest,
};

/// Commands that may wait for one agent.
const COMMANDS_HELD: usize = 16;

type Outbox = mpsc::Sender<Result<CommandRequest, Status>>;
type Answer = Result<SendCommandResponse, Status>;
type Answers<T> = ReceiverStream<Result<T, Status>>;

#[derive(Clone)]
struct Floor {
    board: Arc<Board<Outbox, String, Answer>>,
    server: GatewayUpstreamClient<Channel>,
}

pub(super) async fn serve(listeners: Listeners, server: SocketAddr) -> Result<(), String> {
    let endpoint = Endpoint::from_shared(format!("http://{server}")).map_err(|e| e.to_string())?;
    let floor = Floor {
        board: Arc::default(),
        server: GatewayUpstreamClient::new(endpoint.connect_lazy()),
    };
    let agents = Server::builder().add_service(AgentServiceServer::new(floor.clone()));
    let agents = async {
        match listeners.tls {
            None => {
                let sockets = TcpIncoming::from(listeners.agents).with_nodelay(Some(true));
                agents.serve_with_incoming(sockets).await
            }
            Some(tls) => {
                let secured = secured(listeners.agents, tls);
                agents.serve_with_incoming(secured).await
            }
        }
    };
    let operators = Server::builder()
        .add_service(ManagementServiceServer::new(floor))
        .serve_with_incoming(TcpIncoming::from(listeners.management).with_nodelay(Some(true)));
    tokio::try_join!(agents, operators)
        .map(|_| ())
        .map_err(|e| e.to_string())
}

/// Connections after their handshakes, which run beside each other.
fn secured(listener: TcpListener, tls: Arc<ServerConfig>) -> ReceiverStream<io::Result<Transport>> {
    let (secured, connections) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let socket = match listener.accept().await {
                Ok((socket, _)) => socket,
                Err(error) => return secured.send(Err(error)).await,
            };
            let (tls, secured) = (Arc::clone(&tls), secured.clone());
            tokio::spawn(async move {
                // A handshake that fails is the client's to notice.
                if let Ok(transport) = Transport::over(socket, Some(tls)).await {
                    let _ = secured.send(Ok(transport)).await;
                }
            });
        }
    });
    ReceiverStream::new(connections)
}

#[tonic::async_trait]
impl AgentService for Floor {
    type SubscribeStream = Answers<CommandRequest>;
    type ExecuteCommandStream = Answers<CommandResponse>;
    type DownloadUpdateStream = Answers<DownloadUpdateChunk>;

    async fn register(
        &self,
        request: Request<RegisterRequest>,
    ) -> Result<Response<RegisterResponse>, Status> {
        let request = request.into_inner();
        let agent_id = request.info.as_ref().map(|info| info.agent_id.clone());
        let agent_id = agent_id.ok_or_else(|| Status::invalid_argument("no info"))?;
        let response = self.server.clone().proxy_register(request).await?;
        let session_id = response.get_ref().session_id.clone();
        self.board.registered(session_id, &agent_id);
        Ok(Response::new(response.into_inner()))
    }

    async fn subscribe(
        &self,
        request: Request<Streaming<CommandResponse>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let session_id = request.metadata().get(SESSION_HEADER);
        let agent_id = session_id
            .and_then(|id| id.to_str().ok())
            .and_then(|id| self.board.take_session(id))
            .ok_or_else(|| Status::not_found("no such session"))?;
        let (outbox, commands) = mpsc::channel(COMMANDS_HELD);
        self.board.attach(Arc::clone(&agent_id), outbox);
        let board = Arc::clone(&self.board);
        let mut inbound = request.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(response)) = inbound.message().await {
                let command_id = response.command_id.clone();
                let answer = SendCommandResponse {
                    agent_id: agent_id.as_ref().into(),
                    response: Some(response),
                };
                board.answered(&command_id, Ok(answer));
            }
            board.detach(&agent_id);
        });
        Ok(Response::new(ReceiverStream::new(commands)))
    }

    async fn heartbeat(
        &self,
        _request: Request<HeartbeatRequest>,
    ) -> Result<Response<HeartbeatResponse>, Status> {
        Ok(Response::new(HeartbeatResponse {
            acknowledged: true,
            ..HeartbeatResponse::default()
        }))
    }

    async fn execute_command(
        &self,
        _request: Request<CommandRequest>,
    ) -> Result<Response<Self::ExecuteCommandStream>, Status> {
        Err(not_here())
    }

    async fn report_inventory(
        &self,
        _request: Request<InventoryReport>,
    ) -> Result<Response<InventoryAck>, Status> {
        Err(not_here())
    }

    async fn check_for_update(
        &self,
        _request: Request<CheckForUpdateRequest>,
    ) -> Result<Response<CheckForUpdateResponse>, Status> {
        Err(not_here())
    }

    async fn download_update(
        &self,
        _request: Request<DownloadUpdateRequest>,
    ) -> Result<Response<Self::DownloadUpdateStream>, Status> {
        Err(not_here())
    }
}

#[tonic::async_trait]
impl ManagementService for Floor {
    type SendCommandStream = Answers<SendCommandResponse>;
    type WatchEventsStream = Answers<AgentEvent>;

    async fn send_command(
        &self,
        request: Request<SendCommandRequest>,
    ) -> Result<Response<Self::SendCommandStream>, Status> {
        let SendCommandRequest {
            agent_ids, command, ..
        } = request.into_inner();
        let command = command.ok_or_else(|| Status::invalid_argument("no command"))?;
        let targets = agent_ids.iter().map(String::as_str);
        let send = |agent: &Outbox| agent.try_send(Ok(command.clone())).is_ok();
        let answers = self.board.dispatch(&command.command_id, targets, send);
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn list_agents(
        &self,
        _request: Request<ListAgentsRequest>,
    ) -> Result<Response<ListAgentsResponse>, Status> {
        Err(not_here())
    }

    async fn get_agent(
        &self,
        _request: Request<GetAgentRequest>,
    ) -> Result<Response<GetAgentResponse>, Status> {
        Err(not_here())
    }

    async fn watch_events(
        &self,
        _request: Request<WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        Err(not_here())
    }

    async fn query_inventory(
        &self,
        _request: Request<QueryInventoryRequest>,
    ) -> Result<Response<QueryInventoryResponse>, Status> {
        Err(not_here())
    }
}

fn not_here() -> Status {
    Status::unimplemented("a floor")
}
