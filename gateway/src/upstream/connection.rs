//! One HTTP/2 connection to the server, from its preface to its end.
//!
//! Responsible for the task that moves its frames, for its keep-alive, and for telling the server's
//! stream limit, its wish to leave and the end as they come. Requests leave in the order in which
//! [`Connection::send`] took them: headers and message are handed to h2 in that one call, so no
//! other task has a part in it. Must never dial, and must never make one request wait for another.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::poll_fn;
use h2::client::{self, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, Reason};
use http::Request;
use http::uri::{Authority, Scheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::error::ConnectError;
use super::ledger::{Ledger, Slot, TooManyStreams};
use super::transport;

/// Room for answers: of one, and of all that nobody has read yet.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 5 << 20;
/// Headers and trailers of one answer.
const HEADERS_MAX: u32 = 16 << 10;
/// Cancelled calls whose late answers are still recognised. The answer of a forgotten one is reset
/// again, and h2 ends a connection after 1,024 such resets in its whole life: that cap is off,
/// since it is there against hostile peers, and calls to the server are cancelled all the time.
const REMEMBERED_RESETS: usize = 512;

/// Stream limit of a connection before the server's SETTINGS came. No server can announce it (it
/// does not fit 32 bits) and it is not what h2 takes for unlimited, so the three are told apart;
/// until then the ledger alone bounds the streams.
const NOT_ANNOUNCED: usize = usize::MAX - 1;
const UNLIMITED: usize = usize::MAX;

/// When a silent connection is asked whether it lives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeepAlive {
    /// Time without a received byte until a ping; the server accepts one without data every 30 s
    /// at the earliest.
    pub(crate) after: Duration,
    /// Time for its answer.
    pub(crate) timeout: Duration,
}

/// What is known of a connection. It only ever moves on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The server's SETTINGS have not come: what it allows would be a guess.
    Unsettled,
    /// Calls can be made; so many at once, `None` is as many as one likes.
    Open(Option<u32>),
    /// The server asked to leave (GOAWAY without an error). Calls go on, new ones go elsewhere.
    Leaving,
    /// It is over, or about to be.
    Over(ConnectError),
}

/// A connection on which calls can be made. It ends by itself when this is dropped and the last
/// call has ended.
#[derive(Debug)]
pub(crate) struct Connection {
    sender: SendRequest<Bytes>,
    ledger: Arc<Ledger>,
    scheme: Scheme,
    authority: Authority,
    /// Takes no more requests.
    closed: AtomicBool,
}

impl Connection {
    /// Makes `stream` a connection and runs it on a task of its own. At most `max_streams` calls
    /// are on it at once, whatever the server allows.
    ///
    /// # Errors
    /// The socket broke.
    pub(crate) async fn start<S>(
        stream: S,
        (scheme, authority): (Scheme, Authority),
        max_streams: usize,
        keep_alive: KeepAlive,
    ) -> Result<(Arc<Connection>, watch::Receiver<Condition>), ConnectError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let heard = Arc::new(Heard::new());
        let stream = Listening {
            stream,
            heard: Arc::clone(&heard),
        };
        let (sender, mut frames) = client::Builder::new()
            .initial_max_send_streams(NOT_ANNOUNCED)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEADERS_MAX)
            .enable_push(false)
            .max_concurrent_reset_streams(REMEMBERED_RESETS)
            .max_local_error_reset_streams(None)
            .handshake(stream)
            .await
            .map_err(|error| transport::closed(&error))?;
        let pings = frames.ping_pong();
        let connection = Arc::new(Connection {
            sender,
            ledger: Ledger::new(max_streams),
            scheme,
            authority,
            closed: AtomicBool::new(false),
        });
        let (tell, condition) = watch::channel(Condition::Unsettled);
        let driver = Driver {
            frames,
            connection: Arc::downgrade(&connection),
            condition: tell,
        };
        tokio::spawn(driver.run(pings, keep_alive, heard));
        Ok((connection, condition))
    }

    /// At most so many calls are on it at once from now on.
    pub(crate) fn retune(&self, max_streams: usize) {
        self.ledger.configure(max_streams);
    }

    /// Takes a stream's place in the ledger.
    pub(crate) fn open(&self) -> Result<Slot, TooManyStreams> {
        self.ledger.open()
    }

    /// Hands a request to the connection; its answer is to come.
    ///
    /// # Errors
    /// Nothing was sent. If [`Connection::is_closed`] then, another connection may take it.
    pub(crate) fn send(
        &self,
        request: Request<()>,
        message: Bytes,
    ) -> Result<ResponseFuture, h2::Error> {
        // A clone, because a sender that was used waits until its last stream is open.
        let sent = self.sender.clone().send_request(request, false);
        let (answer, mut body) = sent.inspect_err(|_| {
            // This may run before the driver, which is at it, comes to say so.
            if self.end().is_some() {
                self.close();
            }
        })?;
        // An error means that the stream is over already; its answer tells why.
        let _ = body.send_data(message, true);
        Ok(answer)
    }

    /// Whether it takes no more requests.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// `:scheme` and `:authority`.
    pub(crate) fn origin(&self) -> (&Scheme, &Authority) {
        (&self.scheme, &self.authority)
    }

    /// The streams of this connection.
    #[cfg(test)]
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// As if the end had not been seen yet.
    #[cfg(test)]
    pub(crate) fn forget_the_end(&self) {
        self.closed.store(false, Ordering::Release);
    }

    /// Why no more requests are taken.
    fn end(&self) -> Option<h2::Error> {
        let ready = self
            .sender
            .clone()
            .poll_ready(&mut Context::from_waker(Waker::noop()));
        match ready {
            Poll::Ready(Err(error)) => Some(error),
            Poll::Ready(Ok(())) | Poll::Pending => None,
        }
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

/// Moves the frames of a connection and tells its condition. It does not own the [`Connection`]:
/// the last owner of that ends it.
struct Driver<S: AsyncRead + AsyncWrite + Unpin> {
    frames: client::Connection<Listening<S>, Bytes>,
    connection: Weak<Connection>,
    condition: watch::Sender<Condition>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    /// Runs until the connection is over.
    async fn run(mut self, mut pings: Option<PingPong>, keep_alive: KeepAlive, heard: Arc<Heard>) {
        let mut pinged = None;
        let error = loop {
            let (since, patience) = match pinged {
                None => (heard.last(), keep_alive.after),
                Some(at) => (at, keep_alive.timeout),
            };
            tokio::select! {
                ended = poll_fn(|cx| self.poll(cx)) => break match ended {
                    Ok(()) => ConnectError::new("closed", "the server closed the connection"),
                    Err(error) => transport::closed(&error),
                },
                () = answer(&mut pings), if pinged.is_some() => pinged = None,
                () = sleep_until(since + patience) => {
                    if pinged.is_some() {
                        break ConnectError::new("timeout", "keep-alive ping not answered");
                    }
                    // Bytes may have come since it began to wait.
                    if heard.last() <= since {
                        ping(&mut pings);
                        pinged = Some(Instant::now());
                    }
                }
            }
        };
        self.tell(Condition::Over(error));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        let ended = Pin::new(&mut self.frames).poll(cx);
        if ended.is_pending() {
            self.look();
        }
        ended
    }

    /// Sees what the frames that just came have changed.
    fn look(&self) {
        let Some(connection) = self.connection.upgrade() else {
            return;
        };
        if let Some(end) = connection.end() {
            connection.close();
            self.tell(match is_farewell(&end) {
                true => Condition::Leaving,
                false => Condition::Over(transport::closed(&end)),
            });
            return;
        }
        let limit = match self.frames.max_concurrent_send_streams() {
            NOT_ANNOUNCED => return,
            UNLIMITED => None,
            streams => u32::try_from(streams).ok(),
        };
        if self.tell(Condition::Open(limit)) {
            connection.ledger.announce(limit);
        }
    }

    /// Whether it is news.
    fn tell(&self, condition: Condition) -> bool {
        self.condition.send_if_modified(|told| {
            let news = *told != condition;
            *told = condition;
            news
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Drop for Driver<S> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.upgrade() {
            connection.close();
        }
    }
}

/// Whether nothing is wrong: the server asked to leave, or the stream numbers are used up.
fn is_farewell(end: &h2::Error) -> bool {
    !end.is_io() && end.reason().is_none_or(|reason| reason == Reason::NO_ERROR)
}

fn ping(pings: &mut Option<PingPong>) {
    if let Some(pings) = pings {
        // An error means that the connection is over, which its driver is about to see.
        let _ = pings.send_ping(Ping::opaque());
    }
}

async fn answer(pings: &mut Option<PingPong>) {
    let pong = poll_fn(|cx| match pings {
        Some(pings) => pings.poll_pong(cx).map(|pong| pong.is_ok()),
        None => Poll::Pending,
    });
    if !pong.await {
        std::future::pending::<()>().await;
    }
}

/// When bytes came last, in milliseconds since the start.
struct Heard {
    start: Instant,
    last: AtomicU64,
}

impl Heard {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    fn now(&self) {
        let since = self.start.elapsed().as_millis() as u64;
        self.last.store(since, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.start + Duration::from_millis(self.last.load(Ordering::Relaxed))
    }
}

/// The socket. It notes when bytes come.
struct Listening<S> {
    stream: S,
    heard: Arc<Heard>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Listening<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.heard.now();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Listening<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
