//! `yuzu-gateway cluster members`, asked of running processes.

use std::net::TcpListener;
use std::time::Instant;

use super::running::{PATIENCE, Running};
use super::{File, SOUND, code, err, gateway, out};

const SECRET: (&str, &str) = ("YUZU_GW_COOKIE", "0123456789abcdef0123456789abcdef");

/// A port that was free a moment ago.
fn free_port() -> String {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    taken.local_addr().expect("an address").to_string()
}

/// A node with this name and health address; `more` are its tables.
fn node(name: &str, health: &str, more: &str) -> File {
    let text = format!(
        "{SOUND}[[listener]]\nname = \"node\"\nservices = [\"node\"]\naddress = \"127.0.0.1:0\"\n\
         [node]\nname = \"{name}\"\n\
         [observe]\nmetrics_address = \"127.0.0.1:0\"\nhealth_address = \"{health}\"\n\
         [shutdown]\nflush_budget_ms = 0\n{more}"
    );
    File::new(&format!("cluster-{name}"), &text)
}

#[test]
fn mesh_1_two_processes_with_one_secret_show_each_other_as_members() {
    let health = [free_port(), free_port()];
    let one = node("gw-one", &health[0], "");
    let mut first = Running::start_with(one.path(), &[SECRET]);
    let line = first.wait_for("listener=node");
    let address = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("address="));
    let seeds = format!(
        "[cluster]\nseed_nodes = [\"{}\"]\n",
        address.expect("an address")
    );
    let other = node("gw-other", &health[1], &seeds);
    let _second = Running::start_with(other.path(), &[SECRET]);
    let started = Instant::now();
    let members = |health: &str| loop {
        let asked = gateway(&["cluster", "members", "--health", health], &[]);
        let table = out(&asked);
        if table.lines().count() == 3 {
            assert_eq!(code(&asked), Some(0));
            return table;
        }
        assert!(started.elapsed() < PATIENCE, "{table}{}", err(&asked));
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    let table = members(&health[0]);
    let names: Vec<_> = table.lines().map(|line| line.split("  ").next()).collect();
    assert_eq!(
        names,
        [Some("NAME"), Some("gw-other"), Some("gw-one (this node)")]
    );
    // The address is in the configuration as well.
    let path = ["cluster", "members", "--config", other.path()];
    members(&health[1]);
    assert!(out(&gateway(&path, &[SECRET])).contains("gw-other (this node)"));
}

#[test]
fn a_node_that_is_not_clustered_or_not_there_is_told() {
    let health = free_port();
    let nobody = gateway(&["cluster", "members", "--health", &health], &[]);
    assert_eq!(code(&nobody), Some(3));
    assert!(err(&nobody).contains("refused"), "{}", err(&nobody));
    let text = format!(
        "{SOUND}[observe]\nmetrics_address = \"127.0.0.1:0\"\nhealth_address = \"{health}\"\n\
         [shutdown]\nflush_budget_ms = 0\n"
    );
    let file = File::new("cluster-none", &text);
    let mut alone = Running::start_with(file.path(), &[]);
    alone.wait_for("gateway started");
    let asked = gateway(&["cluster", "members", "--health", &health], &[]);
    assert_eq!(code(&asked), Some(1));
    assert!(err(&asked).contains("no listener for other gateways"));
}
