//! The order on the wire, seen by a server that reads single frames, with the gateway's tasks on
//! several threads. A race decides the order or nothing does, hence many rounds.

use super::*;

const ROUNDS: usize = 100;
/// Of HTTP/2.
const INTERNAL_ERROR: u32 = 2;

async fn connected(
    metrics: &Arc<Metrics>,
    change: impl FnOnce(&mut config::Upstream),
) -> (Upstream, Peer) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = upstream(listener.local_addr().unwrap(), metrics, change);
    let peer = timeout(LONG, Peer::accept(&listener, None)).await.unwrap();
    (upstream, peer)
}

/// The next notice on the wire: its stream and its agent's number.
async fn sent(peer: &mut Peer) -> (u32, usize) {
    let stream = called(peer).await;
    let notice = StreamStatusNotification::decode(peer.message(stream)).unwrap();
    let number = notice.agent_id.strip_prefix("a-").unwrap();
    (stream, number.parse().unwrap())
}

async fn acknowledge(peer: &mut Peer, stream: u32) {
    let answer = StreamStatusAck { acknowledged: true };
    peer.answer(stream, &answer.encode_to_vec()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn notify_6_behind_the_probe_they_leave_in_the_order_in_which_they_came() {
    let metrics = metrics();
    let (upstream, mut peer) = connected(&metrics, |c| {
        c.breaker.failure_threshold = 1;
        c.breaker.reset_timeout = Duration::from_millis(2);
        c.breaker.max_reset_timeout = Duration::from_millis(2);
    })
    .await;
    let notifier = notifier(&upstream, &metrics, 100);
    for round in 0..ROUNDS {
        let failing = tokio::spawn({
            let upstream = upstream.clone();
            async move { upstream.register(Bytes::new(), None, soon()).await }
        });
        let register = called(&mut peer).await;
        peer.reset(register, INTERNAL_ERROR).await;
        failing.await.unwrap().unwrap_err();
        for agent in 0..10 {
            notifier.send(notice(agent, Event::Disconnected));
        }
        let (probe, first) = sent(&mut peer).await;
        assert_eq!(first, 0);
        acknowledge(&mut peer, probe).await;
        let mut order = Vec::new();
        for _ in 1..10 {
            let (stream, agent) = sent(&mut peer).await;
            acknowledge(&mut peer, stream).await;
            order.push(agent);
        }
        assert_eq!(order, [1, 2, 3, 4, 5, 6, 7, 8, 9], "round {round}");
        until("all landed", || value(&metrics, "inflight") == 0.0).await;
    }
    assert_eq!(value(&metrics, "requeued_total"), 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn notify_1_fresh_ones_leave_in_the_order_in_which_they_came() {
    let metrics = metrics();
    let (upstream, mut peer) = connected(&metrics, |_| {}).await;
    let notifier = notifier(&upstream, &metrics, 100);
    for round in 0..ROUNDS {
        for agent in 0..30 {
            notifier.send(notice(agent, Event::Connected));
        }
        let mut order = Vec::new();
        while order.len() < 30 {
            let mut streams = Vec::new();
            for _ in 0..10 {
                let (stream, agent) = sent(&mut peer).await;
                order.push(agent);
                streams.push(stream);
            }
            // The last one first: the order of answers is no order of sends.
            for stream in streams.into_iter().rev() {
                acknowledge(&mut peer, stream).await;
            }
        }
        let expected: Vec<usize> = (0..30).collect();
        assert_eq!(order, expected, "round {round}");
    }
}

/// What waits for a connection leaves in order too, once there is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn upch_2_what_waits_for_the_connection_leaves_in_the_order_in_which_it_came() {
    for round in 0..ROUNDS {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let metrics = metrics();
        let upstream = upstream(listener.local_addr().unwrap(), &metrics, |_| {});
        let notifier = notifier(&upstream, &metrics, 100);
        let mut peer = timeout(LONG, Peer::accept_silently(&listener))
            .await
            .unwrap();
        for agent in 0..10 {
            notifier.send(notice(agent, Event::Connected));
        }
        until("all started", || value(&metrics, "inflight") == 10.0).await;
        peer.announce(None).await;
        let mut order = Vec::new();
        for _ in 0..10 {
            order.push(sent(&mut peer).await.1);
        }
        assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn notify_10_those_that_failed_together_leave_again_in_their_order() {
    let metrics = metrics();
    let (upstream, mut peer) = connected(&metrics, |c| {
        c.breaker.failure_threshold = 1;
        c.breaker.reset_timeout = Duration::from_millis(200);
        c.breaker.max_reset_timeout = Duration::from_millis(200);
    })
    .await;
    let notifier = notifier(&upstream, &metrics, 100);
    for round in 1..=5 {
        for agent in 0..12 {
            notifier.send(notice(agent, Event::Connected));
        }
        let mut streams = Vec::new();
        for _ in 0..10 {
            streams.push(sent(&mut peer).await.0);
        }
        // The first failure opens the breaker, so that all are held again before one is sent.
        for stream in streams.into_iter().rev() {
            peer.reset(stream, INTERNAL_ERROR).await;
        }
        let mut order = Vec::new();
        while order.len() < 12 {
            let (stream, agent) = sent(&mut peer).await;
            acknowledge(&mut peer, stream).await;
            order.push(agent);
        }
        let expected: Vec<usize> = (0..12).collect();
        assert_eq!(order, expected, "round {round}");
        let requeued = (round * 10) as f64;
        assert_eq!(value(&metrics, "requeued_total"), requeued);
        until("all landed", || value(&metrics, "inflight") == 0.0).await;
    }
}
