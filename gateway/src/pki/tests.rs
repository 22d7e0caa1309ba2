//! Tests of the room: files and their faults, facts about certificates, names.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use proptest::prelude::*;
use rcgen::KeyPair;
use rustls::pki_types::CertificateDer;

use super::testing::{Authority, CLIENT, Directory, SERVER, Wish};
use super::*;

#[test]
fn upch_4_a_file_s_fault_is_told_in_plain_words() {
    let directory = Directory::new();
    let fault = |path: &std::path::Path| file::read(path).unwrap_err().to_string();
    assert_eq!(fault(&directory.path("none")), "does not exist (yet)");
    assert_eq!(fault(&directory.path("")), "is a directory, not a file");
    assert_eq!(fault(&directory.write("empty", "")), "is empty");
    let beyond = directory.write("file", "x").join("beyond");
    assert_eq!(fault(&beyond), "cannot be read (enotdir)");
    let socket = directory.path("socket");
    let _listening = UnixListener::bind(&socket).unwrap();
    assert_eq!(fault(&socket), "is not a regular file");
    let secret = directory.write("secret", "x");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o000)).unwrap();
    // root reads it nevertheless
    if let Err(fault) = file::read(&secret) {
        assert_eq!(fault.to_string(), "cannot be read (permission denied)");
    }
}

#[test]
fn upch_5_a_file_is_looked_at_up_to_4_mib() {
    let directory = Directory::new();
    let at = |bytes: usize| file::read(&directory.write("large", vec![b'\n'; bytes]));
    assert_eq!(at(4 << 20).unwrap().len(), 4 << 20);
    assert_eq!(at((4 << 20) + 1), Err(FileFault::TooLarge));
}

#[test]
fn upch_4_what_a_pem_file_lacks_is_told() {
    let leaf = Authority::new("ca").issue(Wish::default());
    assert_eq!(
        certificates(leaf.key.as_bytes()),
        Err(FileFault::NoCertificate)
    );
    assert_eq!(
        file::private_key(leaf.certificate.as_bytes()).unwrap_err(),
        FileFault::NoKey
    );
    assert_eq!(certificates(b"nothing"), Err(FileFault::NoCertificate));
    let half = &leaf.certificate[..leaf.certificate.len() / 2];
    assert_eq!(certificates(half.as_bytes()), Err(FileFault::Damaged));
    let both = format!("{}{}", leaf.key, leaf.certificate);
    assert_eq!(certificates(both.as_bytes()).unwrap(), [leaf.der]);
}

struct Files {
    directory: Directory,
    lists: Vec<std::path::PathBuf>,
}

impl Files {
    fn of(authority: &Authority) -> Self {
        let directory = Directory::new();
        let leaf = authority.issue(Wish::default());
        directory.write("cert.pem", leaf.certificate);
        directory.write("key.pem", leaf.key);
        directory.write("ca.pem", authority.pem());
        let lists = vec![directory.write("crl.pem", authority.revoke(&[9]))];
        Self { directory, lists }
    }

    fn judge(&self) -> Result<Credentials, Vec<String>> {
        let path = |name| self.directory.path(name);
        let (certificate, key, authorities) = (path("cert.pem"), path("key.pem"), path("ca.pem"));
        let paths = Paths {
            certificate: &certificate,
            key: &key,
            authorities: &authorities,
            revocation_lists: &self.lists,
            single_authority: false,
        };
        let judged = Credentials::of(paths, &Snapshot::read(paths.iter()));
        judged.map_err(|faults| faults.iter().map(ToString::to_string).collect())
    }
}

#[test]
fn boot_24_sound_files_make_credentials() {
    let authority = Authority::new("ca");
    let credentials = Files::of(&authority).judge().unwrap();
    assert_eq!(credentials.authorities, [authority.der()]);
    assert_eq!(credentials.revocation_lists.len(), 1);
    assert!(credentials.revoked[0].find_serial(&[9]).unwrap().is_some());
}

#[test]
fn boot_24_every_fault_of_the_files_is_told_at_once() {
    let authority = Authority::new("ca");
    let files = Files::of(&authority);
    files.directory.write("cert.pem", "");
    std::fs::remove_file(files.directory.path("key.pem")).unwrap();
    files.directory.write("ca.pem", "text");
    files.directory.write("crl.pem", authority.pem());
    assert_eq!(
        files.judge().unwrap_err(),
        [
            "cert_file names a file that is empty",
            "key_file names a file that does not exist (yet)",
            "ca_file names a file that contains no PEM certificate",
            "crl_files[0] names a file that contains no PEM revocation list",
        ]
    );
}

#[test]
fn boot_24_a_key_of_another_certificate_is_told() {
    let authority = Authority::new("ca");
    let files = Files::of(&authority);
    let other = authority.issue(Wish::default());
    files.directory.write("key.pem", other.key);
    assert_eq!(
        files.judge().unwrap_err(),
        ["key_file names a key that does not belong to the certificate of cert_file"]
    );
}

#[test]
fn boot_24_pem_blocks_that_hold_no_der_are_told() {
    let authority = Authority::new("ca");
    let files = Files::of(&authority);
    let block = |what: &str| format!("-----BEGIN {what}-----\nAAAA\n-----END {what}-----\n");
    files.directory.write("ca.pem", block("CERTIFICATE"));
    files.directory.write("crl.pem", block("X509 CRL"));
    files.directory.write("key.pem", block("PRIVATE KEY"));
    assert_eq!(
        files.judge().unwrap_err(),
        [
            "key_file names a file that contains a private key of a kind that is not supported",
            "ca_file names a file that contains a PEM block that is damaged",
            "crl_files[0] names a file that contains a PEM block that is damaged",
        ]
    );
}

#[test]
fn cert_1_a_snapshot_s_digest_follows_contents_and_faults() {
    let directory = Directory::new();
    let (a, b) = (directory.write("a", "1"), directory.write("b", "2"));
    let digest = || {
        let paths = || [a.as_path(), b.as_path()];
        Snapshot::read(paths()).digest(paths())
    };
    let first = digest();
    directory.write("a", "1");
    assert_eq!(digest(), first);
    directory.write("a", "3");
    let changed = digest();
    assert_ne!(changed, first);
    std::fs::remove_file(&a).unwrap();
    assert_ne!(digest(), changed);
}

fn facts(wish: Wish) -> PeerCertificate {
    PeerCertificate::parse(&Authority::new("ca").issue(wish).der).unwrap()
}

#[test]
fn mgmt_auth_1_the_purposes_of_a_certificate_are_read() {
    let purposes = |purposes: &[rcgen::ExtendedKeyUsagePurpose]| {
        let purposes = purposes.to_vec();
        facts(Wish {
            purposes,
            ..Wish::default()
        })
        .server_auth
    };
    assert!(purposes(&[SERVER]));
    assert!(purposes(&[CLIENT, SERVER]));
    assert!(!purposes(&[CLIENT]));
    assert!(!purposes(&[]));
}

#[test]
fn mgmt_auth_4_uri_names_are_read_as_they_stand() {
    let uris = vec!["yuzu://A/agent/x".to_owned(), "yuzu://a/SERVER".to_owned()];
    let peer = facts(Wish {
        uris: uris.clone(),
        ..Wish::default()
    });
    assert_eq!(peer.uris, uris);
    assert_eq!(facts(Wish::default()).uris, Vec::<String>::new());
}

#[test]
fn mgmt_auth_3_the_pin_is_the_digest_of_the_key() {
    let authority = Authority::new("ca");
    let key = KeyPair::generate().unwrap();
    let (one, other) = (
        authority.issue_over(Wish::default(), &key),
        authority.issue_over(
            Wish {
                serial: vec![8],
                ..Wish::default()
            },
            &key,
        ),
    );
    let pin = key_pin(&one.der).unwrap();
    assert_eq!(pin, key_pin(&other.der).unwrap());
    assert_eq!(pin, PeerCertificate::parse(&one.der).unwrap().key);
    assert_ne!(pin, key_pin(&authority.issue(Wish::default()).der).unwrap());
    let spki = rcgen::PublicKeyData::subject_public_key_info(&key);
    assert_eq!(pin, KeyPin::of(&spki));
}

#[test]
fn mgmt_auth_3_a_pin_is_64_hex_digits_of_either_case() {
    let upper = "AB".repeat(32);
    assert_eq!(KeyPin::parse(&upper), KeyPin::parse(&upper.to_lowercase()));
    assert_eq!(KeyPin::parse(&upper).unwrap().to_string(), upper);
    for bad in [
        "",
        "AB",
        &upper[1..],
        &format!("{upper}A"),
        &"G0".repeat(32),
    ] {
        assert_eq!(KeyPin::parse(bad), None, "{bad}");
    }
}

#[test]
fn mgmt_auth_10_serials_compare_as_numbers() {
    let parse = |text: &str| Serial::parse(text).unwrap();
    assert_eq!(parse("0a1b2c"), parse("A1B2C"));
    assert_eq!(parse("A1B2C").to_string(), "0A1B2C");
    assert_eq!(parse("0"), Serial::of_der(&[0]).unwrap());
    assert_eq!(parse("80"), Serial::of_der(&[0, 0x80]).unwrap());
    for unreadable in [&[][..], &[0x80]] {
        assert_eq!(Serial::of_der(unreadable), None, "{unreadable:?}");
    }
    let longest = "f".repeat(40);
    assert!(Serial::parse(&longest).is_some());
    for bad in ["", "0x1", "1:2", "g", " 1", &format!("{longest}f")] {
        assert_eq!(Serial::parse(bad), None, "{bad}");
    }
    assert_eq!(
        facts(Wish {
            serial: vec![0xA, 0x1B, 0x2C],
            ..Wish::default()
        })
        .serial,
        Some(parse("0A1B2C"))
    );
}

/// Worked out with `printf CA | sha256sum`.
const CA_DIGEST: &str = "4B650E5C4785025DEE7BD65E3C5C527356717D7A1C0BFEF5B4ADA8CA1E9CBE17";

#[test]
fn mgmt_auth_8_the_identity_is_the_upper_case_digest_of_the_ca() {
    let identity = server_identity(b"CA");
    assert_eq!(identity, format!("yuzu://{CA_DIGEST}/server"));
    assert!(is_server_identity(&identity));
    assert!(is_server_identity(&identity.to_lowercase()));
    for bad in [
        "",
        "yuzu:///server",
        &identity[1..],
        &identity.replace("server", "agent/x"),
        &identity.replace("yuzu", "Yuzu"),
        &format!("{identity} "),
    ] {
        assert!(!is_server_identity(bad), "{bad}");
    }
}

#[test]
fn cert_5_the_earliest_end_counts() {
    let authority = Authority::new("ca");
    let until = |until| {
        authority
            .issue(Wish {
                until,
                ..Wish::default()
            })
            .der
    };
    // date -u -d 2030-01-01 +%s
    assert_eq!(
        earliest_end(&[until(2040), until(2030), until(2050)]),
        Some(1_893_456_000)
    );
    assert_eq!(earliest_end(&[]), None);
}

#[test]
fn cert_5_an_end_that_cannot_be_read_leaves_the_key() {
    let authority = Authority::new("ca");
    let odd = certificates(testing::with_unreadable_end(&authority).as_bytes()).unwrap();
    assert_eq!(earliest_end(&odd), None);
    let sound = authority.issue(Wish::default()).der;
    assert_eq!(earliest_end(&[sound, odd[0].clone()]), None);
    key_pin(&odd[0]).expect("a key");
}

#[test]
fn log_3_a_fault_and_a_snapshot_show_no_byte_of_a_key() {
    let authority = Authority::new("ca");
    let files = Files::of(&authority);
    let shown = format!("{:?}", files.judge().unwrap());
    let key = std::fs::read_to_string(files.directory.path("key.pem")).unwrap();
    let secret = key.lines().nth(1).unwrap();
    assert!(!shown.contains(secret));
    let path = files.directory.path("key.pem");
    let snapshot = Snapshot::read([path.as_path()]);
    assert_eq!(format!("{snapshot:?}"), "Snapshot(1 files)");
}

proptest! {
    #[test]
    fn bytes_that_are_no_certificate_are_refused_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        let noise = CertificateDer::from(bytes);
        let _ = PeerCertificate::parse(&noise);
        let _ = earliest_end(std::slice::from_ref(&noise));
        let mut flipped = sample().to_vec();
        let at = at.index(flipped.len());
        flipped[at] = value;
        let flipped = CertificateDer::from(flipped);
        let _ = PeerCertificate::parse(&flipped);
        let _ = earliest_end(&[flipped]);
    }
}

fn sample() -> &'static CertificateDer<'static> {
    static SAMPLE: LazyLock<CertificateDer<'static>> = LazyLock::new(|| {
        let uris = vec!["yuzu://A/server".into()];
        Authority::new("ca")
            .issue(Wish {
                uris,
                ..Wish::default()
            })
            .der
    });
    &SAMPLE
}
