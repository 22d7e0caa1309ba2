//! One accepted connection, as the rest of the stub sees it.
//!
//! Responsible for the stream count and limit of a connection and for orders to it (announce a
//! new limit, cut). Must never touch the socket: the task that owns it follows the orders.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use tokio::sync::watch;

/// A connection at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionView {
    /// Number of the connection, from 1 in the order of accepting.
    pub id: u64,
    /// The gateway's address.
    pub peer: SocketAddr,
    /// Calls that are open now.
    pub streams: u32,
    /// Most calls that were open at once.
    pub max_streams: u32,
    /// Stream limit that the peer knows: announced and, after a change, acknowledged by it.
    pub stream_limit: u32,
    /// Streams refused with `REFUSED_STREAM` because they were above an acknowledged lower limit.
    pub refused_streams: u64,
    /// PING frames received, acknowledgements not counted.
    pub pings: u64,
}

/// A limit binds the streams that came after its acknowledgement.
#[derive(Clone, Copy)]
struct Limit {
    value: u32,
    /// Streams that had been opened by then.
    after: u64,
}

/// Shared by the connection's task, its bytes and its calls.
pub(crate) struct Connection {
    pub(crate) id: u64,
    pub(crate) peer: SocketAddr,
    first_limit: u32,
    announcement: Mutex<Option<u32>>,
    announcing: AtomicBool,
    limit: Mutex<Limit>,
    streams: AtomicU32,
    streams_opened: AtomicU64,
    max_streams: AtomicU32,
    refused_streams: AtomicU64,
    pings: AtomicU64,
    waker: AtomicWaker,
    cut: watch::Sender<bool>,
    changed: watch::Sender<u64>,
}

impl Connection {
    pub(crate) fn new(
        id: u64,
        peer: SocketAddr,
        limit: u32,
        changed: watch::Sender<u64>,
    ) -> Arc<Self> {
        Arc::new(Connection {
            id,
            peer,
            first_limit: limit,
            announcement: Mutex::new(None),
            announcing: AtomicBool::new(false),
            limit: Mutex::new(Limit {
                value: limit,
                after: 0,
            }),
            streams: AtomicU32::new(0),
            streams_opened: AtomicU64::new(0),
            max_streams: AtomicU32::new(0),
            refused_streams: AtomicU64::new(0),
            pings: AtomicU64::new(0),
            waker: AtomicWaker::new(),
            cut: watch::Sender::new(false),
            changed,
        })
    }

    pub(crate) fn view(&self) -> ConnectionView {
        ConnectionView {
            id: self.id,
            peer: self.peer,
            streams: self.streams.load(Ordering::Acquire),
            max_streams: self.max_streams.load(Ordering::Acquire),
            stream_limit: self.limit().value,
            refused_streams: self.refused_streams.load(Ordering::Acquire),
            pings: self.pings.load(Ordering::Acquire),
        }
    }

    /// Orders the task to close the socket at once.
    pub(crate) fn cut(&self) {
        self.cut.send_replace(true);
    }

    pub(crate) fn cut_ordered(&self) -> watch::Receiver<bool> {
        self.cut.subscribe()
    }

    /// Announces a limit. Never more than the connection began with, which the HTTP/2 library
    /// enforces by itself.
    pub(crate) fn announce(&self, limit: u32) {
        let limit = limit.min(self.first_limit);
        *self
            .announcement
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(limit);
        self.announcing.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(crate) fn take_announcement(&self) -> Option<u32> {
        if !self.announcing.load(Ordering::Acquire) {
            return None;
        }
        let mut waiting = self
            .announcement
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.announcing.store(false, Ordering::Release);
        waiting.take()
    }

    fn limit(&self) -> Limit {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer acknowledged this limit after it had opened so many streams.
    pub(crate) fn enforce(&self, value: u32, after: u64) {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = Limit { value, after };
        self.changed.send_modify(|n| *n += 1);
    }

    pub(crate) fn count_ping(&self) {
        self.pings.fetch_add(1, Ordering::AcqRel);
        self.changed.send_modify(|n| *n += 1);
    }

    pub(crate) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// Counts a stream; none when it is above the limit in force. To be called in the order in
    /// which the streams came.
    pub(crate) fn open_stream(self: &Arc<Self>) -> Option<StreamGuard> {
        let open = self.streams.fetch_add(1, Ordering::AcqRel) + 1;
        let opened = self.streams_opened.fetch_add(1, Ordering::AcqRel) + 1;
        let guard = StreamGuard(Arc::clone(self));
        let limit = self.limit();
        if opened > limit.after && open > limit.value {
            self.refused_streams.fetch_add(1, Ordering::AcqRel);
            return None;
        }
        self.max_streams.fetch_max(open, Ordering::AcqRel);
        self.changed.send_modify(|n| *n += 1);
        Some(guard)
    }
}

/// An open stream; dropping it ends the count.
pub(crate) struct StreamGuard(Arc<Connection>);

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.send_modify(|n| *n += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_above_the_acknowledged_limit_is_refused() {
        let peer = SocketAddr::from(([127, 0, 0, 1], 9));
        let connection = Connection::new(1, peer, 3, watch::Sender::new(0));
        let open: Vec<_> = (0..3).filter_map(|_| connection.open_stream()).collect();
        assert_eq!(open.len(), 3);
        connection.enforce(1, 4);
        let late = connection.open_stream();
        assert!(
            late.is_some(),
            "it was on its way before the acknowledgement"
        );
        assert!(connection.open_stream().is_none());
        drop((open, late));
        let first = connection.open_stream();
        assert!(first.is_some());
        assert!(connection.open_stream().is_none());
        let view = connection.view();
        assert_eq!(
            (view.streams, view.max_streams, view.refused_streams),
            (1, 4, 2)
        );
    }

    #[test]
    fn an_announcement_never_exceeds_what_the_connection_began_with() {
        let peer = SocketAddr::from(([127, 0, 0, 1], 9));
        let connection = Connection::new(1, peer, 8, watch::Sender::new(0));
        connection.announce(100);
        assert_eq!(connection.take_announcement(), Some(8));
        assert_eq!(connection.take_announcement(), None);
    }
}
