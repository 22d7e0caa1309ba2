//! Which value is in force, where more than one key or more than a range decides.

use std::time::Duration;

use super::super::Service;
use super::{SOUND, loaded, terms, with};

#[test]
fn the_breaker_s_maximum_is_never_below_its_base() {
    let breaker = |keys: &str| {
        let loaded = loaded(&with(&format!("[upstream.breaker]\n{keys}\n")));
        (
            loaded.config.upstream.breaker.max_reset_timeout,
            loaded.warnings.len(),
        )
    };
    assert_eq!(
        breaker("reset_timeout_ms = 40000"),
        (Duration::from_secs(40), 0)
    );
    let explicit = breaker("reset_timeout_ms = 40000\nmax_reset_timeout_ms = 39999");
    assert_eq!(explicit, (Duration::from_secs(40), 1));
    let above = breaker("reset_timeout_ms = 40000\nmax_reset_timeout_ms = 40001");
    assert_eq!(above, (Duration::from_millis(40_001), 0));
}

#[test]
fn the_resend_maximum_is_never_below_its_base() {
    let loaded = loaded(&with("[notify]\nunacked_retry_base_ms = 61000\n"));
    assert_eq!(
        loaded.config.notify.unacked_retry_max,
        Duration::from_secs(61)
    );
}

#[test]
fn replays_take_half_of_the_register_pool_at_most_all_of_it() {
    let replay = |keys: &str| {
        let loaded = loaded(&format!("{SOUND}{keys}\n"));
        (
            loaded.config.upstream.replay_concurrency,
            loaded.warnings.len(),
        )
    };
    assert_eq!(replay(""), (24, 0));
    assert_eq!(replay("register_concurrency = 7"), (3, 0));
    assert_eq!(replay("register_concurrency = 1"), (1, 0));
    assert_eq!(replay("replay_concurrency = 48"), (48, 0));
    assert_eq!(replay("replay_concurrency = 49"), (24, 1));
    assert_eq!(replay("replay_concurrency = 0"), (24, 1));
    assert_eq!(
        replay("register_concurrency = 10\nreplay_concurrency = 11"),
        (5, 1)
    );
}

#[test]
fn held_notices_are_three_per_admitted_agent_connection() {
    let pending = |agent: usize, notify: &str| {
        let text = SOUND.replacen(
            "name = \"agent\"",
            &format!("limits.max_connections = {agent}"),
            1,
        );
        loaded(&format!("{text}[notify]\n{notify}\n"))
            .config
            .notify
            .pending_max
    };
    assert_eq!(pending(60_000, ""), 180_000);
    assert_eq!(pending(60_000, "pending_max = 0"), 180_000);
    assert_eq!(pending(5_001, ""), 15_003);
    assert_eq!(pending(100, ""), 15_000);
    assert_eq!(pending(100, "pending_max = 100"), 100);
    assert_eq!(pending(100, "pending_max = 99"), 15_000);
}

#[test]
fn held_notices_count_agent_listeners_only() {
    let text = SOUND.replacen(
        "name = \"management\"",
        "limits.max_connections = 1000000",
        1,
    );
    assert_eq!(loaded(&text).config.notify.pending_max, 180_000);
    let text = text.replacen(
        "services = [\"management\"]",
        "name = \"b\"\nservices = [\"agent\"]\naddress = \"127.0.0.1:1\"",
        1,
    );
    assert_eq!(loaded(&text).config.notify.pending_max, 3_180_000);
}

#[test]
fn log_levels_are_checked() {
    let level = |level: &str| {
        let loaded = loaded(&with(&format!("[observe]\nlog_level = \"{level}\"\n")));
        (loaded.config.observe.log_level, loaded.warnings.len())
    };
    for good in [
        "off",
        "error",
        "WARN",
        "info",
        "debug",
        "trace",
        "info,yuzu_gateway=debug",
        "warn,a::b=off,h2=info",
    ] {
        assert_eq!(level(good), (good.to_owned(), 0));
        good.parse::<tracing_subscriber::EnvFilter>()
            .expect("the log library takes it");
    }
    for bad in [
        "",
        "inof",
        "info,",
        "info,yuzu_gateway",
        "=info",
        "a=b",
        "a b=info",
        "warning",
    ] {
        assert_eq!(level(bad), ("info".to_owned(), 1), "{bad}");
    }
}

#[test]
fn a_bad_port_keeps_the_address_and_anything_else_refuses() {
    let metrics = |value: &str| loaded(&with(&format!("[observe]\nmetrics_address = {value}\n")));
    for value in ["\"127.0.0.1\"", "\"127.0.0.1:65536\"", "\"127.0.0.1:x\""] {
        let loaded = metrics(value);
        assert_eq!(
            loaded.config.observe.metrics_address.to_string(),
            "127.0.0.1:9568"
        );
        assert_eq!(loaded.warnings.len(), 1);
    }
    assert_eq!(
        metrics("\"[::1]\"")
            .config
            .observe
            .metrics_address
            .to_string(),
        "[::1]:9568"
    );
    for value in ["9568", "\"localhost:9568\"", "\"\""] {
        assert_eq!(
            terms(&with(&format!("[observe]\nmetrics_address = {value}\n"))),
            ["bad_address"]
        );
    }
}

#[test]
fn every_listener_value_in_force_comes_from_its_own_entry() {
    let loaded =
        loaded(&SOUND.replacen("name = \"management\"", "http2.idle_timeout_ms = 1000", 1));
    let [agent, management] = &loaded.config.listeners[..] else {
        panic!("two")
    };
    assert_eq!(agent.services, [Service::Agent]);
    assert_eq!(agent.http2.idle_timeout, Duration::from_secs(180));
    assert_eq!(management.name, "management");
    assert_eq!(management.http2.idle_timeout, Duration::from_secs(1));
}
