//! Resolving the server's identity from CA files.

use rustls::pki_types::CertificateDer;

use super::super::{
    Guarded, Listener, ListenerTls, Management, PeerAuthMode, PeerPin, ResolvedPeer,
};
use super::{Config, Install, terms, with};
use crate::pki;
use crate::pki::testing::Authority;

fn management(mode: PeerAuthMode, identity: &str, pins: usize) -> Management {
    Management {
        peer_auth_mode: mode,
        peer_identity: identity.into(),
        peer_pins: vec![PeerPin::CertFile("pin.pem".into()); pins],
        ..Config::default().management
    }
}

/// What comes of these CA files, one per exposed listener: the identity and the number of
/// warnings, or the refusals' terms.
fn resolve(
    management: &Management,
    files: &[&[CertificateDer<'static>]],
) -> Result<(Option<String>, usize), Vec<&'static str>> {
    let mut listener = Listener::management("0.0.0.0:1".parse().unwrap());
    listener.tls = Some(ListenerTls::of(&listener.services));
    let guarded: Vec<_> = files
        .iter()
        .map(|authorities| Guarded {
            listener: &listener,
            authorities,
        })
        .collect();
    ResolvedPeer::of(management, &guarded, false)
        .map(|peer| (peer.identity, peer.warnings.len()))
        .map_err(|refusals| refusals.iter().map(|refusal| refusal.why.term()).collect())
}

use PeerAuthMode::{Identity, IdentityOrPin, Pin};

#[test]
fn mgmt_auth_8_the_identity_is_derived_from_a_single_ca_certificate() {
    let (one, other) = (Authority::new("a").der(), Authority::new("b").der());
    let derived = pki::server_identity(&one);
    let a = std::slice::from_ref(&one);
    let b = std::slice::from_ref(&other);
    let bundle = [one.clone(), other.clone()];
    let mode = management(Identity, "", 0);
    assert_eq!(resolve(&mode, &[a]), Ok((Some(derived.clone()), 0)));
    assert_eq!(resolve(&mode, &[a, a]), Ok((Some(derived.clone()), 0)));
    assert_eq!(resolve(&mode, &[a, b]), Err(vec!["identity_ambiguous"]));
    for unresolved in [&[&bundle[..]][..], &[&[]], &[a, &bundle]] {
        assert_eq!(
            resolve(&mode, unresolved),
            Err(vec!["insecure_mgmt_listener (no_mgmt_peer_identity)"])
        );
        let pinned = management(IdentityOrPin, "", 1);
        assert_eq!(resolve(&pinned, unresolved), Ok((None, 1)));
    }
    let given = management(Identity, &derived, 0);
    assert_eq!(resolve(&given, &[a]), Ok((Some(derived), 0)));
}

#[test]
fn mgmt_auth_9_a_given_identity_stands_over_a_single_ca_certificate_only() {
    let (one, other) = (Authority::new("a").der(), Authority::new("b").der());
    let identity = pki::server_identity(&one);
    let bundle = [one.clone(), other];
    let judge = |mode, pins, files: &[CertificateDer<'static>]| {
        resolve(&management(mode, &identity, pins), &[files])
    };
    for files in [&bundle[..], &[]] {
        assert_eq!(
            judge(Identity, 0, files),
            Err(vec!["identity_over_ca_bundle"])
        );
        assert_eq!(
            judge(IdentityOrPin, 1, files),
            Err(vec!["identity_over_ca_bundle"])
        );
        assert_eq!(judge(Identity, 1, files), Ok((Some(identity.clone()), 0)));
        assert_eq!(
            judge(Pin, 1, files),
            Ok((None, 1)),
            "ignored, which is told"
        );
    }
    assert_eq!(
        judge(IdentityOrPin, 0, &bundle[..1]),
        Ok((Some(identity.clone()), 0))
    );
}

#[test]
fn mgmt_auth_12_a_given_identity_that_differs_is_told_with_a_hint_about_its_case() {
    let ca = [Authority::new("a").der()];
    let warnings = |identity: &str| {
        let mut listener = Listener::management("127.0.0.1:1".parse().unwrap());
        listener.tls = Some(ListenerTls::of(&listener.services));
        let guarded = [Guarded {
            listener: &listener,
            authorities: &ca,
        }];
        ResolvedPeer::of(&management(Identity, identity, 0), &guarded, false)
            .unwrap()
            .warnings
    };
    let derived = pki::server_identity(&ca[0]);
    assert_eq!(warnings(&derived), Vec::<&str>::new());
    let lower = format!("yuzu://{}/server", derived[7..71].to_lowercase());
    assert!(warnings(&lower)[0].contains("letter case only"));
    let other = pki::server_identity(b"another");
    assert!(warnings(&other)[0].contains("differs from the identity derived"));
}

#[test]
fn mgmt_auth_13_an_exposed_listener_that_can_admit_nobody_is_refused() {
    let ca = [Authority::new("a").der()];
    for (mode, files, term) in [
        (Pin, &ca[..], "insecure_mgmt_listener (no_mgmt_peer_pins)"),
        (
            Identity,
            &[],
            "insecure_mgmt_listener (no_mgmt_peer_identity)",
        ),
        (
            IdentityOrPin,
            &[],
            "insecure_mgmt_listener (no_mgmt_peer_pins_or_identity)",
        ),
    ] {
        assert_eq!(resolve(&management(mode, "", 0), &[files]), Err(vec![term]));
    }
    assert_eq!(resolve(&management(Pin, "", 1), &[&ca]), Ok((None, 0)));
    assert_eq!(
        resolve(&management(Pin, "", 0), &[]),
        Ok((None, 0)),
        "nothing to guard"
    );
}

#[test]
fn mgmt_auth_13_pins_that_can_not_be_read_are_no_way_to_admit() {
    let ca = Authority::new("a").der();
    let bundle = [ca.clone(), Authority::new("b").der()];
    let judge = |mode, identity: &str, pins: &[PeerPin], files: &[CertificateDer<'static>]| {
        let management = Management {
            peer_pins: pins.to_vec(),
            ..management(mode, identity, 0)
        };
        resolve(&management, &[files]).map(drop)
    };
    let (bad, good) = (PeerPin::Malformed, PeerPin::CertFile("pin.pem".into()));
    let no_pins = Err(vec!["insecure_mgmt_listener (no_mgmt_peer_pins)"]);
    let (none, some) = (&[bad.clone(), bad.clone()][..], &[bad, good][..]);
    let one = std::slice::from_ref(&ca);
    assert_eq!(judge(Pin, "", none, one), no_pins);
    assert_eq!(
        judge(Identity, "", none, one),
        no_pins,
        "they must match too"
    );
    assert_eq!(
        judge(IdentityOrPin, "", none, one),
        Ok(()),
        "the identity admits"
    );
    let neither = Err(vec![
        "insecure_mgmt_listener (no_mgmt_peer_pins_or_identity)",
    ]);
    assert_eq!(judge(IdentityOrPin, "", none, &bundle), neither);
    let over = Err(vec!["identity_over_ca_bundle"]);
    let identity = pki::server_identity(&ca);
    assert_eq!(judge(Identity, &identity, none, &bundle), over);
    for (mode, identity) in [(Pin, ""), (Identity, ""), (Identity, &*identity)] {
        assert_eq!(
            judge(mode, identity, some, one),
            Ok(()),
            "{mode}: the others work"
        );
    }
}

#[test]
fn boot_10_an_identity_over_a_bundle_is_refused_with_the_file() {
    let install = Install::new();
    let bundle = install.authority.pem() + &Authority::new("b").pem();
    install.directory.write("default-ca.pem", bundle);
    let keys = install
        .tls()
        .lines()
        .map(|line| format!("tls.{line}\n"))
        .collect::<String>();
    let identity = pki::server_identity(b"x");
    let text = with(&format!(
        "[management]\npeer_auth_mode = \"identity\"\npeer_identity = \"{identity}\"\n"
    ));
    let text = text.replace(
        "name = \"management\"\n",
        &format!("name = \"management\"\n{keys}"),
    );
    assert_eq!(terms(&text), ["identity_over_ca_bundle"]);
}
