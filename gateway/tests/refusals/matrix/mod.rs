//! Every refusal of a configuration: the least file that has it, and the line that says so.
//!
//! Walked twice: by the binary, as an operator meets it, and beside the tables of keys and of
//! refusals, where one that lacks its row is noticed.

mod cluster;
mod edge;

use std::fs;
use std::path::{Path, PathBuf};

/// One way to be refused.
pub(crate) struct Row {
    /// Rule, and what is wrong.
    pub(crate) name: &'static str,
    file: File,
    /// Of the environment.
    pub(crate) variables: Vec<(&'static str, Vec<u8>)>,
    line: &'static str,
}

enum File {
    Text(String),
    Bytes(Vec<u8>),
    Missing,
}

/// A row whose files are there.
pub(crate) struct Ready {
    /// The configuration file.
    pub(crate) path: PathBuf,
    /// Defect term, place, key, shape and cure.
    pub(crate) line: String,
}

impl Row {
    /// Writes its files into `directory`, where those of [`certificates`] are.
    pub(crate) fn prepare(&self, directory: &Path) -> Ready {
        let (path, folder) = (directory.join("g.toml"), directory.to_str().unwrap());
        match &self.file {
            File::Text(text) => fs::write(&path, text.replace("{dir}", folder)).unwrap(),
            File::Bytes(bytes) => fs::write(&path, bytes).unwrap(),
            File::Missing => drop(fs::remove_file(&path)),
        }
        let line = self.line.replace("{file}", path.to_str().unwrap());
        let line = line.replace("{dir}", folder);
        Ready { path, line }
    }
}

/// A gateway's certificate and key, two CAs and a bundle of both, and files that are of no use.
pub(crate) fn certificates(directory: &Path) {
    let issue = |name: &str| {
        let issued = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        (issued.cert.pem(), issued.signing_key.serialize_pem())
    };
    let ((own, key), (one, _), (other, other_key)) = (issue("gateway"), issue("a"), issue("b"));
    fs::create_dir_all(directory.join("folder")).unwrap();
    for (name, text) in [
        ("own.pem", &own),
        ("own.key", &key),
        ("other.key", &other_key),
        ("ca.pem", &one),
        ("ca-2.pem", &other),
        ("bundle.pem", &format!("{one}{other}")),
        ("empty.pem", &String::new()),
        ("prose.pem", &"no certificate".to_owned()),
    ] {
        fs::write(directory.join(name), text).unwrap();
    }
}

fn row(name: &'static str, text: impl Into<String>, line: &'static str) -> Row {
    Row {
        name,
        file: File::Text(text.into()),
        variables: Vec::new(),
        line,
    }
}

/// An agent listener with `more` keys, in lines 1 to 3 and from 4 on.
fn agent(more: &str) -> String {
    format!("[[listener]]\nservices = [\"agent\"]\naddress = \"127.0.0.1:0\"\n{more}\n")
}

/// A management listener that others can reach, with `more` keys: 4 lines.
fn management(more: &str) -> String {
    format!("[[listener]]\nservices = [\"management\"]\naddress = \"0.0.0.0:50063\"\n{more}\n")
}

const UPSTREAM: &str = "[upstream]\nendpoints = [\"http://127.0.0.1:1\"]\n";
const SECURE_UPSTREAM: &str = "[upstream]\nendpoints = [\"https://127.0.0.1:1\"]\n";

/// A node without management, and `more` keys of its agent listener in line 4.
fn with_agent(more: &str) -> String {
    format!("{}{UPSTREAM}", agent(more))
}

/// The same with `more` tables from line 7 on.
fn with(more: &str) -> String {
    format!("{}{more}\n", with_agent(""))
}

/// A node with management in lines 5 to 8, and `more` tables from line 11 on.
fn with_management(keys: &str, more: &str) -> String {
    format!("{}{}{UPSTREAM}{more}\n", agent(""), management(keys))
}

/// Files of a listener, and `more` keys of its TLS: a line each.
fn tls(files: [&str; 3], more: &[&str]) -> String {
    let names = ["cert_file", "key_file", "ca_file"];
    let keys = names.iter().zip(files);
    let keys = keys.map(|(key, file)| format!("tls.{key} = \"{{dir}}/{file}\""));
    let more = more.iter().map(|key| format!("tls.{key}"));
    keys.chain(more).collect::<Vec<_>>().join("\n")
}

const SOUND_FILES: [&str; 3] = ["own.pem", "own.key", "ca.pem"];

/// A node whose server is asked for its certificate; keys of `[upstream.tls]` from line 7 on.
fn secure_upstream(keys: &[&str]) -> String {
    let keys: String = keys.iter().map(|key| format!("tls.{key}\n")).collect();
    format!("{}{SECURE_UPSTREAM}{keys}", agent(""))
}

/// All of them.
pub(crate) fn rows() -> Vec<Row> {
    let parts = [
        files(),
        shapes(),
        edge::listeners(),
        edge::listener_tls(),
        edge::origins(),
        edge::management_listeners(),
        upstream(),
        others(),
        cluster::rows(),
    ];
    parts.into_iter().flatten().collect()
}

fn files() -> Vec<Row> {
    let mut missing = row(
        "a file that is not there",
        "",
        "unreadable_file: {file} can't be read: No such file or directory (os error 2); name a readable file",
    );
    missing.file = File::Missing;
    let mut large = row(
        "a file of more than 1 MiB",
        "",
        "unreadable_file: {file} has more than 1048576 bytes; name a readable file",
    );
    large.file = File::Bytes(vec![b'\n'; (1 << 20) + 1]);
    let mut latin = row(
        "a file that is not UTF-8",
        "",
        "bad_syntax: {file}:1:6: the file is not UTF-8 here; save it as UTF-8",
    );
    latin.file = File::Bytes(b"# caf\xe9\n".to_vec());
    vec![
        missing,
        large,
        latin,
        row(
            "a file that is not TOML",
            with("node = ["),
            "bad_syntax: {file}:7:9: the file is not TOML here: unclosed array, expected `]`; correct the line",
        ),
    ]
}

fn shapes() -> Vec<Row> {
    vec![
        row(
            "BOOT-2 a legacy block",
            with("[grpcbox]\nservers = []"),
            "unknown_keys: {file}:7:2: grpcbox is not a key; delete it",
        ),
        row(
            "BOOT-3 BOOT-5 a key that listeners do not have",
            with_agent("auth_fun = \"f\""),
            "unknown_keys: {file}:4:1: listener[0].auth_fun is not a key; delete it",
        ),
        row(
            "BOOT-3 a misspelt key",
            with("[command]\nmailbx = 1"),
            "unknown_keys: {file}:8:1: command.mailbx is not a key; did you mean command.mailbox?",
        ),
        row(
            "a table that is a number",
            format!("command = 1\n{}", with_agent("")),
            "bad_table: {file}:1:11: command is 1, not a table; write [command]",
        ),
        row(
            "listeners that are no list",
            format!("listener = 1\n{UPSTREAM}"),
            "bad_table: {file}:1:12: listener is 1, not a list of tables; write [[listener]]",
        ),
        row(
            "VIS-2 a private node without seeds",
            with("[node]\nvisibility = \"private\""),
            "private_without_seeds: {file}:8:14: node.visibility is private, and no seeds are named: no public node would find it; name public nodes in cluster.seed_nodes or cluster.seed_dns_name",
        ),
        row(
            "a visibility that there is not",
            with("[node]\nvisibility = \"secret\""),
            "bad_visibility: {file}:8:14: node.visibility is a string of 6 bytes, not \"public\" or \"private\"; correct it",
        ),
    ]
}

fn upstream() -> Vec<Row> {
    let endpoints = |list: &str| format!("{}[upstream]\nendpoints = {list}\n", agent(""));
    vec![
        row(
            "BOOT-12 no endpoint",
            agent(""),
            "no_default_channel: {file}: upstream.endpoints names no server; add endpoints = [\"http://host:port\"]",
        ),
        row(
            "BOOT-11 endpoints that are no list",
            endpoints("5"),
            "bad_channel: {file}:6:13: upstream.endpoints is 5, not a list of \"http://host:port\" or \"https://host:port\"; correct it",
        ),
        row(
            "BOOT-11 an endpoint without a port",
            endpoints("[\"http://a\"]"),
            "bad_endpoint: {file}:6:14: upstream.endpoints[0] is a string of 8 bytes, not \"http://host:port\" or \"https://host:port\"; correct it",
        ),
        row(
            "BOOT-11 an endpoint without a host",
            endpoints("[\"http://:1\"]"),
            "bad_host: {file}:6:14: upstream.endpoints[0] has a bad host: it is a string of 9 bytes; use a host name, an IPv4 or an [IPv6] address",
        ),
        row(
            "BOOT-15 UPCH-7 http beside https",
            endpoints("[\"http://a:1\", \"https://b:1\"]"),
            "mixed_upstream_endpoints: {file}:6:13: upstream.endpoints mixes http and https; use one scheme for all of them",
        ),
        row(
            "BOOT-13 https without a CA",
            endpoints("[\"https://a:1\"]"),
            "unverified_upstream_tls: {file}:5:1: upstream.tls.ca_file is missing: https endpoints are verified by a CA of their own; name the server's CA",
        ),
        row(
            "BOOT-11 a CA file that is no path",
            secure_upstream(&["ca_file = 1"]),
            "bad_client_config: {file}:7:15: upstream.tls.ca_file is 1, not a path of at most 4096 bytes; correct it",
        ),
        row(
            "BOOT-11 a certificate file that is no path",
            secure_upstream(&["ca_file = \"{dir}/ca.pem\"", "cert_file = 1"]),
            "bad_client_config: {file}:8:17: upstream.tls.cert_file is 1, not a path of at most 4096 bytes; correct it",
        ),
        row(
            "BOOT-11 a key file that is no path",
            secure_upstream(&["ca_file = \"{dir}/ca.pem\"", "key_file = 1"]),
            "bad_client_config: {file}:8:16: upstream.tls.key_file is 1, not a path of at most 4096 bytes; correct it",
        ),
        row(
            "BOOT-11 a server name that is none",
            secure_upstream(&["ca_file = \"{dir}/ca.pem\"", "server_name = \"a b\""]),
            "bad_client_config: {file}:8:19: upstream.tls.server_name is a string of 3 bytes, not a host name or an IP address; correct it",
        ),
        row(
            "BOOT-11 a certificate without its key",
            secure_upstream(&[
                "ca_file = \"{dir}/ca.pem\"",
                "cert_file = \"{dir}/own.pem\"",
            ]),
            "bad_client_config: {file}:8:17: upstream.tls.cert_file and key_file go together: one of them is missing; name both, or neither",
        ),
        row(
            "BOOT-14 a CA file that is a directory",
            secure_upstream(&["ca_file = \"{dir}/folder\""]),
            "unusable_upstream_tls_file: {file}:7:15: upstream.tls.ca_file names a file that is a directory, not a file; name a file: a container runtime makes a directory where a mounted file is missing",
        ),
        row(
            "BOOT-14 a certificate that is a directory",
            secure_upstream(&[
                "ca_file = \"{dir}/ca.pem\"",
                "cert_file = \"{dir}/folder\"",
                "key_file = \"{dir}/own.key\"",
            ]),
            "unusable_upstream_tls_file: {file}:8:17: upstream.tls.cert_file names a file that is a directory, not a file; name a file: a container runtime makes a directory where a mounted file is missing",
        ),
        row(
            "BOOT-14 a key that is a directory",
            secure_upstream(&[
                "ca_file = \"{dir}/ca.pem\"",
                "cert_file = \"{dir}/own.pem\"",
                "key_file = \"{dir}/folder\"",
            ]),
            "unusable_upstream_tls_file: {file}:9:16: upstream.tls.key_file names a file that is a directory, not a file; name a file: a container runtime makes a directory where a mounted file is missing",
        ),
    ]
}

fn others() -> Vec<Row> {
    let shedding = |line: &str| with(&format!("[memory.shedding]\n{line}"));
    let mut bytes = row(
        "BOOT-16 a variable that is not UTF-8",
        with_agent(""),
        "invalid_cluster_id: YUZU_GW_CLUSTER_ID: node.cluster_id is 5 bytes that are not UTF-8; correct it or unset the variable",
    );
    bytes.variables = vec![("YUZU_GW_CLUSTER_ID", b"west\xff".to_vec())];
    vec![
        row(
            "a node name that is none",
            with("[node]\nname = 1"),
            "bad_node_name: {file}:8:8: node.name is 1, not a string of at most 255 bytes without control characters; correct it",
        ),
        row(
            "BOOT-16 a cluster id that is none",
            with("[node]\ncluster_id = 1"),
            "invalid_cluster_id: {file}:8:14: node.cluster_id is 1, not a UTF-8 string of at most 1024 bytes; correct it",
        ),
        bytes,
        row(
            "an address for metrics that is none",
            with("[observe]\nmetrics_address = \"here\""),
            "bad_address: {file}:8:19: observe.metrics_address is a string of 4 bytes, not an address like \"127.0.0.1:50051\" or \"[::1]:50051\"; correct it",
        ),
        row(
            "an address for health that is none",
            with("[observe]\nhealth_address = 8081"),
            "bad_address: {file}:8:18: observe.health_address is 8081, not an address like \"127.0.0.1:50051\" or \"[::1]:50051\"; correct it",
        ),
        row(
            "BOOT-17 SHED-7 a switch of another type",
            shedding("enabled = \"yes\""),
            "memory_shedding: {file}:8:11: memory.shedding.enabled is a string of 3 bytes, not true or false; correct it",
        ),
        row(
            "BOOT-17 SHED-7 an interval below the least",
            shedding("interval_ms = 1"),
            "memory_shedding: {file}:8:15: memory.shedding.interval_ms is 1, not an integer from 10 to 60000; correct it",
        ),
        row(
            "BOOT-17 SHED-7 a high mark of more than all",
            shedding("high_water_fraction = 1.5"),
            "memory_shedding: {file}:8:23: memory.shedding.high_water_fraction is 1.5, not a fraction between 0 and 1; correct it",
        ),
        row(
            "BOOT-17 SHED-7 a low mark of nothing",
            shedding("low_water_fraction = 0.0"),
            "memory_shedding: {file}:8:22: memory.shedding.low_water_fraction is 0.0, not a fraction between 0 and 1; correct it",
        ),
        row(
            "BOOT-17 SHED-7 a high mark of no bytes",
            shedding("high_water_bytes = 0"),
            "memory_shedding: {file}:8:20: memory.shedding.high_water_bytes is 0, not an integer from 1 to 1125899906842624; correct it",
        ),
        row(
            "BOOT-17 SHED-7 a low mark of no bytes",
            shedding("low_water_bytes = 0"),
            "memory_shedding: {file}:8:19: memory.shedding.low_water_bytes is 0, not an integer from 1 to 1125899906842624; correct it",
        ),
        row(
            "BOOT-17 SHED-7 a low mark above the high one",
            shedding("high_water_bytes = 1000\nlow_water_bytes = 2000"),
            "memory_shedding: {file}:9:19: memory.shedding.low_water_bytes gives a low mark of 2000 bytes (low_water_bytes), not below the high mark of 1000 bytes (high_water_bytes); correct the marks",
        ),
        row(
            "BOOT-3 SHED-7 a mark that there is not",
            shedding("middle_water_bytes = 1"),
            "unknown_keys: {file}:8:1: memory.shedding.middle_water_bytes is not a key; did you mean memory.shedding.high_water_bytes?",
        ),
    ]
}
