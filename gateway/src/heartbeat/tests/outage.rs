//! The server is gone for long.

use super::*;

const OUTAGE: Duration = Duration::from_secs(15 * 60);
const EVERY: Duration = Duration::from_secs(30);
const AGENTS: usize = 30;

fn bytes(batcher: &Batcher) -> usize {
    batcher.shared.lock().buffer.bytes()
}

/// An address that nobody listens on, and how to listen there later.
async fn closed() -> (std::net::SocketAddr, impl AsyncFnOnce() -> Server) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    (address, async move || {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        let server = Server::on(socket.listen(16).unwrap(), |_| ok());
        server.gate.add_permits(1_000);
        server
    })
}

#[tokio::test(start_paused = true)]
async fn hb_3_after_15_minutes_without_a_server_chunks_are_no_larger_than_ever() {
    let (address, listen) = closed().await;
    let metrics = metrics();
    let upstream = upstream(address, &metrics, |_| {});
    let config = config::Config::default().heartbeat;
    let batcher = Batcher::start(
        upstream,
        "yuzu_gw@gw1",
        &config,
        Arc::clone(&metrics),
        |_, _| (),
    );

    let began = Instant::now();
    let mut rounds = 0;
    while began.elapsed() < OUTAGE {
        rounds += 1;
        for agent in 0..AGENTS {
            let heartbeat = HeartbeatRequest {
                session_id: agent.to_string(),
                status_tags: [("round".to_owned(), rounds.to_string())].into(),
                fleet_snapshot_json: vec![rounds; 800_000].into(),
                ..HeartbeatRequest::default()
            };
            batcher.push(&agent.to_string(), &heartbeat.encode_to_vec());
            assert!(bytes(&batcher) <= config.max_bytes);
        }
        tokio::time::sleep(EVERY).await;
    }
    assert_eq!(rounds, 30);
    let replaced = (AGENTS * (rounds as usize - 1)) as f64;
    assert_eq!(
        metric(&metrics, "heartbeat_coalesced_total"),
        Some(replaced)
    );

    // Sockets need real time.
    tokio::time::resume();
    let mut server = listen().await;
    let mut sizes = Vec::new();
    let mut arrived = Vec::new();
    while arrived.len() < AGENTS {
        let call = timeout(LONG, server.calls.recv()).await.unwrap().unwrap();
        sizes.push(call.message.len());
        let batch = BatchHeartbeatRequest::decode(call.message).unwrap();
        arrived.extend(batch.heartbeats);
    }
    // Three of 800,000 bytes go into each.
    assert!(sizes.iter().all(|size| *size <= 3_145_728), "{sizes:?}");
    assert_eq!(sizes.len(), AGENTS / 3);
    for (agent, heartbeat) in arrived.iter().enumerate() {
        assert_eq!(heartbeat.session_id, agent.to_string());
        assert_eq!(heartbeat.status_tags["round"], "30");
        assert_eq!(heartbeat.fleet_snapshot_json, vec![30; 800_000]);
    }
    for reason in ["buffer_full", "snapshot_evicted", "chunk_rejected"] {
        assert_eq!(dropped(&metrics, reason), 0.0, "{reason}");
    }
    until("everything settled", || bytes(&batcher) == 0).await;
}

#[tokio::test]
async fn hb_10_an_outage_of_more_than_the_buffer_costs_the_oldest_snapshots() {
    let (address, listen) = closed().await;
    let metrics = metrics();
    let upstream = upstream(address, &metrics, |_| {});
    let config = config::Heartbeat {
        batch_interval: NEVER,
        max_sessions: 1_000,
        max_bytes: MIB,
    };
    let batcher = Batcher::start(
        upstream,
        "yuzu_gw@gw1",
        &config,
        Arc::clone(&metrics),
        |_, _| (),
    );
    // Five snapshots fit, their heartbeats included, and six do not.
    for _round in 0..3 {
        for session in 0..10 {
            push(&batcher, session, 200_000);
            assert!(bytes(&batcher) <= MIB);
        }
    }
    // Five of each round but the last gave way to the next, and five of the last.
    assert_eq!(dropped(&metrics, "snapshot_evicted"), 25.0);
    assert_eq!(dropped(&metrics, "buffer_full"), 0.0);
    let mut server = listen().await;
    assert_eq!(batcher.flush(soon()).await, (10, 0));
    let call = server.calls.recv().await.unwrap();
    let batch = BatchHeartbeatRequest::decode(call.message).unwrap();
    let with_snapshot = |h: &HeartbeatRequest| !h.fleet_snapshot_json.is_empty();
    let kept: Vec<_> = batch.heartbeats.iter().map(with_snapshot).collect();
    assert_eq!(kept, [[false; 5], [true; 5]].concat());
}
