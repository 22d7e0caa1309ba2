//! A thin reader over the socket that sees every byte before hyper does.
//!
//! Responsible for the time of the last received byte, for counting costly frames, for round trips, for leaving in
//! the socket what is not to be read yet, for asking a silent peer for a byte, and for handing on large
//! DATA frames in pieces. Must never change or hold a byte of payload.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::connection::Connection;
use super::cut::Cutter;
use super::flood::{FloodGuard, FloodLimits, FrameScanner, HEADER, Unfinished};
use super::rtt;

/// Bytes read of a peer that has always more before the tasks that take them get a turn: what they
/// say about the rest comes in time.
const TURN: usize = 20 << 10;

/// What asks a peer for a byte (LSN-12).
const PING: [u8; HEADER + 8] = *b"\0\0\x08\x06\0\0\0\0\0yuzu-gw?";

/// The socket (or the TLS stream) of one connection.
#[derive(Debug)]
pub(crate) struct CountedIo<I> {
    inner: I,
    connection: Arc<Connection>,
    scanner: FrameScanner,
    cutter: Cutter,
    guard: FloodGuard,
    /// Bytes read since the last turn.
    read: usize,
    /// Bytes of [`PING`] that are still to be written.
    ping_left: u8,
}

impl<I> CountedIo<I> {
    pub(crate) fn new(inner: I, connection: Arc<Connection>, limits: FloodLimits) -> Self {
        let guard = FloodGuard::new(limits, Instant::now());
        Self {
            inner,
            connection,
            scanner: FrameScanner::default(),
            cutter: Cutter::default(),
            guard,
            read: 0,
            ping_left: 0,
        }
    }

    /// Judges what was read. The DATA frame that is not whole yet, if one began in it.
    fn received(&mut self, bytes: &[u8]) -> io::Result<Option<Unfinished>> {
        let now = Instant::now();
        let mut flooded = None;
        let guard = &mut self.guard;
        let scanned = self.scanner.scan(bytes, |frame| {
            if guard.count(frame, now) {
                flooded = Some(frame);
            }
        });
        if scanned.acknowledged {
            self.connection.acknowledged(now);
        }
        // Answers to PINGs that nobody sent keep nothing open (LSN-12).
        if scanned.own_words || self.connection.has_streams() {
            self.connection
                .byte_received(now, self.scanner.spoke_http2());
        }
        match flooded {
            None => Ok(scanned.unfinished),
            Some(frame) => {
                self.connection.closed_for(frame.into());
                Err(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    "peer floods",
                ))
            }
        }
    }
}

impl<I: AsyncRead + Unpin> CountedIo<I> {
    /// The header of a piece, as much of it as `buf` has room for.
    fn hand_on_header(&mut self, buf: &mut ReadBuf<'_>) {
        let due = self.cutter.due();
        let step = due.len().min(buf.remaining());
        buf.put_slice(&due[..step]);
        self.cutter.handed_on(step);
    }

    /// Reads no further than to the end of a piece.
    fn poll_inner(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let inner = Pin::new(&mut self.inner);
        let Some(room) = self.cutter.room() else {
            return inner.poll_read(cx, buf);
        };
        let room = room.min(buf.remaining());
        let mut piece = ReadBuf::new(buf.initialize_unfilled_to(room));
        ready!(inner.poll_read(cx, &mut piece))?;
        let read = piece.filled().len();
        buf.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for CountedIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.connection.pauses().poll_none(cx));
        if self.read >= TURN {
            self.read = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let started = buf.filled().len();
        self.hand_on_header(buf);
        let before = buf.filled().len();
        let headed = before > started;
        if headed && buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let Poll::Ready(read) = self.poll_inner(cx, buf) else {
            self.read = 0;
            return if headed {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            };
        };
        read?;
        let received = &mut buf.filled_mut()[before..];
        if !received.is_empty() {
            self.read += received.len();
            self.cutter.passed(received.len());
            if let Some(frame) = self.received(received)? {
                self.cutter.cut(received, frame);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> CountedIo<I> {
    /// What is left of a PING, before anything else is written.
    fn poll_ping(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.ping_left > 0 {
            let left = &PING[PING.len() - usize::from(self.ping_left)..];
            match ready!(Pin::new(&mut self.inner).poll_write(cx, left))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.ping_left -= written as u8,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for CountedIo<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_ping(cx))?;
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, buf))?;
        if rtt::asks(&buf[..written]) {
            self.connection.asked(Instant::now());
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // HTTP/2 flushes at the end of each turn, and never within a frame.
        if self.ping_left == 0 && self.connection.takes_ask() {
            self.ping_left = PING.len() as u8;
            self.connection.asked(Instant::now());
        }
        ready!(self.poll_ping(cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_ping(cx))?;
        let written = ready!(Pin::new(&mut self.inner).poll_write_vectored(cx, bufs))?;
        if written > 0 && bufs.iter().any(|piece| rtt::asks(piece)) {
            self.connection.asked(Instant::now());
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::super::pause::Paused;
    use super::super::testing::connection;
    use super::*;

    fn pair() -> (CountedIo<DuplexStream>, DuplexStream, Arc<Connection>) {
        let (near, far) = duplex(1 << 20);
        let connection = connection();
        let io = CountedIo::new(near, Arc::clone(&connection), FloodLimits::DEFAULT);
        (io, far, connection)
    }

    #[tokio::test(start_paused = true)]
    async fn shift_5_a_ping_and_the_first_settings_give_a_round_trip_each() {
        let (mut io, mut far, connection) = pair();
        let histogram = &connection.metrics().agent_rtt_ms;
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let mut answer = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        for (question, trip) in [(&settings[..], 30), (&ping, 20)] {
            io.write_all(question).await.unwrap();
            tokio::time::advance(std::time::Duration::from_millis(trip)).await;
            answer.extend(question);
            // The flags are the fifth byte of what was asked.
            let at = answer.len() - question.len() + 4;
            answer[at] = 1;
            far.write_all(&answer).await.unwrap();
            io.read_exact(&mut answer).await.unwrap();
            answer.clear();
        }
        assert_eq!(histogram.get_sample_count(), 2);
        // To the microsecond, each.
        let sum = histogram.get_sample_sum();
        assert!((sum - 50.0).abs() < 0.01, "{sum}");
        // An answer that nobody asked for is none.
        far.write_all(&[0, 0, 0, 4, 1, 0, 0, 0, 0]).await.unwrap();
        io.read_exact(&mut [0; 9]).await.unwrap();
        assert_eq!(histogram.get_sample_count(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn lsn_12_a_ping_goes_out_with_a_flush_before_all_that_comes_later() {
        let (near, mut far) = duplex(20);
        let connection = connection();
        let mut io = CountedIo::new(near, Arc::clone(&connection), FloodLimits::DEFAULT);
        io.write_all(b"a frame").await.unwrap();
        connection.ask(Instant::now());
        // There is room for 13 bytes of 17.
        assert!(io.flush().now_or_never().is_none());
        assert!(io.write(b"another").now_or_never().is_none());
        let mut sent = [0; 7 + 17 + 7];
        let (written, read) = tokio::join!(
            async {
                io.write_all(b"another").await?;
                io.flush().await
            },
            far.read_exact(&mut sent)
        );
        written.unwrap();
        read.unwrap();
        assert_eq!(&sent[..7], b"a frame");
        // A PING of eight bytes, without the flag of an answer, of the connection.
        assert_eq!(sent[7..16], [0, 0, 8, 6, 0, 0, 0, 0, 0]);
        assert_eq!(&sent[24..], b"another");
        // One, and it began a round trip (SHIFT-5).
        io.flush().await.unwrap();
        assert!(far.read_u8().now_or_never().is_none());
        let mut answer = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        answer.extend([0, 0, 8, 6, 1, 0, 0, 0, 0]);
        answer.extend(&sent[16..24]);
        let mut received = vec![0; answer.len()];
        let (written, read) = tokio::join!(far.write_all(&answer), io.read_exact(&mut received));
        written.unwrap();
        read.unwrap();
        assert_eq!(connection.metrics().agent_rtt_ms.get_sample_count(), 1);
    }

    #[tokio::test]
    async fn cmd_22_a_paused_connection_is_read_on_when_the_last_pause_ends() {
        let (mut io, mut far, connection) = pair();
        far.write_all(b"ab").await.unwrap();
        let (first, second) = (Paused::new(&connection), Paused::new(&connection));
        let reading = tokio::spawn(async move { io.read_u8().await });
        tokio::task::yield_now().await;
        drop(first);
        tokio::task::yield_now().await;
        assert!(!reading.is_finished());
        drop(second);
        assert_eq!(reading.await.unwrap().unwrap(), b'a');
    }

    #[tokio::test]
    async fn cmd_22_a_peer_that_always_has_more_lets_the_others_have_a_turn() {
        let (mut io, mut far, _connection) = pair();
        far.write_all(&vec![0; 100 << 10]).await.unwrap();
        let mut piece = vec![0; 10 << 10];
        for _ in 0..2 {
            let read = io.read_exact(&mut piece).now_or_never();
            read.expect("it is within its turn").unwrap();
        }
        assert!(io.read_exact(&mut piece).now_or_never().is_none());
        let next = io.read_exact(&mut piece).now_or_never();
        next.expect("the next turn").unwrap();
    }

    #[tokio::test]
    async fn a_large_data_frame_is_read_in_pieces_with_every_byte_of_it() {
        let (mut io, mut far, _connection) = pair();
        let payload: Vec<u8> = (0..9_000_u32).map(|at| at as u8).collect();
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        sent.extend([0, 0x23, 0x28, 0, 1, 0, 0, 0, 1]);
        far.write_all(&sent).await.unwrap();
        let mut read = bytes::BytesMut::with_capacity(8 << 10);
        io.read_buf(&mut read).await.unwrap();
        far.write_all(&payload).await.unwrap();
        drop(far);
        while io.read_buf(&mut read).await.unwrap() > 0 {}
        let (mut left, mut pieces, mut data) = (&read[24..], Vec::new(), Vec::new());
        while let [0, high, low, 0, flags, 0, 0, 0, 1, rest @ ..] = left {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            pieces.push((length, *flags));
            data.extend_from_slice(&rest[..length]);
            left = &rest[length..];
        }
        assert_eq!(pieces, [(4_087, 0), (4_087, 0), (826, 1)]);
        assert!(data == payload && left.is_empty());
    }
}
