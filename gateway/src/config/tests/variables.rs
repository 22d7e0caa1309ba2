//! Variables of the environment.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use super::super::{Effect, Origin, Place, Refusal, load};
use super::{SOUND, lines_with, loaded_with, source};

#[test]
fn each_variable_replaces_its_key() {
    let loaded = loaded_with(
        SOUND,
        &[
            ("YUZU_GW_CLUSTER_ID", "west"),
            ("YUZU_GW_CB_FAILURE_THRESHOLD", "7"),
            ("YUZU_GW_CB_RESET_TIMEOUT_MS", "2000"),
            ("YUZU_GW_CB_MAX_RESET_TIMEOUT_MS", "9000"),
            ("YUZU_GW_HEARTBEAT_INTERVAL_MS", "250"),
            ("YUZU_GW_COMMAND_TIMEOUT_S", "60"),
            ("YUZU_GW_BACKPRESSURE_THRESHOLD", "17"),
            ("YUZU_GW_PROMETHEUS_PORT", "19568"),
            ("YUZU_GW_HEALTH_PORT", "0"),
            ("YUZU_GW_AGENT_PORT", "1051"),
            ("YUZU_GW_MGMT_PORT", "1063"),
            ("YUZU_GW_ALLOW_UNVERIFIED_UPSTREAM", "1"),
            ("PATH", "/bin"),
        ],
    );
    let config = &loaded.config;
    assert_eq!(loaded.warnings, []);
    assert_eq!(config.node.cluster_id, "west");
    assert_eq!(config.upstream.breaker.failure_threshold, 7);
    assert_eq!(
        config.upstream.breaker.reset_timeout,
        Duration::from_secs(2)
    );
    assert_eq!(
        config.upstream.breaker.max_reset_timeout,
        Duration::from_secs(9)
    );
    assert_eq!(config.heartbeat.batch_interval, Duration::from_millis(250));
    assert_eq!(config.command.default_timeout, Duration::from_secs(60));
    assert_eq!(config.command.mailbox, 17);
    assert_eq!(config.observe.metrics_address.to_string(), "0.0.0.0:19568");
    assert_eq!(config.observe.health_address.to_string(), "0.0.0.0:0");
    assert_eq!(config.listeners[0].address.to_string(), "0.0.0.0:1051");
    assert_eq!(config.listeners[1].address.to_string(), "127.0.0.1:1063");
    assert!(config.lab.allow_unverified_upstream);
    assert_eq!(
        loaded.origins["command.mailbox"],
        Origin::Variable("YUZU_GW_BACKPRESSURE_THRESHOLD")
    );
    assert_eq!(
        loaded.origins["listener[1].address"],
        Origin::Variable("YUZU_GW_MGMT_PORT")
    );
}

#[test]
fn a_variable_wins_over_the_file() {
    let text = format!("{SOUND}\n[command]\nmailbox = 5\n");
    let loaded = loaded_with(&text, &[("YUZU_GW_BACKPRESSURE_THRESHOLD", "6")]);
    assert_eq!(loaded.config.command.mailbox, 6);
}

#[test]
fn a_variable_that_does_not_parse_is_told_and_ignored() {
    let text = format!("{SOUND}\n[command]\nmailbox = 5\n");
    for bad in ["", "x", "1.5", "1 000"] {
        let loaded = loaded_with(&text, &[("YUZU_GW_BACKPRESSURE_THRESHOLD", bad)]);
        assert_eq!(loaded.config.command.mailbox, 5);
        assert_eq!(loaded.warnings.len(), 1);
    }
    let (lines, starts) = lines_with(&text, &[("YUZU_GW_BACKPRESSURE_THRESHOLD", "many")]);
    assert!(starts);
    assert_eq!(
        lines,
        [
            "YUZU_GW_BACKPRESSURE_THRESHOLD: command.mailbox is a string of 4 bytes, not an integer from \
          1 to 1000000; it is ignored"
        ]
    );
}

#[test]
fn boot_20_a_variable_out_of_range_leaves_the_default() {
    let text = format!("{SOUND}\n[command]\nmailbox = 5\n");
    let loaded = loaded_with(&text, &[("YUZU_GW_BACKPRESSURE_THRESHOLD", "0")]);
    assert_eq!(loaded.config.command.mailbox, 1_000);
    assert_eq!(loaded.warnings.len(), 1);
    assert!(!loaded.origins.contains_key("command.mailbox"));
}

#[test]
fn a_bad_value_of_the_file_is_told_even_if_a_variable_replaces_it() {
    let text = format!("{SOUND}\n[command]\nmailbox = 0\n");
    let loaded = loaded_with(&text, &[("YUZU_GW_BACKPRESSURE_THRESHOLD", "6")]);
    assert_eq!(loaded.config.command.mailbox, 6);
    assert_eq!(loaded.warnings.len(), 1);
}

#[test]
fn boot_16_refuses_a_cluster_id_variable_that_is_not_utf8() {
    let mut source = source(SOUND, &[]);
    let value = OsString::from_vec(b"secret\xff".to_vec());
    source
        .environment
        .insert("YUZU_GW_CLUSTER_ID".into(), value);
    let refused = load(&source).expect_err("refused");
    let [problem] = &refused.problems[..] else {
        panic!("{refused:#?}")
    };
    assert_eq!(problem.effect, Effect::Refuses(Refusal::BadClusterId));
    assert_eq!(problem.place, Place::Variable("YUZU_GW_CLUSTER_ID"));
    assert!(!problem.to_string().contains("secret"));
    // Any other variable is ignored.
    source.environment.clear();
    let value = OsString::from_vec(b"\xff".to_vec());
    source
        .environment
        .insert("YUZU_GW_COMMAND_TIMEOUT_S".into(), value);
    assert_eq!(load(&source).expect("starts").warnings.len(), 1);
}

#[test]
fn boot_16_an_empty_cluster_id_variable_replaces_the_setting() {
    let loaded = loaded_with(SOUND, &[("YUZU_GW_CLUSTER_ID", "")]);
    assert_eq!(loaded.config.node.cluster_id, "");
}

#[test]
fn boot_21_dead_variables_have_no_effect() {
    for name in [
        "YUZU_GW_UPSTREAM_ADDR",
        "YUZU_GW_UPSTREAM_PORT",
        "YUZU_GW_TLS_ENABLED",
        "YUZU_GW_TLS_CERTFILE",
        "YUZU_GW_TLS_KEYFILE",
        "YUZU_GW_TLS_CACERTFILE",
    ] {
        let (lines, starts) = lines_with(SOUND, &[(name, "x")]);
        assert!(starts);
        assert_eq!(lines, [format!("{name} is set but has no effect")]);
    }
}

#[test]
fn boot_23_a_port_variable_needs_exactly_one_listener() {
    let third =
        "\n[[listener]]\nname = \"third\"\nservices = [\"agent\"]\naddress = \"127.0.0.1:7\"\n";
    let two = loaded_with(&format!("{SOUND}{third}"), &[("YUZU_GW_AGENT_PORT", "9")]);
    let ports: Vec<u16> = two
        .config
        .listeners
        .iter()
        .map(|l| l.address.port())
        .collect();
    assert_eq!(ports, [50051, 50063, 7]);
    assert_eq!(two.warnings.len(), 1);

    let agent_only = SOUND.replace("[\"management\"]", "[\"agent\"]\naddress = \"127.0.0.1:7\"");
    let none = loaded_with(&agent_only, &[("YUZU_GW_MGMT_PORT", "9")]);
    assert_eq!(none.warnings.len(), 1);
}

#[test]
fn boot_23_a_port_variable_must_be_a_port() {
    for bad in ["", "-1", "65536", "x", "50051.0"] {
        let loaded = loaded_with(SOUND, &[("YUZU_GW_AGENT_PORT", bad)]);
        assert_eq!(loaded.config.listeners[0].address.port(), 50051);
        assert_eq!(loaded.warnings.len(), 1, "{bad}");
    }
    let loaded = loaded_with(SOUND, &[("YUZU_GW_AGENT_PORT", "65535")]);
    assert_eq!(loaded.config.listeners[0].address.port(), 65535);
}

#[test]
fn boot_23_a_combined_listener_takes_the_agent_variable_only() {
    let text = "[[listener]]\nservices = [\"management\", \"agent\"]\naddress = \"127.0.0.1:5\"\n\
                [upstream]\nendpoints = [\"http://a:1\"]\n";
    let variables = [("YUZU_GW_AGENT_PORT", "6"), ("YUZU_GW_MGMT_PORT", "7")];
    let loaded = loaded_with(text, &variables);
    assert_eq!(loaded.config.listeners[0].address.port(), 6);
    assert_eq!(loaded.warnings.len(), 1);
    assert_eq!(loaded.warnings[0].key, "YUZU_GW_MGMT_PORT");
}

#[test]
fn the_unverified_switch_is_the_digit_one() {
    for (value, on, warnings) in [
        ("1", true, 0),
        ("0", false, 0),
        ("", false, 0),
        ("true", false, 1),
    ] {
        let loaded = loaded_with(SOUND, &[("YUZU_GW_ALLOW_UNVERIFIED_UPSTREAM", value)]);
        assert_eq!(
            (
                loaded.config.lab.allow_unverified_upstream,
                loaded.warnings.len()
            ),
            (on, warnings)
        );
    }
}

#[test]
fn variables_of_the_mesh_refuse_or_warn() {
    for (name, value, starts, problems) in [
        ("YUZU_GW_SEED_NODES", "10.0.0.1, 10.0.0.2", false, 1),
        ("YUZU_GW_SEED_NODES", " , ", true, 1),
        ("YUZU_GW_SEED_DNS_NAME", "gateway", false, 1),
        ("YUZU_GW_SEED_DNS_NAME", "", true, 0),
        ("YUZU_GW_VISIBILITY", "private", false, 1),
        ("YUZU_GW_VISIBILITY", "public", true, 0),
        ("YUZU_GW_VISIBILITY", "hidden", false, 1),
        ("YUZU_GW_ADVERTISE_ADDR", "10.0.0.1", true, 0),
        ("YUZU_GW_ADVERTISE_ADDR", "10.0.0.1:x", false, 1),
        ("YUZU_GW_CLUSTER_REDIAL_INTERVAL_MS", "5000", true, 0),
        ("YUZU_GW_COOKIE", "0123456789", true, 1),
        ("YUZU_GW_ALLOW_DEFAULT_COOKIE", "1", true, 1),
    ] {
        let (lines, started) = lines_with(SOUND, &[(name, value)]);
        assert_eq!(
            (started, lines.len()),
            (starts, problems),
            "{name}={value}: {lines:?}"
        );
        assert!(lines.iter().all(|line| !line.contains("0123456789")));
    }
}

#[test]
fn a_misspelt_variable_is_told() {
    let (lines, starts) = lines_with(
        SOUND,
        &[("YUZU_GW_AGNET_PORT", "5"), ("YUZU_GW_IMAGE", "x")],
    );
    assert!(starts);
    assert_eq!(
        lines,
        [
            "YUZU_GW_AGNET_PORT is not a variable of the gateway; did you mean YUZU_GW_AGENT_PORT?",
            "YUZU_GW_IMAGE is not a variable of the gateway; remove it, or set the key in the file",
        ]
    );
}
