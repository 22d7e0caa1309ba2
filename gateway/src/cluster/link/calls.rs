//! Calls over a connection that this node dialled.
//!
//! Responsible for opening streams to the peer, for trying again when one ends, and for noticing a peer that
//! takes nothing of what it is sent. Must never know what a stream says.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use tokio::time::{Instant, sleep};
use tracing::debug;

use super::failure::Failure;
use super::handshake::Identity;
use super::unary;
use crate::edge::answers::{AnswerLedger, PieceId};
use crate::edge::connection::Connection;
use crate::edge::grpc;
use crate::observe::log::safe_text;

/// A peer that takes nothing for so long, though something waits for it, is closed: what HTTP/2 was
/// given can't be taken back.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between the end of a stream and the next over the same link.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// Bodies that one peer may keep open, those of streams that are over for this node included.
const MAX_BODIES: usize = 16_384;

/// Where calls to a peer begin.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    requests: SendRequest<tonic::body::Body>,
    untaken: Arc<Untaken>,
}

/// The pieces of bodies that HTTP/2 holds.
#[derive(Debug, Default)]
pub(in crate::cluster) struct Untaken(Mutex<AnswerLedger>);

/// What brings a body to its peer.
#[derive(Debug, Clone)]
pub(in crate::cluster) enum Carrier {
    /// It answers a call of this connection.
    Answer(Arc<Connection>),
    /// It is that of a call.
    Call(Arc<Called>),
}

/// The body of a call: one, however many pieces of it there are.
#[derive(Debug)]
pub(in crate::cluster) struct Called(Arc<Untaken>);

impl Calls {
    pub(super) fn new(requests: SendRequest<tonic::body::Body>) -> Self {
        Self {
            requests,
            untaken: Arc::default(),
        }
    }

    /// What brings the body of a call; `None`: the link is ending, or the peer takes none of those
    /// that it has.
    pub(in crate::cluster) fn carrier(&self) -> Option<Carrier> {
        let is_full = Arc::strong_count(&self.untaken) > MAX_BODIES;
        let is_usable = !self.requests.is_closed() && !is_full;
        is_usable.then(|| self.untaken.carrier())
    }

    /// Begins a call.
    pub(in crate::cluster) fn begin(
        &mut self,
        request: Request<tonic::body::Body>,
    ) -> impl Future<Output = Result<Response<Incoming>, hyper::Error>> + Send + use<> {
        self.requests.send_request(request)
    }

    /// The stream that answers a call.
    ///
    /// # Errors
    /// The peer refused.
    pub(in crate::cluster) async fn stream(
        &mut self,
        path: &'static str,
        body: tonic::body::Body,
    ) -> Result<Incoming, Failure> {
        let answer = self.begin(unary::request(path, body)?).await;
        let (head, body) = answer.map_err(|_| Failure::Refused)?.into_parts();
        unary::judge(&head.headers)?;
        Ok(body)
    }

    /// Ends when the peer has taken nothing for too long.
    pub(super) async fn stuck(&self) {
        loop {
            sleep(PATIENCE / 10).await;
            let overdue = self.untaken.ledger().overdue_at(PATIENCE);
            if overdue.is_some_and(|at| Instant::now() >= at) {
                return;
            }
        }
    }
}

/// Opens a stream to `peer` and opens it again when it has ended, without end.
pub(in crate::cluster) async fn keep_open<F>(peer: &Identity, what: &str, open: impl Fn() -> F)
where
    F: Future<Output = Result<(), Failure>>,
{
    loop {
        if let Err(failure) = open().await {
            debug!(node = %safe_text(&*peer.name), ?failure, "no stream of {what}");
        }
        sleep(REOPEN_PAUSE).await;
    }
}

impl Carrier {
    /// `data` as it is to be handed to HTTP/2: watched until that lets go of it.
    pub(in crate::cluster) fn watch(&self, data: Bytes) -> Bytes {
        match self {
            Self::Answer(connection) => connection.watch(data),
            Self::Call(body) => Bytes::from_owner(Piece {
                data,
                id: body.0.ledger().hand_over(Instant::now()),
                body: Arc::clone(body),
            }),
        }
    }

    /// How the body ends: an answer with its status, a request without.
    pub(in crate::cluster) fn end(&self) -> Option<HeaderMap> {
        match self {
            Self::Answer(_) => Some(grpc::ok_trailers()),
            Self::Call(_) => None,
        }
    }
}

impl Untaken {
    /// What brings the next body.
    fn carrier(self: &Arc<Self>) -> Carrier {
        Carrier::Call(Arc::new(Called(Arc::clone(self))))
    }

    fn ledger(&self) -> MutexGuard<'_, AnswerLedger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A piece of a body in the hands of HTTP/2.
struct Piece {
    data: Bytes,
    id: PieceId,
    body: Arc<Called>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.body.0.ledger().taken(self.id, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fwd_5_a_body_counts_once_until_the_last_piece_of_it_is_taken() {
        let untaken = Arc::<Untaken>::default();
        let bodies = || Arc::strong_count(&untaken) - 1;
        let (one, two) = (untaken.carrier(), untaken.carrier());
        let mut pieces: Vec<_> = (0..10).map(|n| one.watch(Bytes::from(vec![n]))).collect();
        assert_eq!(bodies(), 2);
        drop((one, two));
        assert_eq!(bodies(), 1);
        pieces.truncate(1);
        assert_eq!(bodies(), 1);
        drop(pieces);
        assert_eq!(bodies(), 0);
    }
}
