//! A scripted server over hyper: headers and messages as a real stack sees them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::upstream::frame::prefixed;

/// What arrived.
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) authority: Option<String>,
    pub(crate) headers: HeaderMap,
    /// The message without its prefix.
    pub(crate) message: Bytes,
}

/// What is answered.
#[derive(Clone)]
pub(crate) enum Reply {
    Message(Bytes),
    /// The same, after a while.
    Late(Duration, Bytes),
    Status(u32, &'static str),
    /// Body and trailers by hand, after status 200 and the gRPC content type.
    Raw(Bytes, Option<HeaderMap>),
    Http(u16),
    /// Never.
    Hang,
}

/// A running server; dropped, it and all its connections are gone.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// Calls as they arrive.
    pub(crate) calls: mpsc::Receiver<Received>,
    /// Calls being answered now, and the most there ever were.
    pub(crate) open: Arc<AtomicUsize>,
    pub(crate) most: Arc<AtomicUsize>,
    /// A call is answered when it gets one of these.
    pub(crate) gate: Arc<Semaphore>,
    _task: JoinSet<()>,
}

/// Counts a call that is being answered, also when it is reset.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Server {
    /// Answers every call at once with what `script` says.
    pub(crate) async fn start(script: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        let server = Self::gated(script).await;
        server.gate.add_permits(Semaphore::MAX_PERMITS / 2);
        server
    }

    /// Answers a call when the gate lets it.
    pub(crate) async fn gated(script: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener, script)
    }

    /// Answers at once what is within its stream limit, and refuses the rest.
    pub(crate) async fn limited(
        streams: u32,
        script: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self::with(listener, streams, script);
        server.gate.add_permits(Semaphore::MAX_PERMITS / 2);
        server
    }

    pub(crate) fn on(
        listener: TcpListener,
        script: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::with(listener, 1_000, script)
    }

    fn with(
        listener: TcpListener,
        streams: u32,
        script: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let (arrived, calls) = mpsc::channel(16_384);
        let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let gate = Arc::new(Semaphore::new(0));
        let script = Arc::new(script);
        let shared = (Arc::clone(&open), Arc::clone(&most), Arc::clone(&gate));
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (arrived, script, shared) =
                    (arrived.clone(), Arc::clone(&script), shared.clone());
                let service = service_fn(move |request| {
                    let (arrived, script, shared) =
                        (arrived.clone(), Arc::clone(&script), shared.clone());
                    async move {
                        let (open, most, gate) = shared;
                        let call = received(request).await;
                        let now = open.fetch_add(1, Ordering::SeqCst) + 1;
                        let _open = Open(open);
                        most.fetch_max(now, Ordering::SeqCst);
                        let reply = script(&call);
                        arrived
                            .try_send(call)
                            .expect("room for the calls of a test");
                        gate.acquire().await.unwrap().forget();
                        answered(reply).await
                    }
                });
                connections.spawn(async move {
                    let mut builder =
                        hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    builder.max_concurrent_streams(streams);
                    // Ends in an error when the client goes away, which tests do.
                    drop(
                        builder
                            .serve_connection(TokioIo::new(stream), service)
                            .await,
                    );
                });
            }
        });
        Self {
            address,
            calls,
            open,
            most,
            gate,
            _task: task,
        }
    }
}

async fn received(request: Request<Incoming>) -> Received {
    let (head, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map(|body| body.to_bytes())
        .unwrap_or_default();
    let message = if body.len() >= 5 {
        body.slice(5..)
    } else {
        body
    };
    Received {
        path: head.uri.path().to_owned(),
        authority: head.uri.authority().map(ToString::to_string),
        headers: head.headers,
        message,
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

async fn answered(mut reply: Reply) -> Result<Response<Body>, Infallible> {
    if let Reply::Late(after, message) = reply {
        tokio::time::sleep(after).await;
        reply = Reply::Message(message);
    }
    let trailers = |code: u32, message: &'static str| {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from(code));
        trailers.insert("grpc-message", HeaderValue::from_static(message));
        trailers
    };
    let (data, trailers) = match reply {
        Reply::Message(message) => (prefixed(&message), Some(trailers(0, ""))),
        Reply::Status(code, message) => (Bytes::new(), Some(trailers(code, message))),
        Reply::Raw(data, trailers) => (data, trailers),
        Reply::Http(status) => {
            let mut response = Response::new(Full::new(Bytes::new()).boxed_unsync());
            *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
            return Ok(response);
        }
        Reply::Hang | Reply::Late(..) => std::future::pending().await,
    };
    let body = Full::new(data).with_trailers(async move { trailers.map(Ok) });
    let mut response = Response::new(body.boxed_unsync());
    response
        .headers_mut()
        .insert("content-type", HeaderValue::from_static("application/grpc"));
    Ok(response)
}
