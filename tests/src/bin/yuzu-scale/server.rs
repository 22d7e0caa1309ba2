//! The simulated server of a scenario, on threads of its own.
//!
//! On the runtime of the simulated agents it would wait behind thousands of their tasks, as no
//! server does, and its times would be theirs.

use std::ops::Deref;

use tokio::runtime::{Builder, Runtime};
use yuzu_server_stub::{StubConfig, StubServer};

/// See the module.
#[derive(Debug)]
pub(crate) struct Server {
    stub: StubServer,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

impl Server {
    pub(crate) async fn start(config: StubConfig) -> Result<Self, String> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("server")
            .enable_all()
            .build()
            .map_err(|e| e.to_string())?;
        let stub = runtime.spawn(StubServer::start(config));
        let stub = stub.await.map_err(|e| e.to_string())?;
        Ok(Self {
            stub: stub.map_err(|e| e.to_string())?,
            runtime: Some(runtime),
        })
    }
}

impl Deref for Server {
    type Target = StubServer;

    fn deref(&self) -> &StubServer {
        &self.stub
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting for its threads is not allowed on another runtime.
            runtime.shutdown_background();
        }
    }
}
