//! Every key of the tables: its range, its default, what a bad value does.

use std::collections::BTreeSet;

use super::super::keys::{self, KEYS, LISTENER_KEYS};
use super::super::later::LATER;
use super::super::slot::{Bad, Key, Slot};
use super::super::values::Range;
use super::super::{Effect, Refusal};
use super::super::{Loaded, Problem, load};
use super::{SOUND, source};

/// The sound file with one more key, wherever that has to stand.
pub(super) fn with(path: &str, value: &str) -> String {
    let agent = "name = \"agent\"";
    match path {
        "listener.name" => SOUND.replacen(agent, &format!("name = {value}"), 1),
        "listener.services" => SOUND.replacen("[\"agent\"]", value, 1),
        "upstream.endpoints" => SOUND.replace("[\"http://127.0.0.1:50055\"]", value),
        _ => match path.split_once('.').expect("a table") {
            ("listener", key) => SOUND.replacen(agent, &format!("{agent}\n{key} = {value}"), 1),
            ("upstream", key) => format!("{SOUND}{key} = {value}\n"),
            (table, key) => format!("{SOUND}\n[{table}]\n{key} = {value}\n"),
        },
    }
}

/// The agent listener's keys are told with its number.
pub(super) fn shown(path: &str) -> String {
    path.replacen("listener.", "listener[0].", 1)
}

pub(super) fn outcome(text: &str) -> (Option<Loaded>, Vec<Problem>) {
    match load(&source(text, &[])) {
        Ok(loaded) => (Some(loaded.clone()), loaded.warnings),
        Err(refused) => (None, refused.problems),
    }
}

/// The value in force, as TOML.
pub(super) fn in_force(loaded: &Loaded, path: &str) -> String {
    match LISTENER_KEYS.iter().find(|key| key.path == path) {
        Some(key) => key.slot.show(&mut loaded.config.listeners[0].clone()),
        None => {
            let key = KEYS.iter().find(|key| key.path == path).expect("a key");
            key.slot.show(&mut loaded.config.clone())
        }
    }
}

/// Path, least, greatest, default, as the contract has them. What stands behind a default of other
/// keys, and the lowest of ranges that others bound, have tests of their own.
const INTEGERS: &[(&str, u64, u64, u64)] = &[
    ("listener.limits.max_connections", 1, 1_000_000, 60_000),
    (
        "listener.limits.max_connections_per_source",
        0,
        1_000_000,
        0,
    ),
    ("listener.limits.reserved_connections", 0, 1_000_000, 0),
    (
        "listener.limits.unregistered_timeout_ms",
        1_000,
        86_400_000,
        120_000,
    ),
    (
        "listener.limits.proxy_header_timeout_ms",
        100,
        600_000,
        1_000,
    ),
    ("listener.limits.handshake_timeout_ms", 100, 600_000, 10_000),
    ("listener.limits.request_timeout_ms", 100, 600_000, 30_000),
    (
        "listener.limits.max_message_bytes",
        65_536,
        67_108_864,
        8_388_608,
    ),
    (
        "listener.limits.max_connection_memory_bytes",
        1_048_576,
        1_073_741_824,
        33_554_432,
    ),
    (
        "listener.limits.max_header_list_bytes",
        1_024,
        1_048_576,
        16_384,
    ),
    ("listener.http2.max_concurrent_streams", 1, 100_000, 32),
    ("listener.http2.idle_timeout_ms", 1_000, 86_400_000, 180_000),
    ("shift.grace_ms", 0, 3_600_000, 5_000),
    ("shift.max_per_second", 1, 1_000_000, 100),
    ("shift.min_sessions", 0, 10_000_000, 100),
    ("upstream.failback_after_ms", 1_000, 86_400_000, 0),
    ("upstream.connect_timeout_ms", 1, 600_000, 5_000),
    ("upstream.rpc_timeout_ms", 100, 60_000, 5_000),
    ("upstream.call_timeout_ms", 100, 300_000, 30_000),
    (
        "upstream.max_receive_message_bytes",
        1,
        67_108_864,
        4_194_304,
    ),
    ("upstream.register_concurrency", 1, 1_000, 48),
    ("upstream.register_queue", 1, 1_000_000, 10_000),
    ("upstream.inventory_concurrency", 1, 1_000, 8),
    ("upstream.inventory_queue", 1, 1_000_000, 1_000),
    ("upstream.replay_concurrency", 1, 1_000, 500),
    ("upstream.breaker.failure_threshold", 1, 1_000, 5),
    ("upstream.breaker.reset_timeout_ms", 100, 3_600_000, 10_000),
    (
        "upstream.breaker.max_reset_timeout_ms",
        100,
        3_600_000,
        30_000,
    ),
    (
        "memory.max_unfinished_request_bytes",
        100_663_296,
        68_719_476_736,
        268_435_456,
    ),
    ("notify.pending_max", 100, 10_000_000, 180_000),
    ("notify.probe_timeout_ms", 100, 600_000, 15_000),
    ("notify.unacked_retry_base_ms", 10, 600_000, 1_000),
    ("notify.unacked_retry_max_ms", 10, 3_600_000, 60_000),
    ("notify.unacked_slow_after_ms", 0, 86_400_000, 900_000),
    ("notify.unacked_slow_max_ms", 1_000, 86_400_000, 600_000),
    (
        "notify.unacked_disconnected_window_ms",
        0,
        3_600_000,
        120_000,
    ),
    ("heartbeat.batch_interval_ms", 100, 60_000, 1_000),
    ("heartbeat.max_sessions", 1, 10_000_000, 10_000),
    ("heartbeat.max_bytes", 1_048_576, 1_073_741_824, 67_108_864),
    ("routing.max_sessions", 1, 1_000_000, 4_096),
    ("routing.max_sessions_per_owner", 1, 1_000_000, 1_024),
    (
        "routing.max_inflight_bytes",
        1_048_576,
        68_719_476_736,
        268_435_456,
    ),
    ("routing.forward_timeout_ms", 100, 3_600_000, 30_000),
    ("routing.connect_timeout_ms", 1, 600_000, 5_000),
    ("routing.idle_close_ms", 100, 3_600_000, 30_000),
    ("routing.resume_grace_ms", 0, 3_600_000, 5_000),
    ("replay.session_guard_ms", 0, 3_600_000, 10_000),
    ("replay.queue_max", 1, 1_000_000, 10_000),
    ("replay.start_jitter_ms", 0, 60_000, 1_000),
    ("session.max_per_connection", 1, 1_000, 8),
    ("session.dead_connection_grace_ms", 0, 120_000, 15_000),
    ("session.restart_intensity", 1, 1_000_000, 2_000),
    ("session.restart_period_s", 1, 3_600, 10),
    ("command.default_timeout_s", 1, 3_600, 300),
    ("command.mailbox", 1, 1_000_000, 1_000),
    ("command.mailbox_bytes", 65_536, 1_073_741_824, 8_388_608),
    (
        "command.caller_buffer_bytes",
        65_536,
        1_073_741_824,
        8_388_608,
    ),
    ("command.slow_caller_timeout_ms", 100, 600_000, 5_000),
    ("management.pin_refresh_ms", 100, 3_600_000, 5_000),
    ("shutdown.flush_budget_ms", 0, 600_000, 20_000),
    ("observe.gauge_interval_ms", 100, 3_600_000, 10_000),
    ("cluster.redial_interval_ms", 100, 3_600_000, 5_000),
    ("cluster.max_lifetime_addrs", 1, 100_000, 1_024),
    ("cluster.dead_after_ms", 100, 3_600_000, 5_000),
];

/// A second key without which a border value would break a rule about both.
fn beside(path: &str) -> Option<(&'static str, &'static str)> {
    match path {
        "listener.limits.max_message_bytes" => Some((
            "name = \"agent\"",
            "limits.max_connection_memory_bytes = 1073741824",
        )),
        "listener.limits.max_connection_memory_bytes" => {
            Some(("name = \"agent\"", "limits.max_message_bytes = 65536"))
        }
        "upstream.replay_concurrency" => Some(("[upstream]", "register_concurrency = 1000")),
        "upstream.breaker.max_reset_timeout_ms" => {
            Some(("[upstream]", "breaker.reset_timeout_ms = 100"))
        }
        "notify.unacked_retry_max_ms" => Some(("[notify]", "unacked_retry_base_ms = 10")),
        _ => None,
    }
}

#[test]
fn boot_20_each_integer_has_its_range_and_its_default() {
    for &(path, least, greatest, default) in INTEGERS {
        let in_range = [i128::from(least), i128::from(greatest)];
        let outside = [
            i128::from(least) - 1,
            i128::from(greatest) + 1,
            i128::from(u64::MAX),
        ];
        for value in in_range.into_iter().chain(outside) {
            if value == 0 && path == "notify.pending_max" {
                continue;
            }
            let mut text = with(path, &value.to_string());
            if let Some((line, key)) = beside(path) {
                text = text.replacen(line, &format!("{line}\n{key}"), 1);
            }
            let (loaded, problems) = outcome(&text);
            let loaded = loaded.unwrap_or_else(|| panic!("{path} = {value}: {problems:#?}"));
            let told: Vec<_> = problems.iter().filter(|p| p.key == shown(path)).collect();
            if in_range.contains(&value) {
                assert_eq!(in_force(&loaded, path), value.to_string(), "{path}");
                assert!(
                    told.iter().all(|p| !p.fix.contains("default")),
                    "{path}: {told:#?}"
                );
            } else {
                assert_eq!(
                    in_force(&loaded, path),
                    default.to_string(),
                    "{path} = {value}"
                );
                assert_eq!(told.len(), 1, "{path} = {value}");
                assert!(
                    told[0].fault.contains(&format!("is {value}, not ")),
                    "{told:?}"
                );
            }
        }
    }
}

/// Keys that refuse have tests of their own.
#[test]
fn no_integer_key_lacks_a_line_above() {
    fn integers<T>(keys: &[Key<T>]) -> impl Iterator<Item = &'static str> {
        let is_integer = |key: &&Key<T>| {
            matches!(
                key.slot,
                Slot::Millis(..) | Slot::Seconds(..) | Slot::Size(..) | Slot::Count(..)
            )
        };
        let defaults = |key: &&Key<T>| key.bad == Bad::Default;
        let integers = keys.iter().filter(is_integer).filter(defaults);
        integers.map(|key| key.path)
    }
    let keys: BTreeSet<_> = integers(KEYS).chain(integers(LISTENER_KEYS)).collect();
    let lines: BTreeSet<_> = INTEGERS.iter().map(|line| line.0).collect();
    assert_eq!(keys, lines);
    assert_eq!(INTEGERS.len(), lines.len());
}

/// A date fits nowhere.
const WRONG_TYPE: &str = "1979-05-27";

#[test]
fn a_value_of_the_wrong_type_does_what_its_key_says() {
    let defaults = outcome(SOUND).0.expect("sound").config;
    let policies = KEYS.iter().map(|key| (key.path, key.bad));
    let policies = policies.chain(LISTENER_KEYS.iter().map(|key| (key.path, key.bad)));
    for (path, bad) in policies {
        let (loaded, problems) = outcome(&with(path, WRONG_TYPE));
        assert_eq!(problems.len(), 1, "{path}: {problems:#?}");
        assert_eq!(problems[0].key, shown(path));
        assert!(
            problems[0].fault.starts_with("is a date, not "),
            "{problems:#?}"
        );
        match bad {
            Bad::Default => assert_eq!(loaded.expect("starts").config, defaults, "{path}"),
            Bad::DefaultPort => {
                assert_eq!(problems[0].effect, Effect::Refuses(Refusal::BadAddress))
            }
            Bad::Refuse(term) => assert_eq!(problems[0].effect, Effect::Refuses(term)),
        }
    }
}

/// The switches and words, with their defaults.
#[test]
fn a_switch_that_is_not_a_boolean_stays_at_its_default() {
    for (path, default) in [
        ("upstream.tcp_nodelay", "true"),
        ("lab.allow_no_listeners", "false"),
        ("lab.allow_no_upstream", "false"),
        ("lab.allow_insecure_management", "false"),
        ("lab.allow_unverified_upstream", "false"),
    ] {
        for bad in ["1", "\"true\"", "[]"] {
            let (loaded, problems) = outcome(&with(path, bad));
            assert_eq!(in_force(&loaded.expect("starts"), path), default);
            assert_eq!(problems.len(), 1, "{path} = {bad}");
        }
        for good in ["true", "false"] {
            let (loaded, problems) = outcome(&with(path, good));
            assert_eq!(in_force(&loaded.expect("starts"), path), good);
            assert_eq!(problems, []);
        }
    }
}

#[test]
fn shift_2_a_number_that_does_not_fit_stays_at_its_default() {
    for (path, default, goods, bads) in [
        (
            "shift.cpu_high",
            "0.85",
            ["0.001", "0.999"],
            ["0", "1.0", "-0.5"],
        ),
        (
            "shift.imbalance",
            "1.25",
            ["1.001", "2"],
            ["1", "1000.0", "nan"],
        ),
    ] {
        let (loaded, problems) = outcome(SOUND);
        assert_eq!(in_force(&loaded.expect("starts"), path), default);
        assert_eq!(problems, []);
        for good in goods {
            let (loaded, problems) = outcome(&with(path, good));
            assert_eq!(in_force(&loaded.expect("starts"), path), good);
            assert_eq!(problems, []);
        }
        for bad in bads {
            let (loaded, problems) = outcome(&with(path, bad));
            assert_eq!(in_force(&loaded.expect("starts"), path), default);
            assert_eq!(problems.len(), 1, "{path} = {bad}");
        }
    }
}

#[test]
fn keys_of_later_versions_are_checked_today() {
    for entry in LATER {
        let (loaded, problems) = outcome(&with(entry.path, WRONG_TYPE));
        let told: Vec<_> = problems
            .iter()
            .filter(|p| p.key == shown(entry.path))
            .collect();
        let [problem] = told[..] else {
            panic!("{}: {problems:#?}", entry.path)
        };
        assert!(problem.fault.starts_with("is a date, not "), "{problem:#?}");
        assert!(loaded.is_some(), "{}", entry.path);
    }
}

#[test]
fn no_path_is_in_two_tables_and_no_key_is_a_table() {
    let paths: Vec<_> = keys::paths().collect();
    let unique: BTreeSet<_> = paths.iter().copied().collect();
    assert_eq!(paths.len(), unique.len());
    for path in &unique {
        let inside = format!("{path}.");
        assert!(
            !unique.iter().any(|other| other.starts_with(&inside)),
            "{path}"
        );
    }
}

#[test]
fn a_range_tells_its_borders() {
    assert_eq!(Range::new(1, 5).to_string(), "an integer from 1 to 5");
    assert_eq!(
        Range::zero_or(100, 200).to_string(),
        "0 or an integer from 100 to 200"
    );
}
