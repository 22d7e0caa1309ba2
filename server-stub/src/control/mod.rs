//! The control endpoint: a running stub, driven and read over HTTP/1.1 and JSON.
//!
//! Responsible for the socket, for finding the handler, and for turning every mistake of the
//! caller into a 400 that names the field and the fix. Must never answer with a token, CSR or
//! certificate; message bytes only when asked with `raw=true`.
//!
//! | request | body or query | does |
//! |---|---|---|
//! | `GET /state` | | counters, connections, settings |
//! | `GET /routes` | `state`, `after`, `limit` | the route directory, by agent id |
//! | `GET /received` | `rpc`, `limit`, `raw` | the last requests of an RPC |
//! | `GET /faults` | | the rules and how often they fired |
//! | `POST /faults` | a rule, see below | adds a rule, answers its id |
//! | `DELETE /faults` | `id` or `rpc` | removes one, those of an RPC, or all |
//! | `POST /release` | `rpc` | lets hung calls go on |
//! | `POST /restart` | `drop_connections`, `lose_directory` | forgets every session |
//! | `POST /forget` | `session_id` | forgets one session |
//! | `POST /stream-limit` | `limit` | announces an HTTP/2 stream limit |
//! | `POST /enrolment` | `mode`, `tokens` | changes who may enrol |
//! | `POST /drop-connections` | | cuts every connection |
//!
//! A rule has `rpc`, `action` and what the action needs, and may have `after`, `every`, `times`,
//! `agent_id`, `event`, `replay` and `with_effect` (see [`crate::Fault`]):
//!
//! ```text
//! curl localhost:50056/faults -d '{"rpc":"ProxyRegister","action":"delay","ms":200}'
//! curl localhost:50056/faults -d '{"rpc":"ProxyRegister","action":"status","code":"UNAVAILABLE","times":5}'
//! curl localhost:50056/faults -d '{"rpc":"NotifyStreamStatus","action":"refuse","event":"CONNECTED"}'
//! curl localhost:50056/faults -d '{"rpc":"BatchHeartbeat","action":"hang"}'
//! curl localhost:50056/faults -d '{"rpc":"ProxyInventory","action":"drop_connection","every":10}'
//! curl localhost:50056/faults -d '{"rpc":"ProxyInventory","action":"reset_stream","code":7}'
//! curl localhost:50056/faults -d '{"rpc":"ProxyRegister","action":"garbage","kind":"message"}'
//! curl localhost:50056/faults -d '{"rpc":"ProxyRegister","action":"answer","hex":"1001"}'
//! curl -X DELETE 'localhost:50056/faults?rpc=ProxyRegister'
//! curl localhost:50056/release -d '{"rpc":"BatchHeartbeat"}'
//! curl localhost:50056/restart -d '{"drop_connections":true}'
//! curl localhost:50056/stream-limit -d '{"limit":64}'
//! curl localhost:50056/enrolment -d '{"mode":"tokens","tokens":["t1"]}'
//! curl 'localhost:50056/received?rpc=NotifyStreamStatus&limit=5'
//! ```

mod input;
mod render;
mod rules;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::directory::Restart;
use crate::faults::FaultId;
use crate::server::StubServer;
use input::{BadInput, Object};

const MAX_CONNECTIONS: usize = 64;
const MAX_BODY: usize = 8 << 20;
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_PAGE: u64 = 1000;
const DEFAULT_PAGE: u64 = 100;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A control endpoint. Dropping it closes the listener.
#[derive(Debug)]
pub struct ControlServer {
    addr: SocketAddr,
    accepting: JoinHandle<()>,
}

impl ControlServer {
    /// Listens and serves until dropped.
    ///
    /// # Errors
    /// The address can't be bound.
    pub async fn start(listen: SocketAddr, stub: Arc<StubServer>) -> io::Result<ControlServer> {
        let listener = TcpListener::bind(listen).await?;
        let addr = listener.local_addr()?;
        Ok(ControlServer {
            addr,
            accepting: tokio::spawn(accept(listener, stub)),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, stub: Arc<StubServer>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "accept on the control endpoint failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let stub = Arc::clone(&stub);
        tokio::spawn(async move {
            let service = service_fn(|request| serve(Arc::clone(&stub), request));
            let mut builder = http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT);
            if let Err(error) = builder
                .serve_connection(TokioIo::new(stream), service)
                .await
            {
                tracing::debug!(%error, "control connection ended");
            }
            drop(place);
        });
    }
}

const PATHS: &str = "GET /state, /routes, /received or /faults; POST /faults, /release, /restart, \
    /forget, /stream-limit, /enrolment or /drop-connections; DELETE /faults";

async fn serve(
    stub: Arc<StubServer>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match handle(&stub, request).await {
        Ok(Some(body)) => (StatusCode::OK, body),
        Ok(None) => {
            let error = "no such path, or not with this method";
            (
                StatusCode::NOT_FOUND,
                json!({ "error": error, "fix": PATHS }),
            )
        }
        Err(bad) => (StatusCode::BAD_REQUEST, bad.to_json()),
    };
    let mut response = Response::new(Full::from(format!("{body:#}\n")));
    *response.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(response)
}

/// None: no such path.
async fn handle(stub: &StubServer, request: Request<Incoming>) -> Result<Option<Value>, BadInput> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, MAX_BODY).collect().await;
    let too_large = |_| BadInput::new("body", "broken or over 8 MiB", "send less");
    let body = body.map_err(too_large)?.to_bytes();
    let path = head.uri.path();
    if head.method == Method::POST {
        return post(stub, path, Object::from_body(&body)?);
    }
    let query = Object::from_query(head.uri.query().unwrap_or_default())?;
    match (head.method, path) {
        (Method::GET, "/state") => state(stub, query),
        (Method::GET, "/routes") => routes(stub, query),
        (Method::GET, "/received") => received(stub, query),
        (Method::GET, "/faults") => faults(stub, query),
        (Method::DELETE, "/faults") => delete_faults(stub, query),
        _ => return Ok(None),
    }
    .map(Some)
}

fn post(stub: &StubServer, path: &str, body: Object) -> Result<Option<Value>, BadInput> {
    match path {
        "/faults" => add_fault(stub, body),
        "/release" => release(stub, body),
        "/restart" => restart(stub, body),
        "/forget" => forget(stub, body),
        "/stream-limit" => stream_limit(stub, body),
        "/enrolment" => enrolment(stub, body),
        "/drop-connections" => {
            body.finish()?;
            Ok(json!({ "dropped": stub.drop_connections() }))
        }
        _ => return Ok(None),
    }
    .map(Some)
}

fn state(stub: &StubServer, query: Object) -> Result<Value, BadInput> {
    query.finish()?;
    let (addr, uptime) = (stub.addr(), stub.uptime());
    Ok(stub.view(|state| render::state(addr, uptime, state)))
}

fn routes(stub: &StubServer, mut query: Object) -> Result<Value, BadInput> {
    let wanted = query.parsed("state", "registered, connected or disconnected", |text| {
        render::ROUTE_STATES
            .into_iter()
            .find(|state| render::route_state(*state) == text)
    })?;
    let after = query.text("after")?;
    let limit = page(&mut query)?;
    query.finish()?;
    Ok(stub.view(|state| render::routes(state, wanted, after.as_deref(), limit)))
}

fn received(stub: &StubServer, mut query: Object) -> Result<Value, BadInput> {
    let rpc = input::rpc(&mut query)?.ok_or_else(|| input::missing("rpc", "name an RPC"))?;
    let limit = page(&mut query)?;
    let raw = query.flag("raw")?;
    query.finish()?;
    let (all, last) = stub.view(|state| {
        let kept = state.received(rpc);
        let skip = kept.len().saturating_sub(limit);
        (
            *state.counts(rpc),
            kept.skip(skip).cloned().collect::<Vec<_>>(),
        )
    });
    let started = stub.started();
    let entries: Vec<_> = last
        .iter()
        .map(|r| render::received(r, started, raw))
        .collect();
    Ok(json!({ "received": all.received, "forgotten": all.forgotten, "last": entries }))
}

fn page(query: &mut Object) -> Result<usize, BadInput> {
    let limit = query.number("limit", 1, MAX_PAGE)?.unwrap_or(DEFAULT_PAGE);
    Ok(usize::try_from(limit).unwrap_or(usize::MAX))
}

fn faults(stub: &StubServer, query: Object) -> Result<Value, BadInput> {
    query.finish()?;
    let list: Vec<_> = stub.view(|state| state.faults().map(render::fault).collect());
    Ok(json!({ "faults": list }))
}

fn add_fault(stub: &StubServer, mut body: Object) -> Result<Value, BadInput> {
    let fault = rules::fault(&mut body)?;
    body.finish()?;
    let id = stub.fault(fault).map_err(|error| {
        BadInput::new(
            "body",
            &error.to_string(),
            "remove rules with DELETE /faults",
        )
    })?;
    Ok(json!({ "id": id.0 }))
}

fn delete_faults(stub: &StubServer, mut query: Object) -> Result<Value, BadInput> {
    let id = query.number("id", 1, u64::MAX)?;
    let rpc = input::rpc(&mut query)?;
    query.finish()?;
    if id.is_some() && rpc.is_some() {
        return Err(BadInput::new(
            "rpc",
            "can't stand beside `id`",
            "send one of them",
        ));
    }
    let removed = match id {
        Some(id) => usize::from(stub.remove_fault(FaultId(id))),
        None => stub.clear_faults(rpc),
    };
    Ok(json!({ "removed": removed }))
}

fn release(stub: &StubServer, mut body: Object) -> Result<Value, BadInput> {
    let rpc = input::rpc(&mut body)?;
    body.finish()?;
    Ok(json!({ "released": stub.release(rpc) }))
}

fn restart(stub: &StubServer, mut body: Object) -> Result<Value, BadInput> {
    let drop_connections = body.flag("drop_connections")?;
    let lose_directory = body.flag("lose_directory")?;
    body.finish()?;
    let forgotten = stub.view(crate::State::known_sessions);
    stub.simulate_restart(Restart {
        drop_connections,
        lose_directory,
    });
    Ok(json!({ "forgotten_sessions": forgotten }))
}

fn forget(stub: &StubServer, mut body: Object) -> Result<Value, BadInput> {
    let session = body.text("session_id")?;
    body.finish()?;
    let session = session.ok_or_else(|| input::missing("session_id", "name a session"))?;
    Ok(json!({ "was_known": stub.forget_session(&session) }))
}

fn stream_limit(stub: &StubServer, mut body: Object) -> Result<Value, BadInput> {
    let limit = body.number("limit", 0, u64::from(u32::MAX >> 1))?;
    body.finish()?;
    let limit = limit.ok_or_else(|| input::missing("limit", "send a number of streams"))?;
    stub.set_stream_limit(u32::try_from(limit).unwrap_or(u32::MAX));
    Ok(json!({ "stream_limit": limit }))
}

fn enrolment(stub: &StubServer, mut body: Object) -> Result<Value, BadInput> {
    let enrolment = rules::enrolment(&mut body)?;
    body.finish()?;
    stub.set_enrolment(enrolment);
    Ok(json!({ "enrolment": stub.view(|state| render::enrolment(state.enrolment())) }))
}
