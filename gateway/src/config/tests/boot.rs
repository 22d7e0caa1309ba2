//! What refuses the start, by rule.

use std::time::Duration;

use super::super::{Effect, Refusal};
use super::{SOUND, lines, loaded, refused, terms, with};

#[test]
fn boot_1_refuses_a_file_without_a_listener_for_agents() {
    let upstream = "[upstream]\nendpoints = [\"http://127.0.0.1:50055\"]\n";
    assert_eq!(terms(upstream), ["no_listeners"]);
    assert_eq!(
        terms(&SOUND.replace(
            "services = [\"agent\"]",
            "services = [\"management\"]\naddress = \"127.0.0.1:1\""
        )),
        ["no_listeners"]
    );

    let lab = |value: &str| format!("{upstream}[lab]\nallow_no_listeners = {value}\n");
    assert_eq!(loaded(&lab("true")).config.listeners, []);
    assert_eq!(
        terms(&lab("1")),
        ["no_listeners"],
        "only a literal true counts"
    );
}

#[test]
fn boot_2_boot_3_boot_5_refuses_unknown_keys_those_of_the_old_gateway_too() {
    assert_eq!(terms(&with("[grpcbox]\nservers = []\n")), ["unknown_keys"]);
    assert_eq!(
        terms(&SOUND.replace("name = \"agent\"", "auth_fun = 1")),
        ["unknown_keys"]
    );
}

#[test]
fn boot_3_a_dotted_name_in_quotes_is_no_known_key() {
    for key in [
        "upstream.rpc_timeout_ms",
        "listener.name",
        "upstream.breaker",
    ] {
        let text = format!("\"{key}\" = 500\n{SOUND}");
        assert_eq!(terms(&text), ["unknown_keys"], "{key}");
        let [problem] = &refused(&text).problems[..] else {
            panic!("one")
        };
        let line = format!("g.toml:1:1: \"{key}\" is not a key; did you mean {key}?");
        assert_eq!(problem.to_string(), line);
    }
}

#[test]
fn unknown_keys_of_memory_reclaim_only_warn() {
    let (lines, starts) = lines(&with(
        "[memory.reclaim]\ngc_min_bytes = 1\ninterval_ms = 1\n",
    ));
    assert!(starts);
    assert_eq!(
        lines,
        [
            "g.toml:14:1: memory.reclaim.gc_min_bytes is not a key; delete it",
            "g.toml:15:15: memory.reclaim.interval_ms is 1, not an integer from 100 to 3600000; it \
             is ignored",
        ]
    );
    let many: String = (0..200).map(|i| format!("key_{i} = 1\n")).collect();
    let hidden = with(&format!("[memory.reclaim]\n{many}[shutdown]\nflush = 1\n"));
    assert_eq!(
        terms(&hidden),
        ["unknown_keys"],
        "they hide no key that refuses"
    );
}

#[test]
fn boot_6_refuses_a_name_or_a_fixed_port_used_twice() {
    let twice = |name: &str, address: &str| {
        with(&format!(
            "[[listener]]\nname = \"{name}\"\nservices = [\"agent\"]\naddress = \"{address}\"\n"
        ))
    };
    assert_eq!(terms(&twice("agent", "127.0.0.1:1")), ["duplicate_name"]);
    assert_eq!(terms(&twice("third", "10.1.2.3:50051")), ["duplicate_port"]);
    assert_eq!(
        terms(&twice("third", "127.0.0.1:9568")),
        ["duplicate_port"],
        "metrics"
    );
    let (lines, starts) = lines(&twice("third", "127.0.0.1:0"));
    assert!(starts, "{lines:?}");
}

#[test]
fn boot_6_port_0_may_be_used_by_everybody() {
    let text = SOUND.replace("services", "address = \"127.0.0.1:0\"\nservices");
    let text =
        format!("{text}[observe]\nmetrics_address = \"[::1]:0\"\nhealth_address = \"[::1]:0\"\n");
    assert_eq!(lines(&text), (vec![], true));
}

#[test]
fn boot_7_refuses_a_listener_that_serves_nothing() {
    let serving = |services: &str| terms(&SOUND.replace("services = [\"agent\"]\n", services));
    assert_eq!(serving("services = []\n"), ["service_without_routes"]);
    assert_eq!(serving(""), ["service_without_routes"]);
    assert_eq!(serving("services = [\"agents\"]\n"), ["bad_routes"]);
    assert_eq!(serving("services = \"agent\"\n"), ["bad_routes"]);
    assert_eq!(
        serving("services = [\"agent\", \"agent\"]\n"),
        ["bad_routes"]
    );
}

#[test]
fn boot_9_refuses_management_beyond_loopback() {
    let at = |address: &str| {
        SOUND.replace(
            "services = [\"management\"]",
            &format!("services = [\"management\"]\naddress = \"{address}\""),
        )
    };
    for open in [
        "0.0.0.0:50063",
        "10.0.0.1:50063",
        "[::]:50063",
        "[2001:db8::1]:50063",
    ] {
        assert_eq!(
            terms(&at(open)),
            ["insecure_mgmt_listener (no_tls)"],
            "{open}"
        );
        let lab = format!("{}[lab]\nallow_insecure_management = true\n", at(open));
        assert_eq!(
            loaded(&lab).warnings.len(),
            1,
            "the lab switch leaves a warning"
        );
    }
    for closed in [
        "127.0.0.1:50063",
        "127.8.8.8:50063",
        "[::1]:50063",
        "[::ffff:127.0.0.1]:50063",
    ] {
        assert_eq!(lines(&at(closed)), (vec![], true), "{closed}");
    }
}

#[test]
fn boot_9_covers_a_listener_that_serves_both() {
    let text = SOUND.replace(
        "services = [\"agent\"]",
        "services = [\"agent\", \"management\"]",
    );
    assert_eq!(terms(&text), ["insecure_mgmt_listener (no_tls)"]);
}

#[test]
fn boot_11_refuses_endpoints_of_a_bad_shape() {
    let endpoints = |list: &str| terms(&SOUND.replace("[\"http://127.0.0.1:50055\"]", list));
    for bad in ["5", "\"http://a:1\"", "{ host = \"a\" }"] {
        assert_eq!(endpoints(bad), ["bad_channel"], "{bad}");
    }
    for bad in [
        "",
        "a:1",
        "http://a",
        "http://a:0",
        "http://a:65536",
        "http://a:1/path",
        "ftp://a:1",
        "http://:x",
    ] {
        assert_eq!(
            endpoints(&format!("[\"{bad}\"]")),
            ["bad_endpoint"],
            "{bad}"
        );
    }
    for bad in [
        "http://:1",
        "http://a b:1",
        "http://u:p@a:1",
        "http://[::1:1",
        "http://[x]:1",
        "http://::1:1",
        "http://a..b:1",
    ] {
        assert_eq!(endpoints(&format!("[\"{bad}\"]")), ["bad_host"], "{bad}");
    }
}

#[test]
fn boot_11_accepts_names_and_addresses() {
    let endpoint = |text: &str| {
        let text = SOUND.replace("http://127.0.0.1:50055", text);
        let endpoint = loaded(&text).config.upstream.endpoints.remove(0);
        (endpoint.host, endpoint.port)
    };
    assert_eq!(endpoint("http://yuzu-server:1"), ("yuzu-server".into(), 1));
    assert_eq!(
        endpoint("http://a.b_c.example.:65535/"),
        ("a.b_c.example.".into(), 65535)
    );
    assert_eq!(
        endpoint("http://[2001:DB8::1]:50055"),
        ("2001:db8::1".into(), 50055)
    );
}

#[test]
fn boot_11_accepts_standby_endpoints_in_order_and_none_twice() {
    let list = "[\"http://b:1\", \"http://[::1]:2\", \"http://a:1\"]";
    let text = SOUND.replace("[\"http://127.0.0.1:50055\"]", list);
    let upstream = loaded(&text).config.upstream;
    let shown: Vec<_> = upstream.endpoints.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["b:1", "[::1]:2", "a:1"]);
    assert_eq!(upstream.failback_after, Duration::ZERO);
    let twice = list.replace("//a:1", "//b:1");
    assert_eq!(terms(&text.replace(list, &twice)), ["bad_channel"]);
}

#[test]
fn boot_12_refuses_a_file_without_an_endpoint() {
    let none = SOUND.replace("endpoints = [\"http://127.0.0.1:50055\"]\n", "");
    assert_eq!(terms(&none), ["no_default_channel"]);
    assert_eq!(
        terms(&SOUND.replace("[\"http://127.0.0.1:50055\"]", "[]")),
        ["no_default_channel"]
    );
    let lab = |value: &str| format!("{none}[lab]\nallow_no_upstream = {value}\n");
    assert_eq!(loaded(&lab("true")).config.upstream.endpoints, []);
    assert_eq!(
        terms(&lab("\"true\"")),
        ["no_default_channel"],
        "only a literal true counts"
    );
}

#[test]
fn boot_15_refuses_http_and_https_together() {
    let text = SOUND.replace(
        "[\"http://127.0.0.1:50055\"]",
        "[\"http://a:1\", \"https://b:1\"]",
    );
    assert!(terms(&text).contains(&"mixed_upstream_endpoints"));
}

#[test]
fn boot_16_refuses_a_cluster_id_that_is_no_text() {
    assert_eq!(
        terms(&with("[node]\ncluster_id = 7\n")),
        ["invalid_cluster_id"]
    );
    assert_eq!(
        loaded(&with("[node]\ncluster_id = \"\"\n"))
            .config
            .node
            .cluster_id,
        ""
    );
    let long = "x".repeat(65);
    let loaded = loaded(&with(&format!("[node]\ncluster_id = \"{long}\"\n")));
    assert_eq!(loaded.config.node.cluster_id, long);
    assert_eq!(loaded.warnings.len(), 1, "the server keeps 64 bytes");
}

#[test]
fn refuses_a_connection_that_can_not_hold_one_message() {
    let limits = |memory: u64| {
        SOUND.replace(
            "name = \"agent\"",
            &format!("limits = {{ max_message_bytes = 16777216, max_connection_memory_bytes = {memory} }}"),
        )
    };
    assert_eq!(terms(&limits(16_777_215)), ["bad_limits"]);
    assert_eq!(lines(&limits(16_777_216)), (vec![], true));
    // A memory limit that does not fit falls back to 32 MiB, which is enough.
    assert!(lines(&limits(1)).1);
}

#[test]
fn warns_of_a_message_limit_below_the_largest_inventory_report() {
    let limit = |service: &str, bytes: u64| {
        let name = format!("name = \"{service}\"");
        lines(&SOUND.replace(
            &name,
            &format!("{name}\nlimits.max_message_bytes = {bytes}"),
        ))
        .0
        .len()
    };
    assert_eq!(limit("agent", 5_872_025), 1);
    assert_eq!(limit("agent", 5_872_026), 0);
    assert_eq!(limit("management", 65_536), 0);
}

#[test]
fn what_asks_for_nothing_is_no_problem() {
    let neutral = with(
        "[node]\nvisibility = \"public\"\nadvertise = []\npeer_advertise = \"\"\n\
         [upstream.tls]\nca_file = \"\"\ncert_file = \"\"\nkey_file = \"\"\nserver_name = \"\"\n\
         [management]\npeer_auth_mode = \"pin\"\npeer_identity = \"\"\npeer_pins = []\npeer_denied = []\n\
         [cluster]\nseed_dns_name = \"\"\nseed_nodes = []\n",
    )
    .replacen(
        "name = \"agent\"",
        "origin = { mode = \"transport\", sources = [], trusted_hops = 0 }\n\
         limits = { max_connections_per_source = 0, unregistered_timeout_ms = 0 }",
        1,
    );
    assert_eq!(lines(&neutral), (vec![], true));
}

#[test]
fn what_only_tunes_a_missing_feature_warns_once_per_table() {
    let text = with("[memory.reclaim]\nenabled = false\ninterval_ms = 1000\n");
    let (lines, starts) = lines(&text);
    assert!(starts);
    assert_eq!(
        lines,
        ["g.toml:14:11: memory.reclaim has no effect in this version (enabled, interval_ms)",]
    );
}

#[test]
fn a_broken_file_does_not_accuse_what_it_could_not_read() {
    let refused = refused(&SOUND.replace("services = [\"agent\"]", "services = agent"));
    assert_eq!(refused.problems.len(), 1, "{refused:#?}");
    assert_eq!(
        refused.problems[0].effect,
        Effect::Refuses(Refusal::NotToml)
    );
}

#[test]
fn boot_8_origin_8_an_origin_that_can_not_be_trusted_refuses_the_start() {
    let agent = |origin: &str| {
        let name = "name = \"agent\"";
        SOUND.replacen(name, &format!("{name}\norigin = {{ {origin} }}"), 1)
    };
    for (origin, line) in [
        (
            "mode = \"proxy_protocol\"",
            "g.toml:4:10: listener[0].origin.sources is empty: mode proxy_protocol believes nobody then; \
             name the proxies",
        ),
        (
            "mode = \"forwarded_for\", sources = []",
            "g.toml:4:46: listener[0].origin.sources is empty: mode forwarded_for believes nobody \
             then; name the proxies",
        ),
        (
            "mode = \"proxied\"",
            "g.toml:4:19: listener[0].origin.mode is a string of 7 bytes, not \"transport\", \
             \"proxy_protocol\" or \"forwarded_for\"; correct it",
        ),
        (
            "mode = \"forwarded_for\", sources = [\"10.0.0.1\", \"::ffff:0:0/96\"]",
            "g.toml:4:59: listener[0].origin.sources[1] is a string of 13 bytes, not an address like \
             \"10.0.0.5\" or a network like \"10.1.0.0/24\"; correct it",
        ),
        (
            "trusted_hops = 17",
            "g.toml:4:27: listener[0].origin.trusted_hops is 17, not an integer from 0 to 16; \
             correct it",
        ),
    ] {
        let text = agent(origin);
        assert_eq!(terms(&text), ["bad_origin"], "{origin}");
        assert_eq!(refused(&text).problems[0].to_string(), line);
    }
    let management = SOUND.replacen(
        "name = \"management\"",
        "name = \"management\"\norigin = { mode = \"proxy_protocol\", sources = [\"10.0.0.1\"] }",
        1,
    );
    assert_eq!(terms(&management), ["bad_origin"]);
}

#[test]
fn an_origin_key_that_its_mode_does_not_use_is_told() {
    let name = "name = \"agent\"";
    let origin = "origin = { sources = [\"10.0.0.1\"], trusted_hops = 1 }";
    let text = SOUND.replacen(name, &format!("{name}\n{origin}"), 1);
    let (lines, starts) = lines(&text);
    assert!(starts);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines
            .iter()
            .all(|line| line.contains("has no effect in mode transport"))
    );
}
