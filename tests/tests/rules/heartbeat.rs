//! ADMIT and HB: heartbeats.

use crate::support::{soon, with_unknown_fields};
use bytes::Bytes;
use prost::Message;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use yuzu_proto::agent::v1::{HeartbeatRequest, HeartbeatResponse};
use yuzu_proto::gateway::v1::BatchHeartbeatRequest;
use yuzu_proto::wire::put_bytes_field;
use yuzu_server_stub::{Action, Fault, Rpc, State};
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::fleet::{Fleet, Options};
use yuzu_tests::raw::code;
use yuzu_tests::testbed::{Setup, TestBed};

const UNKNOWN: (u16, &str) = (code::NOT_FOUND, "unknown session");

fn beat(session_id: &str, tag: &str) -> HeartbeatRequest {
    HeartbeatRequest {
        session_id: session_id.into(),
        status_tags: [("tag".to_owned(), tag.to_owned())].into(),
        ..Default::default()
    }
}

async fn send(agent: &Agent, request: &HeartbeatRequest) -> (u16, String) {
    let answer = agent.heartbeat_raw(&request.encode_to_vec()).await.unwrap();
    (answer.status.code, answer.status.message)
}

/// All heartbeats the server received, batch by batch.
fn batches(state: &State) -> Vec<BatchHeartbeatRequest> {
    state
        .received(Rpc::BatchHeartbeat)
        .filter_map(|r| r.heartbeats())
        .collect()
}

async fn beats(bed: &TestBed, count: usize) -> Vec<HeartbeatRequest> {
    let look = |state: &State| {
        let all: Vec<_> = batches(state)
            .into_iter()
            .flat_map(|b| b.heartbeats)
            .collect();
        (all.len() >= count).then_some(all)
    };
    bed.server
        .wait_for("heartbeats", PATIENCE, look)
        .await
        .unwrap()
}

#[tokio::test]
async fn admit_1_a_pending_session_on_the_registers_connection_and_a_live_one_on_its_own() {
    let bed = TestBed::start().await;
    let mut agent = bed.bare_agent("a").await;
    agent.register().await.unwrap();
    let session = agent.session_id.clone();
    assert_eq!(send(&agent, &beat(&session, "pending")).await.0, code::OK);
    agent.subscribe().await.unwrap();
    assert_eq!(send(&agent, &beat(&session, "live")).await.0, code::OK);
    let arrived = beats(&bed, 1).await;
    assert_eq!(arrived[0].session_id, session);
}

#[tokio::test]
async fn admit_2_every_refusal_looks_the_same_and_nothing_is_forwarded() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    let stranger = bed.bare_agent("b").await;
    let mut pending = bed.bare_agent("c").await;
    pending.register().await.unwrap();
    let mut gone = bed.agent("d").await;
    gone.half_close().await.unwrap();
    let refused = [
        (&stranger, agent.session_id.as_str()),
        (&stranger, pending.session_id.as_str()),
        (&agent, "gw-session-00000000000000000000000000000000"),
        (&agent, ""),
        (&gone, gone.session_id.as_str()),
    ];
    for (from, session) in refused {
        let (code, text) = send(from, &beat(session, "x")).await;
        assert_eq!((code, text.as_str()), UNKNOWN, "session {session}");
    }
    let mismatches = [("event", "security")];
    assert_eq!(
        bed.metric("heartbeat_session_mismatch_total", &mismatches)
            .await,
        2.0
    );
    let unknown = [("reason", "unknown_session")];
    assert_eq!(bed.metric("heartbeat_rejected_total", &unknown).await, 3.0);
    // The next good one is the first that arrives.
    assert_eq!(
        send(&agent, &beat(&agent.session_id, "good")).await.0,
        code::OK
    );
    let arrived = beats(&bed, 1).await;
    assert_eq!(
        (arrived.len(), arrived[0].status_tags["tag"].as_str()),
        (1, "good")
    );
}

#[tokio::test]
async fn admit_3_counters_exist_at_0_from_the_start() {
    let bed = TestBed::start().await;
    for reason in ["unknown_session", "no_connection", "registry_unavailable"] {
        let labels = [("reason", reason)];
        assert_eq!(bed.metric("heartbeat_rejected_total", &labels).await, 0.0);
        assert_eq!(bed.metric("inventory_rejected_total", &labels).await, 0.0);
    }
    let mismatch = [("reason", "connection_mismatch")];
    assert_eq!(bed.metric("inventory_rejected_total", &mismatch).await, 0.0);
    let security = [("event", "security")];
    assert_eq!(
        bed.metric("heartbeat_session_mismatch_total", &security)
            .await,
        0.0
    );
}

#[tokio::test]
async fn admit_8_what_the_server_knows_does_not_matter() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    assert!(bed.server.forget_session(&agent.session_id));
    for gone in [false, true] {
        if gone {
            bed.server.kill().await;
        }
        let known = send(&agent, &beat(&agent.session_id, "x")).await;
        assert_eq!(known.0, code::OK);
        let (code, text) = send(&agent, &beat("unknown", "x")).await;
        assert_eq!((code, text.as_str()), UNKNOWN);
    }
}

#[tokio::test]
async fn hb_1_a_heartbeat_is_acknowledged_at_once_whatever_the_server_does() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    bed.server
        .fault(Fault::new(Rpc::BatchHeartbeat, Action::Hang))
        .unwrap();
    let before = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis() as i64;
    for _ in 0..5 {
        let started = Instant::now();
        let answer = agent.heartbeat().await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(1));
        let response: HeartbeatResponse = answer.decode().unwrap();
        assert!(response.acknowledged && response.pending_commands.is_empty());
        let time = response.server_time.unwrap().millis_epoch;
        assert!((before..before + 60_000).contains(&time), "{time}");
    }
}

#[tokio::test]
async fn hb_2_a_newer_heartbeat_replaces_the_older_one() {
    let setup =
        Setup::default().gateway(|config| config.heartbeat.batch_interval = Duration::from_secs(1));
    let bed = setup.start().await;
    let agent = bed.agent("a").await;
    for number in 0..10 {
        send(&agent, &beat(&agent.session_id, &number.to_string())).await;
    }
    // A flush may fall between two of them, never between each.
    let coalesced = bed.metric("heartbeat_coalesced_total", &[]).await as usize;
    assert!(coalesced >= 8, "{coalesced} of 10");
    let arrived = beats(&bed, 10 - coalesced).await;
    assert_eq!(arrived.last().unwrap().status_tags["tag"], "9");
}

#[tokio::test]
async fn hb_2_a_snapshot_outlives_later_heartbeats_and_unknown_fields_pass() {
    let setup =
        Setup::default().gateway(|config| config.heartbeat.batch_interval = Duration::from_secs(1));
    let bed = setup.start().await;
    let agent = bed.agent("a").await;
    let with_snapshot = HeartbeatRequest {
        fleet_snapshot_json: Bytes::from_static(b"{}"),
        ..beat(&agent.session_id, "first")
    };
    send(&agent, &with_snapshot).await;
    let last = with_unknown_fields(&beat(&agent.session_id, "last"));
    agent.heartbeat_raw(&last).await.unwrap();
    // Which of them is the first to go depends on the flush; the snapshot goes once, at the latest
    // with the last.
    let look = |state: &State| {
        let raw: Vec<_> = state.received(Rpc::BatchHeartbeat).collect();
        let last = raw.last()?.heartbeats()?.heartbeats.pop()?;
        (last.status_tags["tag"] == "last").then(|| raw.iter().map(|r| r.raw.clone()).collect())
    };
    let waited = bed.server.wait_for("the last", PATIENCE, look).await;
    let raw: Vec<Bytes> = waited.unwrap();
    let last_batch = raw.last().unwrap();
    assert!(last_batch.windows(last.len()).any(|bytes| bytes == last));
    let snapshots = bed.server.view(batches);
    let snapshots = snapshots.iter().flat_map(|batch| &batch.heartbeats);
    let snapshots = snapshots.filter(|beat| beat.fleet_snapshot_json == "{}");
    assert_eq!(snapshots.count(), 1);
}

#[tokio::test]
async fn hb_3_many_agents_share_a_batch_that_names_the_gateway() {
    let setup =
        Setup::default().gateway(|config| config.heartbeat.batch_interval = Duration::from_secs(1));
    let bed = setup.start().await;
    let heartbeat = Some(Duration::from_millis(300));
    let fleet = Fleet::start(Options {
        heartbeat,
        ..bed.fleet(100)
    });
    fleet.all_subscribed(PATIENCE).await.unwrap();
    let counters = fleet.counters();
    let waited = counters
        .wait_for(PATIENCE, |s| s.heartbeats_acked >= 300)
        .await;
    let acked = waited.unwrap().heartbeats_acked;
    let arrived = soon("a batch", beats(&bed, 100)).await.len() as u64;
    let coalesced = bed.metric("heartbeat_coalesced_total", &[]).await as u64;
    assert!(arrived + coalesced <= fleet.snapshot().heartbeats_acked);
    assert!(
        coalesced > 0,
        "three beats a second, one entry for each session"
    );
    let sent = bed.server.view(batches);
    assert!(
        (sent.len() as u64) < acked / 10,
        "{} batches for {acked}",
        sent.len()
    );
    assert!(
        sent.iter()
            .all(|batch| batch.gateway_node == "yuzu_gw@127.0.0.1")
    );
}

#[tokio::test]
async fn hb_4_what_the_server_did_not_take_is_sent_again() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    let broken = Action::Status(tonic::Code::Unavailable, String::new());
    bed.server
        .fault(Fault::new(Rpc::BatchHeartbeat, broken).times(2))
        .unwrap();
    send(&agent, &beat(&agent.session_id, "kept")).await;
    let arrived = beats(&bed, 3).await;
    assert!(arrived.iter().all(|beat| beat.status_tags["tag"] == "kept"));
    let delivered = |s: &State| (s.counts(Rpc::BatchHeartbeat).ok == 1).then_some(());
    bed.server
        .wait_for("the delivery", PATIENCE, delivered)
        .await
        .unwrap();
}

#[tokio::test]
async fn hb_11_failing_flushes_do_not_open_the_breaker() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    let broken = Action::Status(tonic::Code::Unavailable, String::new());
    bed.server
        .fault(Fault::new(Rpc::BatchHeartbeat, broken))
        .unwrap();
    send(&agent, &beat(&agent.session_id, "x")).await;
    bed.server
        .wait_received(Rpc::BatchHeartbeat, 7, PATIENCE)
        .await
        .unwrap();
    bed.agent("b").await;
    assert_eq!(bed.ready().await.0, 200);
}

#[tokio::test]
async fn hb_7_and_hb_8_an_agent_that_sends_the_worst_stays_and_disturbs_nobody() {
    let bed = TestBed::start().await;
    let probe = bed.agent("probe").await;
    let other = bed.agent("other").await;
    let tagged = |tags: &[(&str, Vec<u8>)]| {
        let mut message = beat(&probe.session_id, "kept").encode_to_vec();
        for (key, value) in tags {
            let mut tag = Vec::new();
            put_bytes_field(&mut tag, 1, key.as_bytes());
            put_bytes_field(&mut tag, 2, value);
            put_bytes_field(&mut message, 3, &tag);
        }
        message
    };
    let many: Vec<_> = (0..600).map(|n| n.to_string()).collect();
    let many: Vec<_> = many.iter().map(|key| (key.as_str(), vec![])).collect();
    let fifty = |key| (key, vec![b'x'; 50 << 10]);
    // A field that no contract knows: groups in each other, as deep as a message may have them.
    // In a batch they are one too deep for a server.
    let mut deep = tagged(&[]);
    deep.extend([[0x2b; 100], [0x2c; 100]].concat());
    let oversize = [
        tagged(&[("k", vec![0xff; 5 << 20])]),
        tagged(&many),
        tagged(&["1", "2", "3", "4", "5", "6"].map(fifty)),
    ];
    let invalid = [tagged(&[("k", b"\xff".to_vec())]), deep];
    let fine = [tagged(&[("k", vec![b'x'; 40 << 10])])];
    for message in oversize.iter().chain(&invalid).chain(&fine) {
        let answer = probe.heartbeat_raw(message).await.unwrap();
        assert!(answer.status.is_ok(), "{}", answer.status);
    }
    send(&other, &beat(&other.session_id, "other")).await;
    let look = |state: &State| {
        let all = batches(state).into_iter().flat_map(|b| b.heartbeats);
        let newest = |agent: &Agent| {
            let of = all.clone().filter(|b| b.session_id == agent.session_id);
            of.last()
        };
        newest(&other)?;
        let probe = newest(&probe)?;
        probe
            .status_tags
            .get("k")
            .is_some_and(|k| k.len() == 40 << 10)
            .then_some(probe)
    };
    let waited = bed
        .server
        .wait_for("the last of both", PATIENCE, look)
        .await;
    assert_eq!(waited.unwrap().status_tags["tag"], "kept");
    for (reason, count) in [("heartbeat_oversize", 3.0), ("heartbeat_invalid", 2.0)] {
        let labels = [("reason", reason)];
        let dropped = bed.metric("heartbeat_buffer_dropped_total", &labels).await;
        assert_eq!(dropped, count, "{reason}");
    }
    let failed = [("rpc_name", "batch_heartbeat"), ("code", "exception")];
    assert_eq!(bed.metric("upstream_rpc_errors_total", &failed).await, 0.0);
}
