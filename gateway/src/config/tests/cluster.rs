//! A node among others: what its keys and variables give.

use super::super::{ClusterTls, Endpoint, Secret, Service, Visibility};
use super::{lines_with, loaded, loaded_with, with};

const SECRET: (&str, &str) = ("YUZU_GW_COOKIE", "0123456789abcdef0123456789abcdef");

fn node(more: &str) -> String {
    with(&format!(
        "[[listener]]\nname = \"node\"\nservices = [\"node\"]\naddress = \"127.0.0.1:9100\"\n{more}"
    ))
}

fn at(host: &str, port: u16) -> Endpoint {
    Endpoint {
        host: host.into(),
        port,
    }
}

#[test]
fn mesh_4_seeds_have_hosts_and_ports_and_the_list_replaces_the_name() {
    let text = node(
        "[cluster]\nseed_dns_name = \"gateways.example\"\n\
         seed_nodes = [\"gw-1\", \"192.0.2.1:9101\", \"2001:db8::1\", \"[2001:db8::2]:9102\"]\n",
    );
    let cluster = loaded_with(&text, &[SECRET]).config.cluster;
    let seeds = [
        at("gw-1", 9100),
        at("192.0.2.1", 9101),
        at("2001:db8::1", 9100),
        at("2001:db8::2", 9102),
    ];
    assert_eq!(cluster.seeds(), seeds);
    assert_eq!(cluster.seed_dns_name, Some(at("gateways.example", 9100)));
    let text = node("[cluster]\nseed_dns_name = \"gateways.example:9103\"\n");
    let cluster = loaded_with(&text, &[SECRET]).config.cluster;
    assert_eq!(cluster.seeds(), [at("gateways.example", 9103)]);
    let variables = [SECRET, ("YUZU_GW_SEED_NODES", "192.0.2.7, 192.0.2.8:1")];
    let cluster = loaded_with(&node(""), &variables).config.cluster;
    assert_eq!(cluster.seeds(), [at("192.0.2.7", 9100), at("192.0.2.8", 1)]);
}

#[test]
fn mesh_1_a_node_listener_has_defaults_of_its_own() {
    let config = loaded_with(&node(""), &[SECRET]).config;
    let (index, listener) = config.node_listener().expect("a listener");
    assert_eq!(index, 2);
    assert_eq!(listener.services, [Service::Node]);
    assert_eq!(listener.limits.max_connections, 1_024);
    assert_eq!(listener.limits.unregistered_timeout.as_secs(), 10);
    assert_eq!(config.cluster.tls, ClusterTls::default());
    assert_eq!(config.cluster.dead_after.as_secs(), 5);
}

#[test]
fn boot_18_the_secret_is_kept_where_nodes_are_served_and_never_shown() {
    let loaded_node = loaded_with(&node(""), &[SECRET]);
    assert_eq!(
        loaded_node.config.cluster.secret,
        Some(Secret::new(SECRET.1))
    );
    assert!(!format!("{:?}", loaded_node.config).contains(SECRET.1));
    assert!(!loaded_node.to_toml().contains(SECRET.1));
    assert_eq!(loaded(&with("")).config.cluster.secret, None);
}

#[test]
fn boot_18_a_weak_secret_passes_with_a_warning_where_it_is_allowed() {
    let allow = ("YUZU_GW_ALLOW_DEFAULT_COOKIE", "1");
    for secret in ["", "short", "<generate-with-openssl-rand-hex-32>"] {
        let variables = [("YUZU_GW_COOKIE", secret), allow];
        let (lines, starts) = lines_with(&node(""), &variables);
        assert!(starts, "{lines:?}");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("YUZU_GW_ALLOW_DEFAULT_COOKIE lets it start"));
    }
    let refused = [
        ("YUZU_GW_COOKIE", "short"),
        ("YUZU_GW_ALLOW_DEFAULT_COOKIE", "0"),
    ];
    assert!(!lines_with(&node(""), &refused).1);
}

#[test]
fn mesh_2_nodes_served_in_plaintext_beyond_loopback_are_told() {
    let exposed = node("").replace("127.0.0.1:9100", "0.0.0.0:9100");
    let (lines, starts) = lines_with(&exposed, &[SECRET]);
    assert!(starts);
    assert_eq!(
        lines,
        [
            "g.toml:16:11: listener[2].address serves nodes beyond loopback in plaintext; \
             add [listener.tls] and [cluster.tls]"
        ]
    );
}

#[test]
fn what_is_printed_of_a_node_loads_to_the_same() {
    let text = node(
        "[node]\nadvertise = [\"gw-1.example:50051\"]\npeer_advertise = \"10.0.0.1\"\n\
         [cluster]\nseed_nodes = [\"[2001:db8::2]:9102\"]\ndead_after_ms = 2000\n",
    );
    let first = loaded_with(&text, &[SECRET]);
    assert_eq!(first.config.node.peer_advertise, Some(at("10.0.0.1", 0)));
    let again = loaded_with(&first.to_toml(), &[SECRET]);
    assert_eq!(again.config, first.config, "{}", first.to_toml());
}

#[test]
fn vis_1_a_node_is_public_unless_its_file_or_the_variable_says_otherwise() {
    let seeds = "[cluster]\nseed_nodes = [\"gw-1\"]\n";
    let private = ("YUZU_GW_VISIBILITY", "private");
    for (table, variables, visibility) in [
        ("", vec![SECRET], Visibility::Public),
        ("public", vec![SECRET], Visibility::Public),
        ("private", vec![SECRET], Visibility::Private),
        ("", vec![SECRET, private], Visibility::Private),
        ("public", vec![SECRET, private], Visibility::Private),
    ] {
        let table = match table {
            "" => String::new(),
            word => format!("[node]\nvisibility = \"{word}\"\n"),
        };
        let loaded = loaded_with(&node(&format!("{table}{seeds}")), &variables);
        assert_eq!(loaded.config.node.visibility, visibility, "{table}");
        assert_eq!(loaded.warnings, []);
        let printed = loaded_with(&loaded.to_toml(), &[SECRET]);
        assert_eq!(printed.config, loaded.config);
    }
}

#[test]
fn vis_2_a_private_node_has_seeds_of_either_kind() {
    let private = |seeds: &str| {
        let seeds = format!("[node]\nvisibility = \"private\"\n[cluster]\n{seeds}\n");
        lines_with(&node(&seeds), &[SECRET])
    };
    assert_eq!(private("seed_nodes = [\"gw-1\"]"), (vec![], true));
    assert_eq!(private("seed_dns_name = \"gateways\""), (vec![], true));
    for none in ["", "seed_nodes = []", "seed_dns_name = \"\""] {
        let (lines, starts) = private(none);
        assert!(!starts, "{none}");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("no seeds are named"), "{lines:?}");
    }
    // A public one may be the first of its cluster.
    assert_eq!(lines_with(&node(""), &[SECRET]), (vec![], true));
}

#[test]
fn vis_2_addresses_of_a_private_node_are_told_to_go_to_nobody() {
    let text = node(
        "[node]\nvisibility = \"private\"\nadvertise = [\"gw-1.example:50051\"]\n\
         [cluster]\nseed_nodes = [\"gw-2\"]\n",
    );
    let (lines, starts) = lines_with(&text, &[SECRET]);
    assert!(starts);
    assert_eq!(
        lines,
        ["g.toml:19:13: node.advertise is given to nobody: the node is private; delete it"]
    );
}
