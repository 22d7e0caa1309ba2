//! One accepted connection: its key, what it holds, and when it has to go.
//!
//! Responsible for the facts that outlive a request (key, peer, bytes held, answers ready) and for
//! the judgement when the connection is to be closed. Must never look into a request.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tracing::debug;

use super::answers::{AnswerLedger, PieceId};
use super::charge::NodeMemory;
use super::close::CloseReason;
use super::pause::Pauses;
use super::rtt::RoundTrip;
use super::tasks::{Newcomers, Part, Turn};
use crate::observe::metrics::Metrics;
use crate::pki::{BadCertificate, PeerCertificate};

/// Identifies a connection of this process. Never used again for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnectionKey(u64);

impl ConnectionKey {
    /// A key that no connection had before.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What every connection of a listener is allowed.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionLimits {
    /// The preface and the first frame must arrive within this time, after a TLS handshake.
    pub(crate) preface_timeout: Duration,
    /// No received byte for this long: closed (LSN-4). A third of it: a peer with open streams is asked
    /// for one (LSN-12).
    pub(crate) idle_timeout: Duration,
    /// A connection without a session for this long is closed, whatever it sends; zero is never.
    pub(crate) unregistered_timeout: Duration,
    /// A piece of an answer that was handed over and not taken for this long: closed.
    pub(crate) answer_patience: Duration,
    /// A unary request must be complete within this time (LSN-7).
    pub(crate) request_timeout: Duration,
    /// Largest message.
    pub(crate) max_message_bytes: usize,
    /// Bytes of unfinished requests (LSN-6).
    pub(crate) max_memory_bytes: usize,
    /// Whether round trips are those of agents.
    pub(crate) serves_agents: bool,
    /// What all connections of the node share (LSN-16).
    pub(crate) node_memory: Arc<NodeMemory>,
}

/// A peer that is asked for a byte has this long to send one.
const PONG_TIMEOUT: Duration = Duration::from_secs(20);

/// What to do with a connection now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Close it.
    Close(CloseReason),
    /// Send a PING and look again at this time.
    Ask(Instant),
    /// Look again at this time.
    CheckAt(Instant),
}

/// What the listener wants of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Nothing.
    Serve,
    /// Send GOAWAY and end when the streams have.
    Drain,
    /// Close at once.
    Kill,
}

/// One accepted connection.
///
/// What each command and each byte of thousands of connections needs lies together, since it is in no
/// cache by the time that it is needed: first what wakes and runs the connection, in one cache line
/// with the counts of the `Arc`, then what its socket needs.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Connection {
    turn: Turn,
    signal: AtomicU8,
    /// Whether `answers` holds any, for whoever looks often.
    answers_wait: AtomicBool,
    spoke_http2: AtomicBool,
    /// Its socket is to write a PING.
    asks: AtomicBool,
    streams: AtomicUsize,

    opened: Instant,
    last_byte_ms: AtomicU64,
    pauses: Pauses,
    round_trip: RoundTrip,
    answers: Mutex<AnswerLedger>,

    key: ConnectionKey,
    peer: SocketAddr,
    limits: Arc<ConnectionLimits>,
    metrics: Arc<Metrics>,
    peer_certificate: OnceLock<Result<PeerCertificate, BadCertificate>>,
    secured_ms: AtomicU64,
    sessions: AtomicUsize,
    /// When the last session ended, or the connection began.
    sessionless_ms: AtomicU64,
    held: AtomicUsize,
    /// When it was asked for a byte; later than the last byte while it has not answered.
    asked_ms: AtomicU64,
    flooded: AtomicBool,
    newcomers: Newcomers,
}

/// Where the first two lines of 64 bytes end, the first of which begins with the counts of the `Arc`.
const _: () = {
    let counts = 2 * size_of::<usize>();
    assert!(counts + std::mem::offset_of!(Connection, opened) == 64);
    assert!(counts + std::mem::offset_of!(Connection, answers) == 128);
};

impl Connection {
    /// A connection accepted now.
    pub(crate) fn new(
        peer: SocketAddr,
        limits: Arc<ConnectionLimits>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            turn: Turn::default(),
            signal: AtomicU8::new(Signal::Serve as u8),
            answers_wait: AtomicBool::new(false),
            spoke_http2: AtomicBool::new(false),
            asks: AtomicBool::new(false),
            streams: AtomicUsize::new(0),
            opened: Instant::now(),
            last_byte_ms: AtomicU64::new(0),
            pauses: Pauses::default(),
            round_trip: RoundTrip::default(),
            answers: Mutex::default(),
            key: ConnectionKey::next(),
            peer,
            limits,
            metrics,
            peer_certificate: OnceLock::new(),
            secured_ms: AtomicU64::new(0),
            sessions: AtomicUsize::new(0),
            sessionless_ms: AtomicU64::new(0),
            held: AtomicUsize::new(0),
            asked_ms: AtomicU64::new(0),
            flooded: AtomicBool::new(false),
            newcomers: Newcomers::default(),
        })
    }

    /// The key that Register, Subscribe, Heartbeat and ReportInventory compare.
    pub(crate) fn key(&self) -> ConnectionKey {
        self.key
    }

    /// The peer's bare IP; IPv4-mapped IPv6 is folded to IPv4 (ORIGIN-1, ORIGIN-4).
    pub(crate) fn peer_ip(&self) -> IpAddr {
        self.peer.ip().to_canonical()
    }

    /// The certificate that the peer presented and TLS verified, if one was asked for.
    pub(crate) fn peer_certificate(&self) -> Option<Result<&PeerCertificate, BadCertificate>> {
        let certificate = self.peer_certificate.get()?;
        Some(certificate.as_ref().map_err(|bad| *bad))
    }

    /// The peer presented this certificate and TLS verified it.
    pub(crate) fn authenticated(&self, certificate: Result<PeerCertificate, BadCertificate>) {
        // A connection has one handshake.
        let _ = self.peer_certificate.set(certificate);
    }

    /// Whatever comes before HTTP/2 is complete: from now on its preface is waited for.
    pub(crate) fn secured(&self, now: Instant) {
        let since = now.duration_since(self.opened).as_millis() as u64;
        self.secured_ms.store(since, Ordering::Relaxed);
    }

    /// The limits of its listener.
    pub(crate) fn limits(&self) -> &ConnectionLimits {
        &self.limits
    }

    /// The metrics of the node.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Something came that counts against the idle timeout.
    pub(crate) fn byte_received(&self, now: Instant, spoke_http2: bool) {
        self.last_byte_ms.store(self.age_ms(now), Ordering::Relaxed);
        if spoke_http2 && !self.spoke_http2.load(Ordering::Relaxed) {
            self.spoke_http2.store(true, Ordering::Relaxed);
        }
    }

    /// Has its task write a PING (LSN-12).
    pub(super) fn ask(&self, now: Instant) {
        self.asked_ms.store(self.age_ms(now), Ordering::Relaxed);
        self.asks.store(true, Ordering::Relaxed);
        self.turn.wake_part(Part::SERVED);
    }

    /// Whether a PING is to be written now.
    pub(super) fn takes_ask(&self) -> bool {
        self.asks.load(Ordering::Relaxed) && self.asks.swap(false, Ordering::Relaxed)
    }

    /// Something was written that the peer acknowledges.
    pub(super) fn asked(&self, now: Instant) {
        self.round_trip.asked(now.duration_since(self.opened));
    }

    /// The peer acknowledged something (SHIFT-5).
    pub(super) fn acknowledged(&self, now: Instant) {
        let answered = self.round_trip.answered(now.duration_since(self.opened));
        if let Some(took) = answered.filter(|_| self.limits.serves_agents) {
            let ms = took.as_secs_f64() * 1_000.0;
            self.metrics.agent_rtt_ms.observe(ms);
        }
    }

    pub(crate) fn stream_opened(&self) {
        self.streams.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stream_closed(&self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the answer to a PING of ours counts as a byte (LSN-12).
    pub(crate) fn has_streams(&self) -> bool {
        self.streams.load(Ordering::Relaxed) > 0
    }

    /// A session lives on this connection now.
    pub(crate) fn session_began(&self) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn session_ended(&self, now: Instant) {
        self.sessionless_ms
            .store(self.age_ms(now), Ordering::Relaxed);
        self.sessions.fetch_sub(1, Ordering::Relaxed);
    }

    fn age_ms(&self, now: Instant) -> u64 {
        now.duration_since(self.opened).as_millis() as u64
    }

    /// When it has to go for want of a session. Looked at when the connection is judged, so after
    /// a session's end up to an idle timeout late.
    fn unregistered_at(&self) -> Option<Instant> {
        let timeout = self.limits.unregistered_timeout;
        if timeout.is_zero() || self.sessions.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let since = Duration::from_millis(self.sessionless_ms.load(Ordering::Relaxed));
        Some(self.opened + since + timeout)
    }

    /// Counts that this side closes it.
    pub(crate) fn closed_for(&self, reason: CloseReason) {
        reason.count(&self.metrics);
        if reason.is_flood() {
            self.flooded.store(true, Ordering::Relaxed);
        }
        debug!(?reason, "connection closed by this side");
    }

    /// Whether it was closed for a flood.
    pub(super) fn has_flooded(&self) -> bool {
        self.flooded.load(Ordering::Relaxed)
    }

    /// Completes when it is to be drained or killed.
    pub(super) async fn asked_to_end(&self) {
        std::future::poll_fn(|cx| self.poll_signal(cx, Signal::Serve)).await;
    }

    /// Closes it at once, and counts that once.
    pub(crate) fn kill(&self, reason: CloseReason) {
        if self.signal(Signal::Kill) {
            self.closed_for(reason);
        }
    }

    /// Asks the task of this connection for something; the stronger of two requests wins. Whether
    /// it was not asked for as much before.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        let before = self.signal.fetch_max(signal as u8, Ordering::AcqRel);
        self.turn.wake();
        before < signal as u8
    }

    /// Whether it is about to end.
    pub(super) fn is_killed(&self) -> bool {
        self.signal.load(Ordering::Acquire) == Signal::Kill as u8
    }

    /// One of its requests holds `to` bytes where it held `from`. Whether all of them together hold
    /// what they may (LSN-6).
    pub(super) fn hold(&self, from: usize, to: usize) -> bool {
        let total = match to.checked_sub(from) {
            Some(more) => self.held.fetch_add(more, Ordering::Relaxed) + more,
            None => self.held.fetch_sub(from - to, Ordering::Relaxed) - (from - to),
        };
        total <= self.limits.max_memory_bytes
    }

    /// What was asked, registering the task for the next request.
    pub(crate) fn poll_signal(&self, cx: &mut Context<'_>, seen: Signal) -> Poll<Signal> {
        self.turn.register(cx);
        let now = match self.signal.load(Ordering::Acquire) {
            0 => Signal::Serve,
            1 => Signal::Drain,
            _ => Signal::Kill,
        };
        if now == seen {
            Poll::Pending
        } else {
            Poll::Ready(now)
        }
    }

    /// What wakes its task.
    pub(super) fn turn(&self) -> &Turn {
        &self.turn
    }

    /// Tasks that its own task is to run.
    pub(super) fn newcomers(&self) -> &Newcomers {
        &self.newcomers
    }

    pub(super) fn pauses(&self) -> &Pauses {
        &self.pauses
    }

    /// When it is to be judged first.
    pub(crate) fn first_check(&self) -> Instant {
        let preface = self.opened + self.limits.preface_timeout;
        self.unregistered_at().map_or(preface, |at| at.min(preface))
    }

    /// Judges the connection (LSN-4 and the edge's own limits).
    pub(crate) fn verdict(&self, now: Instant) -> Verdict {
        if !self.spoke_http2.load(Ordering::Relaxed) {
            let secured = Duration::from_millis(self.secured_ms.load(Ordering::Relaxed));
            let until = self.opened + secured + self.limits.preface_timeout;
            return if now >= until {
                Verdict::Close(CloseReason::NoPreface)
            } else {
                Verdict::CheckAt(until)
            };
        }
        let last = Duration::from_millis(self.last_byte_ms.load(Ordering::Relaxed));
        let silence = self.judge_silence(last, now);
        let mut next = match silence {
            Verdict::Close(_) => return silence,
            Verdict::Ask(at) | Verdict::CheckAt(at) => at,
        };
        if let Some(at) = self.unregistered_at() {
            if now >= at {
                return Verdict::Close(CloseReason::Unregistered);
            }
            next = next.min(at);
        }
        if let Some(at) = self.answers().overdue_at(self.limits.answer_patience) {
            if now >= at {
                return Verdict::Close(CloseReason::AnswerNotTaken);
            }
            next = next.min(at);
        }
        match silence {
            Verdict::Ask(_) => Verdict::Ask(next),
            _ => Verdict::CheckAt(next),
        }
    }

    /// Judges a peer whose last byte came `last` into its connection (LSN-4, LSN-12). One with open streams
    /// is asked before it is taken for dead, however late that is looked at.
    fn judge_silence(&self, last: Duration, now: Instant) -> Verdict {
        let idle_at = self.opened + last + self.limits.idle_timeout;
        let third = self.limits.idle_timeout / 3;
        let due = self.opened + last + third;
        // What it says waits in its socket, for a moment.
        if self.pauses.is_paused() {
            return Verdict::CheckAt(now + third);
        }
        if !self.has_streams() {
            return match now >= idle_at {
                true => Verdict::Close(CloseReason::Idle),
                // As often as if there were some: one may be opened at any time.
                false if now >= due => Verdict::CheckAt(idle_at.min(now + third)),
                false => Verdict::CheckAt(due),
            };
        }
        let dead_at = |asked: Instant| {
            let at_least = asked + PONG_TIMEOUT.min(third);
            at_least.max(idle_at.min(asked + PONG_TIMEOUT))
        };
        let asked = Duration::from_millis(self.asked_ms.load(Ordering::Relaxed));
        if asked > last {
            let dead_at = dead_at(self.opened + asked);
            return match now >= dead_at {
                true => Verdict::Close(CloseReason::PingNotAnswered),
                false => Verdict::CheckAt(dead_at),
            };
        }
        match now >= due {
            true => Verdict::Ask(dead_at(now)),
            false => Verdict::CheckAt(due),
        }
    }

    fn answers(&self) -> std::sync::MutexGuard<'_, AnswerLedger> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a piece of an answer waits, so that the driver looks again soon.
    pub(crate) fn has_answers(&self) -> bool {
        self.answers_wait.load(Ordering::Relaxed)
    }

    /// `data` as it is to be handed to HTTP/2: watched until HTTP/2 lets go of it, which is when
    /// it was written or its stream is gone.
    pub(crate) fn watch(self: &Arc<Self>, data: Bytes) -> Bytes {
        let (id, first) = {
            let mut answers = self.answers();
            let first = answers.is_empty();
            self.answers_wait.store(true, Ordering::Relaxed);
            (answers.hand_over(Instant::now()), first)
        };
        if first {
            // A piece behind a closed window wakes nobody by itself.
            self.turn.wake();
        }
        Bytes::from_owner(Watched {
            data,
            connection: Arc::clone(self),
            id,
        })
    }
}

/// A piece of an answer in the hands of HTTP/2.
struct Watched {
    data: Bytes,
    connection: Arc<Connection>,
    id: PieceId,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut answers = self.connection.answers();
        answers.taken(self.id, Instant::now());
        let waits = &self.connection.answers_wait;
        waits.store(!answers.is_empty(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
