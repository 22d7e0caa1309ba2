//! MGMT-AUTH: who may manage, over sockets; CERT: files that change under a running gateway.

use crate::logs::capture;
use crate::support::{command, serve_one};
use std::fs;
use std::net::Ipv4Addr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use yuzu_gateway::config::{KeyPin, ListenerTls, PeerAuthMode, PeerPin, Serial, Service};
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::certs::{Authority, Directory, Leaf, Wish, new_key};
use yuzu_tests::operator::Operator;
use yuzu_tests::raw::{Options, Tls, code};
use yuzu_tests::testbed::{Setup, TestBed};

/// An install that is managed over mutual TLS. Its pins are looked at 20 times a second.
struct Install {
    authority: Authority,
    directory: Directory,
    server: Leaf,
    setup: Setup,
}

impl Install {
    fn new(mode: PeerAuthMode) -> Self {
        let authority = Authority::new("install");
        let directory = Directory::new();
        let server = authority.server();
        let (cert_file, key_file) = directory.write_leaf("gateway", &authority.gateway());
        let tls = ListenerTls {
            cert_file,
            key_file,
            ca_file: directory.write("ca.pem", &authority.pem()),
            ..ListenerTls::of(&[Service::Management])
        };
        let setup = Setup::default().gateway(|config| {
            config.listeners[1].tls = Some(tls);
            config.management.peer_auth_mode = mode;
            config.management.pin_refresh = Duration::from_millis(50);
        });
        Self {
            authority,
            directory,
            server,
            setup,
        }
    }

    /// Pins the server's certificate file.
    fn pinned(mut self) -> Self {
        let (file, _) = self.directory.write_leaf("server", &self.server);
        self.setup
            .gateway
            .management
            .peer_pins
            .push(PeerPin::CertFile(file));
        self
    }

    async fn start(&self) -> TestBed {
        self.setup.clone().start().await
    }

    async fn operator(&self, bed: &TestBed, leaf: &Leaf) -> Result<Operator, String> {
        let tls = Tls::presenting(&self.authority.pem(), &leaf.certificate, &leaf.key)?;
        let options = Options {
            tls: Some(tls),
            ..Options::default()
        };
        let connected = Operator::connect_with(bed.operators(), &options).await;
        connected.map_err(|error| error.to_string())
    }

    /// No call gets an answer. Over TLS 1.3 a client learns after its handshake that the server
    /// does not take its certificate.
    async fn turned_away(&self, bed: &TestBed, leaf: &Leaf) {
        if let Ok(operator) = self.operator(bed, leaf).await {
            operator.list(1, "").await.expect_err("no connection");
        }
    }

    /// The status of a call that presents this certificate.
    async fn calls(&self, bed: &TestBed, leaf: &Leaf) -> u16 {
        let operator = self.operator(bed, leaf).await.expect("a connection");
        operator.list(1, "").await.expect("a status").status.code
    }

    async fn admitted(&self, bed: &TestBed, leaf: &Leaf) -> bool {
        match self.calls(bed, leaf).await {
            code::OK => true,
            code::UNAUTHENTICATED => false,
            other => panic!("status {other}"),
        }
    }

    async fn becomes_admitted(&self, bed: &TestBed, leaf: &Leaf, wanted: bool) {
        let reached = async {
            while self.admitted(bed, leaf).await != wanted {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached)
            .await
            .expect("a decision");
    }

    /// Refused with status 16, counted under this reason once more.
    async fn refused(&self, bed: &TestBed, leaf: &Leaf, reason: &str) {
        let before = rejected(bed, reason).await;
        assert_eq!(
            self.calls(bed, leaf).await,
            code::UNAUTHENTICATED,
            "{reason}"
        );
        assert_eq!(rejected(bed, reason).await, before + 1.0, "{reason}");
    }
}

async fn rejected(bed: &TestBed, reason: &str) -> f64 {
    bed.metric("mgmt_auth_rejected_total", &[("reason", reason)])
        .await
}

async fn handshake_failed(bed: &TestBed, kind: &str) {
    let labels = [("listener", "management"), ("kind", kind)];
    bed.metric_becomes("listener_tls_handshake_failures_total", &labels, 1.0)
        .await;
}

use PeerAuthMode::{Identity, IdentityOrPin, Pin};

#[tokio::test]
async fn mgmt_auth_14_everybody_but_the_server_is_refused_while_it_works() {
    let install = Install::new(IdentityOrPin).pinned();
    let authority = &install.authority;
    let bed = install.start().await;
    let server = install.operator(&bed, &install.server).await.unwrap();
    let mut agent = bed.agent("agent-1").await;

    install
        .refused(&bed, &authority.agent("agent-1"), "missing_server_auth_eku")
        .await;
    install
        .refused(&bed, &authority.gateway(), "pin_mismatch")
        .await;
    install
        .refused(
            &bed,
            &authority.issue(Wish::host("yuzu-server")),
            "pin_mismatch",
        )
        .await;
    let identity = authority.server_identity();
    let without = Wish::host("yuzu-server").uri(&identity).without_purpose();
    install
        .refused(&bed, &authority.issue(without), "missing_server_auth_eku")
        .await;

    let imitation = Wish::host("yuzu-server").uri(&identity);
    let stranger = Authority::new("install").issue(imitation.clone());
    install.turned_away(&bed, &stranger).await;
    let alone = Authority::self_signed(imitation.clone());
    install.turned_away(&bed, &alone).await;
    let labels = [("listener", "management"), ("kind", "unknown_ca")];
    bed.metric_becomes("listener_tls_handshake_failures_total", &labels, 2.0)
        .await;
    let stale = authority.issue(imitation.expired());
    install.turned_away(&bed, &stale).await;
    handshake_failed(&bed, "certificate_expired").await;

    let mut fanout = server.send(&["agent-1"], command("c-1"), 30).await.unwrap();
    serve_one(&mut agent).await;
    assert_eq!(fanout.rest().await.unwrap().0.len(), 1);
    bed.stop().await;
}

#[tokio::test]
async fn mgmt_auth_1_a_peer_without_a_certificate_gets_no_connection() {
    let install = Install::new(Identity);
    let bed = install.start().await;
    let options = Options {
        tls: Some(Tls::trusting(&install.authority.pem()).unwrap()),
        ..Options::default()
    };
    let connected = Operator::connect_with(bed.operators(), &options).await;
    if let Ok(operator) = connected {
        operator.list(1, "").await.unwrap_err();
    }
    handshake_failed(&bed, "certificate_required").await;
}

#[tokio::test]
async fn mgmt_auth_1_every_method_is_behind_the_gate() {
    let install = Install::new(Identity);
    let bed = install.start().await;
    let operator = install
        .operator(&bed, &install.authority.gateway())
        .await
        .unwrap();
    let unauthenticated = code::UNAUTHENTICATED;
    assert_eq!(
        operator.list(1, "").await.unwrap().status.code,
        unauthenticated
    );
    assert_eq!(
        operator.get("a").await.unwrap().status.code,
        unauthenticated
    );
    assert_eq!(
        operator.inventory("", "").await.unwrap().status.code,
        unauthenticated
    );
    let mut fanout = operator.send(&[], command("c"), 1).await.unwrap();
    assert_eq!(fanout.rest().await.unwrap().1.code, unauthenticated);
    let mut watch = operator.watch(&[]).await.unwrap();
    assert_eq!(
        watch.next().await.unwrap().unwrap_err().code,
        unauthenticated
    );
    assert_eq!(rejected(&bed, "no_uri_san").await, 5.0);
}

#[tokio::test]
async fn mgmt_auth_1_a_server_whose_certificate_is_for_serving_alone_is_admitted() {
    let install = Install::new(Identity);
    let bed = install.start().await;
    let identity = install.authority.server_identity();
    let wish = Wish::host("yuzu-server").uri(&identity).server_only();
    assert!(
        install
            .admitted(&bed, &install.authority.issue(wish.clone()))
            .await
    );
    let stranger = Authority::new("other").issue(wish.clone());
    install.turned_away(&bed, &stranger).await;
    handshake_failed(&bed, "unknown_ca").await;
    let stale = install.authority.issue(wish.expired());
    install.turned_away(&bed, &stale).await;
    handshake_failed(&bed, "certificate_expired").await;
}

#[tokio::test]
async fn mgmt_auth_3_pins_by_digest_and_by_file_admit_and_bad_ones_are_skipped() {
    let install = Install::new(Pin).pinned();
    let second = install.authority.issue(Wish::host("second"));
    let mut setup = install.setup.clone();
    let pins = &mut setup.gateway.management.peer_pins;
    pins.insert(0, PeerPin::Malformed);
    pins.push(PeerPin::Spki(
        KeyPin::parse(&second.pin.to_lowercase()).unwrap(),
    ));
    let bed = setup.start().await;
    assert!(install.admitted(&bed, &install.server).await);
    assert!(install.admitted(&bed, &second).await);
    install
        .refused(&bed, &install.authority.server(), "pin_mismatch")
        .await;
    let admitted = bed
        .metric("mgmt_auth_admitted_total", &[("method", "pin")])
        .await;
    assert_eq!(admitted, 2.0);
    assert_eq!(
        bed.metric("mgmt_auth_pin_unresolved_total", &[]).await,
        3.0,
        "MGMT-AUTH-11"
    );
}

#[tokio::test]
async fn mgmt_auth_4_and_7_the_identity_admits_whatever_the_key() {
    let install = Install::new(Identity);
    let bed = install.start().await;
    assert!(install.admitted(&bed, &install.server).await);
    assert!(
        install.admitted(&bed, &install.authority.server()).await,
        "another key"
    );
    let labels = [("method", "identity")];
    assert_eq!(bed.metric("mgmt_auth_admitted_total", &labels).await, 2.0);
    let agent = format!("yuzu://{}/agent/x", install.authority.install());
    let agent = install.authority.issue(Wish::host("x").uri(&agent));
    install.refused(&bed, &agent, "identity_mismatch").await;
}

#[tokio::test]
async fn mgmt_auth_10_a_withdrawn_serial_is_refused() {
    let install = Install::new(IdentityOrPin).pinned();
    let key = new_key();
    let identity = install.authority.server_identity();
    let wish = || Wish::host("yuzu-server").uri(&identity);
    let old = install.authority.issue_over(wish(), &key);
    let renewed = install.authority.issue_over(wish(), &key);
    let setup = install.setup.clone().gateway(|config| {
        config.management.peer_denied = vec![Serial::parse(&old.serial).unwrap()];
    });
    let bed = setup.start().await;
    install.refused(&bed, &old, "revoked").await;
    assert!(install.admitted(&bed, &renewed).await, "the same key");
}

#[tokio::test]
async fn mgmt_auth_12_the_boot_line_says_who_is_admitted() {
    let install = Install::new(IdentityOrPin).pinned();
    let denied: Vec<_> = (1..=21)
        .map(|n| Serial::parse(&format!("{n:X}")).unwrap())
        .collect();
    let (log, _guard) = capture();
    let setup = install.setup.clone();
    let bed = setup
        .gateway(|config| config.management.peer_denied = denied)
        .start()
        .await;
    bed.stop().await;
    let text = log.text();
    let line = "Management peer authorization: mode=identity_or_pin identity=resolved pins=1 \
                denied_serials=21";
    assert_eq!(text.matches(line).count(), 1, "{text}");
    assert!(text.contains(" refused: 01 02 03 "), "{text}");
    assert!(text.contains(" 13 14 ...\n"), "{text}");
}

#[tokio::test]
async fn mgmt_auth_12_warnings_name_an_identity_that_admits_nobody() {
    let other = format!("yuzu://{}/server", "AB".repeat(32));
    for (mode, identity, bundle, wanted) in [
        (
            Pin,
            &*other,
            false,
            "is ignored: management.peer_auth_mode is pin",
        ),
        (IdentityOrPin, "", true, "identity is unresolved"),
        (
            Identity,
            &*other,
            false,
            "differs from the identity derived",
        ),
    ] {
        let install = Install::new(mode).pinned();
        if bundle {
            let both = install.authority.pem() + &Authority::new("second").pem();
            install.directory.write("ca.pem", &both);
        }
        let (log, _guard) = capture();
        let setup = install.setup.clone();
        let setup = setup.gateway(|config| config.management.peer_identity = identity.into());
        setup.start().await.stop().await;
        let text = log.text();
        let warned = text
            .lines()
            .any(|line| line.contains(" WARN ") && line.contains(wanted));
        assert!(warned, "{wanted}: {text}");
    }
}

#[tokio::test]
async fn cert_2_a_renewed_pin_file_admits_the_new_key_and_refuses_the_old() {
    let install = Install::new(Pin).pinned();
    let bed = install.start().await;
    assert!(install.admitted(&bed, &install.server).await);
    assert_eq!(
        bed.metric("mgmt_pin_rotated_timestamp_seconds", &[]).await,
        0.0
    );
    let renewed = install.authority.server();
    install.directory.write_leaf("server", &renewed);
    install.becomes_admitted(&bed, &renewed, true).await;
    assert!(!install.admitted(&bed, &install.server).await);
    let rotated = bed.metric("mgmt_pin_rotated_timestamp_seconds", &[]).await;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    assert!((now - 60.0..=now).contains(&rotated), "CERT-6: {rotated}");
}

#[tokio::test]
async fn cert_2_the_server_is_renewed_under_load_and_no_agent_is_touched() {
    let install = Install::new(Pin).pinned();
    let bed = install.start().await;
    let mut agent = bed.agent("agent-1").await;
    let renewed = install.authority.server();
    install.directory.write_leaf("server", &renewed);
    install.becomes_admitted(&bed, &renewed, true).await;
    let server = install.operator(&bed, &renewed).await.unwrap();
    let mut fanout = server.send(&["agent-1"], command("c-1"), 30).await.unwrap();
    serve_one(&mut agent).await;
    assert_eq!(fanout.rest().await.unwrap().0.len(), 1);
    assert_eq!(
        bed.metric(
            "agents_disconnected_total",
            &[("node", "yuzu_gw@127.0.0.1")]
        )
        .await,
        0.0
    );
}

#[tokio::test]
async fn cert_3_a_pin_file_that_is_deleted_keeps_its_key() {
    let install = Install::new(Pin).pinned();
    let bed = install.start().await;
    fs::remove_file(install.directory.path("server.pem")).unwrap();
    let labels = [("role", "mgmt_peer_pin"), ("name", "pin0")];
    bed.metric_becomes("cert_file_readable", &labels, 0.0).await;
    assert!(install.admitted(&bed, &install.server).await);
    assert!(
        bed.metric("cert_expiry_timestamp_seconds", &labels).await > 0.0,
        "CERT-5"
    );
}

#[tokio::test]
async fn cert_4_a_pin_file_that_was_never_readable_pins_nothing() {
    let install = Install::new(Pin).pinned();
    fs::remove_file(install.directory.path("server.pem")).unwrap();
    let bed = install.start().await;
    install
        .refused(&bed, &install.server, "no_pins_resolved")
        .await;
    install.directory.write_leaf("server", &install.server);
    install.becomes_admitted(&bed, &install.server, true).await;
}

#[tokio::test]
async fn mgmt_auth_15_a_new_ca_is_followed_unless_the_start_would_refuse_it() {
    let install = Install::new(Identity);
    // An exposed listener has to admit somebody.
    let setup = install.setup.clone();
    let setup = setup.gateway(|config| {
        config.listeners[1]
            .address
            .set_ip(Ipv4Addr::UNSPECIFIED.into())
    });
    let bed = setup.start().await;
    let open = install.operator(&bed, &install.server).await.unwrap();
    let next = Authority::new("next");
    let (log, _guard) = capture();
    install
        .directory
        .write("ca.pem", &(install.authority.pem() + &next.pem()));
    let told = async {
        while !log
            .text()
            .contains("are refused, the last good ones stay in force")
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, told)
        .await
        .expect("an error line");
    assert!(
        log.text().contains("no_mgmt_peer_identity"),
        "{}",
        log.text()
    );
    assert!(install.admitted(&bed, &install.server).await);

    install.directory.write("ca.pem", &next.pem());
    let tls = |leaf: &Leaf| {
        Tls::presenting(&install.authority.pem(), &leaf.certificate, &leaf.key).unwrap()
    };
    let server = next.server();
    let reached = async {
        loop {
            let options = Options {
                tls: Some(tls(&server)),
                ..Options::default()
            };
            let connected = Operator::connect_with(bed.operators(), &options).await;
            if let Ok(operator) = connected
                && operator
                    .list(1, "")
                    .await
                    .is_ok_and(|answer| answer.status.code == code::OK)
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached)
        .await
        .expect("the new install's server");
    install.turned_away(&bed, &install.server).await;
    let status = open
        .list(1, "")
        .await
        .expect("the connection was not dropped")
        .status
        .code;
    assert_eq!(
        status,
        code::UNAUTHENTICATED,
        "the old install's identity is of no use"
    );
}

#[tokio::test]
async fn a_listener_s_certificate_is_replaced_without_dropping_a_connection() {
    let install = Install::new(Identity);
    let mut setup = install.setup.clone();
    let tls = ListenerTls {
        client_auth: yuzu_gateway::config::ClientAuth::None,
        ..setup.gateway.listeners[1].tls.clone().unwrap()
    };
    setup.gateway.listeners[0].tls = Some(tls);
    let bed = setup.start().await;
    let attach = async |id: &str, trusted: &Authority| {
        let options = Options {
            tls: Some(Tls::trusting(&trusted.pem()).unwrap()),
            ..Options::default()
        };
        Agent::attach_with(bed.agents(), id, &options).await
    };
    let agent = attach("agent-1", &install.authority).await.unwrap();
    let next = Authority::new("next");
    install.directory.write_leaf("gateway", &next.gateway());
    let reached = async {
        while attach("agent-2", &next).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached)
        .await
        .expect("the new certificate");
    assert_eq!(agent.heartbeat().await.unwrap().status.code, code::OK);
    assert!(attach("agent-3", &install.authority).await.is_err());
}

/// An install whose management listener looks at a revocation list.
fn with_list(install: &Install, revoked: &[&Leaf]) -> Setup {
    let list = install
        .directory
        .write("crl.pem", &install.authority.revoke(revoked));
    install.setup.clone().gateway(|config| {
        config.listeners[1].tls.as_mut().unwrap().crl_files = vec![list];
    })
}

#[tokio::test]
async fn a_certificate_on_a_revocation_list_is_refused_in_the_handshake() {
    let install = Install::new(Identity);
    let withdrawn = install.authority.server();
    let bed = with_list(&install, &[&withdrawn]).start().await;
    assert!(install.admitted(&bed, &install.server).await);
    install.turned_away(&bed, &withdrawn).await;
    handshake_failed(&bed, "certificate_revoked").await;
    let identity = install.authority.server_identity();
    let for_serving = Wish::host("yuzu-server").uri(&identity).server_only();
    assert!(
        install
            .admitted(&bed, &install.authority.issue(for_serving))
            .await
    );
}

#[tokio::test]
async fn a_renewed_revocation_list_refuses_new_connections_and_calls_on_open_ones() {
    let install = Install::new(Identity);
    let bed = with_list(&install, &[]).start().await;
    let open = install.operator(&bed, &install.server).await.unwrap();
    let status = async || open.list(1, "").await.expect("a status").status.code;
    assert_eq!(status().await, code::OK);
    install
        .directory
        .write("crl.pem", &install.authority.revoke(&[&install.server]));
    let reached = async {
        while status().await == code::OK {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached)
        .await
        .expect("the list is followed");
    assert!(rejected(&bed, "revoked").await >= 1.0);
    install.turned_away(&bed, &install.server).await;
    handshake_failed(&bed, "certificate_revoked").await;
    assert!(install.admitted(&bed, &install.authority.server()).await);
}

#[tokio::test]
async fn a_revocation_list_that_is_emptied_stays_in_force_as_it_was() {
    let install = Install::new(Identity);
    let withdrawn = install.authority.server();
    let bed = with_list(&install, &[&withdrawn]).start().await;
    install.directory.write("crl.pem", "");
    let labels = [("role", "listener_crl"), ("name", "management")];
    bed.metric_becomes("cert_file_readable", &labels, 0.0).await;
    install.turned_away(&bed, &withdrawn).await;
    assert!(install.admitted(&bed, &install.server).await);
}

#[tokio::test]
async fn a_certificate_whose_issuer_has_no_list_is_refused_once_there_are_lists() {
    let install = Install::new(Pin).pinned();
    let other = Authority::new("other");
    let list = install.directory.write("crl.pem", &other.revoke(&[]));
    let setup = install.setup.clone().gateway(|config| {
        config.listeners[1].tls.as_mut().unwrap().crl_files = vec![list];
    });
    let bed = setup.start().await;
    install.turned_away(&bed, &install.server).await;
    handshake_failed(&bed, "certificate_revoked").await;
}
