//! TLS to the server: UPCH-3 to UPCH-6, BOOT-22, LOG-6.

use crate::logs::capture;
use std::fs;
use std::time::Duration;
use yuzu_gateway::config::{Scheme, UpstreamTls};
use yuzu_server_stub::StubConfig;
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::certs::{Authority, Directory, Leaf, Wish, server_config};
use yuzu_tests::testbed::{Setup, TestBed};

/// An install whose server is spoken to over mutual TLS.
struct Install {
    authority: Authority,
    directory: Directory,
    tls: UpstreamTls,
}

impl Install {
    fn new() -> Self {
        let authority = Authority::new("install");
        let directory = Directory::new();
        let (cert_file, key_file) = directory.write_leaf("gateway", &authority.gateway());
        let tls = UpstreamTls {
            ca_file: directory.write("ca.pem", &authority.pem()),
            cert_file,
            key_file,
            server_name: String::new(),
        };
        Self {
            authority,
            directory,
            tls,
        }
    }

    /// The gateway, and a server with this certificate that asks for one of the install.
    fn setup(&self, server: &Leaf) -> Setup {
        let mut setup = Setup::default().gateway(|config| {
            config.upstream.scheme = Scheme::Https;
            config.upstream.tls = self.tls.clone();
        });
        setup.server = StubConfig {
            tls: Some(server_config(server, Some(&self.authority.pem()))),
            ..StubConfig::default()
        };
        setup
    }

    fn sound(&self) -> Setup {
        self.setup(&self.authority.server())
    }
}

async fn registers(bed: &TestBed, id: &str) -> bool {
    let mut agent = Agent::connect(bed.agents(), id).await.unwrap();
    agent.register().await.is_ok()
}

/// Registers until the server is reached.
async fn registers_at_last(bed: &TestBed, id: &str) {
    let trying = async {
        while !registers(bed, id).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, trying)
        .await
        .expect("the server is reached");
}

async fn files_are_usable(bed: &TestBed) -> bool {
    let (status, body) = bed.ready().await;
    let usable = body["checks"]["upstream_tls_files"]
        .as_bool()
        .expect("a check");
    assert_eq!(status == 200, usable || status == 200, "{body}");
    usable
}

async fn files_become(bed: &TestBed, usable: bool) {
    let reached = async {
        while files_are_usable(bed).await != usable {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached)
        .await
        .expect("the check follows");
}

async fn fails_with(bed: &TestBed, kind: &str) {
    assert!(!registers(bed, "agent-1").await);
    let labels = [("rpc_name", "register"), ("kind", kind)];
    let failures = bed
        .metric("upstream_tls_handshake_failures_total", &labels)
        .await;
    assert!(failures >= 1.0, "{kind}");
    let labels = [("rpc_name", "register"), ("code", "tls_alert")];
    assert!(bed.metric("upstream_rpc_errors_total", &labels).await >= 1.0);
}

#[tokio::test]
async fn boot_22_the_posture_of_the_way_to_the_server_is_told() {
    let install = Install::new();
    for (posture, change) in [
        (
            "mutual TLS",
            UpstreamTls::clone as fn(&UpstreamTls) -> UpstreamTls,
        ),
        ("server-authenticated TLS (no client certificate)", |tls| {
            UpstreamTls {
                cert_file: "".into(),
                key_file: "".into(),
                ..tls.clone()
            }
        }),
    ] {
        let (log, _guard) = capture();
        let tls = change(&install.tls);
        let bed = install
            .sound()
            .gateway(|config| config.upstream.tls = tls)
            .start()
            .await;
        let text = log.text();
        let line = text.lines().find(|line| line.contains("gateway started"));
        let wanted = format!("transport=\"{posture}\"");
        assert!(line.expect("a boot line").contains(&wanted), "{text}");
        bed.stop().await;
    }
}

#[tokio::test]
async fn upch_3_calls_go_to_the_server_over_mutual_tls() {
    let install = Install::new();
    let bed = install.sound().start().await;
    registers_at_last(&bed, "agent-1").await;
    assert!(files_are_usable(&bed).await);
    bed.stop().await;
}

#[tokio::test]
async fn upch_6_a_server_of_another_ca_is_not_spoken_to() {
    let install = Install::new();
    let stranger = Authority::new("other").server();
    let bed = install.setup(&stranger).start().await;
    fails_with(&bed, "unknown_ca").await;
    assert!(files_are_usable(&bed).await, "no file is at fault");
}

#[tokio::test]
async fn upch_6_an_expired_server_and_one_of_another_name_are_not_spoken_to() {
    let install = Install::new();
    let expired = install.authority.issue(Wish::host("server").expired());
    let bed = install.setup(&expired).start().await;
    fails_with(&bed, "certificate_expired").await;
    let elsewhere = install
        .authority
        .issue(Wish::host("server").named("elsewhere.example"));
    let bed = install.setup(&elsewhere).start().await;
    fails_with(&bed, "bad_certificate").await;
    let named = install
        .setup(&elsewhere)
        .gateway(|config| config.upstream.tls.server_name = "elsewhere.example".into());
    registers_at_last(&named.start().await, "agent-1").await;
}

#[tokio::test]
async fn upch_6_a_server_that_refuses_the_client_certificate_is_told_by_its_alert() {
    let install = Install::new();
    let stranger = Authority::new("other").gateway();
    install.directory.write_leaf("gateway", &stranger);
    let bed = install.sound().start().await;
    fails_with(&bed, "unknown_ca").await;
    let without = install.sound().gateway(|config| {
        config.upstream.tls.cert_file = "".into();
        config.upstream.tls.key_file = "".into();
    });
    fails_with(&without.start().await, "certificate_required").await;
}

#[tokio::test]
async fn upch_6_handshake_failures_open_the_breaker() {
    let install = Install::new();
    let stranger = Authority::new("other").server();
    let bed = install
        .setup(&stranger)
        .gateway(|config| config.upstream.breaker.failure_threshold = 2)
        .start()
        .await;
    for _ in 0..2 {
        assert!(!registers(&bed, "agent-1").await);
    }
    bed.metric_becomes(
        "upstream_circuit_transitions_total",
        &[("state", "open")],
        1.0,
    )
    .await;
}

#[tokio::test]
async fn upch_4_files_that_come_later_are_told_and_then_used() {
    let (log, _guard) = capture();
    let install = Install::new();
    fs::remove_file(&install.tls.ca_file).unwrap();
    fs::write(&install.tls.key_file, "").unwrap();
    let bed = install.sound().start().await;
    files_become(&bed, false).await;
    assert_eq!(bed.ready().await.0, 503);
    assert!(!registers(&bed, "agent-1").await);
    let labels = [("rpc_name", "register"), ("kind", "bad_tls_options")];
    assert!(
        bed.metric("upstream_tls_handshake_failures_total", &labels)
            .await
            >= 1.0
    );

    let text = log.text();
    let ca = install.tls.ca_file.display().to_string();
    let warned: Vec<_> = text
        .lines()
        .filter(|line| line.contains(" WARN "))
        .collect();
    let files: Vec<_> = warned
        .iter()
        .filter(|line| line.contains("gateway starts anyway"))
        .collect();
    assert_eq!(files.len(), 2, "{text}");
    assert!(
        files[0].contains(&format!("cacertfile {ca} does not exist (yet)")),
        "{text}"
    );
    assert!(files[1].contains("keyfile is empty"), "{text}");
    assert!(
        !text.contains("gateway.key"),
        "a key's path is never told: {text}"
    );
    let errors = text
        .lines()
        .filter(|line| line.contains("TLS client options cannot be used"));
    assert_eq!(errors.count(), 1, "at once, then once a minute: {text}");

    install.directory.write("ca.pem", &install.authority.pem());
    install
        .directory
        .write_leaf("gateway", &install.authority.gateway());
    files_become(&bed, true).await;
    registers_at_last(&bed, "agent-2").await;
}

#[tokio::test]
async fn upch_5_a_server_that_is_down_clears_the_report_about_files() {
    let install = Install::new();
    fs::remove_file(&install.tls.ca_file).unwrap();
    let bed = install.sound().start().await;
    files_become(&bed, false).await;
    bed.server.kill().await;
    files_become(&bed, true).await;
    bed.server.start_again().await.unwrap();
    files_become(&bed, false).await;
}

#[tokio::test]
async fn upch_3_an_open_connection_keeps_its_certificate_and_the_next_one_reads_the_files() {
    let install = Install::new();
    let bed = install.sound().start().await;
    registers_at_last(&bed, "agent-1").await;
    fs::write(&install.tls.cert_file, "").unwrap();
    assert!(registers(&bed, "agent-2").await, "the connection lives on");
    bed.server.drop_connections();
    files_become(&bed, false).await;
    install
        .directory
        .write_leaf("gateway", &install.authority.gateway());
    files_become(&bed, true).await;
    registers_at_last(&bed, "agent-3").await;
}

#[tokio::test]
async fn log_6_a_failing_connection_writes_one_line_per_attempt() {
    let (log, _guard) = capture();
    let install = Install::new();
    let stranger = Authority::new("other").server();
    let bed = install.setup(&stranger).start().await;
    let lines = |text: &str| -> Vec<String> {
        let about = text.lines().filter(|line| line.contains("upstream"));
        about
            .filter(|line| line.contains(" WARN "))
            .map(str::to_owned)
            .collect()
    };
    log.becomes("attempts", |text| lines(text).len() >= 3).await;
    let (attempts, text) = (
        bed.server.view(|state| state.connections_accepted()),
        log.text(),
    );
    let written = lines(&text);
    assert!(
        written.len() as u64 <= attempts,
        "{attempts} attempts: {written:#?}"
    );
    for line in written {
        assert!(line.len() < 400, "{line}");
        assert!(!line.contains(".pem") && !line.contains(".key"), "{line}");
    }
}
