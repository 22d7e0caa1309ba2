//! The table of keys: path, place in [`Config`], range, what a bad value does, variable.
//!
//! Responsible for being the one list of what is configurable: reading, suggestions, the effective
//! configuration and the tests walk it. Must never hold a rule about more than one key: that is
//! [`super::refusals`] and [`super::effective`].

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::later;
use super::peer_addresses::Port;
use super::refusal::Refusal;
use super::schema::{
    Broadcast, ClientAuth, Config, Endpoint, Listener, ListenerTls, LogFormat, NODE_PORT,
    PeerAuthMode, TlsVersion, Visibility,
};
use super::slot::{At, Bad, Key, Reload, Slot, WordAt};
use super::values::{self, Between, Range, TextRule};

/// Every path that a file may use, without the numbers of listeners.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    let served = KEYS.iter().map(|key| key.path);
    let listener = LISTENER_KEYS.iter().map(|key| key.path);
    served
        .chain(listener)
        .chain(later::LATER.iter().map(|key| key.path))
}

/// Every variable that replaces a key or a port.
pub(super) fn variables() -> impl Iterator<Item = &'static str> {
    KEYS.iter().filter_map(|key| key.env)
}

const fn millis<T>(path: &'static str, at: At<T, Duration>, min: u64, max: u64) -> Key<T> {
    Key::new(path, Slot::Millis(at, Range::new(min, max)))
}

const fn seconds<T>(path: &'static str, at: At<T, Duration>, min: u64, max: u64) -> Key<T> {
    Key::new(path, Slot::Seconds(at, Range::new(min, max)))
}

const fn size<T>(path: &'static str, at: At<T, usize>, min: u64, max: u64) -> Key<T> {
    Key::new(path, Slot::Size(at, Range::new(min, max)))
}

const fn count<T>(path: &'static str, at: At<T, u32>, min: u64, max: u64) -> Key<T> {
    Key::new(path, Slot::Count(at, Range::new(min, max)))
}

const fn flag<T>(path: &'static str, at: At<T, bool>) -> Key<T> {
    Key::new(path, Slot::Flag(at))
}

const fn text<T>(path: &'static str, at: At<T, String>, rule: &'static TextRule) -> Key<T> {
    Key::new(path, Slot::Text(at, rule))
}

const fn address<T>(path: &'static str, at: At<T, SocketAddr>) -> Key<T> {
    Key::new(path, Slot::Address(at))
}

const fn real<T>(path: &'static str, at: At<T, f64>, above: f64, below: f64) -> Key<T> {
    Key::new(path, Slot::Real(at, Between { above, below }))
}

const fn file<T>(path: &'static str, at: At<T, PathBuf>) -> Key<T> {
    Key::new(path, Slot::File(at))
}

const fn peer<T>(path: &'static str, at: At<T, Option<Endpoint>>, port: Port) -> Key<T> {
    fixed(Key::new(path, Slot::Peer(at, port)))
}

const fn peers<T>(path: &'static str, at: At<T, Vec<Endpoint>>, port: Port) -> Key<T> {
    fixed(Key::new(path, Slot::Peers(at, port)))
}

const fn word<T>(path: &'static str, at: WordAt<T>, words: &'static [&'static str]) -> Key<T> {
    Key::new(path, Slot::Word(at, words))
}

/// `[listener.tls]`, which is there as soon as one of its keys is.
fn tls(listener: &mut Listener) -> &mut ListenerTls {
    let services = &listener.services;
    listener
        .tls
        .get_or_insert_with(|| ListenerTls::of(services))
}

/// A key of `[listener.tls]`. What is wrong there could serve plaintext or trust too many.
const fn of_tls(key: Key<Listener>) -> Key<Listener> {
    Key {
        bad: Bad::Refuse(Refusal::BadListenerTls),
        present: |l| l.tls.is_some(),
        reload: Reload::Restart,
        ..key
    }
}

const fn of_upstream_tls(key: Key<Config>) -> Key<Config> {
    Key {
        bad: Bad::Refuse(Refusal::BadUpstreamTls),
        reload: Reload::Restart,
        ..key
    }
}

const fn of_cluster_tls(key: Key<Config>) -> Key<Config> {
    Key {
        bad: Bad::Refuse(Refusal::BadClusterTls),
        reload: Reload::Restart,
        ..key
    }
}

/// A key that is read once, at the start.
const fn fixed<T>(key: Key<T>) -> Key<T> {
    Key {
        reload: Reload::Restart,
        ..key
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;

pub(super) const REPLAY_CONCURRENCY: &str = "upstream.replay_concurrency";
pub(super) const BREAKER_MAX: &str = "upstream.breaker.max_reset_timeout_ms";
pub(super) const UNACKED_MAX: &str = "notify.unacked_retry_max_ms";
pub(super) const PENDING_MAX: &str = "notify.pending_max";
/// The table of origins.
pub(super) const ORIGIN_TABLE: &str = "listener.origin.";
/// Largest `notify.pending_max`.
pub(super) const MAX_PENDING: u64 = 10_000_000;

/// The keys of the root tables, in the order of the sample file. Numbers are the least and the
/// greatest that fit.
#[rustfmt::skip]
pub(super) static KEYS: &[Key<Config>] = &[
    Key { bad: Bad::Refuse(Refusal::BadNodeName), derived: Some("yuzu_gw@ and the host name"),
        ..fixed(text("node.name", |c| &mut c.node.name, &values::NODE_NAME)) },
    Key { bad: Bad::Refuse(Refusal::BadClusterId), env: Some("YUZU_GW_CLUSTER_ID"),
        ..fixed(text("node.cluster_id", |c| &mut c.node.cluster_id, &values::CLUSTER_ID)) },
    Key { bad: Bad::Refuse(Refusal::BadVisibility), env: Some("YUZU_GW_VISIBILITY"),
        ..fixed(word("node.visibility", |c| &mut c.node.visibility, Visibility::WORDS)) },
    Key { bad: Bad::Refuse(Refusal::BadAdvertise),
        ..peers("node.advertise", |c| &mut c.node.advertise, Port::Required) },
    Key { bad: Bad::Refuse(Refusal::BadAdvertise), env: Some("YUZU_GW_ADVERTISE_ADDR"),
        ..peer("node.peer_advertise", |c| &mut c.node.peer_advertise, Port::OfListener) },

    Key { bad: Bad::Refuse(Refusal::BadChannel),
        ..fixed(Key::new("upstream.endpoints", Slot::Endpoints(|c| &mut c.upstream))) },
    Key::new("upstream.failback_after_ms",
        Slot::Millis(|c| &mut c.upstream.failback_after, Range::zero_or(1_000, DAY))),
    millis("upstream.connect_timeout_ms", |c| &mut c.upstream.connect_timeout, 1, 600_000),
    millis("upstream.rpc_timeout_ms", |c| &mut c.upstream.rpc_timeout, 100, 60_000),
    millis("upstream.call_timeout_ms", |c| &mut c.upstream.call_timeout, 100, 300_000),
    flag("upstream.tcp_nodelay", |c| &mut c.upstream.tcp_nodelay),
    size("upstream.max_receive_message_bytes",
        |c| &mut c.upstream.max_receive_message_bytes, 1, 64 * MIB),
    size("upstream.register_concurrency", |c| &mut c.upstream.register_concurrency, 1, 1_000),
    size("upstream.register_queue", |c| &mut c.upstream.register_queue, 1, 1_000_000),
    size("upstream.inventory_concurrency", |c| &mut c.upstream.inventory_concurrency, 1, 1_000),
    size("upstream.inventory_queue", |c| &mut c.upstream.inventory_queue, 1, 1_000_000),
    Key { derived: Some("half of upstream.register_concurrency"),
        ..size(REPLAY_CONCURRENCY, |c| &mut c.upstream.replay_concurrency, 1, 1_000) },
    of_upstream_tls(file("upstream.tls.ca_file", |c| &mut c.upstream.tls.ca_file)),
    of_upstream_tls(file("upstream.tls.cert_file", |c| &mut c.upstream.tls.cert_file)),
    of_upstream_tls(file("upstream.tls.key_file", |c| &mut c.upstream.tls.key_file)),
    of_upstream_tls(text("upstream.tls.server_name",
        |c| &mut c.upstream.tls.server_name, &values::SERVER_NAME)),
    Key { env: Some("YUZU_GW_CB_FAILURE_THRESHOLD"),
        ..count("upstream.breaker.failure_threshold",
            |c| &mut c.upstream.breaker.failure_threshold, 1, 1_000) },
    Key { env: Some("YUZU_GW_CB_RESET_TIMEOUT_MS"),
        ..millis("upstream.breaker.reset_timeout_ms",
            |c| &mut c.upstream.breaker.reset_timeout, 100, HOUR) },
    Key { env: Some("YUZU_GW_CB_MAX_RESET_TIMEOUT_MS"),
        ..millis(BREAKER_MAX, |c| &mut c.upstream.breaker.max_reset_timeout, 100, HOUR) },

    Key { derived: Some("three per admitted agent connection, at least 15000"),
        ..Key::new(PENDING_MAX,
            Slot::Size(|c| &mut c.notify.pending_max, Range::zero_or(100, MAX_PENDING))) },
    millis("notify.probe_timeout_ms", |c| &mut c.notify.probe_timeout, 100, 600_000),
    millis("notify.unacked_retry_base_ms", |c| &mut c.notify.unacked_retry_base, 10, 600_000),
    millis(UNACKED_MAX, |c| &mut c.notify.unacked_retry_max, 10, HOUR),
    millis("notify.unacked_slow_after_ms", |c| &mut c.notify.unacked_slow_after, 0, DAY),
    millis("notify.unacked_slow_max_ms", |c| &mut c.notify.unacked_slow_max, 1_000, DAY),
    millis("notify.unacked_disconnected_window_ms",
        |c| &mut c.notify.unacked_disconnected_window, 0, HOUR),

    Key { env: Some("YUZU_GW_HEARTBEAT_INTERVAL_MS"),
        ..millis("heartbeat.batch_interval_ms", |c| &mut c.heartbeat.batch_interval, 100, 60_000) },
    size("heartbeat.max_sessions", |c| &mut c.heartbeat.max_sessions, 1, 10_000_000),
    size("heartbeat.max_bytes", |c| &mut c.heartbeat.max_bytes, MIB, GIB),

    millis("replay.session_guard_ms", |c| &mut c.replay.session_guard, 0, HOUR),
    size("replay.queue_max", |c| &mut c.replay.queue_max, 1, 1_000_000),
    millis("replay.start_jitter_ms", |c| &mut c.replay.start_jitter, 0, 60_000),

    size("session.max_per_connection", |c| &mut c.session.max_per_connection, 1, 1_000),
    millis("session.dead_connection_grace_ms",
        |c| &mut c.session.dead_connection_grace, 0, 120_000),
    count("session.restart_intensity", |c| &mut c.session.restart_intensity, 1, 1_000_000),
    seconds("session.restart_period_s", |c| &mut c.session.restart_period, 1, 3_600),

    Key { env: Some("YUZU_GW_COMMAND_TIMEOUT_S"),
        ..seconds("command.default_timeout_s", |c| &mut c.command.default_timeout, 1, 3_600) },
    Key { env: Some("YUZU_GW_BACKPRESSURE_THRESHOLD"),
        ..size("command.mailbox", |c| &mut c.command.mailbox, 1, 1_000_000) },
    size("command.mailbox_bytes", |c| &mut c.command.mailbox_bytes, 64 * KIB, GIB),
    size("command.caller_buffer_bytes", |c| &mut c.command.caller_buffer_bytes, 64 * KIB, GIB),
    millis("command.slow_caller_timeout_ms",
        |c| &mut c.command.slow_caller_timeout, 100, 600_000),
    word("command.broadcast", |c| &mut c.command.broadcast, Broadcast::WORDS),

    // Three quarters of the least hold the largest message that a listener may allow.
    size("memory.max_unfinished_request_bytes",
        |c| &mut c.memory.max_unfinished_request_bytes, 96 * MIB, 64 * GIB),
    Key { bad: Bad::Refuse(Refusal::BadShedding),
        ..flag("memory.shedding.enabled", |c| &mut c.memory.shedding.enabled) },
    Key { bad: Bad::Refuse(Refusal::BadShedding),
        ..millis("memory.shedding.interval_ms", |c| &mut c.memory.shedding.interval, 10, 60_000) },
    Key { bad: Bad::Refuse(Refusal::BadShedding), derived: Some("0.75, or from the low mark in bytes"),
        ..Key::new("memory.shedding.high_water_fraction",
            Slot::Fraction(|c| &mut c.memory.shedding.high_fraction)) },
    Key { bad: Bad::Refuse(Refusal::BadShedding), derived: Some("0.65, or from the high mark in bytes"),
        ..Key::new("memory.shedding.low_water_fraction",
            Slot::Fraction(|c| &mut c.memory.shedding.low_fraction)) },
    Key { bad: Bad::Refuse(Refusal::BadShedding),
        ..Key::new("memory.shedding.high_water_bytes",
            Slot::Bytes(|c| &mut c.memory.shedding.high_bytes, Range::new(1, 1 << 50))) },
    Key { bad: Bad::Refuse(Refusal::BadShedding),
        ..Key::new("memory.shedding.low_water_bytes",
            Slot::Bytes(|c| &mut c.memory.shedding.low_bytes, Range::new(1, 1 << 50))) },
    Key { bad: Bad::Refuse(Refusal::BadPeerAuthMode),
        ..word("management.peer_auth_mode",
            |c| &mut c.management.peer_auth_mode, PeerAuthMode::WORDS) },
    Key { bad: Bad::Refuse(Refusal::BadPeerIdentity),
        derived: Some("derived from the listener's CA file"),
        ..text("management.peer_identity",
            |c| &mut c.management.peer_identity, &values::PEER_IDENTITY) },
    Key { bad: Bad::Refuse(Refusal::BadPeerPins),
        ..Key::new("management.peer_pins", Slot::Pins(|c| &mut c.management.peer_pins)) },
    Key { bad: Bad::Refuse(Refusal::BadPeerDenied),
        ..Key::new("management.peer_denied", Slot::Serials(|c| &mut c.management.peer_denied)) },
    millis("management.pin_refresh_ms", |c| &mut c.management.pin_refresh, 100, HOUR),

    millis("shift.grace_ms", |c| &mut c.shift.grace, 0, HOUR),
    count("shift.max_per_second", |c| &mut c.shift.max_per_second, 1, 1_000_000),
    real("shift.cpu_high", |c| &mut c.shift.cpu_high, 0.0, 1.0),
    real("shift.imbalance", |c| &mut c.shift.imbalance, 1.0, 1_000.0),
    size("shift.min_sessions", |c| &mut c.shift.min_sessions, 0, 10_000_000),

    millis("shutdown.flush_budget_ms", |c| &mut c.shutdown.flush_budget, 0, 600_000),

    Key { bad: Bad::DefaultPort, env: Some("YUZU_GW_PROMETHEUS_PORT"),
        ..fixed(address("observe.metrics_address", |c| &mut c.observe.metrics_address)) },
    Key { bad: Bad::DefaultPort, env: Some("YUZU_GW_HEALTH_PORT"),
        ..fixed(address("observe.health_address", |c| &mut c.observe.health_address)) },
    millis("observe.gauge_interval_ms", |c| &mut c.observe.gauge_interval, 100, HOUR),
    fixed(flag("observe.metrics_per_peer", |c| &mut c.observe.metrics_per_peer)),
    text("observe.log_level", |c| &mut c.observe.log_level, &values::LOG_LEVEL),
    fixed(word("observe.log_format", |c| &mut c.observe.log_format, LogFormat::WORDS)),

    Key { bad: Bad::Refuse(Refusal::BadSeeds), env: Some("YUZU_GW_SEED_DNS_NAME"),
        ..peer("cluster.seed_dns_name",
            |c| &mut c.cluster.seed_dns_name, Port::Default(NODE_PORT)) },
    Key { bad: Bad::Refuse(Refusal::BadSeeds), env: Some("YUZU_GW_SEED_NODES"),
        ..peers("cluster.seed_nodes", |c| &mut c.cluster.seed_nodes, Port::Default(NODE_PORT)) },
    Key { env: Some("YUZU_GW_CLUSTER_REDIAL_INTERVAL_MS"),
        ..fixed(millis("cluster.redial_interval_ms",
            |c| &mut c.cluster.redial_interval, 100, HOUR)) },
    fixed(size("cluster.max_lifetime_addrs", |c| &mut c.cluster.max_lifetime_addrs, 1, 100_000)),
    fixed(millis("cluster.dead_after_ms", |c| &mut c.cluster.dead_after, 100, HOUR)),
    of_cluster_tls(file("cluster.tls.ca_file", |c| &mut c.cluster.tls.ca_file)),
    of_cluster_tls(file("cluster.tls.cert_file", |c| &mut c.cluster.tls.cert_file)),
    of_cluster_tls(file("cluster.tls.key_file", |c| &mut c.cluster.tls.key_file)),
    of_cluster_tls(text("cluster.tls.server_name",
        |c| &mut c.cluster.tls.server_name, &values::SERVER_NAME)),

    size("routing.max_sessions", |c| &mut c.routing.max_sessions, 1, 1_000_000),
    size("routing.max_sessions_per_owner",
        |c| &mut c.routing.max_sessions_per_owner, 1, 1_000_000),
    size("routing.max_inflight_bytes", |c| &mut c.routing.max_inflight_bytes, MIB, 64 * GIB),
    millis("routing.forward_timeout_ms", |c| &mut c.routing.forward_timeout, 100, HOUR),
    millis("routing.connect_timeout_ms", |c| &mut c.routing.connect_timeout, 1, 600_000),
    millis("routing.idle_close_ms", |c| &mut c.routing.idle_close, 100, HOUR),
    millis("routing.resume_grace_ms", |c| &mut c.routing.resume_grace, 0, HOUR),

    fixed(flag("lab.allow_no_listeners", |c| &mut c.lab.allow_no_listeners)),
    fixed(flag("lab.allow_no_upstream", |c| &mut c.lab.allow_no_upstream)),
    fixed(flag("lab.allow_insecure_management", |c| &mut c.lab.allow_insecure_management)),
    Key { env: Some("YUZU_GW_ALLOW_UNVERIFIED_UPSTREAM"),
        ..fixed(flag("lab.allow_unverified_upstream",
            |c| &mut c.lab.allow_unverified_upstream)) },
];

/// The keys of one `[[listener]]`. `YUZU_GW_AGENT_PORT` and `YUZU_GW_MGMT_PORT` choose their
/// listener themselves (BOOT-23).
#[rustfmt::skip]
pub(super) static LISTENER_KEYS: &[Key<Listener>] = &[
    Key { bad: Bad::Refuse(Refusal::BadListenerName),
        ..fixed(text("listener.name", |l| &mut l.name, &values::LISTENER_NAME)) },
    Key { bad: Bad::Refuse(Refusal::BadServices),
        ..fixed(Key::new("listener.services", Slot::Services(|l| &mut l.services))) },
    Key { bad: Bad::Refuse(Refusal::BadAddress),
        ..fixed(address("listener.address", |l| &mut l.address)) },

    of_tls(file("listener.tls.cert_file", |l| &mut tls(l).cert_file)),
    of_tls(file("listener.tls.key_file", |l| &mut tls(l).key_file)),
    of_tls(file("listener.tls.ca_file", |l| &mut tls(l).ca_file)),
    of_tls(word("listener.tls.client_auth", |l| &mut tls(l).client_auth, ClientAuth::WORDS)),
    of_tls(word("listener.tls.min_version", |l| &mut tls(l).min_version, TlsVersion::WORDS)),
    of_tls(Key::new("listener.tls.crl_files", Slot::Files(|l| &mut tls(l).crl_files))),
    of_tls(flag("listener.tls.enforce_agent_identity",
        |l| &mut tls(l).enforce_agent_identity)),

    Key { bad: Bad::Refuse(Refusal::BadOrigin),
        ..Key::new("listener.origin.mode", Slot::OriginMode(|l| &mut l.origin.mode)) },
    Key { bad: Bad::Refuse(Refusal::BadOrigin),
        ..Key::new("listener.origin.sources", Slot::Sources(|l| &mut l.origin.sources)) },
    Key { bad: Bad::Refuse(Refusal::BadOrigin),
        ..size("listener.origin.trusted_hops", |l| &mut l.origin.trusted_hops, 0, 16) },

    size("listener.limits.max_connections", |l| &mut l.limits.max_connections, 1, 1_000_000),
    size("listener.limits.max_connections_per_source",
        |l| &mut l.limits.max_connections_per_source, 0, 1_000_000),
    size("listener.limits.reserved_connections",
        |l| &mut l.limits.reserved_connections, 0, 1_000_000),
    Key::new("listener.limits.unregistered_timeout_ms",
        Slot::Millis(|l| &mut l.limits.unregistered_timeout, Range::zero_or(1_000, DAY))),
    millis("listener.limits.proxy_header_timeout_ms",
        |l| &mut l.limits.proxy_header_timeout, 100, 600_000),
    millis("listener.limits.handshake_timeout_ms",
        |l| &mut l.limits.handshake_timeout, 100, 600_000),
    millis("listener.limits.request_timeout_ms", |l| &mut l.limits.request_timeout, 100, 600_000),
    size("listener.limits.max_message_bytes",
        |l| &mut l.limits.max_message_bytes, 64 * KIB, 64 * MIB),
    size("listener.limits.max_connection_memory_bytes",
        |l| &mut l.limits.max_connection_memory_bytes, MIB, GIB),
    count("listener.limits.max_header_list_bytes",
        |l| &mut l.limits.max_header_list_bytes, KIB, MIB),
    count("listener.http2.max_concurrent_streams",
        |l| &mut l.http2.max_concurrent_streams, 1, 100_000),
    millis("listener.http2.idle_timeout_ms", |l| &mut l.http2.idle_timeout, 1_000, DAY),
];
