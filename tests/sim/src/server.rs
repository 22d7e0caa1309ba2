//! The control plane on its host: the stub, whose directory outlives the host.

use std::rc::Rc;

use turmoil::net::TcpListener;
use yuzu_server_stub::{StubConfig, StubServer};

use crate::node::SERVER;

/// A server that nobody is connected to.
pub fn server() -> Rc<StubServer> {
    Rc::new(StubServer::unbound(StubConfig {
        record_entries: 16,
        ..StubConfig::default()
    }))
}

/// Serves until the host crashes.
pub async fn run(server: Rc<StubServer>) -> turmoil::Result {
    let listener = TcpListener::bind(("0.0.0.0", SERVER)).await?;
    loop {
        let (stream, peer) = listener.accept().await?;
        server.serve(stream, peer);
    }
}
