//! Which service answers a request of a listener.
//!
//! Responsible for routing by path prefix to what the listener serves (LSN-9), past the gate of
//! management (MGMT-AUTH-1). Must never look into a request.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use tonic::Status;

use crate::agent_service::{AgentService, IdentityGate};
use crate::cluster::NodeService;
use crate::edge::connection::Connection;
use crate::edge::tls::Transport;
use crate::edge::{ConnectionKey, Handler, Response, grpc};
use crate::management::ManagementService;
use crate::management::authorization::Gate;
use crate::session::Registry;

/// What one listener serves.
pub(super) struct Services {
    pub(super) agent: Option<Arc<AgentService>>,
    /// Whom an agent's certificate lets it speak for; `None` asks for none.
    pub(super) identity_gate: Option<Arc<IdentityGate>>,
    pub(super) management: Option<Arc<ManagementService>>,
    /// Who may call it; `None` asks nobody.
    pub(super) gate: Option<Gate>,
    pub(super) node: Option<Arc<NodeService>>,
    pub(super) registry: Arc<Registry>,
}

impl Handler for Services {
    fn call(
        &self,
        request: Request<Incoming>,
        connection: Arc<Connection>,
    ) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        if !grpc::is_grpc(&request) {
            return Box::pin(std::future::ready(not_grpc()));
        }
        let path = request.uri().path();
        if path.starts_with("/yuzu.agent.v1.AgentService/")
            && let Some(service) = self.agent.clone()
        {
            let gate = self.identity_gate.clone();
            return Box::pin(async move {
                service
                    .call(request, &connection, gate.as_deref())
                    .await
                    .unwrap_or_else(unserved)
            });
        }
        if path.starts_with("/yuzu.server.v1.ManagementService/")
            && let Some(service) = self.management.clone()
        {
            let caller = match self.caller(&service, &connection) {
                Ok(caller) => caller,
                Err(status) => return Box::pin(std::future::ready(grpc::refuse(status))),
            };
            return Box::pin(async move {
                service
                    .call(request, &connection, caller)
                    .await
                    .unwrap_or_else(unserved)
            });
        }
        if path.starts_with("/yuzu.node.v1.NodeService/")
            && let Some(service) = self.node.clone()
        {
            return Box::pin(async move {
                service
                    .call(request, &connection)
                    .await
                    .unwrap_or_else(unserved)
            });
        }
        Box::pin(std::future::ready(unserved()))
    }

    fn connection_opened(&self, key: ConnectionKey, stream: &Transport) {
        if let Some(node) = &self.node {
            node.connection_opened(key, stream);
        }
    }

    fn authorizes(&self, connection: &Connection) -> bool {
        if let Some(node) = &self.node {
            return node.is_linked(connection.key());
        }
        let gate = self.gate.as_ref();
        gate.is_none_or(|gate| gate.judge(connection).is_ok())
    }

    fn connection_closed(&self, key: ConnectionKey) {
        match &self.node {
            Some(node) => node.connection_closed(key),
            None => self.registry.connection_closed(key),
        }
    }
}

impl Services {
    /// Lets a peer manage. How it was admitted is for other nodes: empty where
    /// there are none, and for one whom nobody asked.
    ///
    /// # Errors
    /// See [`Gate::admit`].
    fn caller(
        &self,
        service: &ManagementService,
        connection: &Connection,
    ) -> Result<String, Status> {
        let Some(gate) = &self.gate else {
            return Ok(String::new());
        };
        let method = gate.admit(connection)?;
        Ok(match service.is_clustered() {
            true => gate.identity(method, connection),
            false => String::new(),
        })
    }
}

fn unserved() -> Response {
    grpc::refuse(Status::unimplemented(
        "this listener does not serve that method",
    ))
}

fn not_grpc() -> Response {
    let mut response = Response::new(tonic::body::Body::empty());
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}
