//! What a reload changes, key by key.

use std::collections::BTreeMap;

use super::super::keys::{KEYS, LISTENER_KEYS};
use super::super::slot::{Key, Reload};
use super::super::{Changes, reload};
use super::every_key::{in_force, outcome, shown, with as with_key};
use super::{Install, SOUND, loaded, loaded_with, with};

fn changes(before: &str, after: &str) -> Changes {
    reload(&loaded(before).config, &loaded(after).config)
}

/// Path and answer of every key.
fn answers() -> BTreeMap<&'static str, Reload> {
    fn answer<T>(key: &Key<T>) -> (&'static str, Reload) {
        (key.path, key.reload)
    }
    let listener = LISTENER_KEYS.iter().map(answer);
    KEYS.iter().map(answer).chain(listener).collect()
}

/// Another value than the default for keys whose shape does not tell one.
fn other(path: &str, present: &str) -> String {
    let text = match path {
        "listener.name" => "\"other\"",
        "listener.services" => "[\"agent\", \"management\"]\naddress = \"127.0.0.1:50051\"",
        "listener.address" | "observe.metrics_address" | "observe.health_address" => {
            "\"127.0.0.1:4711\""
        }
        "listener.origin.mode" => "\"proxy_protocol\"\norigin.sources = [\"192.0.2.1\"]",
        "listener.origin.sources" => "[\"192.0.2.1\"]",
        "listener.origin.trusted_hops" => "1",
        "upstream.endpoints" => "[\"http://127.0.0.1:4711\"]",
        "management.peer_identity" => {
            "\"yuzu://0000000000000000000000000000000000000000000000000000000000000000/server\""
        }
        "management.peer_pins" => "[{ cert_file = \"pin.pem\" }]",
        "management.peer_denied" => "[\"07\"]",
        "management.peer_auth_mode" => "\"identity\"",
        "memory.shedding.high_water_fraction" => "0.9",
        "memory.shedding.low_water_fraction" => "0.1",
        "memory.shedding.high_water_bytes" | "memory.shedding.low_water_bytes" => "1000000",
        "shift.cpu_high" => "0.5",
        "shift.imbalance" => "2.5",
        "observe.log_level" => "\"debug\"",
        "observe.log_format" => "\"json\"",
        "command.broadcast" => "\"mesh\"",
        "node.name" | "node.cluster_id" | "node.peer_advertise" => "\"other\"",
        "node.advertise" => "[\"gw-1.example:50051\"]",
        _ => return another(present),
    };
    text.to_owned()
}

fn another(present: &str) -> String {
    match present.parse::<u64>() {
        // Two thirds fit every range, and keep a base below its maximum.
        Ok(0) => "2000".into(),
        Ok(1) => "2".into(),
        Ok(number) => (number - number / 3).to_string(),
        Err(_) => (present != "true").to_string(),
    }
}

#[test]
fn every_key_has_an_answer_and_a_reload_keeps_to_it() {
    let before = loaded(SOUND);
    for (path, answer) in answers() {
        // Their files have a test of their own; seeds need a listener, and a private node seeds.
        let among_others = path.starts_with("cluster.seed_") || path == "node.visibility";
        if path.contains(".tls.") || path == "listener.name" || among_others {
            assert!(
                answer == Reload::Restart || path == "listener.name",
                "{path}"
            );
            continue;
        }
        let present = in_force(&before, path);
        let (after, problems) = outcome(&with_key(path, &other(path, &present)));
        let after = after.unwrap_or_else(|| panic!("{path}: {problems:?}"));
        let changes = reload(&before.config, &after.config);
        let wanted = in_force(&after, path);
        assert_ne!(wanted, present, "{path}: the test changes nothing");
        let mut merged = before.clone();
        merged.config = changes.config;
        let (told, silent, value) = match answer {
            Reload::Live => (&changes.live, &changes.restart, &wanted),
            Reload::Restart => (&changes.restart, &changes.live, &present),
        };
        assert!(told.contains(&shown(path)), "{path}: {told:?}");
        assert!(!silent.contains(&shown(path)), "{path}: {silent:?}");
        assert_eq!(in_force(&merged, path), *value, "{path}");
    }
}

#[test]
fn every_key_has_the_answer_that_the_contract_tells() {
    let text = include_str!("../../../../docs/contract/configuration.md");
    let mut told = BTreeMap::new();
    let (mut table, mut column) = ("", None);
    for line in text.lines() {
        if let Some(header) = line.strip_prefix('#') {
            table = header.trim_matches(['#', ' ', '`', '[', ']']);
            // Tables that share a heading write their names in the rows.
            let shared = table.split_once('.').filter(|_| table.contains(','));
            table = shared.map_or(table, |(shared, _)| shared);
        }
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        if cells.get(1) == Some(&"Key") {
            column = cells.iter().position(|cell| *cell == "Reload");
        } else if !line.starts_with('|') {
            column = None;
        } else if let Some(column) = column {
            // Every second piece between backticks is a name.
            let names: Vec<_> = cells[1].split('`').skip(1).step_by(2).collect();
            let parent = names.iter().find_map(|name| name.rsplit_once('.'));
            for name in &names {
                let path = match parent {
                    Some((parent, _)) if !name.contains('.') => format!("{table}.{parent}.{name}"),
                    _ => format!("{table}.{name}"),
                };
                told.insert(path, cells[column].to_owned());
            }
        }
    }
    for (path, answer) in answers() {
        let word = match answer {
            Reload::Live => "live",
            Reload::Restart => "restart",
        };
        assert_eq!(told.get(path).map(String::as_str), Some(word), "{path}");
    }
}

#[test]
fn the_same_file_changes_nothing() {
    let text = with("[management]\npeer_denied = [\"07\"]\n");
    assert!(changes(&text, &text).is_empty());
}

#[test]
fn vis_1_seeds_and_visibility_wait_for_a_restart() {
    let secret = [("YUZU_GW_COOKIE", "0123456789abcdef0123456789abcdef")];
    let node =
        with("[[listener]]\nname = \"node\"\nservices = [\"node\"]\naddress = \"127.0.0.1:1\"\n");
    let before = loaded_with(&node, &secret);
    let seeds = "[cluster]\nseed_nodes = [\"192.0.2.1\"]\nseed_dns_name = \"gw:9101\"\n\
                 [node]\nvisibility = \"private\"\n";
    let after = loaded_with(&format!("{node}{seeds}"), &secret);
    let changes = reload(&before.config, &after.config);
    assert_eq!(
        changes.restart,
        [
            "node.visibility",
            "cluster.seed_dns_name",
            "cluster.seed_nodes"
        ]
    );
    assert_eq!(changes.config, before.config);
}

#[test]
fn tls_that_comes_goes_or_moves_waits_for_a_restart() {
    let install = Install::new();
    let tls = format!("services = [\"agent\"]\n[listener.tls]\n{}", install.tls());
    let secured = SOUND.replacen("services = [\"agent\"]\n", &tls, 1);
    for (before, after) in [(SOUND, &*secured), (&*secured, SOUND)] {
        let changes = changes(before, after);
        assert_eq!(changes.live, [""; 0]);
        let paths = LISTENER_KEYS
            .iter()
            .filter(|key| key.path.contains(".tls."));
        let paths: Vec<_> = paths.map(|key| shown(key.path)).collect();
        assert_eq!(changes.restart, paths);
        assert_eq!(changes.config, loaded(before).config);
    }
    let strict = secured.replacen(
        "[listener.tls]\n",
        "[listener.tls]\nmin_version = \"1.3\"\n",
        1,
    );
    assert_eq!(
        changes(&secured, &strict).restart,
        ["listener[0].tls.min_version"]
    );
}

#[test]
fn listeners_are_told_apart_by_name() {
    let agent = "[[listener]]\nname = \"agent\"\nservices = [\"agent\"]\n";
    let third =
        "[[listener]]\nname = \"third\"\nservices = [\"agent\"]\naddress = \"127.0.0.1:3\"\n";
    let reordered = format!(
        "{}{agent}limits.max_connections = 7\n",
        SOUND.replacen(agent, third, 1)
    );
    let changes = changes(
        SOUND,
        &reordered.replace("[upstream]", "[upstream]\nrpc_timeout_ms = 700"),
    );
    // The table of the upstream stands before the last listener, which is the third of the file.
    assert_eq!(changes.restart, ["listener[0]"]);
    assert_eq!(
        changes.live,
        [
            "upstream.rpc_timeout_ms",
            "notify.pending_max",
            "listener[2].limits.max_connections"
        ]
    );
    let names: Vec<_> = changes.config.listeners.iter().map(|l| &*l.name).collect();
    assert_eq!(names, ["agent", "management"]);
    assert_eq!(changes.config.listeners[0].limits.max_connections, 7);
    let gone = SOUND.replacen(agent, third, 1);
    let changes = super::super::reload(&loaded(SOUND).config, &loaded(&gone).config);
    assert_eq!(changes.restart, ["listener[0]", "listener \"agent\""]);
}

#[test]
fn origin_8_an_origin_waits_with_the_services_that_it_depends_on() {
    let both = SOUND.replacen(
        "services = [\"agent\"]\n",
        "services = [\"agent\", \"management\"]\naddress = \"127.0.0.1:50051\"\n",
        1,
    );
    let proxied = SOUND.replacen(
        "services = [\"agent\"]\n",
        "services = [\"agent\"]\naddress = \"127.0.0.1:50051\"\n\
         origin = { mode = \"proxy_protocol\", sources = [\"192.0.2.1\"] }\n",
        1,
    );
    let changes = changes(&both, &proxied);
    assert_eq!(
        changes.restart,
        [
            "listener[0].services",
            "listener[0].origin.mode",
            "listener[0].origin.sources"
        ]
    );
    assert_eq!(changes.config, loaded(&both).config);
}
