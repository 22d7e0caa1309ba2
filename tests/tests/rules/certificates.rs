//! CERT and MGMT-AUTH-15: files that change under a running gateway, and revocation lists.

use crate::authorization::{Install, handshake_failed, rejected};
use crate::logs::capture;
use crate::support::command;
use std::fs;
use std::net::Ipv4Addr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use yuzu_gateway::config::PeerAuthMode::{Identity, Pin};
use yuzu_gateway::config::{ListenerTls, PeerPin};
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::certs::{Authority, Leaf, Wish};
use yuzu_tests::fleet::Fleet;
use yuzu_tests::operator::Operator;
use yuzu_tests::raw::{Options, Tls, code};
use yuzu_tests::testbed::Setup;

const NODE: (&str, &str) = ("node", "yuzu_gw@127.0.0.1");

#[tokio::test]
async fn cert_2_a_renewed_pin_file_admits_the_new_key_and_refuses_the_old() {
    let install = Install::new(Pin).pinned();
    let bed = install.start().await;
    assert!(install.admitted(&bed, &install.server).await);
    let renewed = install.authority.server();
    install.directory.write_leaf("server", &renewed);
    install.becomes_admitted(&bed, &renewed, true).await;
    assert!(!install.admitted(&bed, &install.server).await);
}

#[tokio::test]
async fn cert_6_the_time_of_a_rotation_is_that_of_another_key() {
    let install = Install::new(Pin).pinned();
    let other = install.directory.write("other.pem", "");
    let setup = install.setup.clone().gateway(|config| {
        config.management.peer_pins.push(PeerPin::CertFile(other));
    });
    let bed = setup.start().await;
    let rotated = async || bed.metric("mgmt_pin_rotated_timestamp_seconds", &[]).await;
    assert_eq!(rotated().await, 0.0, "reading at the start");
    let same = format!("# again\n{}", install.server.certificate);
    install.directory.write("server.pem", &same);
    let second = install.authority.server();
    install.directory.write("other.pem", &second.certificate);
    install.becomes_admitted(&bed, &second, true).await;
    assert_eq!(rotated().await, 0.0, "the same key, and a pin's first one");
    let renewed = install.authority.server();
    install.directory.write_leaf("server", &renewed);
    install.becomes_admitted(&bed, &renewed, true).await;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    let rotated = rotated().await;
    assert!((now - 60.0..=now).contains(&rotated), "{rotated}");
}

#[tokio::test]
async fn cert_7_a_call_asks_no_file() {
    let install = Install::new(Pin).pinned();
    let rarely = Duration::from_secs(3_600);
    let setup = install.setup.clone();
    let bed = setup
        .gateway(|config| config.management.pin_refresh = rarely)
        .start()
        .await;
    fs::remove_dir_all(&install.directory).unwrap();
    assert!(install.admitted(&bed, &install.server).await);
    let labels = [("role", "mgmt_peer_pin"), ("name", "pin0")];
    assert_eq!(bed.metric("cert_file_readable", &labels).await, 1.0);
}

#[tokio::test]
async fn cert_2_the_server_is_renewed_under_load_and_no_agent_is_touched() {
    let install = Install::new(Pin).pinned();
    let bed = install.start().await;
    let fleet = Fleet::start(bed.fleet(20));
    bed.metric_becomes("agents_connected_total", &[NODE], 20.0)
        .await;
    let old = install.operator(&bed, &install.server).await.unwrap();
    let renewed = install.authority.server();
    let mut renewal = None;
    for round in 0.. {
        let mut fanout = old
            .send(&[], command(&format!("c-{round}")), 30)
            .await
            .unwrap();
        let (entries, status) = fanout.rest().await.unwrap();
        // The certificate of a connection stays what it was; its key is no longer pinned.
        if status.code == code::UNAUTHENTICATED {
            break;
        }
        assert_eq!(entries.len(), 20, "round {round}");
        let started = || install.directory.write_leaf("server", &renewed);
        renewal.get_or_insert_with(started);
    }
    let new = install.operator(&bed, &renewed).await.unwrap();
    let mut fanout = new.send(&[], command("last"), 30).await.unwrap();
    assert_eq!(fanout.rest().await.unwrap().0.len(), 20);
    assert_eq!(bed.metric("agents_disconnected_total", &[NODE]).await, 0.0);
    assert_eq!(fleet.stop().await.reconnects, 0);
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
    log.becomes("an error line", |text| {
        text.contains("are refused, the last good ones stay in force")
    })
    .await;
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
