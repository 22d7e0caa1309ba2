//! What links are used for.
//!
//! Responsible for handing a link to each room that uses it. Must never know what they say.

use std::pin::Pin;
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use yuzu_proto::path;

use super::link::{Calls, LinkUser};
use super::{Channels, Peer, Sharing};
use crate::edge::Response;
use crate::edge::connection::Connection;

/// All of them.
#[derive(Debug)]
pub(super) struct Users {
    pub(super) sharing: Arc<Sharing>,
    pub(super) channels: Arc<Channels>,
}

impl LinkUser for Users {
    fn dialled(
        self: Arc<Self>,
        peer: Peer,
        calls: Calls,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let sharing = Arc::clone(&self.sharing).dialled(peer.clone(), calls.clone());
        let channels = Arc::clone(&self.channels).dialled(peer, calls);
        Box::pin(async move {
            tokio::join!(sharing, channels);
        })
    }

    fn called(
        self: Arc<Self>,
        peer: &Peer,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
    ) -> Option<Response> {
        match request.uri().path() {
            path::NODE_SHARE_AGENTS => Arc::clone(&self.sharing).called(peer, request, connection),
            _ => Arc::clone(&self.channels).called(peer, request, connection),
        }
    }
}
