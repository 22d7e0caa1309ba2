//! Connections over a stream in memory, whose peer speaks HTTP/2 by hand, in paused time.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::super::flood::FloodLimits;
use super::super::io::CountedIo;
use super::super::stream::OpenStream;
use super::super::tasks::StreamExecutor;
use super::super::testing::connection_with;
use super::*;

const DATA: u8 = 0;
const PING: u8 = 6;
const ACK: u8 = 1;
const SECOND: Duration = Duration::from_secs(1);

/// The preface, SETTINGS of a client and `GET /` on stream 1, which stays open for the answer.
const OPENING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
    \0\0\0\x04\0\0\0\0\0\
    \0\0\x03\x01\x05\0\0\0\x01\x82\x84\x86";

/// A connection that answers each request with `answer` and then keeps the stream open, and its peer, to
/// whom `room` bytes can be on their way. An idle time of 180 s.
async fn connected(
    answer: Bytes,
    room: usize,
) -> (
    Arc<Connection>,
    Drive<impl GracefulConnection>,
    DuplexStream,
) {
    let connection = connection_with(|limits| limits.unregistered_timeout = Duration::ZERO);
    let (near, mut peer) = duplex(room);
    let io = CountedIo::new(near, Arc::clone(&connection), FloodLimits::DEFAULT);
    let caller = Arc::clone(&connection);
    let service = service_fn(move |_| {
        let open = OpenStream::new(&caller);
        let first = Ok::<_, tonic::Status>(Frame::data(answer.clone()));
        let frames = stream::iter([first]).chain(stream::pending());
        let answer = tonic::body::Body::new(StreamBody::new(frames));
        let answer = open.answered(http::Response::new(answer));
        async move { Ok::<_, Infallible>(answer) }
    });
    let tasks = Tasks::of(&connection);
    let builder = http2::Builder::new(StreamExecutor(Arc::clone(&connection)));
    let served = builder.serve_connection(TokioIo::new(io), service);
    peer.write_all(OPENING).await.unwrap();
    let drive = Drive::new(served, &connection, Some(tasks));
    (connection, drive, peer)
}

/// The next frame: its kind, its flags and its payload.
async fn frame(peer: &mut DuplexStream) -> (u8, u8, Vec<u8>) {
    let mut head = [0; 9];
    peer.read_exact(&mut head).await.unwrap();
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    peer.read_exact(&mut payload).await.unwrap();
    (head[3], head[4], payload)
}

fn closed_for_want_of_an_answer(connection: &Connection) -> u64 {
    let family = &connection.metrics().listener_closed_total;
    family.with_label_values(&["ping_not_answered"]).get()
}

#[tokio::test(start_paused = true)]
async fn lsn_12_a_ping_does_not_fall_into_a_frame_that_is_half_written() {
    let payload: Bytes = (0..40_000_u32).map(|at| (at % 251) as u8).collect();
    let (connection, drive, mut peer) = connected(payload.clone(), 1_024).await;
    let driven = tokio::spawn(drive);
    // It was asked for after 60 s, with the socket full and a frame of 16 KiB begun.
    tokio::time::sleep(61 * SECOND).await;
    let mut received = Vec::new();
    let mut pings = Vec::new();
    while received.len() < payload.len() || pings.is_empty() {
        match frame(&mut peer).await {
            (DATA, _, piece) => received.extend(piece),
            (PING, flags, asked) => pings.push((flags, asked)),
            _ => {}
        }
    }
    assert!(received == payload, "every byte, in its order");
    assert_eq!(pings.len(), 1);
    let (flags, asked) = &pings[0];
    assert_eq!((*flags, asked.len()), (0, 8));
    // The answer holds for the next third of the idle time, after which it is asked anew.
    let mut answer = vec![0, 0, 8, PING, ACK, 0, 0, 0, 0];
    answer.extend(asked);
    peer.write_all(&answer).await.unwrap();
    let answered = Instant::now();
    let (kind, flags, _) = frame(&mut peer).await;
    assert_eq!((kind, flags), (PING, 0));
    assert_eq!(answered.elapsed().as_secs(), 60);
    assert!(!driven.is_finished());
    assert_eq!(closed_for_want_of_an_answer(&connection), 0);
}

#[tokio::test(start_paused = true)]
async fn lsn_12_a_peer_that_does_not_answer_is_closed_whether_it_took_the_ping_or_not() {
    for takes_it in [true, false] {
        let (connection, drive, mut peer) = connected(Bytes::from(vec![1; 4_096]), 1_024).await;
        let began = Instant::now();
        let driven = tokio::spawn(drive);
        let reading = tokio::spawn(async move {
            let mut received = Vec::new();
            if takes_it {
                peer.read_to_end(&mut received).await.unwrap();
            } else {
                std::future::pending::<()>().await;
            }
            received
        });
        driven.await.unwrap();
        // Asked after a third of 180 s, and waited for 20 s more.
        assert_eq!(began.elapsed().as_secs(), 80, "takes it: {takes_it}");
        assert_eq!(closed_for_want_of_an_answer(&connection), 1);
        if takes_it {
            let received = reading.await.unwrap();
            let ping = [0, 0, 8, PING, 0, 0, 0, 0, 0];
            let pings = received.windows(9).filter(|bytes| *bytes == ping);
            assert_eq!(pings.count(), 1);
        }
    }
}

/// Counts how often the runtime is asked to run the connection.
#[derive(Default)]
struct Runtime(AtomicUsize);

impl Wake for Runtime {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_always_has_something_to_do_lets_the_others_have_a_turn() {
    let (connection, drive, _peer) = connected(Bytes::new(), 1_024).await;
    let ran = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&ran);
    connection.spawn(poll_fn(move |cx| {
        counted.fetch_add(1, Ordering::Relaxed);
        cx.waker().wake_by_ref();
        Poll::<()>::Pending
    }));
    let mut drive = pin!(drive);
    let runtime = Arc::<Runtime>::default();
    let waker = Waker::from(Arc::clone(&runtime));
    for turn in 1..=3 {
        let asked = runtime.0.load(Ordering::Relaxed);
        let before = ran.load(Ordering::Relaxed);
        assert!(
            drive
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        let looks = ran.load(Ordering::Relaxed) - before;
        // In its first look a newcomer is run twice.
        let more = usize::from(turn == 1);
        assert_eq!(looks, usize::from(LOOKS) + more, "turn {turn}");
        assert!(runtime.0.load(Ordering::Relaxed) > asked, "turn {turn}");
    }
    // What ends the connection is not kept waiting by it.
    connection.kill(CloseReason::OverBudget);
    assert!(
        drive
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready()
    );
}
