//! Connections on which nothing comes back.

use super::connection::{complete, listener};
use super::peer::{Peer, Seen};
use super::*;
use crate::upstream::channel::Channel;
use crate::upstream::connection::KeepAlive;

/// A channel whose connection is kept up.
fn kept(settings: Settings) -> (Channel, Kept) {
    let (channel, keeper) = Keeper::new(settings, lanes(), metrics());
    let keeper = Arc::new(keeper);
    let kept = keep_running("test", move || {
        let keeper = Arc::clone(&keeper);
        async move { keeper.run().await }
    });
    (channel, kept)
}

/// Settings of a channel whose sockets may be without an acknowledgement for `user_timeout`.
fn impatient(address: SocketAddr, user_timeout: Duration) -> Settings {
    let defaults = settings(address);
    let socket = dial::Options {
        user_timeout,
        ..defaults.socket
    };
    Settings { socket, ..defaults }
}

async fn heartbeat(channel: &Channel, within: Duration) -> Result<Bytes, CallError> {
    let client = Client::new(Some(channel.clone()), 4 << 20, metrics());
    let until = Instant::now() + within;
    client
        .call(Rpc::BatchHeartbeat, Bytes::new(), None, until)
        .await
}

#[tokio::test]
async fn an_idle_connection_is_pinged_and_left_when_no_answer_comes() {
    let (listener, address) = listener().await;
    let settings = Settings {
        keep_alive: KeepAlive {
            after: Duration::from_millis(50),
            timeout: Duration::from_millis(50),
        },
        ..settings(address)
    };
    let (channel, _kept) = kept(settings);
    let mut peer = Peer::accept(&listener, Some(128)).await;
    while peer.pings < 3 {
        // Reading answers the pings; nothing else happens on the connection.
        let quiet = timeout(Duration::from_millis(20), peer.next()).await;
        assert!(
            !matches!(quiet, Ok(Seen::Closed)),
            "left in spite of the answers"
        );
    }
    assert!(channel.is_connected());
    until("left", || !channel.is_connected()).await;
}

/// Nothing of what is sent arrives, and nobody says so.
#[tokio::test]
async fn upch_10_a_connection_into_a_black_hole_is_replaced() {
    let (listener, address) = listener().await;
    let (channel, _kept) = kept(impatient(address, Duration::from_millis(300)));
    let mut lost = Peer::accept(&listener, Some(128)).await;
    assert_eq!(lost.next().await, Seen::SettingsAcked);
    lost.drop_what_comes();
    let (call, mut next) = tokio::join!(
        heartbeat(&channel, LONG),
        timeout(LONG, async { Peer::accept(&listener, Some(128)).await }),
    );
    let error = call.unwrap_err();
    assert!(matches!(error, CallError::Closed(_)), "{error:?}");
    assert_eq!(error.code(), Some("timeout"));
    let again = tokio::spawn(async move { heartbeat(&channel, LONG).await });
    let next = next.as_mut().expect("another connection");
    let stream = complete(next).await;
    next.answer(stream, &accepted()).await;
    again.await.unwrap().unwrap();
}

/// F-NOT-5: its system takes what is sent, so all of it is there when the server wakes.
#[tokio::test]
async fn upch_10_a_server_that_stands_still_keeps_its_connection() {
    let (listener, address) = listener().await;
    let (channel, _kept) = kept(impatient(address, Duration::from_millis(100)));
    let mut peer = Peer::accept(&listener, Some(128)).await;
    // Nobody reads meanwhile.
    let unanswered = heartbeat(&channel, Duration::from_secs(1)).await;
    assert_eq!(unanswered, Err(CallError::Timeout));
    let answered = tokio::spawn(async move { heartbeat(&channel, LONG).await });
    complete(&mut peer).await;
    let stream = complete(&mut peer).await;
    peer.answer(stream, &accepted()).await;
    answered.await.unwrap().unwrap();
}

#[tokio::test]
async fn upch_10_a_system_that_refuses_the_time_has_a_connection_all_the_same() {
    let (_listener, address) = listener().await;
    // More milliseconds than the system counts.
    let settings = impatient(address, Duration::MAX);
    let stream = dial::dial(&settings.endpoints[0], LONG, settings.socket).await;
    let stream = stream.expect("a connection");
    let refused = crate::system::set_user_timeout(&stream, Duration::MAX);
    assert!(refused.is_err());
    assert!(stream.nodelay().unwrap(), "the other option is set");
}

#[tokio::test]
async fn upch_10_ten_seconds_without_an_acknowledgement() {
    let (_listener, address) = listener().await;
    let settings = settings(address);
    let stream = dial::dial(&settings.endpoints[0], LONG, settings.socket).await;
    let timeout = socket2::SockRef::from(&stream.unwrap()).tcp_user_timeout();
    assert_eq!(timeout.unwrap(), Some(Duration::from_secs(10)));
}
