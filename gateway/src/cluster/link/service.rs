//! The calls of peers on the node listener.
//!
//! Responsible for letting a connection do nothing but prove the secret until it has, once, and for
//! its link afterwards (MESH-2). Must never answer an unproven peer with more than the contract's
//! own answers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::Request;
use hyper::body::Incoming;
use prost::Message;
use tonic::Status;
use yuzu_proto::node::v1::{HelloRequest, ProveRequest, ProveResponse};
use yuzu_proto::path;

use super::failure::{Failure, Fault};
use super::handshake::{Binding, Dialled, Identity};
use super::table::Side;
use super::{Closer, LinkUser, Linked, Mesh};
use crate::cluster::secret::random;
use crate::edge::connection::{Connection, Signal};
use crate::edge::tls::{Transport, keying_material};
use crate::edge::{ConnectionKey, Response, grpc};
use crate::observe::log::safe_text;

/// What is known of each connection of the node listener.
#[derive(Debug)]
pub(crate) struct NodeService {
    mesh: Arc<Mesh>,
    user: Arc<dyn LinkUser>,
    connections: Mutex<HashMap<ConnectionKey, Stage>>,
}

/// How far a connection has come.
#[derive(Debug)]
enum Stage {
    /// Nothing was said. Holds the keying material of its TLS.
    Fresh(Binding),
    /// Its Hello was answered.
    Greeted(Box<Dialled>),
    /// It is the link of a peer.
    Linked(Linked),
    /// It failed, or is failing.
    Refused,
}

impl NodeService {
    pub(crate) fn new(mesh: Arc<Mesh>, user: Arc<dyn LinkUser>) -> Self {
        Self {
            mesh,
            user,
            connections: Mutex::default(),
        }
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<ConnectionKey, Stage>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection begins, carried by `stream`.
    pub(crate) fn connection_opened(&self, key: ConnectionKey, stream: &Transport) {
        let binding = keying_material(stream, super::dial::BINDING_LABEL);
        self.connections().insert(key, Stage::Fresh(binding));
    }

    /// The connection is gone.
    pub(crate) fn connection_closed(&self, key: ConnectionKey) {
        let gone = self.connections().remove(&key);
        // A link locks the mesh when it ends.
        drop(gone);
    }

    /// Whether its peer has proven the secret.
    pub(crate) fn is_linked(&self, key: ConnectionKey) -> bool {
        self.peer_of(key).is_some()
    }

    /// The peer, once it has proven the secret.
    fn peer_of(&self, key: ConnectionKey) -> Option<Identity> {
        match self.connections().get(&key) {
            Some(Stage::Linked(link)) => Some(link.peer.clone()),
            _ => None,
        }
    }

    /// Answers a call of this service; `None` for a method that it lacks.
    pub(crate) async fn call(
        &self,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
    ) -> Option<Response> {
        let method = request.uri().path().to_owned();
        if method != path::NODE_HELLO && method != path::NODE_PROVE {
            let unproven = "prove the secret of the cluster first";
            return match self.peer_of(connection.key()) {
                Some(peer) => Arc::clone(&self.user).called(&peer, request, connection),
                None => {
                    self.mesh.called_unproven(&method);
                    Some(grpc::refuse(Status::permission_denied(unproven)))
                }
            };
        }
        let message = match grpc::read_unary(request.into_body(), connection).await {
            Ok((message, _charge)) => message,
            Err(status) => return Some(grpc::refuse(status)),
        };
        let answer = match method == path::NODE_HELLO {
            true => self.hello(&message, connection.key()).map_err(Fault::from),
            false => self.prove(&message, connection),
        };
        Some(match answer {
            Ok(answer) => grpc::answer(answer, connection),
            Err(fault) => {
                let status = fault.failure.status();
                self.refuse(fault, connection);
                grpc::refuse(status)
            }
        })
    }

    /// Takes the stage of a connection; whoever comes while it is taken is refused.
    fn take(&self, key: ConnectionKey) -> Stage {
        let mut connections = self.connections();
        let stage = connections.get_mut(&key);
        stage.map_or(Stage::Refused, |stage| {
            std::mem::replace(stage, Stage::Refused)
        })
    }

    fn put(&self, key: ConnectionKey, stage: Stage) {
        // One that has closed meanwhile is gone.
        if let Some(place) = self.connections().get_mut(&key) {
            *place = stage;
        }
    }

    fn hello(&self, message: &Bytes, key: ConnectionKey) -> Result<Bytes, Failure> {
        let Stage::Fresh(binding) = self.take(key) else {
            return Err(Failure::Protocol);
        };
        let hello = HelloRequest::decode(message.clone()).map_err(|_| Failure::Protocol)?;
        let mesh = &self.mesh;
        if mesh.has_left() {
            return Err(Failure::Left);
        }
        let (dialled, answer) = Dialled::hear(&hello, &mesh.own, random(), binding, &mesh.keys)?;
        self.put(key, Stage::Greeted(Box::new(dialled)));
        Ok(answer.encode_to_vec().into())
    }

    fn prove(&self, message: &Bytes, connection: &Arc<Connection>) -> Result<Bytes, Fault> {
        let key = connection.key();
        let Stage::Greeted(dialled) = self.take(key) else {
            return Err(Failure::Protocol.into());
        };
        let prove = ProveRequest::decode(message.clone()).map_err(|_| Failure::Protocol)?;
        let (peer, address) = dialled.proven(&prove, &self.mesh.keys)?;
        let closer = Closer::Dialled(Arc::clone(connection));
        let name = Arc::clone(&peer.name);
        let admitted = self.mesh.admit(peer, Side::Dialled, closer);
        let link = admitted.map_err(|failure| failure.because(describe(&name, &address)))?;
        // From now on it may stay.
        connection.session_began();
        self.put(key, Stage::Linked(link));
        Ok(ProveResponse {}.encode_to_vec().into())
    }

    /// Counts it, and lets the connection go once it was told.
    fn refuse(&self, fault: Fault, connection: &Connection) {
        self.mesh.failed(fault, connection.peer_ip());
        connection.signal(Signal::Drain);
    }
}

/// A peer that has proven the secret, so that the operator finds it.
fn describe(name: &str, address: &str) -> String {
    let name = safe_text(name);
    match address.is_empty() {
        true => format!("it calls itself {name}, and does not say where it is dialled"),
        false => format!("it calls itself {name}, at {}", safe_text(address)),
    }
}
