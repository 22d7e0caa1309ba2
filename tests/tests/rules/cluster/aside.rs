//! A node that can stand still, as a stopped process does: everything of it waits, its sockets stay
//! open, and time goes on.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use yuzu_gateway::config::Config;
use yuzu_tests::http;
use yuzu_tests::metrics::Metrics;

use super::{LOOK, Node};

/// It has a thread and a runtime of its own.
pub(super) struct Aside {
    /// Where agents connect.
    pub(super) agents: SocketAddr,
    metrics: SocketAddr,
    stop: Option<SyncSender<Duration>>,
    awake: mpsc::Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Aside {
    pub(super) async fn start(config: Config) -> Self {
        let (tell, told) = oneshot::channel();
        let (stop, stopped) = sync_channel(1);
        let (woken, awake) = mpsc::channel(1);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.expect("a runtime").block_on(async move {
                let node = Node::start(config).await;
                let agents = node.gateway.agent_address().expect("an agent listener");
                let _ = tell.send((agents, node.gateway.metrics_address()));
                run(stopped, woken).await;
            });
        });
        let (agents, metrics) = told.await.expect("the node starts");
        Self {
            agents,
            metrics,
            stop: Some(stop),
            awake,
            thread: Some(thread),
        }
    }

    /// Stands still for so long, and is awake again.
    pub(super) async fn stands_still(&mut self, time: Duration) {
        let stop = self.stop.as_ref().expect("it runs");
        stop.send(time).expect("it runs");
        self.awake.recv().await.expect("it runs");
    }

    /// As [`Node::metric`].
    pub(super) async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let page = http::get(self.metrics, "/metrics").await.expect("a scrape");
        let metrics = Metrics::parse(&page.body).expect("the text format");
        metrics
            .value(&format!("yuzu_gw_{name}"), labels)
            .unwrap_or_default()
    }
}

/// Until the other side is dropped.
async fn run(stopped: Receiver<Duration>, woken: mpsc::Sender<()>) {
    loop {
        match stopped.recv_timeout(Duration::ZERO) {
            Ok(time) => {
                std::thread::sleep(time);
                let _ = woken.send(()).await;
            }
            Err(RecvTimeoutError::Timeout) => tokio::time::sleep(LOOK).await,
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}
