//! RELOAD-3: keys that are live, seen at what they do.

use super::live;
use crate::support::command;
use std::time::Duration;
use tokio::time::timeout;
use yuzu_gateway::config::{Config, LimitOrigin, MemoryLimit};
use yuzu_server_stub::Rpc;
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::testbed::{Setup, TestBed};

#[tokio::test]
async fn reload_3_the_cap_of_a_connection_and_the_timeout_of_commands_are_live() {
    let bed = TestBed::start().await;
    let mut agent = bed.agent("a").await;
    let keys = ["session.max_per_connection"];
    live(&bed, |c| c.session.max_per_connection = 1, &keys).await;
    agent.id = "b".into();
    agent.register().await.unwrap_err();
    let soon = Duration::from_millis(20);
    let keys = ["command.default_timeout_s"];
    live(&bed, |c| c.command.default_timeout = soon, &keys).await;
    let operator = bed.operator().await;
    let mut fanout = operator.send(&["a"], command("x"), 0).await.unwrap();
    fanout.rest().await.unwrap();
    assert_eq!(bed.metric("commands_timed_out_total", &[]).await, 1.0);
}

#[tokio::test]
async fn reload_3_the_lanes_of_the_server_are_live() {
    let bed = TestBed::start().await;
    let _agent = bed.agent("a").await;
    let keys = [
        "upstream.register_concurrency",
        "upstream.inventory_concurrency",
        "upstream.replay_concurrency",
        "notify.pending_max",
    ];
    live(
        &bed,
        |config| {
            config.upstream.register_concurrency = 20;
            config.upstream.inventory_concurrency = 3;
            config.upstream.replay_concurrency = 7;
            config.notify.pending_max = 500;
        },
        &keys,
    )
    .await;
    for (class, permits) in [("register", 20.0), ("inventory", 3.0), ("replay", 7.0)] {
        let limit = bed
            .metric("upstream_permit_limit", &[("class", class)])
            .await;
        assert_eq!(limit, permits, "{class}");
    }
    assert_eq!(bed.metric("upstream_notify_pending_max", &[]).await, 500.0);
}

#[tokio::test]
async fn reload_3_the_pace_of_heartbeats_is_live() {
    let setup = Setup::default();
    let rarely = |config: &mut Config| config.heartbeat.batch_interval = Duration::from_secs(60);
    let bed = setup.gateway(rarely).start().await;
    let agent = bed.agent("a").await;
    agent.heartbeat().await.unwrap();
    let quickly = |config: &mut Config| {
        config.heartbeat.batch_interval = Duration::from_millis(100);
    };
    live(&bed, quickly, &["heartbeat.batch_interval_ms"]).await;
    let batch = bed.server.wait_for("a batch", PATIENCE, |state| {
        state.received(Rpc::BatchHeartbeat).next().map(drop)
    });
    batch.await.unwrap();
}

#[tokio::test]
async fn reload_3_the_marks_of_memory_shedding_are_live() {
    let bed = Setup::default()
        .gateway(|config| {
            config.memory.shedding.interval = Duration::from_millis(10);
            config.memory.limit = Some(MemoryLimit {
                bytes: 1 << 40,
                origin: LimitOrigin::Host,
            });
        })
        .start()
        .await;
    let _agent = bed.agent("a").await;
    let keys = ["memory.shedding.high_water_bytes"];
    live(&bed, |c| c.memory.shedding.high_bytes = Some(2), &keys).await;
    bed.metric_becomes("memory_shedding_active", &[], 1.0).await;
    assert_eq!(
        bed.metric("memory_shedding_high_water_bytes", &[]).await,
        2.0
    );
    let refused = timeout(PATIENCE, async {
        while Agent::connect(bed.agents(), "b").await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
    refused.await.expect("agents are refused");
    live(
        &bed,
        |c| c.memory.shedding.enabled = false,
        &["memory.shedding.enabled"],
    )
    .await;
    bed.metric_becomes("memory_shedding_active", &[], 0.0).await;
    let _second = bed.agent("b").await;
    assert_eq!(bed.gateway.agents_connected(), 2, "the first one stayed");
}
