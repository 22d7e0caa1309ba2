//! What refuses at a listener, management included.

use super::{
    Row, SOUND_FILES, UPSTREAM, agent, management, row, tls, with, with_agent, with_management,
};

pub(super) fn listeners() -> Vec<Row> {
    let second = |name: &str, address: &str| {
        let services = "services = [\"agent\"]";
        let second =
            format!("[[listener]]\nname = \"{name}\"\n{services}\naddress = \"{address}\"\n");
        format!("{}{second}{UPSTREAM}", agent(""))
    };
    vec![
        row(
            "BOOT-1 no listener",
            UPSTREAM,
            "no_listeners: {file}: listener serves no agents anywhere; add a [[listener]] with services = [\"agent\"]",
        ),
        row(
            "BOOT-1 no listener for agents",
            format!("[[listener]]\nservices = [\"management\"]\n{UPSTREAM}"),
            "no_listeners: {file}: listener serves no agents anywhere; add a [[listener]] with services = [\"agent\"]",
        ),
        row(
            "BOOT-6 a name used twice",
            second("agent", "127.0.0.1:0"),
            "duplicate_name: {file}:6:8: listener[1].name is the name of listener[0] too; give each listener its own name",
        ),
        row(
            "BOOT-6 a port used twice",
            second("b", "127.0.0.1:9568"),
            "duplicate_port: {file}: observe.metrics_address has port 9568, as listener[1].address has; give each its own port",
        ),
        row(
            "BOOT-7 no services",
            format!("[[listener]]\nservices = []\n{UPSTREAM}"),
            "service_without_routes: {file}:2:12: listener[0].services is empty; name \"agent\", \"management\" or both, or \"node\" alone",
        ),
        row(
            "BOOT-7 a service that there is not",
            format!("[[listener]]\nservices = [\"agents\"]\n{UPSTREAM}"),
            "bad_routes: {file}:2:13: listener[0].services[0] is a string of 6 bytes, not \"agent\", \"management\" or \"node\"; correct it",
        ),
        row(
            "a name of no letters",
            with_agent("name = \"\""),
            "bad_name: {file}:4:8: listener[0].name is a string of 0 bytes, not 1 to 64 letters, digits, '-', '_' or '.'; correct it",
        ),
        row(
            "an address that is none",
            format!("[[listener]]\nservices = [\"agent\"]\naddress = \"here\"\n{UPSTREAM}"),
            "bad_address: {file}:3:11: listener[0].address is a string of 4 bytes, not an address like \"127.0.0.1:50051\" or \"[::1]:50051\"; correct it",
        ),
        row(
            "less memory for a connection than for a message",
            with_agent("limits.max_connection_memory_bytes = 1048576"),
            "bad_limits: {file}:4:38: listener[0].limits.max_connection_memory_bytes is 1048576, less than max_message_bytes 8388608; raise it or lower max_message_bytes",
        ),
    ]
}

pub(super) fn listener_tls() -> Vec<Row> {
    let with_files = |files, more: &[&str]| with_agent(&tls(files, more));
    let key = |keys: &[&str]| with_agent(&tls(SOUND_FILES, keys));
    let file = |name: &str| {
        let table = key(&[]);
        table.replace(
            &format!("{name} = \"{{dir}}"),
            &format!("{name} = 1 # \"{{dir}}"),
        )
    };
    vec![
        row(
            "BOOT-4 a certificate without its key",
            with_agent("tls.cert_file = \"{dir}/own.pem\""),
            "tls_incomplete: {file}:4:1: listener[0].tls lacks cert_file, key_file or ca_file: it needs all three; name the three files, or delete the table and serve plaintext",
        ),
        row(
            "BOOT-4 a certificate file that is no path",
            file("cert_file"),
            "tls_incomplete: {file}:4:17: listener[0].tls.cert_file is 1, not a path of at most 4096 bytes; correct it",
        ),
        row(
            "BOOT-4 a key file that is no path",
            file("key_file"),
            "tls_incomplete: {file}:5:16: listener[0].tls.key_file is 1, not a path of at most 4096 bytes; correct it",
        ),
        row(
            "BOOT-4 a CA file that is no path",
            file("ca_file"),
            "tls_incomplete: {file}:6:15: listener[0].tls.ca_file is 1, not a path of at most 4096 bytes; correct it",
        ),
        row(
            "BOOT-4 a kind of client authentication that there is not",
            key(&["client_auth = \"maybe\""]),
            "tls_incomplete: {file}:7:19: listener[0].tls.client_auth is a string of 5 bytes, not \"none\" or \"request\" or \"require\"; correct it",
        ),
        row(
            "BOOT-4 a version of TLS that is not spoken",
            key(&["min_version = \"1.1\""]),
            "tls_incomplete: {file}:7:19: listener[0].tls.min_version is a string of 3 bytes, not \"1.2\" or \"1.3\"; correct it",
        ),
        row(
            "BOOT-4 revocation lists that are no list",
            key(&["crl_files = \"crl.pem\""]),
            "tls_incomplete: {file}:7:17: listener[0].tls.crl_files is a string of 7 bytes, not a list of at most 64 paths; correct it",
        ),
        row(
            "BOOT-4 enforcement that is neither true nor false",
            key(&["enforce_agent_identity = 1"]),
            "tls_incomplete: {file}:7:30: listener[0].tls.enforce_agent_identity is 1, not true or false; correct it",
        ),
        row(
            "identities without certificates",
            key(&["enforce_agent_identity = true", "client_auth = \"none\""]),
            "agent_identity_without_certificate: {file}:7:30: listener[0].tls.enforce_agent_identity is true, and no certificate is asked for; set client_auth = \"request\", so that agents can enrol without one",
        ),
        row(
            "BOOT-24 a certificate that is not there",
            with_files(["none.pem", "own.key", "ca.pem"], &[]),
            "listener_tls_files: {file}:4:17: listener[0].tls.cert_file names a file that does not exist (yet); the listener could not serve: correct the path or the file",
        ),
        row(
            "BOOT-24 a key of another certificate",
            with_files(["own.pem", "other.key", "ca.pem"], &[]),
            "listener_tls_files: {file}:5:16: listener[0].tls.key_file names a key that does not belong to the certificate of cert_file; the listener could not serve: correct the path or the file",
        ),
        row(
            "BOOT-24 an empty CA file",
            with_files(["own.pem", "own.key", "empty.pem"], &[]),
            "listener_tls_files: {file}:6:15: listener[0].tls.ca_file names a file that is empty; the listener could not serve: correct the path or the file",
        ),
        row(
            "BOOT-24 a CA file without a certificate",
            with_files(["own.pem", "own.key", "prose.pem"], &[]),
            "listener_tls_files: {file}:6:15: listener[0].tls.ca_file names a file that contains no PEM certificate; the listener could not serve: correct the path or the file",
        ),
        row(
            "BOOT-24 a revocation list that is a directory",
            with_files(
                SOUND_FILES,
                &[
                    "client_auth = \"request\"",
                    "crl_files = [\"{dir}/folder\"]",
                ],
            ),
            "listener_tls_files: {file}:8:17: listener[0].tls.crl_files[0] names a file that is a directory, not a file; the listener could not serve: correct the path or the file",
        ),
        row(
            "BOOT-24 identities under more than one CA",
            with_files(
                ["own.pem", "own.key", "bundle.pem"],
                &["client_auth = \"request\"", "enforce_agent_identity = true"],
            ),
            "listener_tls_files: {file}:6:15: listener[0].tls.ca_file names a file of 2 certificates, and an identity needs one; the listener could not serve: correct the path or the file",
        ),
    ]
}

pub(super) fn origins() -> Vec<Row> {
    let forwarded = "origin = { mode = \"forwarded_for\", sources = [\"192.0.2.1\"] }";
    vec![
        row(
            "BOOT-8 ORIGIN-8 a mode that there is not",
            with_agent("origin.mode = \"guess\""),
            "bad_origin: {file}:4:15: listener[0].origin.mode is a string of 5 bytes, not \"transport\", \"proxy_protocol\" or \"forwarded_for\"; correct it",
        ),
        row(
            "BOOT-8 ORIGIN-8 a source that is no address",
            with_agent("origin = { mode = \"proxy_protocol\", sources = [\"proxy\"] }"),
            "bad_origin: {file}:4:48: listener[0].origin.sources[0] is a string of 5 bytes, not an address like \"10.0.0.5\" or a network like \"10.1.0.0/24\"; correct it",
        ),
        row(
            "ORIGIN-4 a mapped network",
            with_agent("origin = { mode = \"proxy_protocol\", sources = [\"::ffff:0:0/90\"] }"),
            "bad_origin: {file}:4:48: listener[0].origin.sources[0] is a string of 13 bytes, not an address like \"10.0.0.5\" or a network like \"10.1.0.0/24\"; correct it",
        ),
        row(
            "BOOT-8 ORIGIN-8 hops that are no number",
            with_agent("origin.trusted_hops = -1"),
            "bad_origin: {file}:4:23: listener[0].origin.trusted_hops is -1, not an integer from 0 to 16; correct it",
        ),
        row(
            "ORIGIN-8 a proxied mode without sources",
            with_agent("origin.mode = \"proxy_protocol\""),
            "bad_origin: {file}:4:1: listener[0].origin.sources is empty: mode proxy_protocol believes nobody then; name the proxies",
        ),
        row(
            "ORIGIN-8 a proxied mode on a listener for management",
            format!(
                "{}{}{UPSTREAM}",
                agent(""),
                management(forwarded).replace("0.0.0.0", "127.0.0.1")
            ),
            "bad_origin: {file}:8:19: listener[1].origin.mode is forwarded_for on a listener that serves management; use transport: a management caller is who connects",
        ),
        row(
            "LSN-11 a router that ends TLS beside client certificates",
            with_agent(&format!(
                "{forwarded}\n{}",
                tls(SOUND_FILES, &["client_auth = \"request\""])
            )),
            "bad_origin: {file}:4:19: listener[0].origin.mode is forwarded_for on a listener that asks for client certificates; set client_auth = \"none\", or use proxy_protocol",
        ),
    ]
}

pub(super) fn management_listeners() -> Vec<Row> {
    let mode = |files: [&str; 3], keys: &str| {
        with_management(&tls(files, &[]), &format!("[management]\n{keys}"))
    };
    let bundle = ["own.pem", "own.key", "bundle.pem"];
    let identity = format!("peer_identity = \"yuzu://{}/server\"", "A".repeat(64));
    let second = format!(
        "[[listener]]\nname = \"second\"\nservices = [\"management\"]\naddress = \"127.0.0.1:0\"\n{}\n",
        tls(["own.pem", "own.key", "ca-2.pem"], &[])
    );
    vec![
        row(
            "BOOT-9 management beyond loopback in plaintext",
            with_management("", ""),
            "insecure_mgmt_listener (no_tls): {file}:7:11: listener[1].address serves management beyond loopback without mutual TLS; add [listener.tls] with client_auth = \"require\", or listen on 127.0.0.1",
        ),
        row(
            "BOOT-9 management beyond loopback without client certificates",
            with_management(
                &tls(SOUND_FILES, &["client_auth = \"request\""]),
                &format!(
                    "[management]\npeer_pins = [{{ spki_sha256 = \"{}\" }}]",
                    "00".repeat(32)
                ),
            ),
            "insecure_mgmt_listener (client_auth_not_required): {file}:7:11: listener[1].address serves management beyond loopback to peers without a certificate; set client_auth = \"require\"",
        ),
        row(
            "BOOT-10 a mode that there is not",
            with("[management]\npeer_auth_mode = \"trust\""),
            "bad_mgmt_peer_auth_mode: {file}:8:18: management.peer_auth_mode is a string of 5 bytes, not \"pin\" or \"identity\" or \"identity_or_pin\"; correct it",
        ),
        row(
            "BOOT-10 an identity of another form",
            with("[management]\npeer_identity = \"server\""),
            "bad_mgmt_peer_identity: {file}:8:17: management.peer_identity is a string of 6 bytes, not \"yuzu://\", 64 hex digits and \"/server\"; correct it",
        ),
        row(
            "BOOT-10 a serial with 0x",
            with("[management]\npeer_denied = [\"0x07\"]"),
            "bad_mgmt_peer_denied: {file}:8:16: management.peer_denied[0] is a string of 4 bytes, not a string of 1 to 40 hex digits, without 0x and colons; correct it",
        ),
        row(
            "BOOT-10 pins that are no list",
            with("[management]\npeer_pins = \"server.pem\""),
            "bad_pin_config: {file}:8:13: management.peer_pins is a string of 10 bytes, not a list of at most 64 tables { cert_file = \"path\" } or { spki_sha256 = \"64 hex digits\" }; correct it",
        ),
        row(
            "MGMT-AUTH-8 two CAs, two identities",
            format!(
                "{}{}{second}{UPSTREAM}[management]\npeer_auth_mode = \"identity\"\n",
                agent(""),
                management(&tls(SOUND_FILES, &[]))
            ),
            "identity_ambiguous: {file}:20:1: management.peer_identity is not given, and the CA files of the management listeners derive different ones; give it, or give these listeners the same CA",
        ),
        row(
            "MGMT-AUTH-9 an identity over a bundle",
            mode(
                bundle,
                &format!("peer_auth_mode = \"identity\"\n{identity}"),
            ),
            "identity_over_ca_bundle: {file}:15:17: management.peer_identity stands over a CA file that is not exactly one readable certificate: any CA in it could issue that identity; give the management listener a ca_file of one certificate, or use mode pin, or mode identity with a pin",
        ),
        row(
            "MGMT-AUTH-13 no pins",
            mode(SOUND_FILES, ""),
            "insecure_mgmt_listener (no_mgmt_peer_pins): {file}:13:1: management.peer_pins leaves no way to admit the server on a management listener beyond loopback; pin the server: peer_pins = [{ cert_file = \"...\" }]",
        ),
        row(
            "MGMT-AUTH-13 no identity",
            mode(bundle, "peer_auth_mode = \"identity\""),
            "insecure_mgmt_listener (no_mgmt_peer_identity): {file}:13:1: management.peer_identity leaves no way to admit the server on a management listener beyond loopback; give it, or give the management listener a ca_file of one certificate",
        ),
        row(
            "MGMT-AUTH-13 neither pins nor an identity",
            mode(bundle, "peer_auth_mode = \"identity_or_pin\""),
            "insecure_mgmt_listener (no_mgmt_peer_pins_or_identity): {file}:13:1: management.peer_pins leaves no way to admit the server on a management listener beyond loopback; pin the server, or give management.peer_identity",
        ),
        row(
            "MGMT-AUTH-13 pins that can't be read, all of them",
            mode(SOUND_FILES, "peer_pins = [{ spki = \"00\" }]"),
            "insecure_mgmt_listener (no_mgmt_peer_pins): {file}:14:13: management.peer_pins leaves no way to admit the server on a management listener beyond loopback; pin the server: peer_pins = [{ cert_file = \"...\" }]",
        ),
        row(
            "MGMT-AUTH-13 the same beside an identity",
            mode(
                SOUND_FILES,
                "peer_auth_mode = \"identity\"\npeer_pins = [\"00\"]",
            ),
            "insecure_mgmt_listener (no_mgmt_peer_pins): {file}:15:13: management.peer_pins leaves no way to admit the server on a management listener beyond loopback; correct the entries that can't be read, or delete them",
        ),
    ]
}
