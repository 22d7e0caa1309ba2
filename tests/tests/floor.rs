//! The yardstick measures: every floor serves the load, and every figure of it is taken.

use std::path::Path;
use std::time::Duration;
use yuzu_tests::floor::{CONCURRENCIES, Figures, Kind, Plan, Subject, measure};

/// `measure` fails by itself when an answer is lost or doubled.
async fn run(kind: Kind, tls: bool) -> Figures {
    let binary = Path::new(env!("CARGO_BIN_EXE_yuzu-floor"));
    let plan = Plan {
        agents: 20,
        broadcasts: 2,
        heartbeat_rate: 200.0,
        heartbeat_time: Duration::from_millis(300),
        batch_interval: None,
        settle: Duration::from_millis(10),
        after_load: Duration::from_millis(10),
        tls,
    };
    let figures = measure(&Subject::Floor(binary.into(), kind), &plan).await;
    figures.unwrap_or_else(|problem| panic!("{}: {problem}", kind.name()))
}

fn assert_complete(figures: &Figures) {
    for name in [
        "idle_kib",
        "idle_resident_kib",
        "answers_per_s",
        "attach_s",
        "heartbeats_per_s",
        "voluntary_switches_per_100k",
    ] {
        assert!(figures[name] > 0.0, "{name}");
    }
    // One socket each. Operators come with the agents: 64 connections with plain sockets, one with gRPC.
    let descriptors = figures["descriptors_per_agent"];
    assert!((1.0..5.0).contains(&descriptors), "{descriptors}");
    for callers in CONCURRENCIES {
        let time = |share| figures[&format!("single_{callers}_{share}_ms")];
        assert!(0.0 < time("p50") && time("p50") <= time("p99"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_sockets_serve_the_load() {
    assert_complete(&run(Kind::Tcp, false).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hyper_serves_the_load() {
    assert_complete(&run(Kind::Hyper, false).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tonic_serves_the_load() {
    assert_complete(&run(Kind::Tonic, false).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hyper_and_tonic_serve_the_load_over_tls() {
    assert_complete(&run(Kind::Hyper, true).await);
    assert_complete(&run(Kind::Tonic, true).await);
}
