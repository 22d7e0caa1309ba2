//! Several endpoints, and addresses of both families.

use std::net::{Ipv4Addr, Ipv6Addr};

use tokio::net::TcpListener;

use super::peer::{Peer, Seen};
use super::server::{Reply, Server};
use super::*;

/// An address that refuses, for as long as the socket lives.
fn refusing() -> (tokio::net::TcpSocket, SocketAddr) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

async fn named(name: &'static str) -> Server {
    Server::start(move |_| Reply::Message(session(name))).await
}

fn session(name: &str) -> Bytes {
    let answer = RegisterResponse {
        session_id: name.into(),
        accepted: true,
        ..RegisterResponse::default()
    };
    answer.encode_to_vec().into()
}

fn between(
    endpoints: [SocketAddr; 2],
    metrics: &Arc<Metrics>,
    change: impl FnOnce(&mut config::Upstream),
) -> Upstream {
    upstream(endpoints[0], metrics, |c| {
        c.endpoints.push(endpoint(endpoints[1]));
        c.breaker.failure_threshold = 1_000;
        change(c);
    })
}

/// Which server answers.
async fn who(upstream: &Upstream) -> String {
    let answer = upstream.register(Bytes::new(), None, soon()).await.unwrap();
    RegisterResponse::decode(answer).unwrap().session_id
}

async fn comes_to(upstream: &Upstream, name: &str) {
    let wait = async {
        loop {
            let answer = upstream.register(Bytes::new(), None, soon()).await;
            let answer = answer.ok().and_then(|a| RegisterResponse::decode(a).ok());
            if answer.is_some_and(|answer| answer.session_id == name) {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, wait)
        .await
        .unwrap_or_else(|_| panic!("never came to {name}"));
}

#[tokio::test]
async fn upch_2_calls_go_to_the_first_endpoint_and_none_to_the_standby() {
    let (first, second) = (named("first").await, named("second").await);
    let upstream = between([first.address, second.address], &metrics(), |_| {});
    for _ in 0..20 {
        assert_eq!(who(&upstream).await, "first");
    }
}

#[tokio::test]
async fn upch_2_a_standby_serves_when_the_first_endpoint_cannot_be_reached() {
    let (_socket, dead) = refusing();
    let second = named("second").await;
    let upstream = between([dead, second.address], &metrics(), |_| {});
    // The very first call waits for the standby's connection and does not see the refusal.
    assert_eq!(who(&upstream).await, "second");
}

#[tokio::test]
async fn upch_2_when_no_endpoint_can_be_reached_calls_fail_with_the_last_error() {
    let ((_one, one), (_other, other)) = (refusing(), refusing());
    let upstream = between([one, other], &metrics(), |_| {});
    let error = upstream
        .register(Bytes::new(), None, soon())
        .await
        .unwrap_err();
    assert_eq!(error.code(), Some("econnrefused"));
}

#[tokio::test]
async fn upch_2_a_lost_endpoint_is_replaced_and_the_standby_keeps_the_calls() {
    let (first, second) = (named("first").await, named("second").await);
    let address = first.address;
    let upstream = between([address, second.address], &metrics(), |_| {});
    assert_eq!(who(&upstream).await, "first");
    drop(first);
    comes_to(&upstream, "second").await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    let back = Server::on(socket.listen(16).unwrap(), |_| {
        Reply::Message(session("first"))
    });
    back.gate.add_permits(100);
    for _ in 0..20 {
        assert_eq!(who(&upstream).await, "second", "zero is until it fails");
    }
    drop(second);
    comes_to(&upstream, "first").await;
}

#[tokio::test]
async fn upch_2_an_endpoint_whose_connections_do_not_last_gives_way() {
    let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let second = named("second").await;
    let addresses = [first.local_addr().unwrap(), second.address];
    let upstream = between(addresses, &metrics(), |_| {});
    drop(Peer::accept(&first, Some(128)).await);
    comes_to(&upstream, "second").await;
}

/// A call that runs on the standby ends there, while new calls go to the first endpoint.
#[tokio::test]
async fn failback_moves_new_calls_to_the_first_endpoint_and_breaks_none() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let mut second = Server::gated(|_| Reply::Message(session("second"))).await;
    let upstream = between([address, second.address], &metrics(), |c| {
        c.failback_after = Duration::from_millis(50);
    });
    let running = tokio::spawn({
        let upstream = upstream.clone();
        async move { who(&upstream).await }
    });
    timeout(LONG, second.calls.recv()).await.unwrap().unwrap();
    let first = Server::on(socket.listen(16).unwrap(), |_| {
        Reply::Message(session("first"))
    });
    first.gate.add_permits(1_000);
    comes_to_first(&upstream).await;
    until("only the first call is left there", || {
        second.open.load(std::sync::atomic::Ordering::SeqCst) == 1
    })
    .await;
    second.gate.add_permits(1);
    assert_eq!(running.await.unwrap(), "second");
    for _ in 0..20 {
        assert_eq!(who(&upstream).await, "first");
    }
}

#[tokio::test]
async fn the_metric_names_the_endpoint_that_calls_go_to() {
    let (_socket, away) = refusing();
    let standby = named("standby").await;
    let metrics = metrics();
    let upstream = between([away, standby.address], &metrics, |_| {});
    let active = |address: SocketAddr| {
        let series = format!("upstream_endpoint_active{{endpoint=\"{address}\"}}");
        metric(&metrics, &series)
    };
    // Every configured one is there from the start.
    assert_eq!(active(away), Some(0.0));
    assert!(active(standby.address).is_some());
    comes_to(&upstream, "standby").await;
    assert_eq!(
        (active(away), active(standby.address)),
        (Some(0.0), Some(1.0))
    );
    let address = standby.address;
    drop(standby);
    until("none is", || active(address) == Some(0.0)).await;
    assert_eq!(active(away), Some(0.0));
}

/// Calls go to the standby until the failback, and get no answer there.
async fn comes_to_first(upstream: &Upstream) {
    let wait = async {
        loop {
            let patience = Instant::now() + Duration::from_millis(20);
            if upstream
                .register(Bytes::new(), None, patience)
                .await
                .is_ok()
            {
                return;
            }
        }
    };
    timeout(LONG, wait).await.expect("the failback");
}

#[tokio::test]
async fn upch_7_the_limit_in_force_is_that_of_the_connection_in_use() {
    let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let second = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let metrics = metrics();
    let addresses = [first.local_addr().unwrap(), second.local_addr().unwrap()];
    let upstream = between(addresses, &metrics, |_| {});
    let permits = || {
        ["register", "inventory"].map(|class| {
            let series = format!("upstream_permit_limit{{class=\"{class}\"}}");
            metric(&metrics, &series).unwrap()
        })
    };
    let peer = Peer::accept(&first, Some(100)).await;
    until("the first limit", || permits() == [33.0, 6.0]).await;
    drop((peer, first));
    let mut peer = timeout(LONG, Peer::accept(&second, Some(81)))
        .await
        .unwrap();
    until("the second limit", || permits() == [17.0, 3.0]).await;
    assert!(upstream.is_connected());
    while peer.next().await != Seen::SettingsAcked {}
    assert!(peer.open.is_empty());
}

#[tokio::test]
async fn an_ipv6_literal_is_an_endpoint() {
    let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.unwrap();
    let mut server = Server::on(listener, |_| Reply::Message(session("six")));
    server.gate.add_permits(10);
    let upstream = upstream(server.address, &metrics(), |_| {});
    assert_eq!(who(&upstream).await, "six");
    let call = server.calls.recv().await.unwrap();
    assert_eq!(
        call.authority.as_deref(),
        Some(format!("[::1]:{}", server.address.port()).as_str())
    );
}

/// A name with an address of each family, of which only one is served.
#[tokio::test]
async fn a_name_with_both_families_is_reached_through_either() {
    for served in [
        SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
    ] {
        let listener = TcpListener::bind(served).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let addresses = [
            SocketAddr::from((Ipv6Addr::LOCALHOST, port)),
            SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        ];
        let stream = dial::first_of(&addresses, soon(), SOCKET).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
        drop(listener);
        let error = dial::first_of(&addresses, soon(), SOCKET)
            .await
            .unwrap_err();
        assert_eq!(error.code, "econnrefused");
    }
}
