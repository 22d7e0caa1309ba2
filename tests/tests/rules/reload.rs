//! RELOAD: another configuration for a running gateway.

mod keys;

use crate::authorization::{Install, rejected};
use crate::logs::capture;
use crate::support::{command, serve_one, soon};
use std::collections::BTreeMap;
use std::time::Duration;
use yuzu_gateway::config::PeerAuthMode::{Identity, IdentityOrPin, Pin};
use yuzu_gateway::config::{
    self, CallerOrigin, Changes, Config, Loaded, OriginMode, OriginSource, PeerPin, Refused,
    Serial, Source, SourceFile,
};
use yuzu_server_stub::Rpc;
use yuzu_tests::agent::Agent;
use yuzu_tests::fleet::Fleet;
use yuzu_tests::raw::{Options, code};
use yuzu_tests::testbed::{Setup, TestBed};

const NODE: (&str, &str) = ("node", "yuzu_gw@127.0.0.1");

/// Reloads with what is in force, changed.
async fn reload(bed: &TestBed, change: impl FnOnce(&mut Config)) -> Result<Changes, Refused> {
    let mut config = bed.gateway.config();
    change(&mut config);
    let loaded = Loaded {
        config,
        warnings: Vec::new(),
        origins: BTreeMap::new(),
    };
    bed.gateway.reload(Ok(loaded)).await
}

/// Reloads, and finds these keys live and no other changed.
async fn live(bed: &TestBed, change: impl FnOnce(&mut Config), keys: &[&str]) {
    let changes = reload(bed, change).await.unwrap();
    assert_eq!((changes.live, changes.restart), (strings(keys), vec![]));
}

fn strings(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

async fn generation(bed: &TestBed) -> (f64, f64) {
    let generation = bed.metric("config_generation", &[]).await;
    (
        generation,
        bed.metric("config_last_reload_failed", &[]).await,
    )
}

fn file(text: &str) -> Result<Loaded, Refused> {
    config::load(&Source {
        file: Some(SourceFile {
            path: "g.toml".into(),
            text: text.into(),
        }),
        ..Source::default()
    })
}

#[tokio::test]
async fn reload_1_what_would_refuse_the_start_changes_nothing_and_says_why() {
    let bed = TestBed::start().await;
    let before = bed.gateway.config();
    assert_eq!(generation(&bed).await, (0.0, 0.0));
    let text = "[[listener]]\nservices = [\"agent\"]\nlimits.max_connections = 7\n\
                [upstream]\nendpoints = [5]\nretries = 3\nrpc_timeout_ms = 1\n";
    let (log, _guard) = capture();
    let refused = bed.gateway.reload(file(text)).await.unwrap_err();
    assert_eq!(refused.refusals().count(), 2);
    assert_eq!(bed.gateway.config(), before);
    assert_eq!(generation(&bed).await, (0.0, 1.0));
    let text = log.text();
    let told: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once("ERROR "))
        .collect();
    let told: Vec<_> = told
        .iter()
        .filter_map(|(_, line)| line.split_once(": "))
        .collect();
    assert_eq!(
        told.iter().map(|(_, line)| *line).collect::<Vec<_>>(),
        [
            "Reload refused, nothing has changed: bad_endpoint: g.toml:5:14: upstream.endpoints[0] \
             is 5, not \"http://host:port\" or \"https://host:port\"; correct it",
            "Reload refused, nothing has changed: unknown_keys: g.toml:6:1: upstream.retries is not \
             a key; delete it",
        ],
        "{text}"
    );
    reload(&bed, |_| {}).await.unwrap();
    assert_eq!(generation(&bed).await, (1.0, 0.0), "the last one was not");
}

#[tokio::test]
async fn reload_2_live_keys_are_named_and_those_that_wait_for_a_restart_are_warned_of() {
    let bed = TestBed::start().await;
    let before = bed.gateway.config();
    let (log, _guard) = capture();
    let changes = reload(&bed, |config| {
        config.listeners[0].address.set_port(4711);
        config.node.cluster_id = "west".into();
        config.command.mailbox = 5;
    })
    .await
    .unwrap();
    assert_eq!(changes.live, ["command.mailbox"]);
    assert_eq!(changes.restart, ["node.cluster_id", "listener[0].address"]);
    let mut in_force = before;
    in_force.command.mailbox = 5;
    assert_eq!(bed.gateway.config(), in_force);
    let text = log.text();
    for line in [
        "INFO yuzu_gateway::lifecycle::reload: Configuration reloaded, generation 1; changed: \
         command.mailbox\n",
        "WARN yuzu_gateway::lifecycle::reload: Configuration reloaded, but these keep their values \
         until a restart: node.cluster_id, listener[0].address\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(generation(&bed).await, (1.0, 0.0));
}

#[tokio::test]
async fn reload_4_a_lowered_ceiling_sends_nobody_away_and_a_raised_one_lets_in() {
    let bed = TestBed::start().await;
    let mut agents = [bed.agent("a").await, bed.agent("b").await];
    let keys = ["listener[0].limits.max_connections"];
    live(&bed, |c| c.listeners[0].limits.max_connections = 1, &keys).await;
    let labels = [("listener", "agent")];
    assert_eq!(bed.metric("listener_connections_max", &labels).await, 1.0);
    let address = bed.agents();
    let third = tokio::spawn(async move { Agent::attach(address, "c").await });
    let operator = bed.operator().await;
    let mut fanout = operator.send(&[], command("x"), 30).await.unwrap();
    for agent in &mut agents {
        serve_one(agent).await;
    }
    assert_eq!(fanout.rest().await.unwrap().0.len(), 2);
    assert_eq!(bed.gateway.agents_connected(), 2, "the third waits");
    live(&bed, |c| c.listeners[0].limits.max_connections = 3, &keys).await;
    let _third = soon("a place", third).await.unwrap().unwrap();
    assert_eq!(bed.metric("agents_disconnected_total", &[NODE]).await, 0.0);
}

#[tokio::test]
async fn reload_4_a_connection_keeps_the_limits_that_it_was_opened_with() {
    let bed = TestBed::start().await;
    let old = bed.agent("a").await;
    let keys = ["listener[0].limits.max_message_bytes"];
    live(
        &bed,
        |c| c.listeners[0].limits.max_message_bytes = 65_536,
        &keys,
    )
    .await;
    let large = vec![0; 65_537];
    let refused = async |agent: &Agent| agent.heartbeat_raw(&large).await.unwrap().status.code;
    let new = bed.bare_agent("b").await;
    assert_eq!(refused(&new).await, code::RESOURCE_EXHAUSTED);
    assert_ne!(refused(&old).await, code::RESOURCE_EXHAUSTED);
}

#[tokio::test]
async fn reload_4_a_bound_on_each_source_holds_for_those_who_come() {
    let bed = TestBed::start().await;
    let _old = bed.agent("a").await;
    let keys = ["listener[0].limits.max_connections_per_source"];
    live(
        &bed,
        |c| c.listeners[0].limits.max_connections_per_source = 1,
        &keys,
    )
    .await;
    let _first = bed.agent("b").await;
    Agent::attach(bed.agents(), "c").await.unwrap_err();
    assert_eq!(bed.gateway.agents_connected(), 2);
}

#[tokio::test]
async fn reload_4_a_fleet_under_load_notices_nothing_of_many_reloads() {
    let bed = TestBed::start().await;
    let fleet = Fleet::start(bed.fleet(20));
    bed.metric_becomes("agents_connected_total", &[NODE], 20.0)
        .await;
    let operator = bed.operator().await;
    for round in 0..20_usize {
        let id = format!("c-{round}");
        let mut fanout = operator.send(&[], command(&id), 30).await.unwrap();
        // Every room gets other values each time, small ones and large ones in turn.
        let factor = 1 + round % 2 * 9;
        let changes = reload(&bed, |config| {
            for listener in &mut config.listeners {
                listener.limits.max_connections = factor;
                listener.limits.max_connections_per_source = factor;
                listener.limits.request_timeout = Duration::from_secs(factor as u64);
                listener.http2.max_concurrent_streams = 10 * factor as u32;
            }
            config.upstream.register_concurrency = factor;
            config.upstream.replay_concurrency = factor;
            config.upstream.breaker.failure_threshold = factor as u32;
            config.notify.pending_max = factor;
            config.heartbeat.max_sessions = factor;
            config.replay.queue_max = factor;
            config.session.max_per_connection = factor;
            config.command.mailbox = factor;
            config.management.pin_refresh = Duration::from_millis(100 * factor as u64);
        });
        assert_eq!(changes.await.unwrap().restart, [""; 0]);
        let (entries, status) = fanout.rest().await.unwrap();
        assert_eq!(
            (entries.len(), status.code),
            (20, code::OK),
            "round {round}"
        );
    }
    assert_eq!(generation(&bed).await, (20.0, 0.0));
    assert_eq!(bed.metric("agents_disconnected_total", &[NODE]).await, 0.0);
    assert_eq!(fleet.stop().await.reconnects, 0);
}

#[tokio::test]
async fn reload_5_a_denied_serial_ends_the_calls_of_an_open_connection() {
    let install = Install::new(Pin).pinned();
    let bed = install.start().await;
    let agent = bed.agent("a").await;
    let operator = install.operator(&bed, &install.server).await.unwrap();
    let calls = async || operator.list(1, "").await.unwrap().status.code;
    let mut watch = operator.watch(&[]).await.unwrap();
    assert_eq!(calls().await, code::OK);
    let serial = Serial::parse(&install.server.serial).unwrap();
    let keys = ["management.peer_denied"];
    live(&bed, |c| c.management.peer_denied = vec![serial], &keys).await;
    assert_eq!(calls().await, code::UNAUTHENTICATED);
    assert_eq!(rejected(&bed, "revoked").await, 1.0);
    drop(agent);
    soon("an event", watch.next())
        .await
        .unwrap()
        .expect("the open stream goes on");
    live(&bed, |c| c.management.peer_denied.clear(), &keys).await;
    assert_eq!(calls().await, code::OK);
}

#[tokio::test]
async fn reload_5_another_mode_and_other_pins_judge_the_next_call() {
    let install = Install::new(Pin).pinned();
    let bed = install.start().await;
    let other = install.authority.server();
    let (pin, _) = install.directory.write_leaf("other", &other);
    assert!(!install.admitted(&bed, &other).await);
    let pins = |config: &mut Config| config.management.peer_pins = vec![PeerPin::CertFile(pin)];
    live(&bed, pins, &["management.peer_pins"]).await;
    assert!(install.admitted(&bed, &other).await);
    assert!(!install.admitted(&bed, &install.server).await);
    live(
        &bed,
        |c| c.management.peer_auth_mode = IdentityOrPin,
        &["management.peer_auth_mode"],
    )
    .await;
    assert!(
        install.admitted(&bed, &install.server).await,
        "by its identity"
    );
    let labels = [("role", "mgmt_peer_pin"), ("name", "pin0")];
    assert_eq!(bed.metric("cert_file_readable", &labels).await, 1.0);
    live(
        &bed,
        |c| c.management.peer_pins.clear(),
        &["management.peer_pins"],
    )
    .await;
    let gone = bed
        .metrics()
        .await
        .value("yuzu_gw_cert_file_readable", &labels);
    assert_eq!(gone, None);
    assert!(install.admitted(&bed, &other).await, "by its identity");
}

#[tokio::test]
async fn reload_5_a_pin_that_stays_keeps_the_key_of_its_deleted_file() {
    let install = Install::new(Pin).pinned();
    let bed = install.start().await;
    std::fs::remove_file(install.directory.path("server.pem")).unwrap();
    let other = install
        .directory
        .write("other.pem", &install.authority.server().certificate);
    let more = |config: &mut Config| {
        config
            .management
            .peer_pins
            .insert(0, PeerPin::CertFile(other))
    };
    live(&bed, more, &["management.peer_pins"]).await;
    assert!(install.admitted(&bed, &install.server).await);
}

#[tokio::test]
async fn reload_7_keys_that_do_not_go_with_the_files_refuse_it() {
    let install = Install::new(Pin).pinned();
    let bed = install.start().await;
    let bundle = format!(
        "{}{}",
        install.authority.pem(),
        yuzu_tests::certs::Authority::new("second").pem()
    );
    install.directory.write("ca.pem", &bundle);
    let before = bed.gateway.config();
    let refused = reload(&bed, |config| {
        config.management.peer_auth_mode = Identity;
        config.management.peer_pins.clear();
        config.management.peer_identity = format!("yuzu://{}/server", "A".repeat(64));
        config.command.mailbox = 5;
    });
    let refused = refused.await.unwrap_err();
    assert!(
        refused.problems[0].to_string().contains("CA"),
        "{refused:?}"
    );
    assert_eq!(bed.gateway.config(), before, "nothing of it");
    assert_eq!(generation(&bed).await, (0.0, 1.0));
    assert!(install.admitted(&bed, &install.server).await);
}

#[tokio::test]
async fn reload_7_certificate_files_are_read_at_once() {
    let mut install = Install::new(Pin).pinned();
    install.setup.gateway.management.pin_refresh = Duration::from_secs(3_600);
    let bed = install.start().await;
    let renewed = install.authority.server();
    install.directory.write_leaf("server", &renewed);
    assert!(!install.admitted(&bed, &renewed).await);
    live(&bed, |_| {}, &[]).await;
    assert!(install.admitted(&bed, &renewed).await);
}

#[tokio::test]
async fn reload_7_another_pace_of_looking_at_files_holds_at_once() {
    let mut install = Install::new(Pin).pinned();
    install.setup.gateway.management.pin_refresh = Duration::from_secs(3_600);
    let bed = install.start().await;
    let quickly = Duration::from_millis(50);
    live(
        &bed,
        |c| c.management.pin_refresh = quickly,
        &["management.pin_refresh_ms"],
    )
    .await;
    let renewed = install.authority.server();
    install.directory.write_leaf("server", &renewed);
    install.becomes_admitted(&bed, &renewed, true).await;
}

const V1: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 50051\r\n";

fn believing(source: &str) -> CallerOrigin {
    CallerOrigin {
        mode: OriginMode::ProxyProtocol,
        sources: vec![OriginSource::parse(source).unwrap()],
        trusted_hops: 0,
    }
}

fn observed(bed: &TestBed) -> String {
    let received = bed.server.received(Rpc::ProxyRegister);
    received
        .last()
        .unwrap()
        .register()
        .unwrap()
        .gateway_observed_peer
}

#[tokio::test]
async fn reload_6_a_proxy_that_is_no_longer_trusted_is_not_believed_in_the_next_call() {
    let setup = Setup::default().agent_listener(|l| l.origin = believing("127.0.0.0/8"));
    let bed = setup.start().await;
    let options = Options {
        preamble: V1.to_vec(),
        ..Options::default()
    };
    let mut agent = Agent::connect_with(bed.agents(), "a", &options)
        .await
        .unwrap();
    agent.register().await.unwrap();
    assert_eq!(observed(&bed), "192.0.2.7");
    let keys = ["listener[0].origin.sources"];
    live(
        &bed,
        |c| c.listeners[0].origin = believing("10.0.0.1"),
        &keys,
    )
    .await;
    agent.register().await.unwrap();
    assert_eq!(observed(&bed), "127.0.0.1");
}

#[tokio::test]
async fn reload_6_the_mode_is_that_of_the_time_when_a_connection_was_opened() {
    let bed = TestBed::start().await;
    let mut old = bed.agent("a").await;
    let keys = ["listener[0].origin.mode", "listener[0].origin.sources"];
    live(
        &bed,
        |c| c.listeners[0].origin = believing("127.0.0.0/8"),
        &keys,
    )
    .await;
    old.register().await.unwrap();
    assert_eq!(observed(&bed), "127.0.0.1");
    let options = Options {
        preamble: V1.to_vec(),
        ..Options::default()
    };
    let mut new = Agent::connect_with(bed.agents(), "b", &options)
        .await
        .unwrap();
    new.register().await.unwrap();
    assert_eq!(observed(&bed), "192.0.2.7");
}
