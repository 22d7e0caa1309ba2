//! The sample files, and the configuration printed as a file.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use super::super::document;
use super::super::keys;
use super::super::{
    Config, Listener, ListenerTls, Loaded, LogFormat, PeerPin, Scheme, SourceFile, UpstreamTls,
};
use super::{SOUND, loaded, loaded_with, production};

const DEVELOPMENT: &str = include_str!("../../../../config/gateway.toml");

fn defaults() -> Config {
    let mut config = Config::default();
    config.node.name = "yuzu_gw@host-1".into();
    config
}

#[test]
fn the_development_file_is_the_defaults_on_loopback() {
    let mut expected = defaults();
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    expected.listeners[0].address.set_ip(loopback);
    expected.observe.metrics_address.set_ip(loopback);
    expected.observe.health_address.set_ip(loopback);
    let loaded = loaded(DEVELOPMENT);
    assert_eq!(loaded.config, expected);
    assert_eq!(loaded.warnings, []);
}

/// The directory of the certificates in [`production`].
fn certificates() -> PathBuf {
    let line = production()
        .lines()
        .find(|line| line.starts_with("cert_file"))
        .expect("a path");
    let path = line.split('"').nth(1).expect("a string");
    Path::new(path).parent().expect("a directory").to_owned()
}

#[test]
fn the_production_file_is_the_defaults_but_for_the_server_tls_and_the_log_format() {
    let at = |name: &str| certificates().join(name);
    let mut expected = defaults();
    for listener in &mut expected.listeners {
        listener.address.set_ip(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        listener.tls = Some(ListenerTls {
            cert_file: at("default-gateway.pem"),
            key_file: at("default-gateway.key"),
            ca_file: at("default-ca.pem"),
            ..ListenerTls::of(&listener.services)
        });
    }
    expected.upstream.endpoints[0].host = "yuzu-server".into();
    expected.upstream.scheme = Scheme::Https;
    expected.upstream.tls = UpstreamTls {
        ca_file: at("default-ca.pem"),
        cert_file: at("default-gateway.pem"),
        key_file: at("default-gateway.key"),
        server_name: String::new(),
    };
    expected.management.peer_pins = vec![PeerPin::CertFile(at("default-server.pem"))];
    expected.observe.log_format = LogFormat::Json;
    let loaded = loaded(production());
    assert_eq!(loaded.config, expected);
    assert_eq!(loaded.warnings, []);
}

/// The production file with the keys of later versions, which stand behind "# ".
fn production_with_everything() -> String {
    let is_toml = |line: &str| {
        line.starts_with('[')
            || line.split_once(" = ").is_some_and(|(key, _)| {
                key.chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            })
    };
    let uncomment = |line: &'static str| match line.strip_prefix("# ") {
        Some(inside) if is_toml(inside) => inside,
        _ => line,
    };
    production()
        .lines()
        .map(uncomment)
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn the_production_file_shows_every_key() {
    let file = SourceFile {
        path: "g.toml".into(),
        text: production_with_everything(),
    };
    let (document, problems) = document::read(&file);
    assert_eq!(problems, [], "no key there is unknown");
    let shown: BTreeSet<String> = document
        .values
        .keys()
        .map(|path| path.replace("[0]", "").replace("[1]", ""))
        .collect();
    let known: BTreeSet<String> = keys::paths().map(str::to_owned).collect();
    assert_eq!(shown, known);
}

#[test]
fn the_production_file_names_every_variable() {
    for name in keys::variables().chain(["YUZU_GW_AGENT_PORT", "YUZU_GW_MGMT_PORT"]) {
        assert!(production().contains(name), "{name}");
    }
}

fn printed_again(loaded: &Loaded) -> Loaded {
    super::loaded(&loaded.to_toml())
}

#[test]
fn what_is_printed_loads_to_the_same() {
    let lab =
        "[upstream]\nendpoints = []\n[lab]\nallow_no_upstream = true\nallow_no_listeners = true\n";
    let odd = SOUND
        .replace(
            "name = \"agent\"",
            "name = \"a-1.b_c\"\naddress = \"[::1]:0\"\nlimits.max_connections = 5",
        )
        .replace("http://127.0.0.1:50055", "http://[2001:db8::1]:1")
        + "register_concurrency = 7\nbreaker = { reset_timeout_ms = 50000 }\n\
           [node]\nname = 'a \"quoted\" \\ ü name'\ncluster_id = \"\\u0001\\n\\u007f\"\n\
           [observe]\nlog_level = \"info,a::b=debug\"\nlog_format = \"json\"\n";
    for text in [SOUND, DEVELOPMENT, production(), lab, &odd] {
        let loaded = loaded(text);
        let again = printed_again(&loaded);
        assert_eq!(again.config, loaded.config, "{}", loaded.to_toml());
        assert_eq!(again.warnings, []);
    }
}

#[test]
fn what_is_printed_holds_variables_and_replacements() {
    let text = format!("{SOUND}\n[command]\nmailbox = 0\n");
    let loaded = loaded_with(
        &text,
        &[("YUZU_GW_AGENT_PORT", "7"), ("YUZU_GW_CLUSTER_ID", "west")],
    );
    assert_eq!(printed_again(&loaded).config, loaded.config);
}

#[test]
fn what_is_printed_names_where_each_value_came_from() {
    let text = format!("{SOUND}rpc_timeout_ms = 700\n\n[command]\nmailbox = 0\n");
    let variables = [
        ("YUZU_GW_AGENT_PORT", "7"),
        ("YUZU_GW_COMMAND_TIMEOUT_S", "9"),
    ];
    let toml = loaded_with(&text, &variables).to_toml();
    let origin = |line: &str| {
        let line = toml
            .lines()
            .find(|l| l.starts_with(line))
            .unwrap_or_else(|| panic!("{toml}"));
        line.split_once(" # ").expect("an origin").1.to_owned()
    };
    assert_eq!(origin("rpc_timeout_ms = 700 "), "g.toml:12");
    assert_eq!(origin("address = \"0.0.0.0:7\" "), "env YUZU_GW_AGENT_PORT");
    assert_eq!(
        origin("default_timeout_s = 9 "),
        "env YUZU_GW_COMMAND_TIMEOUT_S"
    );
    assert_eq!(origin("mailbox = 1000 "), "default");
    assert_eq!(origin("call_timeout_ms = 30000 "), "default");
    assert_eq!(
        origin("name = \"yuzu_gw@host-1\" "),
        "yuzu_gw@ and the host name"
    );
    assert_eq!(
        origin("pending_max = 180000 "),
        "three per admitted agent connection"
    );
}

#[test]
fn the_largest_derived_value_can_be_written_in_a_file() {
    let listener = |i: usize| {
        format!(
            "[[listener]]\nname = \"l{i}\"\nservices = [\"agent\"]\naddress = \"127.0.0.1:{}\"\n\
             limits.max_connections = 1000000\n",
            i + 1
        )
    };
    let listeners: String = (0..4).map(listener).collect();
    let loaded = loaded(&format!(
        "{listeners}[upstream]\nendpoints = [\"http://a:1\"]\n"
    ));
    assert_eq!(loaded.config.notify.pending_max, 10_000_000);
    assert_eq!(printed_again(&loaded).config, loaded.config);
}

#[test]
fn the_default_listeners_stand_in_no_other_s_way() {
    let [agent, management] = &Config::default().listeners[..] else {
        panic!("two")
    };
    assert_eq!(
        agent,
        &Listener::agent("0.0.0.0:50051".parse().expect("an address"))
    );
    assert_eq!(management.address.to_string(), "127.0.0.1:50063");
}
