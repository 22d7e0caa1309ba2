//! One HTTP/2 connection from its first byte to its end.
//!
//! Responsible for carrying out what its verdict and the signals of this side say. Must never
//! decide: the verdict is [`Connection`]'s.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use super::close::CloseReason;
use super::connection::{Connection, Signal, Verdict};
use super::flood;

/// An idle peer that was sent GOAWAY has this long to leave by itself.
const LEAVE_TIME: Duration = Duration::from_secs(3);

/// Runs one connection until it ends, or until its verdict or a signal ends it.
pub(super) async fn drive<C>(mut served: Pin<&mut C>, connection: &Connection)
where
    C: GracefulConnection,
{
    let mut check = pin!(sleep_until(connection.first_check()));
    let mut seen = Signal::Serve;
    let mut leaving = None;
    let ended = std::future::poll_fn(|cx| {
        if let Poll::Ready(signal) = connection.poll_signal(cx, seen) {
            seen = signal;
            match signal {
                // Whoever asked for it counts it.
                Signal::Kill => return Poll::Ready(Ok(())),
                Signal::Drain | Signal::Serve => served.as_mut().drain(),
            }
        }
        while check.as_mut().poll(cx).is_ready() {
            match connection.verdict(Instant::now()) {
                // What it subscribes meanwhile comes too late: its calls would go elsewhere.
                _ if leaving == Some(CloseReason::Unregistered) => return Poll::Ready(Ok(())),
                // A peer that lives is told, so that it sends no call into a closed socket.
                Verdict::Close(reason @ (CloseReason::Idle | CloseReason::Unregistered))
                    if leaving.is_none() =>
                {
                    connection.closed_for(reason);
                    leaving = Some(reason);
                    served.as_mut().drain();
                    check.as_mut().reset(Instant::now() + LEAVE_TIME);
                }
                Verdict::Close(reason) => {
                    if leaving.is_none() {
                        connection.closed_for(reason);
                    }
                    return Poll::Ready(Ok(()));
                }
                Verdict::CheckAt(at) => check.as_mut().reset(at),
            }
        }
        if let Poll::Ready(result) = served.as_mut().poll(cx) {
            return Poll::Ready(result);
        }
        // The poll above may have handed over an answer, which has to be watched.
        if connection.has_answers() {
            let soon = Instant::now() + connection.limits().answer_patience;
            if check.deadline() > soon {
                check.as_mut().reset(soon);
                if check.as_mut().poll(cx).is_ready() {
                    cx.waker().wake_by_ref();
                }
            }
        }
        Poll::Pending
    })
    .await;
    if let Err(error) = ended {
        if flood::ended_by_http2(&error) {
            connection.closed_for(CloseReason::Http2Flood);
        }
        debug!(%error, "connection ended");
    }
}

/// What [`drive`] needs of hyper's connection.
pub(super) trait GracefulConnection: Future<Output = Result<(), hyper::Error>> {
    fn drain(self: Pin<&mut Self>);
}

impl<I, S, E> GracefulConnection for http2::Connection<I, S, E>
where
    Self: Future<Output = Result<(), hyper::Error>>,
    S: hyper::service::HttpService<Incoming>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    S::ResBody: hyper::body::Body + 'static,
    <S::ResBody as hyper::body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    E: hyper::rt::bounds::Http2ServerConnExec<S::Future, S::ResBody>,
{
    fn drain(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}
