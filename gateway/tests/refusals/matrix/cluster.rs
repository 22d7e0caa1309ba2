//! What refuses a node with a listener for other gateways, or one that names some.

use super::{File, Row, SOUND_FILES, UPSTREAM, agent, row, tls, with};

const GOOD: &str = "0123456789abcdef0123456789abcdef";

fn with_secret(name: &'static str, secret: &str, text: String, line: &'static str) -> Row {
    Row {
        name,
        file: File::Text(text),
        variables: vec![("YUZU_GW_COOKIE", secret.into())],
        line,
    }
}

/// A listener for nodes with `keys` in lines 5 to 8 and more, and `more` tables.
fn clustered(keys: &str, more: &str) -> String {
    let node = "[[listener]]\nname = \"node\"\nservices = [\"node\"]\naddress = \"127.0.0.1:0\"\n";
    format!("{}{node}{keys}\n{UPSTREAM}{more}\n", agent(""))
}

/// `[cluster.tls]` with these files.
fn cluster_tls(files: [&str; 3]) -> String {
    let keys = ["cert_file", "key_file", "ca_file"].iter().zip(files);
    let keys = keys.map(|(key, file)| format!("{key} = \"{{dir}}/{file}\"\n"));
    format!("[cluster.tls]\n{}", keys.collect::<String>())
}

pub(super) fn rows() -> Vec<Row> {
    let parts = [values(), secrets(), listeners(), transport()];
    parts.into_iter().flatten().collect()
}

fn values() -> Vec<Row> {
    vec![
        row(
            "addresses that are no list",
            with("[node]\nadvertise = \"192.0.2.1\""),
            "bad_advertise: {file}:8:13: node.advertise is a string of 9 bytes, not a list of at most 64 addresses like \"gw-1.example:50051\"; correct it",
        ),
        row(
            "an address for peers that is none",
            with("[node]\npeer_advertise = 1"),
            "bad_advertise: {file}:8:18: node.peer_advertise is 1, not an address like \"gw-1.example\", \"192.0.2.1:9100\" or \"[2001:db8::1]:9100\"; correct it",
        ),
        row(
            "a seed without a host",
            with("[cluster]\nseed_nodes = [\":9100\"]"),
            "bad_seeds: {file}:8:15: cluster.seed_nodes[0] is a string of 5 bytes, not an address like \"gw-1.example\", \"192.0.2.1:9100\" or \"[2001:db8::1]:9100\"; correct it",
        ),
        row(
            "a name of seeds that is a number",
            with("[cluster]\nseed_dns_name = 1"),
            "bad_seeds: {file}:8:17: cluster.seed_dns_name is 1, not an address like \"gw-1.example\", \"192.0.2.1:9100\" or \"[2001:db8::1]:9100\"; correct it",
        ),
        row(
            "a CA of nodes that is a number",
            with("[cluster]\ntls.ca_file = 1"),
            "bad_cluster_tls: {file}:8:15: cluster.tls.ca_file is 1, not a path of at most 4096 bytes; correct it",
        ),
        row(
            "a certificate for links that is a number",
            with("[cluster]\ntls.cert_file = 1"),
            "bad_cluster_tls: {file}:8:17: cluster.tls.cert_file is 1, not a path of at most 4096 bytes; correct it",
        ),
        row(
            "a key for links that is a number",
            with("[cluster]\ntls.key_file = 1"),
            "bad_cluster_tls: {file}:8:16: cluster.tls.key_file is 1, not a path of at most 4096 bytes; correct it",
        ),
        row(
            "a name of nodes that is none",
            with("[cluster]\ntls.server_name = \"a b\""),
            "bad_cluster_tls: {file}:8:19: cluster.tls.server_name is a string of 3 bytes, not a host name or an IP address; correct it",
        ),
    ]
}

fn secrets() -> Vec<Row> {
    vec![
        row(
            "BOOT-18 no secret",
            clustered("", ""),
            "insecure_distribution_cookie: {file}: YUZU_GW_COOKIE is empty or not set; set it to the same random text on every node: openssl rand -hex 32",
        ),
        with_secret(
            "BOOT-18 a secret of blanks",
            "                                        ",
            clustered("", ""),
            "insecure_distribution_cookie: {file}: YUZU_GW_COOKIE is empty or not set; set it to the same random text on every node: openssl rand -hex 32",
        ),
        with_secret(
            "BOOT-18 a secret of 31 characters",
            &GOOD[1..],
            clustered("", ""),
            "insecure_distribution_cookie: {file}: YUZU_GW_COOKIE has less than 32 characters; set it to the same random text on every node: openssl rand -hex 32",
        ),
        with_secret(
            "BOOT-18 a secret that nobody has replaced",
            "${YUZU_GW_COOKIE:-0123456789abcdef0123}",
            clustered("", ""),
            "insecure_distribution_cookie: {file}: YUZU_GW_COOKIE is a placeholder that nobody has replaced; set it to the same random text on every node: openssl rand -hex 32",
        ),
    ]
}

fn listeners() -> Vec<Row> {
    vec![
        row(
            "MESH-4 seeds by name without a listener",
            with("[cluster]\nseed_dns_name = \"gw\""),
            "no_node_listener: {file}:8:17: cluster.seed_dns_name names other gateways, and no listener serves nodes; add a [[listener]] with services = [\"node\"], or delete it",
        ),
        row(
            "MESH-4 seeds by address without a listener",
            with("[cluster]\nseed_nodes = [\"192.0.2.1\"]"),
            "no_node_listener: {file}:8:14: cluster.seed_nodes names other gateways, and no listener serves nodes; add a [[listener]] with services = [\"node\"], or delete it",
        ),
        with_secret(
            "nodes and agents through one door",
            GOOD,
            format!("[[listener]]\nservices = [\"agent\", \"node\"]\n{UPSTREAM}"),
            "bad_routes: {file}:2:12: listener[0].services serves nodes and something else; give nodes one listener of their own",
        ),
        with_secret(
            "two doors for nodes",
            GOOD,
            format!(
                "{}[[listener]]\nname = \"more\"\nservices = [\"node\"]\naddress = \"127.0.0.1:0\"\n",
                clustered("", "")
            ),
            "bad_routes: {file}:15:12: listener[2].services is a second listener that serves nodes; give nodes one listener of their own",
        ),
        with_secret(
            "ORIGIN-8 nodes behind a proxy",
            GOOD,
            clustered(
                "origin = { mode = \"proxy_protocol\", sources = [\"192.0.2.1\"] }",
                "",
            ),
            "bad_origin: {file}:9:19: listener[1].origin.mode is proxy_protocol on a listener that serves nodes; use transport: a node is who connects",
        ),
    ]
}

fn transport() -> Vec<Row> {
    let served = tls(SOUND_FILES, &[]);
    let unasked = tls(SOUND_FILES, &["client_auth = \"request\""]);
    vec![
        with_secret(
            "MESH-2 half of the files for links",
            GOOD,
            clustered("", "[cluster.tls]\nca_file = \"{dir}/ca.pem\""),
            "bad_cluster_tls: {file}:12:1: cluster.tls lacks ca_file, cert_file or key_file: it needs all three; name the three files, or delete the table",
        ),
        with_secret(
            "MESH-2 links in plaintext to a listener with TLS",
            GOOD,
            clustered(&served, ""),
            "bad_cluster_tls: {file}: cluster.tls is missing, and the node listener speaks TLS; name ca_file, cert_file and key_file for the way to other gateways",
        ),
        with_secret(
            "MESH-2 links with TLS to a listener in plaintext",
            GOOD,
            clustered("", &cluster_tls(SOUND_FILES)),
            "bad_cluster_tls: {file}:5:1: listener[1].tls is missing, and [cluster.tls] dials other gateways with TLS; add [listener.tls] with client_auth = \"require\"",
        ),
        with_secret(
            "MESH-2 nodes without a certificate",
            GOOD,
            clustered(&unasked, &cluster_tls(SOUND_FILES)),
            "bad_cluster_tls: {file}:12:19: listener[1].tls.client_auth lets nodes in without a certificate; set client_auth = \"require\"",
        ),
        with_secret(
            "MESH-2 a certificate for links that is not there",
            GOOD,
            clustered(&served, &cluster_tls(["none.pem", "own.key", "ca.pem"])),
            "bad_cluster_tls: {file}:15:13: cluster.tls.cert_file names a file that does not exist (yet); no peer could be reached: correct the path or the file",
        ),
    ]
}
