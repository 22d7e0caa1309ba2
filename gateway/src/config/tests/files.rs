//! TLS keys and the files behind them.

use std::fs;

use super::super::Refusal;
use super::super::{
    ClientAuth, Effect, ListenerTls, PeerAuthMode, PeerPin, Scheme, TlsVersion, load,
};
use super::{Install, SOUND, lines, loaded, refused, source, terms, with};
use crate::pki::testing::Authority;
use crate::pki::{KeyPin, Serial};

/// The sound file, its agent listener with these keys under `tls`.
fn agent_tls(keys: &str) -> String {
    let keys = keys
        .lines()
        .map(|line| format!("tls.{line}\n"))
        .collect::<String>();
    SOUND.replacen(
        "name = \"agent\"\n",
        &format!("name = \"agent\"\n{keys}"),
        1,
    )
}

/// The sound file, its management listener on every interface with these keys under `tls`.
fn exposed(keys: &str) -> String {
    let keys = keys
        .lines()
        .map(|line| format!("tls.{line}\n"))
        .collect::<String>();
    let from = "name = \"management\"\n";
    SOUND.replace(from, &format!("{from}address = \"0.0.0.0:50063\"\n{keys}"))
}

fn https(keys: &str) -> String {
    format!(
        "{}[upstream.tls]\n{keys}",
        SOUND.replace("http://", "https://")
    )
}

#[test]
fn boot_4_a_tls_table_needs_its_three_files() {
    let install = Install::new();
    assert_eq!(lines(&agent_tls(&install.tls())), (vec![], true));
    for keys in [
        "cert_file = \"c\"",
        "cert_file = \"c\"\nkey_file = \"k\"",
        "client_auth = \"require\"",
        "ca_file = \"\"",
        "min_version = \"1.3\"\ncrl_files = []",
    ] {
        assert_eq!(terms(&agent_tls(keys)), ["tls_incomplete"], "{keys}");
    }
    let empty = SOUND.replacen("name = \"agent\"\n", "name = \"agent\"\ntls = {}\n", 1);
    assert_eq!(terms(&empty), ["tls_incomplete"]);
    assert_eq!(
        terms(&agent_tls(
            "client_auth = \"always\"\nmin_version = \"1.1\""
        )),
        ["tls_incomplete", "tls_incomplete"]
    );
}

#[test]
fn lsn_10_client_certificates_are_asked_for_by_what_is_served() {
    let install = Install::new();
    let of = |text: &str, index: usize| {
        loaded(text).config.listeners[index]
            .tls
            .clone()
            .expect("a table")
    };
    let agent = of(&agent_tls(&install.tls()), 0);
    assert_eq!(agent.client_auth, ClientAuth::None);
    assert_eq!(agent.min_version, TlsVersion::V1_2);
    assert_eq!(
        agent,
        ListenerTls {
            crl_files: vec![],
            ..agent.clone()
        }
    );
    let pins = "[[management.peer_pins]]\ncert_file = \"x\"\n";
    let management = of(&format!("{}{pins}", exposed(&install.tls())), 1);
    assert_eq!(management.client_auth, ClientAuth::Require);
    let chosen = format!(
        "{}client_auth = \"request\"\nmin_version = \"1.3\"",
        install.tls()
    );
    let chosen = of(&agent_tls(&chosen), 0);
    assert_eq!(
        (chosen.client_auth, chosen.min_version),
        (ClientAuth::Request, TlsVersion::V1_3)
    );
}

#[test]
fn boot_24_files_that_could_not_be_served_are_refused_all_at_once() {
    let install = Install::new();
    let text = agent_tls(&format!(
        "{}crl_files = [\"/no/such\"]\nclient_auth = \"request\"",
        install.tls()
    ));
    fs::remove_file(install.path("default-gateway.pem")).unwrap();
    fs::write(install.path("default-gateway.key"), "").unwrap();
    fs::write(install.path("default-ca.pem"), "text").unwrap();
    let refused = refused(&text);
    let told: Vec<_> = refused.problems.iter().map(ToString::to_string).collect();
    let fix = "the listener could not serve: correct the path or the file";
    assert_eq!(
        told,
        [
            format!(
                "g.toml:4:17: listener[0].tls.cert_file names a file that does not exist (yet); {fix}"
            ),
            format!("g.toml:5:16: listener[0].tls.key_file names a file that is empty; {fix}"),
            format!(
                "g.toml:6:15: listener[0].tls.ca_file names a file that contains no PEM certificate; {fix}"
            ),
            format!(
                "g.toml:7:17: listener[0].tls.crl_files[0] names a file that does not exist (yet); {fix}"
            ),
        ]
    );
    assert!(
        refused
            .problems
            .iter()
            .all(|p| p.effect == Effect::Refuses(Refusal::ListenerTlsFiles))
    );
}

#[test]
fn boot_9_management_beyond_loopback_needs_mutual_tls_and_whom_to_admit() {
    let install = Install::new();
    let pins = "[[management.peer_pins]]\ncert_file = \"x\"\n";
    let guarded = exposed(&install.tls());
    assert_eq!(lines(&format!("{guarded}{pins}")), (vec![], true));
    assert_eq!(
        terms(&guarded),
        ["insecure_mgmt_listener (no_mgmt_peer_pins)"]
    );
    assert_eq!(terms(&exposed("")), ["insecure_mgmt_listener (no_tls)"]);
    for asked in ["none", "request"] {
        let text = exposed(&format!("{}client_auth = \"{asked}\"", install.tls()));
        assert_eq!(
            terms(&format!("{text}{pins}")),
            ["insecure_mgmt_listener (client_auth_not_required)"],
            "{asked}"
        );
    }
    let lab = "[lab]\nallow_insecure_management = true\n";
    for text in [exposed(""), guarded] {
        let (lines, starts) = lines(&format!("{text}{lab}"));
        assert!(starts, "{lines:?}");
        assert_eq!(lines.len(), 1);
    }
}

#[test]
fn enforced_agent_identities_need_certificates_of_one_ca() {
    let install = Install::new();
    let enforce = |keys: &str| {
        agent_tls(&format!(
            "{}enforce_agent_identity = true\n{keys}",
            install.tls()
        ))
    };
    assert_eq!(lines(&enforce("client_auth = \"request\"")), (vec![], true));
    assert_eq!(lines(&enforce("client_auth = \"require\"")), (vec![], true));
    assert_eq!(terms(&enforce("")), ["agent_identity_without_certificate"]);
    let bundle = install.authority.pem() + &Authority::new("b").pem();
    install.directory.write("default-ca.pem", bundle);
    let refused = refused(&enforce("client_auth = \"request\""));
    let told = refused.problems[0].to_string();
    assert!(
        told.contains("names a file of 2 certificates, and an identity needs one"),
        "{told}"
    );
}

#[test]
fn boot_13_an_https_endpoint_needs_a_ca_of_its_own() {
    let install = Install::new();
    let ca = format!("ca_file = \"{}\"\n", install.path("default-ca.pem"));
    let sound = loaded(&https(&ca));
    assert_eq!(sound.config.upstream.scheme, Scheme::Https);
    assert_eq!(sound.warnings, []);
    assert_eq!(terms(&https("")), ["unverified_upstream_tls"]);
    assert_eq!(
        terms(&https("ca_file = \"\"\n")),
        ["unverified_upstream_tls"]
    );
    let lab = source(&https(""), &[("YUZU_GW_ALLOW_UNVERIFIED_UPSTREAM", "1")]);
    assert_eq!(load(&lab).unwrap().warnings.len(), 1);
}

#[test]
fn boot_11_a_client_certificate_needs_its_key() {
    let install = Install::new();
    let ca = format!("ca_file = \"{}\"\n", install.path("default-ca.pem"));
    for half in ["cert_file = \"c\"\n", "key_file = \"k\"\n"] {
        assert_eq!(
            terms(&https(&format!("{ca}{half}"))),
            ["bad_client_config"],
            "{half}"
        );
    }
    assert_eq!(
        terms(&https(&format!("{ca}server_name = \"a b\"\n"))),
        ["bad_client_config"]
    );
    for name in ["server.example", "192.0.2.1", "2001:db8::1"] {
        let text = https(&format!("{ca}server_name = \"{name}\"\n"));
        assert_eq!(lines(&text), (vec![], true), "{name}");
    }
}

#[test]
fn boot_14_a_tls_file_of_an_endpoint_that_is_no_file_is_refused() {
    let install = Install::new();
    let directory = https(&format!("ca_file = \"{}\"\n", install.path("")));
    assert_eq!(terms(&directory), ["unusable_upstream_tls_file"]);
    assert!(
        refused(&directory).problems[0]
            .fault
            .ends_with("is a directory, not a file")
    );
    let missing = https(&format!("ca_file = \"{}\"\n", install.path("later.pem")));
    let loaded = loaded(&missing);
    let [warning] = &loaded.warnings[..] else {
        panic!("{:?}", loaded.warnings)
    };
    assert_eq!(warning.effect, Effect::SaidAtStart);
    assert!(
        warning
            .to_string()
            .contains("upstream.tls.ca_file names a file that does not exist (yet)")
    );
}

#[test]
fn tls_keys_without_an_https_endpoint_are_told() {
    let (lines, starts) = lines(&with("[upstream.tls]\nca_file = \"ca.pem\"\n"));
    assert!(starts);
    assert_eq!(
        lines,
        [
            "g.toml:13:1: upstream.tls has no effect: the endpoints are http://; use \
                        https:// endpoints for TLS to the server"
        ]
    );
}

#[test]
fn mgmt_auth_3_pins_are_read_and_bad_ones_pin_nothing() {
    let digits = "ab".repeat(32);
    let text = with(&format!(
        "[management]\npeer_pins = [{{ cert_file = \"/x\" }}, {{ spki_sha256 = \"{digits}\" }}, \
         {{ spki_sha256 = \"ab\" }}, {{ file = \"x\" }}, 5, {{}}, \
         {{ cert_file = \"a\", spki_sha256 = \"b\" }}]\n"
    ));
    let loaded = loaded(&text);
    let pins = &loaded.config.management.peer_pins;
    assert_eq!(pins[0], PeerPin::CertFile("/x".into()));
    assert_eq!(pins[1], PeerPin::Spki(KeyPin::parse(&digits).unwrap()));
    assert_eq!(pins[2..], vec![PeerPin::Malformed; 5]);
    assert_eq!(loaded.warnings.len(), 5);
    assert!(
        loaded.warnings[0]
            .to_string()
            .contains("management.peer_pins[2] can't be read")
    );
    assert_eq!(
        terms(&with("[management]\npeer_pins = \"x\"\n")),
        ["bad_pin_config"]
    );
}

#[test]
fn boot_10_management_keys_that_can_not_be_read_are_refused() {
    let key = |line: &str| terms(&with(&format!("[management]\n{line}\n")));
    assert_eq!(
        key("peer_auth_mode = \"pins\""),
        ["bad_mgmt_peer_auth_mode"]
    );
    for bad in ["yuzu://x/server", "spiffe://x", "yuzu://AB/agent/1"] {
        assert_eq!(
            key(&format!("peer_identity = \"{bad}\"")),
            ["bad_mgmt_peer_identity"]
        );
    }
    for bad in ["\"\"", "\"0x1\"", "\"1:2\"", "\"g\"", "1"] {
        assert_eq!(
            key(&format!("peer_denied = [{bad}]")),
            ["bad_mgmt_peer_denied"],
            "{bad}"
        );
    }
    let loaded = loaded(&with("[management]\npeer_denied = [\"0a1b2c\", \"7\"]\n"));
    let denied = ["A1B2C", "07"].map(|text| Serial::parse(text).unwrap());
    assert_eq!(loaded.config.management.peer_denied, denied);
}

#[test]
fn mgmt_auth_2_an_unset_mode_is_pin() {
    let mode = |text: &str| loaded(text).config.management.peer_auth_mode;
    assert_eq!(mode(SOUND), PeerAuthMode::Pin);
    let identity = format!("yuzu://{}/server", "AB".repeat(32));
    let named = format!("[management]\npeer_identity = \"{identity}\"\n");
    assert_eq!(mode(&with(&named)), PeerAuthMode::Pin);
    let either = with("[management]\npeer_auth_mode = \"identity_or_pin\"\n");
    assert_eq!(mode(&either), PeerAuthMode::IdentityOrPin);
}

#[test]
fn mgmt_auth_4_an_identity_in_lower_case_is_told() {
    let identity = format!("yuzu://{}/server", "ab".repeat(32));
    let (lines, starts) = lines(&with(&format!(
        "[management]\npeer_auth_mode = \"identity\"\npeer_identity = \"{identity}\"\n"
    )));
    assert!(starts);
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].contains("has hex digits in lower case"),
        "{lines:?}"
    );
}

#[test]
fn lsn_11_forwarded_for_and_client_certificates_do_not_go_together() {
    let install = Install::new();
    let origin = "origin = { mode = \"forwarded_for\", sources = [\"192.0.2.1\"] }\n";
    let judge = |asked: &str| {
        let text = agent_tls(&format!("{}client_auth = \"{asked}\"", install.tls()));
        lines(&text.replacen(
            "name = \"agent\"\n",
            &format!("name = \"agent\"\n{origin}"),
            1,
        ))
    };
    assert_eq!(judge("none"), (vec![], true));
    for asked in ["request", "require"] {
        let (lines, starts) = judge(asked);
        assert!(!starts, "{asked}");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].contains("asks for client certificates"),
            "{lines:?}"
        );
    }
}
