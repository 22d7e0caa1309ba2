//! One request on its way to what serves it.
//!
//! Responsible for answering a panic in a handler (GEN-5). Must never look into a request.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use hyper::body::Incoming;
use tracing::error;

use super::connection::Connection;
use super::grpc;
use super::{Handler, Response};

/// Answers one request; a panic in a handler answers 13 and says where, never what (GEN-5).
pub(super) async fn dispatch<H: Handler>(
    handler: Arc<H>,
    request: http::Request<Incoming>,
    connection: Arc<Connection>,
) -> Response {
    let method = KnownPath::of(request.uri().path());
    match AssertUnwindSafe(handler.call(request, connection))
        .catch_unwind()
        .await
    {
        Ok(response) => response,
        Err(_) => {
            error!(
                method = method.0,
                "a handler panicked; the call is answered with status 13"
            );
            grpc::refuse(tonic::Status::internal("internal error"))
        }
    }
}

/// A path as it may stand in a log: one of the served ones.
struct KnownPath(&'static str);

impl KnownPath {
    fn of(path: &str) -> Self {
        use yuzu_proto::path;
        let known = [
            path::REGISTER,
            path::SUBSCRIBE,
            path::HEARTBEAT,
            path::REPORT_INVENTORY,
            path::LIST_AGENTS,
            path::GET_AGENT,
            path::SEND_COMMAND,
            path::WATCH_EVENTS,
            path::QUERY_INVENTORY,
        ];
        Self(
            known
                .into_iter()
                .find(|known| *known == path)
                .unwrap_or("other"),
        )
    }
}
