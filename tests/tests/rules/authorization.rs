//! MGMT-AUTH: who may manage, over sockets.

use crate::logs::capture;
use crate::support::{command, serve_one};
use std::time::Duration;
use yuzu_gateway::config::{KeyPin, ListenerTls, PeerAuthMode, PeerPin, Serial, Service};
use yuzu_tests::agent::PATIENCE;
use yuzu_tests::certs::{Authority, Directory, Leaf, Wish, new_key};
use yuzu_tests::operator::Operator;
use yuzu_tests::raw::{Options, Tls, code};
use yuzu_tests::testbed::{Setup, TestBed};

/// An install that is managed over mutual TLS. Its pins are looked at 20 times a second.
pub(crate) struct Install {
    pub(crate) authority: Authority,
    pub(crate) directory: Directory,
    pub(crate) server: Leaf,
    pub(crate) setup: Setup,
}

impl Install {
    pub(crate) fn new(mode: PeerAuthMode) -> Self {
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
    pub(crate) fn pinned(mut self) -> Self {
        let (file, _) = self.directory.write_leaf("server", &self.server);
        self.setup
            .gateway
            .management
            .peer_pins
            .push(PeerPin::CertFile(file));
        self
    }

    pub(crate) async fn start(&self) -> TestBed {
        self.setup.clone().start().await
    }

    pub(crate) async fn operator(&self, bed: &TestBed, leaf: &Leaf) -> Result<Operator, String> {
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
    pub(crate) async fn turned_away(&self, bed: &TestBed, leaf: &Leaf) {
        if let Ok(operator) = self.operator(bed, leaf).await {
            operator.list(1, "").await.expect_err("no connection");
        }
    }

    /// The status of a call that presents this certificate.
    async fn calls(&self, bed: &TestBed, leaf: &Leaf) -> u16 {
        let operator = self.operator(bed, leaf).await.expect("a connection");
        operator.list(1, "").await.expect("a status").status.code
    }

    pub(crate) async fn admitted(&self, bed: &TestBed, leaf: &Leaf) -> bool {
        match self.calls(bed, leaf).await {
            code::OK => true,
            code::UNAUTHENTICATED => false,
            other => panic!("status {other}"),
        }
    }

    pub(crate) async fn becomes_admitted(&self, bed: &TestBed, leaf: &Leaf, wanted: bool) {
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
    pub(crate) async fn refused(&self, bed: &TestBed, leaf: &Leaf, reason: &str) {
        let before = rejected(bed, reason).await;
        assert_eq!(
            self.calls(bed, leaf).await,
            code::UNAUTHENTICATED,
            "{reason}"
        );
        assert_eq!(rejected(bed, reason).await, before + 1.0, "{reason}");
    }
}

pub(crate) async fn rejected(bed: &TestBed, reason: &str) -> f64 {
    bed.metric("mgmt_auth_rejected_total", &[("reason", reason)])
        .await
}

pub(crate) async fn handshake_failed(bed: &TestBed, kind: &str) {
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
async fn mgmt_auth_4_the_identity_admits_whatever_the_key() {
    let install = Install::new(Identity);
    let bed = install.start().await;
    assert!(install.admitted(&bed, &install.server).await);
    assert!(
        install.admitted(&bed, &install.authority.server()).await,
        "another key"
    );
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

const MANAGEMENT: &[(&str, &str)] = &[("listener", "management")];

#[tokio::test]
async fn lsn_17_strangers_that_fill_the_port_leave_places_for_the_server() {
    let install = Install::new(Pin).pinned();
    let setup = install.setup.clone().gateway(|config| {
        let limits = &mut config.listeners[1].limits;
        limits.max_connections = 8;
        limits.reserved_connections = 2;
        // Far beyond every wait here: no stranger leaves by itself.
        limits.handshake_timeout = PATIENCE * 30;
    });
    let bed = setup.start().await;
    let mut agent = bed.agent("a").await;
    let mut strangers = Vec::new();
    for _ in 0..20 {
        let silent = tokio::net::TcpStream::connect(bed.operators()).await;
        strangers.push(silent.expect("the kernel's handshake"));
    }
    let unauthorized = &[("reason", "unauthorized")];
    bed.metric_becomes("listener_closed_total", unauthorized, 14.0)
        .await;
    bed.metric_becomes("listener_connections", MANAGEMENT, 6.0)
        .await;

    let server = install.operator(&bed, &install.server).await.unwrap();
    let mut fanout = server.send(&["a"], command("first"), 60).await.unwrap();
    serve_one(&mut agent).await;
    assert!(fanout.rest().await.unwrap().1.is_ok());

    // Agents have certificates of the same CA: their handshake is no authorization.
    let leaf = install.authority.agent("a");
    let mut agents = Vec::new();
    for _ in 0..20 {
        agents.push(install.operator(&bed, &leaf).await);
    }
    bed.metric_becomes("listener_connections", MANAGEMENT, 7.0)
        .await;
    let mut fanout = server.send(&["a"], command("second"), 60).await.unwrap();
    serve_one(&mut agent).await;
    assert!(fanout.rest().await.unwrap().1.is_ok());
    let again = install.operator(&bed, &install.server).await.unwrap();
    assert_eq!(again.list(10, "").await.unwrap().status.code, code::OK);
    assert!(!server.connection.is_closed());
}

/// A management listener of four places, with `old` connections of the server on it whose
/// certificate is withdrawn then. The second is the certificate that took its place.
async fn withdrawn(bed: &TestBed, install: &Install, old: usize) -> (Vec<Operator>, Leaf) {
    let mut operators = Vec::new();
    for _ in 0..old {
        let operator = install.operator(bed, &install.server).await.unwrap();
        assert_eq!(operator.list(10, "").await.unwrap().status.code, code::OK);
        operators.push(operator);
    }
    let renewed = install.authority.server();
    install.directory.write_leaf("server", &renewed);
    (operators, renewed)
}

fn four_places(install: &Install) -> Setup {
    install.setup.clone().gateway(|config| {
        let limits = &mut config.listeners[1].limits;
        limits.max_connections = 4;
        limits.reserved_connections = 2;
    })
}

#[tokio::test]
async fn lsn_17_a_withdrawn_certificate_keeps_no_place() {
    let install = Install::new(Pin).pinned();
    let bed = four_places(&install).start().await;
    let (old, renewed) = withdrawn(&bed, &install, 3).await;
    install.becomes_admitted(&bed, &renewed, true).await;
    // The one that was admitted may have come before the certificate was withdrawn.
    let _next = install.operator(&bed, &renewed).await.unwrap();
    let gone = old[0].connection.closed();
    let gone = tokio::time::timeout(PATIENCE, gone).await;
    gone.expect("the first of the old ones made room");
}

#[tokio::test]
async fn lsn_17_withdrawn_certificates_that_hold_every_place_give_way() {
    let install = Install::new(Pin).pinned();
    let bed = four_places(&install).start().await;
    let (old, renewed) = withdrawn(&bed, &install, 4).await;
    install.becomes_admitted(&bed, &renewed, true).await;
    let gone = old[0].connection.closed();
    let gone = tokio::time::timeout(PATIENCE, gone).await;
    gone.expect("the first of the old ones made room");
}
