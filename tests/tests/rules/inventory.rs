//! INV: inventory reports.

use crate::support::with_unknown_fields;
use prost::Message;
use tonic::Code;
use yuzu_proto::agent::v1::{InventoryAck, InventoryReport};
use yuzu_server_stub::{Action, Fault, Rpc, State};
use yuzu_tests::agent::PATIENCE;
use yuzu_tests::raw::code;
use yuzu_tests::testbed::{Setup, TestBed};

fn report(session_id: &str, bytes: usize) -> InventoryReport {
    InventoryReport {
        session_id: session_id.into(),
        plugin_data: [("packages".to_owned(), vec![7; bytes].into())].into(),
        ..Default::default()
    }
}

#[tokio::test]
async fn inv_1_a_report_is_admitted_like_a_heartbeat() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    let stranger = bed.bare_agent("b").await;
    let mut pending = bed.bare_agent("c").await;
    pending.register().await.unwrap();
    assert!(agent.inventory().await.unwrap().status.is_ok());
    assert!(pending.inventory().await.unwrap().status.is_ok());
    for (from, session, reason) in [
        (&stranger, agent.session_id.as_str(), "connection_mismatch"),
        (&agent, "unknown", "unknown_session"),
    ] {
        let message = report(session, 10).encode_to_vec();
        let status = from.inventory_raw(&message).await.unwrap().status;
        assert_eq!(
            (status.code, status.message.as_str()),
            (5, "unknown session")
        );
        let labels = [("reason", reason)];
        assert_eq!(bed.metric("inventory_rejected_total", &labels).await, 1.0);
    }
    assert_eq!(bed.server.received(Rpc::ProxyInventory).len(), 2);
}

#[tokio::test]
async fn inv_1_a_refusal_asks_for_no_permit() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    bed.server
        .fault(Fault::new(Rpc::ProxyInventory, Action::Hang))
        .unwrap();
    let calls = futures_util::future::join_all((0..9).map(|_| agent.inventory()));
    let refusal = async {
        let class = [("class", "inventory")];
        bed.metric_becomes("upstream_permits_waiting", &class, 1.0)
            .await;
        let message = report("unknown", 10).encode_to_vec();
        let status = agent.inventory_raw(&message).await.unwrap().status;
        assert_eq!(status.code, code::NOT_FOUND);
        assert_eq!(bed.metric("upstream_permits_waiting", &class).await, 1.0);
        bed.server.clear_faults(None);
        bed.server.release(None);
    };
    tokio::join!(calls, refusal);
}

#[tokio::test]
async fn inv_2_refusals_are_counted_by_reason_apart_from_heartbeats() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    let stranger = bed.bare_agent("b").await;
    let mismatch = report(&agent.session_id, 10).encode_to_vec();
    let unknown = report("unknown", 10).encode_to_vec();
    for message in [&mismatch, &unknown, &unknown] {
        let status = stranger.inventory_raw(message).await.unwrap().status;
        assert_eq!(status.code, code::NOT_FOUND);
    }
    for (reason, count) in [("connection_mismatch", 1.0), ("unknown_session", 2.0)] {
        let labels = [("reason", reason)];
        assert_eq!(bed.metric("inventory_rejected_total", &labels).await, count);
    }
    assert_eq!(bed.metric("heartbeat_rejected_total", &[]).await, 0.0);
    let mismatches = bed.metric("heartbeat_session_mismatch_total", &[]).await;
    assert_eq!(mismatches, 0.0);
}

#[tokio::test]
async fn inv_4_report_and_answer_pass_unchanged() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    let ack = InventoryAck {
        received: true,
        need_full: vec!["packages".into(), "users".into()],
    };
    let answer = with_unknown_fields(&ack);
    bed.server
        .fault(Fault::new(
            Rpc::ProxyInventory,
            Action::Answer(answer.clone()),
        ))
        .unwrap();
    let sent = with_unknown_fields(&report(&agent.session_id, 1_000));
    let answered = agent.inventory_raw(&sent).await.unwrap();
    assert_eq!(answered.message, Some(answer));
    assert_eq!(bed.server.received(Rpc::ProxyInventory)[0].raw, sent);
}

#[tokio::test]
async fn inv_4_at_most_8_reports_are_in_flight() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    bed.server
        .fault(Fault::new(Rpc::ProxyInventory, Action::Hang))
        .unwrap();
    let calls = futures_util::future::join_all((0..12).map(|_| agent.inventory()));
    let seen = async {
        let class = [("class", "inventory")];
        bed.metric_becomes("upstream_permits_waiting", &class, 4.0)
            .await;
        assert_eq!(bed.metric("upstream_permits_held", &class).await, 8.0);
        bed.server.clear_faults(None);
        bed.server
            .wait_received(Rpc::ProxyInventory, 8, PATIENCE)
            .await
            .unwrap();
        bed.server.release(None);
    };
    let (answers, ()) = tokio::join!(calls, seen);
    assert!(
        answers
            .iter()
            .all(|answer| answer.as_ref().unwrap().status.is_ok())
    );
    let most = |s: &State| s.counts(Rpc::ProxyInventory).max_in_flight;
    assert_eq!(bed.server.view(most), 8);
}

#[tokio::test]
async fn inv_5_a_report_over_the_servers_limit_is_13_and_never_sent() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    // The size a stock agent can reach; the listener takes it, the server would not.
    let message = report(&agent.session_id, 5_600_000).encode_to_vec();
    for _ in 0..6 {
        let status = agent.inventory_raw(&message).await.unwrap().status;
        assert_eq!(status.code, code::INTERNAL, "{status}");
    }
    let labels = [("rpc_name", "inventory"), ("code", "encode")];
    assert_eq!(bed.metric("upstream_rpc_errors_total", &labels).await, 6.0);
    assert!(bed.server.received(Rpc::ProxyInventory).is_empty());
    assert!(
        agent.inventory().await.unwrap().status.is_ok(),
        "the breaker is closed"
    );
}

#[tokio::test]
async fn inv_5_the_servers_failures_are_13_and_the_gateways_own_refusals_14() {
    let setup = Setup::default().gateway(|config| config.upstream.breaker.failure_threshold = 2);
    let bed = setup.start().await;
    let agent = bed.agent("a").await;
    let broken = Action::Status(Code::Unavailable, String::new());
    bed.server
        .fault(Fault::new(Rpc::ProxyInventory, broken))
        .unwrap();
    for expected in [code::INTERNAL, code::INTERNAL, code::UNAVAILABLE] {
        assert_eq!(agent.inventory().await.unwrap().status.code, expected);
    }
    assert_eq!(bed.server.received(Rpc::ProxyInventory).len(), 2);
}

#[tokio::test]
async fn inv_4_a_server_that_does_not_know_the_session_is_relayed() {
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    bed.server
        .fault(Fault::new(Rpc::ProxyInventory, Action::Refuse))
        .unwrap();
    let ack: InventoryAck = agent.inventory().await.unwrap().decode().unwrap();
    assert!(!ack.received);
}
