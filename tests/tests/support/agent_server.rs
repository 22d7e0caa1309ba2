//! A small AgentService of tonic's own, to test the simulated agents against.
//!
//! Responsible for answering as scripted and for recording what came. It is no gateway.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};
use yuzu_proto::agent::v1::agent_service_server::{AgentService, AgentServiceServer};
use yuzu_proto::agent::v1::*;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// One Subscribe stream, as the server sees it.
pub(crate) struct Subscriber {
    /// The session it came with.
    pub(crate) session_id: String,
    /// Where it came from.
    pub(crate) peer: SocketAddr,
    /// Sends commands; dropping it ends the stream with OK.
    pub(crate) commands: mpsc::Sender<Result<CommandRequest, Status>>,
    /// What the agent sent.
    pub(crate) answers: Streaming<CommandResponse>,
}

/// A Register, as the server sees it.
pub(crate) struct Registered {
    pub(crate) agent_id: String,
    pub(crate) peer: SocketAddr,
    pub(crate) grpc_timeout: Option<String>,
}

#[derive(Default)]
struct State {
    registers: Vec<Registered>,
    register_script: VecDeque<Result<RegisterResponse, Status>>,
    heartbeat_script: VecDeque<Status>,
    heartbeats: Vec<HeartbeatRequest>,
    inventories: Vec<InventoryReport>,
    subscribers: VecDeque<Subscriber>,
}

#[derive(Default)]
pub(crate) struct Recorder {
    state: Mutex<State>,
    changed: Notify,
}

/// The running server; its tasks end with the test's runtime.
pub(crate) struct AgentServer {
    pub(crate) address: SocketAddr,
    pub(crate) recorder: Arc<Recorder>,
}

impl AgentServer {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let recorder = Arc::new(Recorder::default());
        let service = AgentServiceServer::from_arc(Arc::new(Service(recorder.clone())));
        tokio::spawn(
            tonic::transport::Server::builder()
                .serve_with_incoming(service, TcpListenerStream::new(listener)),
        );
        Self { address, recorder }
    }
}

impl Recorder {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The next Registers end like this; later ones are accepted.
    pub(crate) fn script_registers(&self, script: Vec<Result<RegisterResponse, Status>>) {
        self.state().register_script = script.into();
    }

    /// The next heartbeats end like this; later ones are acknowledged.
    pub(crate) fn script_heartbeats(&self, script: Vec<Status>) {
        self.state().heartbeat_script = script.into();
    }

    pub(crate) fn registers<T>(&self, read: impl FnOnce(&[Registered]) -> T) -> T {
        read(&self.state().registers)
    }

    pub(crate) fn heartbeats(&self) -> Vec<HeartbeatRequest> {
        self.state().heartbeats.clone()
    }

    pub(crate) fn inventories(&self) -> Vec<InventoryReport> {
        self.state().inventories.clone()
    }

    /// The next Subscribe stream, in order of arrival.
    pub(crate) async fn subscriber(&self) -> Subscriber {
        let next = async {
            loop {
                let changed = self.changed.notified();
                if let Some(subscriber) = self.state().subscribers.pop_front() {
                    return subscriber;
                }
                changed.await;
            }
        };
        tokio::time::timeout(yuzu_tests::agent::PATIENCE, next)
            .await
            .expect("a Subscribe")
    }
}

struct Service(Arc<Recorder>);

#[tonic::async_trait]
impl AgentService for Service {
    async fn register(
        &self,
        request: Request<RegisterRequest>,
    ) -> Result<Response<RegisterResponse>, Status> {
        let peer = request.remote_addr().unwrap();
        let grpc_timeout = request
            .metadata()
            .get("grpc-timeout")
            .map(|v| v.to_str().unwrap().to_owned());
        let agent_id = request.into_inner().info.unwrap().agent_id;
        let mut state = self.0.state();
        let session_id = format!("session-{}-{}", agent_id, state.registers.len());
        state.registers.push(Registered {
            agent_id,
            peer,
            grpc_timeout,
        });
        let accepted = RegisterResponse {
            session_id,
            accepted: true,
            ..Default::default()
        };
        state
            .register_script
            .pop_front()
            .unwrap_or(Ok(accepted))
            .map(Response::new)
    }

    async fn heartbeat(
        &self,
        request: Request<HeartbeatRequest>,
    ) -> Result<Response<HeartbeatResponse>, Status> {
        let mut state = self.0.state();
        state.heartbeats.push(request.into_inner());
        match state.heartbeat_script.pop_front() {
            Some(status) => Err(status),
            None => Ok(Response::new(HeartbeatResponse {
                acknowledged: true,
                ..Default::default()
            })),
        }
    }

    type SubscribeStream = Answers<CommandRequest>;
    async fn subscribe(
        &self,
        request: Request<Streaming<CommandResponse>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let peer = request.remote_addr().unwrap();
        let session = request.metadata().get("x-yuzu-session-id");
        let session_id = session.ok_or(Status::invalid_argument("no session"))?;
        let session_id = session_id.to_str().unwrap().to_owned();
        let (commands, stream) = mpsc::channel(1_000);
        let answers = request.into_inner();
        self.0.state().subscribers.push_back(Subscriber {
            session_id,
            peer,
            commands,
            answers,
        });
        self.0.changed.notify_one();
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn report_inventory(
        &self,
        request: Request<InventoryReport>,
    ) -> Result<Response<InventoryAck>, Status> {
        self.0.state().inventories.push(request.into_inner());
        Ok(Response::new(InventoryAck {
            received: true,
            ..Default::default()
        }))
    }

    type ExecuteCommandStream = Answers<CommandResponse>;
    async fn execute_command(
        &self,
        _: Request<CommandRequest>,
    ) -> Result<Response<Self::ExecuteCommandStream>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn check_for_update(
        &self,
        _: Request<CheckForUpdateRequest>,
    ) -> Result<Response<CheckForUpdateResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    type DownloadUpdateStream = Answers<DownloadUpdateChunk>;
    async fn download_update(
        &self,
        _: Request<DownloadUpdateRequest>,
    ) -> Result<Response<Self::DownloadUpdateStream>, Status> {
        Err(Status::unimplemented("not here"))
    }
}
