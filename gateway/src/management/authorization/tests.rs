//! The judgement and the pins, with certificates as a CA issues them.

use rcgen::ExtendedKeyUsagePurpose;

use super::policy::{Method, REASONS};
use super::*;
use crate::config::{Config, KeyPin, Management, PeerAuthMode, PeerPin, Serial};
use crate::pki::testing::{Authority, CLIENT, Leaf, SERVER, Wish};
use crate::pki::{self, BadCertificate, FileFault, PeerCertificate};

use PeerAuthMode::{Identity, IdentityOrPin, Pin};

const INSTALL: &str = "yuzu://AA/server";

fn peer(uris: &[&str], purposes: &[ExtendedKeyUsagePurpose]) -> PeerCertificate {
    let leaf = Authority::new("ca").issue(Wish {
        uris: uris.iter().map(|&uri| uri.to_owned()).collect(),
        purposes: purposes.to_vec(),
        ..Wish::default()
    });
    PeerCertificate::parse(&leaf.der).unwrap()
}

fn server() -> PeerCertificate {
    peer(&[INSTALL], &[SERVER, CLIENT])
}

fn policy(mode: PeerAuthMode, identity: Option<&str>, denied: &[&str]) -> Policy {
    let management = Management {
        peer_auth_mode: mode,
        peer_denied: denied
            .iter()
            .map(|text| Serial::parse(text).unwrap())
            .collect(),
        ..Config::default().management
    };
    Policy::new(&management, identity.map(str::to_owned))
}

fn pinned(pins: &[Option<KeyPin>]) -> PinnedKeys {
    PinnedKeys::new(pins.to_vec())
}

fn other_key() -> Option<KeyPin> {
    Some(KeyPin::parse(&"00".repeat(32)).unwrap())
}

#[test]
fn mgmt_auth_1_a_peer_without_a_certificate_that_can_be_read_is_refused_first() {
    let policy = policy(Pin, None, &[]);
    let pins = pinned(&[]);
    assert_eq!(policy.judge(&pins, None), Err(Reason::BadPeerCert));
    assert_eq!(
        policy.judge(&pins, Some(Err(BadCertificate))),
        Err(Reason::BadPeerCert)
    );
}

#[test]
fn mgmt_auth_1_the_purpose_is_asked_for_before_the_mode() {
    for purposes in [&[CLIENT][..], &[]] {
        let peer = peer(&[INSTALL], purposes);
        let pins = pinned(&[Some(peer.key)]);
        for mode in [Pin, Identity, IdentityOrPin] {
            let judged = policy(mode, Some(INSTALL), &["07"]).judge(&pins, Some(Ok(&peer)));
            assert_eq!(judged, Err(Reason::MissingServerAuthEku), "{mode}");
        }
    }
}

/// Identity in force, the peer's URIs, pins (`=` the peer's, `x` another's, `?` without a key),
/// outcome.
type Case = (
    Option<&'static str>,
    &'static [&'static str],
    &'static str,
    Result<Method, Reason>,
);

fn judge_all(mode: PeerAuthMode, cases: &[Case]) {
    for (identity, uris, pins, wanted) in cases {
        let peer = peer(uris, &[SERVER]);
        let key = |pin| match pin {
            '=' => Some(peer.key),
            'x' => other_key(),
            _ => None,
        };
        let keys: Vec<_> = pins.chars().map(key).collect();
        let judged = policy(mode, *identity, &[]).judge(&pinned(&keys), Some(Ok(&peer)));
        assert_eq!(judged, *wanted, "{mode} {identity:?} {uris:?} {pins:?}");
    }
}

const AGENT: &str = "yuzu://AA/agent/1";
const GIVEN: Option<&str> = Some(INSTALL);

#[test]
fn mgmt_auth_3_mode_pin_admits_a_pinned_key_and_nothing_else() {
    judge_all(
        Pin,
        &[
            (None, &[], "", Err(Reason::NoPinsConfigured)),
            (None, &[], "?", Err(Reason::NoPinsResolved)),
            (None, &[], "x", Err(Reason::PinMismatch)),
            (None, &[], "?x", Err(Reason::PinMismatch)),
            (None, &[], "?x=", Ok(Method::Pin)),
            (GIVEN, &[INSTALL], "x", Err(Reason::PinMismatch)),
        ],
    );
}

#[test]
fn mgmt_auth_4_mode_identity_compares_byte_for_byte_and_asks_the_pins_too() {
    let mismatch = Err(Reason::IdentityMismatch);
    judge_all(
        Identity,
        &[
            (None, &[INSTALL], "", Err(Reason::IdentityUnresolved)),
            (GIVEN, &[], "", Err(Reason::NoUriSan)),
            (GIVEN, &[AGENT], "", mismatch),
            (GIVEN, &["yuzu://aa/server"], "", mismatch),
            (GIVEN, &["yuzu://AA/server/"], "", mismatch),
            (GIVEN, &["yuzu://AA/serve"], "", mismatch),
            (GIVEN, &[AGENT, INSTALL], "", Ok(Method::Identity)),
            (GIVEN, &[INSTALL], "x", Err(Reason::PinMismatch)),
            (GIVEN, &[INSTALL], "?", Err(Reason::NoPinsResolved)),
            (GIVEN, &[INSTALL], "=", Ok(Method::Identity)),
            (GIVEN, &[], "=", Err(Reason::NoUriSan)),
        ],
    );
}

#[test]
fn mgmt_auth_5_mode_identity_or_pin_admits_by_either_and_tells_the_pin_s_reason() {
    judge_all(
        IdentityOrPin,
        &[
            (GIVEN, &[INSTALL], "x", Ok(Method::Identity)),
            (GIVEN, &[], "=", Ok(Method::Pin)),
            (None, &[], "=", Ok(Method::Pin)),
            (GIVEN, &[], "", Err(Reason::NoUriSan)),
            (GIVEN, &[AGENT], "", Err(Reason::IdentityMismatch)),
            (GIVEN, &[], "x", Err(Reason::PinMismatch)),
            (GIVEN, &[AGENT], "?", Err(Reason::NoPinsResolved)),
            (None, &[INSTALL], "x", Err(Reason::IdentityUnresolved)),
            (None, &[INSTALL], "", Err(Reason::IdentityUnresolved)),
        ],
    );
}

#[test]
fn mgmt_auth_10_a_denied_serial_is_refused_in_every_mode() {
    let peer = server();
    let pins = pinned(&[Some(peer.key)]);
    for mode in [Pin, Identity, IdentityOrPin] {
        let judge =
            |denied: &[&str]| policy(mode, Some(INSTALL), denied).judge(&pins, Some(Ok(&peer)));
        assert_eq!(judge(&["9", "007"]), Err(Reason::Revoked), "{mode}");
        judge(&["70", "8"]).unwrap();
    }
    let stranger = pinned(&[other_key()]);
    let judged = policy(Pin, None, &["7"]).judge(&stranger, Some(Ok(&peer)));
    assert_eq!(judged, Err(Reason::PinMismatch), "the mode is asked first");
}

#[test]
fn mgmt_auth_10_a_serial_that_can_not_be_read_is_refused_while_any_is_denied() {
    let peer = PeerCertificate {
        serial: None,
        ..server()
    };
    let pins = pinned(&[Some(peer.key)]);
    let judge = |denied: &[&str]| policy(Pin, None, denied).judge(&pins, Some(Ok(&peer)));
    assert_eq!(judge(&[]), Ok(Method::Pin));
    assert_eq!(judge(&["1"]), Err(Reason::Revoked));
}

#[test]
fn mgmt_auth_6_the_reasons_are_those_of_the_contract() {
    let mut reasons = REASONS;
    reasons.sort_unstable();
    let mut contract = [
        "internal_error",
        "no_pins_configured",
        "no_pins_resolved",
        "pin_mismatch",
        "missing_server_auth_eku",
        "bad_peer_cert",
        "bad_pin_config",
        "no_uri_san",
        "identity_mismatch",
        "identity_unresolved",
        "revoked",
    ];
    contract.sort_unstable();
    assert_eq!(reasons, contract);
    assert_eq!(Reason::Revoked.label(), "revoked");
    assert_eq!(Reason::NoPinsConfigured.label(), "no_pins_configured");
}

fn leaf() -> Leaf {
    Authority::new("ca").issue(Wish::default())
}

fn key(leaf: &Leaf) -> Option<KeyPin> {
    Some(pki::key_pin(&leaf.der).unwrap())
}

#[test]
fn cert_2_a_pin_follows_its_file() {
    let (old, new) = (leaf(), leaf());
    let digits = KeyPin::parse(&"AB".repeat(32)).unwrap();
    let mut pins = Pins::new(&[
        PeerPin::Spki(digits),
        PeerPin::CertFile("file".into()),
        PeerPin::Malformed,
    ]);
    assert_eq!(pins.keys(), pinned(&[Some(digits), None, None]));
    assert_eq!(pins.keys().unresolved(), 2);
    let pem = |text: &str| text.as_bytes().to_vec();
    let (first, second) = (pem(&old.certificate), pem(&new.certificate));
    assert_eq!(pins.look(|_| Ok(&first)), [PinChange::Resolved { pin: 1 }]);
    assert_eq!(pins.keys(), pinned(&[Some(digits), key(&old), None]));
    assert_eq!(pins.look(|_| Ok(&first)), []);
    assert_eq!(pins.look(|_| Ok(&second)), [PinChange::Rotated { pin: 1 }]);
    assert_eq!(pins.keys(), pinned(&[Some(digits), key(&new), None]));
}

#[test]
fn cert_3_a_file_that_can_not_be_read_any_more_keeps_its_last_key() {
    let good = leaf();
    let mut pins = Pins::new(&[PeerPin::CertFile("file".into())]);
    pins.look(|_| Ok(good.certificate.as_bytes()));
    let unreadable = |fault, kept| PinChange::Unreadable {
        pin: 0,
        fault,
        kept,
    };
    assert_eq!(
        pins.look(|_| Err(FileFault::Missing)),
        [unreadable(FileFault::Missing, true)]
    );
    assert_eq!(pins.look(|_| Err(FileFault::Missing)), [], "told once");
    assert_eq!(
        pins.look(|_| Ok(b"text")),
        [unreadable(FileFault::NoCertificate, true)]
    );
    let half = &good.certificate.as_bytes()[..100];
    assert_eq!(
        pins.look(|_| Ok(half)),
        [unreadable(FileFault::Damaged, true)]
    );
    assert_eq!(pins.keys(), pinned(&[key(&good)]));
    assert_eq!(
        pins.look(|_| Ok(good.certificate.as_bytes())),
        [],
        "the same key"
    );
}

#[test]
fn cert_4_a_file_that_was_never_readable_pins_nothing_until_it_is() {
    let good = leaf();
    let mut pins = Pins::new(&[PeerPin::CertFile("file".into())]);
    let fault = FileFault::Empty;
    let unreadable = PinChange::Unreadable {
        pin: 0,
        fault: fault.clone(),
        kept: false,
    };
    assert_eq!(pins.look(|_| Err(fault.clone())), [unreadable]);
    assert_eq!(pins.keys(), pinned(&[None]));
    let change = pins.look(|_| Ok(good.certificate.as_bytes()));
    assert_eq!(change, [PinChange::Resolved { pin: 0 }]);
}
