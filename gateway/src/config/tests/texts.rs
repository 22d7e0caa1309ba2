//! The wording: a golden line per kind of problem.

use super::super::Place;
use super::{lines, refused};

#[track_caller]
fn assert_lines(text: &str, expected: &[&str]) {
    let (lines, _) = lines(text);
    assert_eq!(lines, expected);
}

#[test]
fn boot_20_a_number_out_of_range_names_key_place_range_and_default() {
    let text = format!("{}rpc_timeout_ms = 99\n", super::SOUND);
    assert_lines(
        &text,
        &[
            "g.toml:12:18: upstream.rpc_timeout_ms is 99, not an integer from 100 to 60000; \
           the default 5000 is used instead",
        ],
    );
}

#[test]
fn boot_20_a_string_is_shown_by_type_and_size_only() {
    let text = format!("{}rpc_timeout_ms = \"hunter2\"\n", super::SOUND);
    assert_lines(
        &text,
        &[
            "g.toml:12:18: upstream.rpc_timeout_ms is a string of 7 bytes, not an integer from 100 to \
           60000; the default 5000 is used instead",
        ],
    );
}

#[test]
fn a_listener_is_named_by_its_number() {
    let text = super::SOUND.replace("name = \"management\"", "limits.max_connections = 0");
    assert_lines(
        &text,
        &[
            "g.toml:7:26: listener[1].limits.max_connections is 0, not an integer from 1 to 1000000; \
           the default 256 is used instead",
        ],
    );
}

#[test]
fn boot_3_an_unknown_key_names_the_nearest_one() {
    let near = |key: &str, table: &str| {
        let (lines, starts) = lines(&format!("{}\n[{table}]\n{key} = 1\n", super::SOUND));
        assert!(!starts);
        assert_eq!(lines.len(), 1, "{lines:?}");
        let (fault, fix) = lines[0].split_once("; ").expect("a fix");
        assert_eq!(fault, format!("g.toml:14:1: {table}.{key} is not a key"));
        fix.to_owned()
    };
    assert_eq!(near("mailbx", "command"), "did you mean command.mailbox?");
    assert_eq!(
        near("batch_interval", "heartbeat"),
        "did you mean heartbeat.batch_interval_ms?"
    );
    assert_eq!(
        near("queue_max", "notify"),
        "did you mean replay.queue_max?"
    );
    assert_eq!(
        near("seed_node", "cluster"),
        "did you mean cluster.seed_nodes?"
    );
    assert_eq!(
        near("notify_probe_timeout_ms", "session"),
        "did you mean notify.probe_timeout_ms?"
    );
    assert_eq!(near("colour", "observe"), "delete it");
}

#[test]
fn boot_3_an_unknown_table_and_a_listener_key_name_the_nearest_ones() {
    assert_lines(
        &format!("{}[comand]\nmailbox = 5\n", super::SOUND),
        &["g.toml:12:2: comand is not a key; did you mean command?"],
    );
    assert_lines(
        &super::SOUND.replace("name = \"agent\"", "adress = \"127.0.0.1:1\""),
        &["g.toml:3:1: listener[0].adress is not a key; did you mean listener.address?"],
    );
}

#[test]
fn a_key_with_control_characters_can_not_forge_a_line() {
    let (lines, _) = lines(&format!("{}\"a\\nb\" = 1\n", super::SOUND));
    assert_eq!(lines, ["g.toml:12:1: upstream.a?b is not a key; delete it"]);
}

#[test]
fn a_value_where_a_table_belongs() {
    assert_lines(
        &format!("{}breaker = 5\n", super::SOUND),
        &["g.toml:12:11: upstream.breaker is 5, not a table; write [upstream.breaker]"],
    );
    let (lines, _) = lines("[listener]\nname = \"a\"\n");
    assert_eq!(
        lines[0],
        "g.toml:1:1: listener is a table of 1 key, not a list of tables; write [[listener]]"
    );
}

#[test]
fn several_syntax_errors_and_key_problems_are_told_at_once() {
    let text = "[node]\nname = host\ncluster_id = 1\nnam = \"x\"\n\n[command]\nmailbox = = 1\n";
    let (lines, starts) = lines(text);
    assert!(!starts);
    let starts_of: Vec<&str> = lines
        .iter()
        .map(|l| l.split(" is ").next().unwrap_or(l))
        .collect();
    assert_eq!(
        starts_of,
        [
            "g.toml:2:8: the file",
            "g.toml:3:14: node.cluster_id",
            "g.toml:4:1: node.nam",
            "g.toml:7:11: the file",
            "g.toml:7:13: the file",
        ],
        "{lines:#?}"
    );
}

#[test]
fn what_the_parser_makes_up_behind_an_error_is_not_judged() {
    let text = format!(
        "{}\n[command]\nmailbox = [\n1,\n= 2]\nslow = = 1\n",
        super::SOUND
    );
    let (lines, _) = lines(&text);
    assert!(
        lines
            .iter()
            .all(|line| line.contains(" the file is not TOML here: ")),
        "{lines:#?}"
    );
}

#[test]
fn a_file_full_of_errors_tells_a_bounded_number() {
    assert_eq!(refused(&"]\n".repeat(5_000)).problems.len(), 20);

    let unknown: String = (0..5_000).map(|i| format!("key_{i} = 1\n")).collect();
    let problems = refused(&unknown).problems;
    let unknown: Vec<_> = problems
        .iter()
        .filter(|p| p.place != Place::Nowhere)
        .collect();
    assert_eq!(unknown.len(), 100 + 2, "and no listener and no endpoint");
    assert!(
        problems
            .iter()
            .any(|p| p.to_string().contains("the file has more unknown keys"))
    );

    let listeners = "[[listener]]\n".repeat(65);
    let (lines, _) = lines(&listeners);
    assert!(lines[0].contains("listener is a list of 65 items, not a list of at most 64; "));
}

#[test]
fn boot_19_a_refusal_has_one_critical_line() {
    let refused = refused(&super::SOUND.replace("50055", "0"));
    let critical: Vec<_> = refused
        .refusals()
        .filter_map(|p| p.critical_line())
        .collect();
    assert_eq!(
        critical,
        [
            "Refusing to start: bad_endpoint: g.toml:11:14: upstream.endpoints[0] is a string of 18 \
          bytes, not \"http://host:port\" or \"https://host:port\"; correct it"
        ]
    );
}

#[test]
fn no_string_value_is_ever_shown() {
    let secret = "hunter2";
    let text = format!(
        "[node]\nname = \"{secret}\\u0000\"\ncluster_id = [\"{secret}\"]\nvisibility = \"{secret}\"\n\
         [[listener]]\nname = \"{secret} \"\nservices = [\"{secret}\"]\naddress = \"{secret}\"\n\
         tls.key_file = \"{secret}\"\norigin.mode = \"{secret}\"\n\
         [upstream]\nendpoints = [\"http://{secret}:{secret}@host:1\", \"https://{secret}\"]\n\
         tls.key_file = \"{secret}\"\n\
         [management]\npeer_pins = [\"{secret}\"]\npeer_identity = \"{secret}\"\n\
         [observe]\nlog_level = \"{secret}\"\nmetrics_address = \"{secret}\"\n\
         [cluster]\nseed_nodes = [\"{secret}\"]\nseed_dns_name = \"{secret}\"\n\
         [command]\nmailbox = \"{secret}\"\n[memory.shedding]\nenabled = \"{secret}\"\n"
    );
    let (lines, _) = lines(&text);
    assert!(lines.len() >= 15, "{lines:#?}");
    for line in lines {
        assert!(!line.contains(secret), "{line}");
    }
}
