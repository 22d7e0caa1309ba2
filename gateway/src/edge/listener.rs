//! One listener, from its socket to its stop.
//!
//! Responsible for the socket (backlog 4,096), for the accept loop's life (suspended, resumed), and
//! for the two ways to stop: draining with GOAWAY, then closing. Must never know what is served.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

#[cfg(feature = "in-memory")]
use tokio::io::DuplexStream;
use tokio::time::Instant;

use super::Handler;
use super::acceptor::{Acceptor, Shared};
use super::connection::{Connection, Signal};
use super::terms::{Intake, NodeParts};
use super::tls::ServerTls;
use crate::config;
use crate::supervise::{Kept, keep_running};
use crate::system::{TcpListener, listen};

const BACKLOG: i32 = 4096;

/// A socket that listens and is not served yet.
#[derive(Debug)]
pub(crate) struct BoundListener {
    socket: TcpListener,
    config: config::Listener,
}

/// A served listener.
pub(crate) struct RunningListener {
    shared: Arc<Shared>,
    intake: Arc<Intake>,
    /// With the address that it is bound to, also when any port was asked for.
    config: config::Listener,
    accept: Box<dyn Fn(TcpListener) -> Kept + Send + Sync>,
    accepting: Mutex<Accepting>,
    #[cfg(feature = "in-memory")]
    bring: Box<dyn Fn(DuplexStream, SocketAddr) + Send + Sync>,
}

/// What the socket of a listener does.
#[derive(Debug)]
enum Accepting {
    Running(Kept),
    /// Closed, and may be opened again.
    Suspended,
    /// Closed for good.
    Stopped,
}

impl BoundListener {
    /// Binds the address of `config`.
    ///
    /// # Errors
    /// Whatever the socket calls say; the address is not part of the error.
    pub(crate) fn bind(config: &config::Listener) -> io::Result<Self> {
        Ok(Self {
            socket: listen(config.address, BACKLOG)?,
            config: config.clone(),
        })
    }

    /// Where it is bound, also when any port was asked for.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Starts to accept; without `tls` in plaintext.
    ///
    /// # Errors
    /// When the bound address can not be read back.
    pub(crate) fn serve<H: Handler>(
        self,
        handler: Arc<H>,
        tls: Option<Arc<ServerTls>>,
        node: &NodeParts,
    ) -> io::Result<RunningListener> {
        let mut config = self.config;
        config.address = self.socket.local_addr()?;
        let shared = Arc::new(Shared::new(&config.name, Arc::clone(&node.metrics)));
        let intake = Arc::new(Intake::new(&config, node));
        let acceptor = Arc::new(Acceptor {
            intake: Arc::clone(&intake),
            tls,
            shared: Arc::clone(&shared),
            handler,
        });
        #[cfg(feature = "in-memory")]
        let bring = {
            let acceptor = Arc::clone(&acceptor);
            Box::new(move |stream, peer| acceptor.bring(stream, peer))
        };
        let supervisor = node.supervisor.clone();
        let accept = Box::new(move |socket| {
            let (acceptor, socket) = (Arc::clone(&acceptor), Arc::new(socket));
            let task = keep_running("listener", move || {
                Arc::clone(&acceptor).accept(Arc::clone(&socket))
            });
            supervisor.watch(&task);
            task
        });
        let accepting = Mutex::new(Accepting::Running(accept(self.socket)));
        Ok(RunningListener {
            shared,
            intake,
            config,
            accept,
            accepting,
            #[cfg(feature = "in-memory")]
            bring,
        })
    }
}

impl std::fmt::Debug for RunningListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningListener")
            .field("name", &self.config.name)
            .field("address", &self.config.address)
            .finish_non_exhaustive()
    }
}

impl RunningListener {
    /// Serves a stream that no socket carries; `peer` is where it is said to come from.
    #[cfg(feature = "in-memory")]
    pub(crate) fn bring(&self, stream: DuplexStream, peer: SocketAddr) {
        (self.bring)(stream, peer);
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.config.address
    }

    /// Puts the limits and the origin of `config` in force, for connections that come from now on;
    /// nothing else of it.
    pub(crate) fn retune(&self, config: &config::Listener) {
        self.intake.retune(config);
    }

    fn accepting(&self) -> std::sync::MutexGuard<'_, Accepting> {
        self.accepting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the accept loop runs (READY-4).
    pub(crate) fn is_running(&self) -> bool {
        matches!(&*self.accepting(), Accepting::Running(task) if !task.is_finished())
    }

    /// Whether its socket is closed until [`Self::resume`].
    pub(crate) fn is_suspended(&self) -> bool {
        matches!(*self.accepting(), Accepting::Suspended)
    }

    /// Closes the socket for good: new connects are refused, open connections go on.
    pub(crate) fn stop_accepting(&self) {
        let before = std::mem::replace(&mut *self.accepting(), Accepting::Stopped);
        // A running one ends, and the socket is closed with it.
        drop(before);
    }

    /// Closes the socket until [`Self::resume`]: new connects are refused, open connections go on
    /// (SHED-2). Does nothing when it is closed.
    pub(crate) async fn suspend(&self) {
        let task = {
            let mut accepting = self.accepting();
            if !matches!(*accepting, Accepting::Running(_)) {
                return;
            }
            std::mem::replace(&mut *accepting, Accepting::Suspended)
        };
        if let Accepting::Running(task) = task {
            // The socket is closed when its task has gone.
            task.end().await;
        }
    }

    /// Opens the socket again, on the same address. Does nothing unless it is suspended.
    ///
    /// # Errors
    /// When it can't be bound; it stays suspended.
    pub(crate) fn resume(&self) -> io::Result<()> {
        let mut accepting = self.accepting();
        if matches!(*accepting, Accepting::Suspended) {
            let bound = BoundListener::bind(&self.config)?;
            *accepting = Accepting::Running((self.accept)(bound.socket));
        }
        Ok(())
    }

    /// Every connection, for the caller to let them go.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        self.shared.open().values().map(Arc::clone).collect()
    }

    /// Waits until every connection has gone, closing what is left at `deadline`.
    pub(crate) async fn closed(&self, deadline: Instant) {
        loop {
            let gone = self.shared.gone.notified();
            let mut gone = pin!(gone);
            gone.as_mut().enable();
            if self.shared.open().is_empty() {
                return;
            }
            if tokio::time::timeout_at(deadline, gone).await.is_err() {
                break;
            }
        }
        self.shared.signal_all(Signal::Kill);
        let kill_time = Instant::now() + Duration::from_secs(1);
        while !self.shared.open().is_empty() {
            if tokio::time::timeout_at(kill_time, self.shared.gone.notified())
                .await
                .is_err()
            {
                return;
            }
        }
    }
}
