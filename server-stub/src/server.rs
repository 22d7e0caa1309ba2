//! The handle that tests and the binary hold.
//!
//! Responsible for starting, stopping and starting again on the same port, and for the orders to
//! a running stub. Must never make a test sleep: [`StubServer::wait_for`] wakes on every change.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::Socket;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::accept::{self, Phase};
use crate::config::{Enrolment, IssuedCertificate, StubConfig};
use crate::directory::Restart;
use crate::faults::{Fault, FaultError, FaultId};
use crate::records::Received;
use crate::rpc::Rpc;
use crate::state::{Shared, State};

/// A wait that ran out.
#[derive(Debug, Clone, thiserror::Error)]
#[error("waited {waited:?} for {what}; stub: {summary}")]
pub struct WaitError {
    /// What was waited for.
    pub what: String,
    /// How long.
    pub waited: Duration,
    /// [`State::summary`] at the end.
    pub summary: String,
}

/// A control plane on a real socket. Dropping it cuts everything.
pub struct StubServer {
    shared: Arc<Shared>,
    addr: SocketAddr,
    /// What the streams of [`StubServer::serve`] shall do: serve as long as it lives.
    given: watch::Sender<Phase>,
    /// The port was ours to choose, so it is held between `kill` and `start_again`.
    hold_port: bool,
    running: Mutex<Option<Running>>,
}

struct Running {
    phase: watch::Sender<Phase>,
    accepting: JoinHandle<()>,
    held: Option<Socket>,
}

impl Drop for StubServer {
    fn drop(&mut self) {
        let running = self
            .running
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = running {
            running.phase.send_replace(Phase::Cut);
        }
    }
}

impl fmt::Debug for StubServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StubServer({})", self.addr)
    }
}

impl StubServer {
    /// Binds, listens and serves until dropped, killed or shut down.
    ///
    /// # Errors
    /// The address can't be bound.
    pub async fn start(config: StubConfig) -> io::Result<StubServer> {
        let hold_port = config.listen.port() == 0;
        let socket = accept::bind(config.listen, hold_port)?;
        let addr = socket
            .local_addr()?
            .as_socket()
            .ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut server = Self::unbound(config);
        (server.addr, server.hold_port) = (addr, hold_port);
        server.run(socket)?;
        Ok(server)
    }

    /// One that listens nowhere and serves what it is given.
    #[must_use]
    pub fn unbound(config: StubConfig) -> StubServer {
        StubServer {
            addr: config.listen,
            shared: Shared::new(config),
            given: watch::Sender::new(Phase::Serve),
            hold_port: false,
            running: Mutex::new(None),
        }
    }

    /// Serves an open stream, in plaintext, on the present runtime; `peer` is where it is said to
    /// come from.
    pub fn serve<I>(&self, stream: I, peer: SocketAddr)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if let Some(open) = accept::admit(&self.shared, peer) {
            tokio::spawn(accept::serve(open, stream, self.given.subscribe()));
        }
    }

    fn run(&self, socket: Socket) -> io::Result<()> {
        let held = self
            .hold_port
            .then(|| accept::bind(self.addr, true))
            .transpose()?;
        let listener = accept::listen(socket)?;
        let phase = watch::Sender::new(Phase::Serve);
        let accepting = accept::run(listener, Arc::clone(&self.shared), phase.subscribe());
        let accepting = tokio::spawn(accepting);
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(Running {
            phase,
            accepting,
            held,
        });
        Ok(())
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// When it was started.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.shared.started
    }

    /// How long ago it was started.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.shared.started.elapsed()
    }

    /// The same as a URI for a client: `http://<addr>`.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Reads the state. The stub waits meanwhile, so the closure shall be short and must not call
    /// this handle.
    pub fn view<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.shared.read())
    }

    /// Kept requests of an RPC, oldest first.
    #[must_use]
    pub fn received(&self, rpc: Rpc) -> Vec<Received> {
        self.view(|state| state.received(rpc).cloned().collect())
    }

    /// Waits until `look` finds something; it is asked at once and after every change,
    /// under the same rules as in [`StubServer::view`].
    ///
    /// # Errors
    /// `timeout` passed first; the error names `what` and shows the calls so far.
    pub async fn wait_for<T>(
        &self,
        what: &str,
        timeout: Duration,
        mut look: impl FnMut(&State) -> Option<T>,
    ) -> Result<T, WaitError> {
        let mut changed = self.shared.changed.subscribe();
        let found = async {
            loop {
                changed.borrow_and_update();
                if let Some(found) = look(&self.shared.read()) {
                    return found;
                }
                if changed.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::time::timeout(timeout, found)
            .await
            .map_err(|_| WaitError {
                what: what.into(),
                waited: timeout,
                summary: self.view(State::summary),
            })
    }

    /// Waits until an RPC was received `count` times.
    ///
    /// # Errors
    /// As [`StubServer::wait_for`].
    pub async fn wait_received(
        &self,
        rpc: Rpc,
        count: u64,
        timeout: Duration,
    ) -> Result<(), WaitError> {
        let enough = |state: &State| (state.counts(rpc).received >= count).then_some(());
        self.wait_for(&format!("{count} x {rpc}"), timeout, enough)
            .await
    }

    /// Adds a rule.
    ///
    /// # Errors
    /// The rule could never fire, or too many are set.
    pub fn fault(&self, fault: Fault) -> Result<FaultId, FaultError> {
        self.shared.update(|state| state.faults.add(fault))
    }

    /// Removes a rule; false: it was gone. Calls it holds stay held.
    pub fn remove_fault(&self, id: FaultId) -> bool {
        self.shared
            .update(|state| state.faults.remove(|rule| rule.id == id))
            > 0
    }

    /// Removes the rules of an RPC, or all; returns how many. Calls they hold stay held.
    pub fn clear_faults(&self, rpc: Option<Rpc>) -> usize {
        let which = |of: Rpc| rpc.is_none_or(|rpc| rpc == of);
        self.shared
            .update(|state| state.faults.remove(|rule| which(rule.fault.rpc)))
    }

    /// Lets the calls of an RPC, or all, that hang go on; returns how many hung.
    pub fn release(&self, rpc: Option<Rpc>) -> u64 {
        let which: Vec<Rpc> = rpc.map_or(Rpc::ALL.to_vec(), |rpc| vec![rpc]);
        self.shared.update(|state| {
            let mut hung = 0;
            for rpc in which {
                state.releases.get(rpc).send_modify(|n| *n += 1);
                hung += state.counts.get(rpc).hung;
            }
            hung
        })
    }

    /// Forgets every session, as a restart of the server would; the socket stays open.
    pub fn simulate_restart(&self, restart: Restart) {
        self.shared.update(|state| state.directory.restart(restart));
        if restart.drop_connections {
            self.drop_connections();
        }
    }

    /// Forgets one session; false: it was not known.
    pub fn forget_session(&self, session_id: &str) -> bool {
        self.shared
            .update(|state| state.directory.forget(session_id))
    }

    /// Changes who may enrol from now on.
    pub fn set_enrolment(&self, enrolment: Enrolment) {
        self.shared
            .update(|state| state.directory.enrolment = enrolment);
    }

    /// Changes what a CSR is answered with from now on.
    pub fn set_issued(&self, issued: Option<IssuedCertificate>) {
        self.shared.update(|state| state.directory.issued = issued);
    }

    /// Announces a stream limit to new connections and, in a SETTINGS frame of its own, to the
    /// open ones; there it is enforced with `REFUSED_STREAM` once acknowledged. An open
    /// connection is never given more than it began with.
    pub fn set_stream_limit(&self, limit: u32) {
        self.shared.update(|state| {
            state.stream_limit = limit;
            state
                .connections
                .values()
                .for_each(|connection| connection.announce(limit));
        });
    }

    /// Cuts every open connection; returns how many. New ones are accepted.
    pub fn drop_connections(&self) -> usize {
        self.shared.update(|state| {
            state
                .connections
                .values()
                .for_each(|connection| connection.cut());
            state.connections.len()
        })
    }

    /// Forgets the kept requests; counters stay.
    pub fn clear_records(&self) {
        self.shared.update(|state| {
            Rpc::ALL
                .into_iter()
                .for_each(|rpc| state.records.get_mut(rpc).clear());
        });
    }

    /// Stops listening, says GOAWAY, lets open calls end, and cuts what is left after
    /// [`StubConfig::shutdown_grace`].
    pub async fn shutdown(&self) {
        self.stop(Phase::Drain).await;
    }

    /// Stops listening and cuts every connection at once. Returns when all are closed.
    pub async fn kill(&self) {
        self.stop(Phase::Cut).await;
    }

    /// Listens again on the same port after [`StubServer::kill`] or [`StubServer::shutdown`];
    /// state, rules and records are as they were. Does nothing on a running stub.
    ///
    /// # Errors
    /// The port can't be bound, which can only be when the configuration named it.
    pub async fn start_again(&self) -> io::Result<()> {
        let held = {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            match running.as_mut() {
                Some(running) if *running.phase.borrow() == Phase::Serve => return Ok(()),
                Some(running) => running.held.take(),
                None => None,
            }
        };
        let socket = match held {
            Some(held) => held,
            None => accept::bind(self.addr, self.hold_port)?,
        };
        self.run(socket)
    }

    async fn stop(&self, phase: Phase) {
        let (orders, accepting) = {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(running) = running.as_mut() else {
                return;
            };
            running.phase.send_replace(phase);
            let done = tokio::spawn(async {});
            (
                running.phase.clone(),
                std::mem::replace(&mut running.accepting, done),
            )
        };
        // A panic of the accept task has ended it as well.
        let _ = accepting.await;
        let grace = self.shared.config.shutdown_grace;
        if phase == Phase::Drain && self.wait_closed(grace).await.is_err() {
            orders.send_replace(Phase::Cut);
        }
        let _ = self.wait_closed(grace).await;
    }

    async fn wait_closed(&self, within: Duration) -> Result<(), WaitError> {
        let closed = |state: &State| state.connections.is_empty().then_some(());
        self.wait_for("the end of all connections", within, closed)
            .await
    }
}
