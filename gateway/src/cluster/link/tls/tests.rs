use std::time::Duration;

use rustls::pki_types::ServerName;

use super::*;

fn why(error: Error) -> String {
    let fault = failed(&io::Error::other(error));
    assert_eq!(fault.failure, Failure::Tls);
    fault.why
}

fn at(hour: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(hour * 3_600))
}

#[test]
fn mesh_2_a_peer_s_certificate_is_judged_in_words_that_say_what_to_do() {
    let expired = CertificateError::ExpiredContext {
        time: at(1_026),
        not_after: at(1_000),
    };
    let early = CertificateError::NotValidYetContext {
        time: at(1_000),
        not_before: at(1_002),
    };
    let name = CertificateError::NotValidForNameContext {
        expected: ServerName::try_from("gw-2.internal").expect("a name"),
        presented: vec!["gw-1.internal".into(), "evil\n2026 WARN".into()],
    };
    for (fault, words) in [
        (expired, "expired 26 h ago"),
        (early, "not valid for another 2 h: do the clocks agree?"),
        (
            CertificateError::UnknownIssuer,
            "not in cluster.tls.ca_file",
        ),
        (
            name.clone(),
            "does not name gw-2.internal, but gw-1.internal, evil?2026 WARN",
        ),
        (name, "cluster.tls.server_name"),
        (CertificateError::InvalidPurpose, "serverAuth"),
    ] {
        let told = why(Error::InvalidCertificate(fault));
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn mesh_2_what_a_peer_finds_wrong_with_this_node_is_told_as_such() {
    for (alert, words) in [
        (
            AlertDescription::CertificateRequired,
            "set cluster.tls.cert_file and key_file",
        ),
        (
            AlertDescription::UnknownCA,
            "its issuer is not in listener.tls.ca_file there",
        ),
        (
            AlertDescription::CertificateExpired,
            "cluster.tls.cert_file: it has expired",
        ),
        (
            AlertDescription::DecodeError,
            "broke the handshake off (DecodeError)",
        ),
    ] {
        let told = why(Error::AlertReceived(alert));
        assert!(told.contains(words), "{told}");
    }
    // After the handshake there is its text alone.
    let required = Error::AlertReceived(AlertDescription::CertificateRequired);
    let fault = told(&required.to_string()).expect("an alert");
    assert!(
        fault.why.contains("it requires a certificate"),
        "{}",
        fault.why
    );
    assert_eq!(told("broken pipe"), None);
}

#[test]
fn mesh_2_a_peer_without_tls_and_one_that_goes_away_are_told_apart() {
    let plain = why(Error::InvalidMessage(InvalidMessage::InvalidContentType));
    assert!(plain.contains("does not speak TLS"), "{plain}");
    let gone = failed(&io::ErrorKind::UnexpectedEof.into());
    assert!(gone.why.contains("ended the connection"), "{}", gone.why);
    let broken = failed(&io::ErrorKind::ConnectionReset.into());
    assert!(broken.why.contains("connection reset"), "{}", broken.why);
}
