//! The way to the server.
//!
//! Responsible for the connection, for who may call when (permits, breaker, streams), and for
//! ending every call in exactly one outcome class. Requests and answers are bytes that pass
//! unchanged. Must never know what an agent or a session is.

mod breaker;
mod carrier;
mod channel;
mod circuit;
mod client;
mod connection;
mod dial;
mod error;
mod frame;
mod guardian;
mod keeper;
mod lane;
mod ledger;
mod order;
mod permits;
mod redial;
mod rpc;
mod saturation;
#[cfg(test)]
pub(crate) mod tests;
mod tls;
mod transport;

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep_until};

pub use breaker::BreakerState;
use breaker::Kind;
pub(crate) use breaker::Verdict;
use circuit::{Admission, Circuit};
pub(crate) use client::Begun;
use client::Client;
pub use error::{CallError, ConnectError};
use keeper::{Keeper, Settings};
use lane::Lanes;
use permits::Class;
pub use rpc::Rpc;
use saturation::Detector;
pub(crate) use saturation::NoticeCounts;
use tls::ClientTls;

use crate::config;
use crate::observe::metrics::Metrics;
use crate::supervise::{Kept, NodeSupervisor, keep_running};

/// Notices in flight at most (NOTIFY-2).
pub(crate) const NOTICES_IN_FLIGHT: usize = 10;

/// Streams that need no permit: notices, Guardian frames, the heartbeat flush (PERMIT-2).
const RESERVED_STREAMS: usize = NOTICES_IN_FLIGHT + guardian::IN_FLIGHT + 1;

/// The presented session was superseded.
const FAILED_PRECONDITION: u32 = 9;

pub(crate) const TOO_MANY_FIRST: Duration = Duration::from_millis(10);
pub(crate) const TOO_MANY_LAST: Duration = Duration::from_millis(100);

/// A handle to the server; clones share one connection.
#[derive(Debug, Clone)]
pub struct Upstream {
    inner: Arc<Inner>,
    guardian: Arc<Semaphore>,
    tls: Option<Arc<ClientTls>>,
    /// Lives as long as its task.
    keeper: Weak<Keeper>,
    tasks: Arc<Mutex<Vec<Kept>>>,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    circuit: Arc<Circuit>,
    lanes: Arc<Lanes>,
    timeouts: ArcSwap<Timeouts>,
    notices: Arc<NoticeCounts>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Clone, Copy)]
struct Timeouts {
    rpc: Duration,
    call: Duration,
}

impl Timeouts {
    fn of(config: &config::Upstream) -> Self {
        Self {
            rpc: config.rpc_timeout,
            call: config.call_timeout,
        }
    }
}

/// The right to send one notice.
#[derive(Debug)]
pub(crate) struct NoticeAdmission(Admission);

impl NoticeAdmission {
    /// Whether the notice is the probe of a half-open breaker (NOTIFY-6).
    pub(crate) fn is_probe(&self) -> bool {
        self.0.is_probe()
    }

    /// Tells the breaker how the send ended; dropped instead, it says nothing.
    pub(crate) fn settle(self, verdict: Verdict) {
        self.0.settle(verdict);
    }
}

impl Upstream {
    /// Starts dialling. Without an endpoint (lab) every call fails with
    /// [`CallError::NoUpstream`]. Must be called inside a tokio runtime.
    pub fn start(config: &config::Upstream, metrics: Arc<Metrics>) -> Upstream {
        let circuit = Circuit::new(&config.breaker, Arc::clone(&metrics));
        let timer = Arc::clone(&circuit);
        let mut tasks = vec![keep_running("circuit breaker", move || {
            let timer = Arc::clone(&timer);
            async move { timer.run().await }
        })];
        let lanes = Lanes::new(config, RESERVED_STREAMS, &metrics);
        let tls = ClientTls::new(config).map(Arc::new);
        let mut kept = Weak::new();
        let channel = (!config.endpoints.is_empty()).then(|| {
            let settings = Settings {
                endpoints: config.endpoints.clone(),
                failback_after: config.failback_after,
                connect_timeout: config.connect_timeout,
                socket: dial::Options {
                    nodelay: config.tcp_nodelay,
                    user_timeout: keeper::USER_TIMEOUT,
                },
                keep_alive: keeper::KEEP_ALIVE,
                max_streams: max_streams(config),
                tls: tls.clone(),
            };
            let (channel, keeper) = Keeper::new(settings, Arc::clone(&lanes), Arc::clone(&metrics));
            let keeper = Arc::new(keeper);
            kept = Arc::downgrade(&keeper);
            tasks.push(keep_running("upstream connection", move || {
                let keeper = Arc::clone(&keeper);
                async move { keeper.run().await }
            }));
            channel
        });
        let (notices, guardian) = (
            Arc::default(),
            Arc::new(Semaphore::new(guardian::IN_FLIGHT)),
        );
        let detector = Arc::new(Detector {
            lanes: Arc::clone(&lanes),
            notices: Arc::clone(&notices),
            guardian: Arc::clone(&guardian),
            metrics: Arc::clone(&metrics),
        });
        tasks.push(keep_running("slow server detector", move || {
            let detector = Arc::clone(&detector);
            async move { detector.run().await }
        }));
        let max_answer = config.max_receive_message_bytes;
        let inner = Inner {
            client: Client::new(channel, max_answer, Arc::clone(&metrics)),
            circuit,
            lanes,
            timeouts: ArcSwap::from_pointee(Timeouts::of(config)),
            notices,
            metrics,
        };
        Upstream {
            inner: Arc::new(inner),
            guardian,
            tls,
            keeper: kept,
            tasks: Arc::new(Mutex::new(tasks)),
        }
    }

    /// One warning for each TLS file that is at fault at the start (UPCH-4). The files are read off
    /// the runtime.
    pub(crate) async fn warn_of_files(config: &config::Upstream) {
        if let (Some(tls), Some(endpoint)) = (ClientTls::new(config), config.endpoints.first()) {
            tls.warn_of_files(endpoint).await;
        }
    }

    /// Puts another configuration in force, for calls and connections that begin from now on; the
    /// endpoints and their TLS files stay those of the start.
    pub(crate) fn retune(&self, config: &config::Upstream) {
        let config::Upstream {
            endpoints: _,
            scheme: _,
            tls: _,
            failback_after,
            connect_timeout,
            rpc_timeout: _,
            call_timeout: _,
            tcp_nodelay,
            max_receive_message_bytes,
            register_concurrency: _,
            register_queue: _,
            inventory_concurrency: _,
            inventory_queue: _,
            replay_concurrency: _,
            breaker,
        } = config;
        let inner = &self.inner;
        inner.timeouts.store(Arc::new(Timeouts::of(config)));
        inner.client.retune(*max_receive_message_bytes);
        inner.circuit.retune(breaker);
        // Streams before the permits that would use them.
        if let Some(keeper) = self.keeper.upgrade() {
            keeper.retune(|settings| {
                settings.failback_after = *failback_after;
                settings.connect_timeout = *connect_timeout;
                settings.socket.nodelay = *tcp_nodelay;
                settings.max_streams = max_streams(config);
            });
        }
        inner.lanes.retune(config);
    }

    /// `ProxyRegister` with an encoded `RegisterRequest`; the encoded `RegisterResponse`.
    /// `session` is presented in the metadata by recoveries only. Nothing is sent
    /// after `deadline`, which is the agent's own less the margin (PERMIT-4).
    ///
    /// # Errors
    /// The outcome class of the failure; REG-12 tells the two answers apart by
    /// [`CallError::gateway_made`].
    pub async fn register(
        &self,
        request: Bytes,
        session: Option<&str>,
        deadline: Instant,
    ) -> Result<Bytes, CallError> {
        let inner = &self.inner;
        inner
            .permitted(Class::Register, request, session, deadline, || true)
            .await
    }

    /// [`Upstream::register`] on the gateway's own account: the stored request and the session
    /// that the agent holds. It goes behind live registrations (PERMIT-6), and a server that
    /// answers with status 9 counts as healthy (BREAKER-6). Nobody waits for it: `deadline` is
    /// that of the wait for a permit, and the call has its full time (REPLAY-13).
    ///
    /// `wanted` is asked right before the request is sent, under the permit; it may be asked
    /// again when the connection had no stream (REPLAY-12).
    ///
    /// # Errors
    /// As [`Upstream::register`]; [`CallError::QueueFull`] when more than
    /// twice `upstream.replay_concurrency` replays wait, [`CallError::CalledOff`] when it is not
    /// wanted.
    pub async fn replay_register(
        &self,
        request: Bytes,
        session: &str,
        deadline: Instant,
        wanted: impl FnMut() -> bool,
    ) -> Result<Bytes, CallError> {
        self.inner
            .permitted(Class::Replay, request, Some(session), deadline, wanted)
            .await
    }

    /// `ProxyInventory` with an encoded `InventoryReport`; the encoded `InventoryAck`.
    ///
    /// # Errors
    /// As [`Upstream::register`].
    pub async fn inventory(&self, report: Bytes, deadline: Instant) -> Result<Bytes, CallError> {
        let inner = &self.inner;
        inner
            .permitted(Class::Inventory, report, None, deadline, || true)
            .await
    }

    /// `BatchHeartbeat`: no permit, and the breaker neither asked nor fed (HB-11).
    ///
    /// # Errors
    /// The outcome class of the failure.
    pub async fn batch_heartbeat(&self, batch: Bytes) -> Result<Bytes, CallError> {
        let until = Instant::now() + self.rpc_timeout();
        self.inner
            .client
            .call(Rpc::BatchHeartbeat, batch, None, until)
            .await
    }

    /// The first half of `NotifyStreamStatus` with an encoded `StreamStatusNotification`: hands the
    /// request to the connection. Notices leave in the order in which this returns. It waits only
    /// while a connection is being made; dropped in that wait, nothing was done. Neither asks nor
    /// feeds the breaker: see [`Upstream::admit_notice`].
    pub(crate) async fn begin_notice(&self, notice: &[u8], until: Instant) -> Begun {
        self.inner
            .client
            .begin(Rpc::Notify, notice, None, until)
            .await
    }

    /// The second half: the encoded `StreamStatusAck`.
    ///
    /// # Errors
    /// The outcome class of the failure.
    pub(crate) async fn finish_notice(&self, begun: Begun) -> Result<Bytes, CallError> {
        self.inner.client.finish(begun).await
    }

    /// The longest that a call may take.
    pub(crate) fn rpc_timeout(&self) -> Duration {
        self.inner.rpc_timeout()
    }

    /// The longest that a caller without a deadline waits in all (PERMIT-4).
    pub(crate) fn call_timeout(&self) -> Duration {
        self.inner.timeouts.load().call
    }

    /// The breaker's leave to send one notice; half open, one at a time (NOTIFY-6). Never without
    /// an endpoint: the notices of such a node stay held.
    pub(crate) fn admit_notice(&self) -> Option<NoticeAdmission> {
        if !self.inner.client.has_endpoint() {
            return None;
        }
        self.inner
            .circuit
            .admit(Rpc::Notify, Kind::Notice)
            .ok()
            .map(NoticeAdmission)
    }

    /// Where the notice store publishes how busy it is (SLOW-1).
    pub(crate) fn notice_counts(&self) -> Arc<NoticeCounts> {
        Arc::clone(&self.inner.notices)
    }

    /// Whether the breaker would admit a register or inventory call now; half open, one at a time
    /// (BREAKER-8). [`Upstream::watch_breaker`] sees when that changes.
    pub(crate) fn admits_call(&self) -> bool {
        self.inner.circuit.admits(Kind::Call)
    }

    /// Sees every transition of the breaker, and a half-open one whose probe said nothing.
    pub(crate) fn watch_breaker(&self) -> watch::Receiver<BreakerState> {
        self.inner.circuit.watch()
    }

    /// Forwards a Guardian frame (an encoded `CommandResponse`) as the agent's, or drops and
    /// counts it. Never blocks (GUARD-4 to GUARD-6).
    pub fn forward_guardian(&self, agent_id: &str, frame: &[u8]) {
        guardian::forward(&self.inner, &self.guardian, agent_id, frame);
    }

    /// Counts a request that could not be encoded and so was never a call (REG-11).
    pub fn record_encode_failure(&self, rpc: Rpc) {
        self.inner.client.failed(rpc, &CallError::Encode);
    }

    /// The breaker's state, as last published (BREAKER-12).
    pub fn breaker_state(&self) -> BreakerState {
        self.inner.circuit.state()
    }

    /// Whether the tasks behind this handle live. Says nothing about the server (UPCH-8).
    pub fn is_running(&self) -> bool {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        !tasks.is_empty() && tasks.iter().all(|task| !task.is_finished())
    }

    /// Whether the latest connection did not fail for its TLS files (UPCH-4).
    pub fn tls_files_usable(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.files_usable())
    }

    /// Counts the restarts of these tasks at the node (GEN-3).
    pub(crate) fn supervise(&self, node: &NodeSupervisor) {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.iter().for_each(|task| node.watch(task));
    }

    /// Whether a connection is up.
    #[cfg(test)]
    pub(crate) fn is_connected(&self) -> bool {
        self.inner.client.is_connected()
    }

    /// Planned stop: no register or inventory call is admitted from now on, those that wait for
    /// a permit included (PERMIT-13).
    pub fn stop_accepting(&self) {
        self.inner.lanes.stop();
    }

    /// Ends the connection and the tasks; later calls fail with [`CallError::NoUpstream`].
    pub async fn close(self) {
        let tasks = {
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *tasks)
        };
        for task in tasks {
            task.end().await;
        }
    }
}

impl Inner {
    fn rpc_timeout(&self) -> Duration {
        self.timeouts.load().rpc
    }

    /// A call under a permit and the breaker's eyes. A connection without a free stream is asked
    /// again after a pause, until the deadline (PERMIT-11). What a leaving server did not process
    /// is sent once more, on the next connection (UPCH-9).
    async fn permitted(
        &self,
        class: Class,
        request: Bytes,
        session: Option<&str>,
        deadline: Instant,
        mut wanted: impl FnMut() -> bool,
    ) -> Result<Bytes, CallError> {
        let rpc = match class {
            Class::Register | Class::Replay => Rpc::Register,
            Class::Inventory => Rpc::Inventory,
        };
        if !self.client.has_endpoint() {
            return Err(CallError::NoUpstream);
        }
        if request.len() > client::MAX_REQUEST {
            self.client.failed(rpc, &CallError::Encode);
            return Err(CallError::Encode);
        }
        let mut pause = TOO_MANY_FIRST;
        let mut sent_again = false;
        loop {
            // Asked before queueing too: an open breaker refuses at once (BREAKER-7).
            if !self.circuit.admits(Kind::Call) {
                return Err(CallError::CircuitOpen);
            }
            let permit = self.lanes.acquire(class, deadline).await?;
            let admission = self
                .circuit
                .admit(rpc, Kind::Call)
                .map_err(|_open| CallError::CircuitOpen)?;
            if !wanted() {
                return Err(CallError::CalledOff);
            }
            let until = match class {
                Class::Replay => Instant::now() + self.rpc_timeout(),
                Class::Register | Class::Inventory => {
                    deadline.min(Instant::now() + self.rpc_timeout())
                }
            };
            let mut result = self.client.call(rpc, request.clone(), session, until).await;
            if let Err(CallError::Unprocessed(error)) = &result {
                if !sent_again && self.client.connected(until).await {
                    sent_again = true;
                    continue;
                }
                // A server that does nothing but leave is at fault.
                result = Err(CallError::Closed(error.clone()));
            }
            admission.settle(verdict(class, &result));
            drop(permit);
            if result != Err(CallError::TooManyStreams) {
                return result;
            }
            sleep_until(deadline.min(Instant::now() + pause)).await;
            if Instant::now() >= deadline {
                return Err(self.lanes.out_of_time(class));
            }
            pause = (pause * 2).min(TOO_MANY_LAST);
        }
    }
}

/// Streams that all lanes together may use.
fn max_streams(config: &config::Upstream) -> usize {
    config.register_concurrency + config.inventory_concurrency + RESERVED_STREAMS
}

/// What a result says about the server. To a replay, status 9 is the server's considered answer
/// (BREAKER-6); so is `accepted=false`, which is OK on the wire.
fn verdict(class: Class, result: &Result<Bytes, CallError>) -> Verdict {
    match result {
        Ok(_) => Verdict::Success,
        Err(CallError::Status(FAILED_PRECONDITION, _)) if class == Class::Replay => {
            Verdict::Success
        }
        Err(error) => error.verdict(),
    }
}
