//! The small HTTP/1.1 server behind the health and the metrics port.
//!
//! Responsible for its own bounds: 2 s per request, 64 connections, 16 KiB of header, one request
//! per connection (READY-6). Must never know what it serves, nor wait for the command plane.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::system::{TcpListener, listen, spawn_blocking};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_CONNECTIONS: usize = 64;
const MAX_HEAD_BYTES: usize = 16 * 1024;
const MAX_HEADERS: usize = 64;
const BACKLOG: i32 = 1024;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a route answers.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The content type, a valid header value.
    pub content_type: &'static str,
    /// The body; left out for HEAD.
    pub body: Bytes,
}

impl Reply {
    /// A JSON body.
    pub fn json(status: StatusCode, body: &serde_json::Value) -> Self {
        Self {
            status,
            content_type: "application/json",
            body: body.to_string().into(),
        }
    }
}

type Handler = Arc<dyn Fn() -> Reply + Send + Sync>;

#[derive(Clone)]
struct Route {
    handler: Handler,
    heavy: bool,
}

/// The paths of one port. All answer GET and HEAD only.
#[derive(Default)]
pub struct Routes(Vec<(&'static str, Route)>);

impl Routes {
    /// No path is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers `path` with `handler`, which must return at once.
    #[must_use]
    pub fn get(
        self,
        path: &'static str,
        handler: impl Fn() -> Reply + Send + Sync + 'static,
    ) -> Self {
        self.with(path, Arc::new(handler), false)
    }

    /// Answers `path` with `handler`, run on a thread that carries no agents.
    #[must_use]
    pub fn get_heavy(
        self,
        path: &'static str,
        handler: impl Fn() -> Reply + Send + Sync + 'static,
    ) -> Self {
        self.with(path, Arc::new(handler), true)
    }

    fn with(mut self, path: &'static str, handler: Handler, heavy: bool) -> Self {
        self.0.push((path, Route { handler, heavy }));
        self
    }

    fn find(&self, path: &str) -> Option<Route> {
        self.0
            .iter()
            .find(|(known, _)| *known == path)
            .map(|(_, route)| route.clone())
    }

    #[cfg(test)]
    pub(super) fn call(&self, path: &str) -> Option<Reply> {
        self.find(path).map(|route| (route.handler)())
    }

    async fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let Some(route) = self.find(path) else {
            return respond(error(StatusCode::NOT_FOUND, "not_found"));
        };
        if method != Method::GET && method != Method::HEAD {
            let refusal = error(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed");
            let mut response = respond(refusal);
            response
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        respond(route.run().await)
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|(path, _)| path))
            .finish()
    }
}

impl Route {
    async fn run(self) -> Reply {
        if !self.heavy {
            return (self.handler)();
        }
        spawn_blocking(move || (self.handler)())
            .await
            .unwrap_or_else(|_| error(StatusCode::INTERNAL_SERVER_ERROR, "internal"))
    }
}

fn error(status: StatusCode, word: &str) -> Reply {
    Reply::json(status, &json!({ "status": word }))
}

fn respond(reply: Reply) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(reply.body));
    *response.status_mut() = reply.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(reply.content_type));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Takes a port; `addr` with port 0 takes any free one. Call inside a runtime.
///
/// # Errors
/// What the system says, such as an address in use.
pub fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    listen(addr, BACKLOG)
}

/// One port being served. Dropped, it accepts no more and lets open requests end on their own.
#[derive(Debug)]
pub struct HttpServer {
    local_addr: SocketAddr,
    stop: oneshot::Sender<()>,
    accepting: JoinHandle<()>,
}

impl HttpServer {
    /// Serves `routes` until it is stopped. Call inside a runtime.
    ///
    /// # Errors
    /// When the listener does not know its address.
    pub fn start(listener: TcpListener, routes: Routes) -> io::Result<Self> {
        let local_addr = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let accepting = tokio::spawn(accept_until(stopped, listener, Arc::new(routes)));
        Ok(Self {
            local_addr,
            stop,
            accepting,
        })
    }

    /// The address with the port that was really taken.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Whether the port is being served.
    pub fn is_running(&self) -> bool {
        !self.accepting.is_finished()
    }

    /// Closes the port, then waits for the open requests, at most 2 s.
    pub async fn stop(self) {
        // An error means that the task has ended already.
        let _ = self.stop.send(());
        let _ = self.accepting.await;
    }
}

async fn accept_until(
    mut stopped: oneshot::Receiver<()>,
    listener: TcpListener,
    routes: Arc<Routes>,
) {
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = &mut stopped => break,
            Some(_) = open.join_next() => {}
            accepted = listener.accept(), if open.len() < MAX_CONNECTIONS => match accepted {
                Ok((socket, _)) => {
                    let routes = routes.clone();
                    open.spawn(async move { serve(socket, &routes).await });
                }
                // Without descriptors the error comes back at once: a pause keeps it from spinning.
                Err(error) => {
                    tracing::debug!(%error, "accept failed on a health or metrics port");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

/// One request on one connection, all of it within 2 s.
async fn serve(io: impl AsyncRead + AsyncWrite + Unpin, routes: &Routes) {
    let service = service_fn(|request: Request<Incoming>| async move {
        Ok::<_, Infallible>(routes.answer(request.method(), request.uri().path()).await)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .half_close(true)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(io), service);
    match tokio::time::timeout(REQUEST_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "request on a health or metrics port failed"),
        Err(_) => tracing::debug!("request on a health or metrics port not done in 2 s"),
    }
}

#[cfg(test)]
mod tests;
