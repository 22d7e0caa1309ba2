//! Why TLS with a peer failed, in words that an operator can act on (MESH-2).
//!
//! Responsible for naming the side, the file or key, and the cure. Pure. Must never hold a key, nor
//! more of what a peer sent than the names of its certificate, cut to fit a line.

use std::error::Error as _;
use std::io;

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

use super::failure::{Failure, Fault};
use crate::observe::log::safe_text;

/// What a peer may say of this node's certificate.
const ALERTS: [AlertDescription; 9] = [
    AlertDescription::CertificateRequired,
    AlertDescription::UnknownCA,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateRevoked,
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateUnknown,
    AlertDescription::AccessDenied,
    AlertDescription::DecryptError,
];

/// The handshake, as the side that dialled sees it.
pub(super) fn failed(error: &io::Error) -> Fault {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    let why = match cause {
        Some(error) => words(error),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it ended the connection during the handshake".to_owned()
        }
        None => format!(
            "the connection broke during the handshake: {}",
            error.kind()
        ),
    };
    Failure::Tls.because(why)
}

/// A connection that ended, if the peer's word on the handshake ended it: it judges a certificate when
/// this side is through already.
pub(super) fn ended(error: &hyper::Error) -> Option<Fault> {
    let cause = error.source()?.downcast_ref::<io::Error>()?;
    told(&cause.to_string())
}

/// HTTP/2 keeps the text of an error alone.
fn told(text: &str) -> Option<Fault> {
    let mut alerts = ALERTS.into_iter();
    let alert = alerts.find(|alert| text == Error::AlertReceived(*alert).to_string())?;
    Some(Failure::Tls.because(of_alert(alert)))
}

fn words(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(fault) => of_certificate(fault),
        Error::AlertReceived(alert) => of_alert(*alert),
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) => "it does not speak TLS: has its node listener `tls`?".to_owned(),
        Error::PeerIncompatible(_) => "it does not speak TLS 1.3 as this node does".to_owned(),
        Error::NoApplicationProtocol => "it does not offer HTTP/2: is it a gateway?".to_owned(),
        other => safe_text(&other.to_string()).to_string(),
    }
}

fn of_certificate(fault: &CertificateError) -> String {
    match fault {
        CertificateError::Expired => "its certificate has expired: renew it there".to_owned(),
        CertificateError::ExpiredContext { time, not_after } => {
            let ago = hours(*not_after, *time);
            format!("its certificate expired {ago} h ago: renew it there")
        }
        CertificateError::NotValidYet => {
            "its certificate is not valid yet: do the clocks agree?".to_owned()
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            let ahead = hours(*time, *not_before);
            format!("its certificate is not valid for another {ahead} h: do the clocks agree?")
        }
        // A bad signature is that of another CA with the name of ours.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate is from an issuer that is not in cluster.tls.ca_file".to_owned()
        }
        CertificateError::NotValidForName => {
            "its certificate does not name the address that was dialled: add it there, or set \
             cluster.tls.server_name"
                .to_owned()
        }
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => format!(
            "its certificate does not name {}, but {}: add it there, or set cluster.tls.server_name",
            safe_text(&*expected.to_str()),
            safe_text(&presented.join(", "))
        ),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is not meant for servers (extendedKeyUsage serverAuth)".to_owned()
        }
        CertificateError::Revoked => "its certificate was revoked".to_owned(),
        other => format!("its certificate: {}", safe_text(&other.to_string())),
    }
}

fn of_alert(alert: AlertDescription) -> String {
    let own = "the certificate of this node, cluster.tls.cert_file";
    match alert {
        AlertDescription::CertificateRequired => {
            "it requires a certificate of this node: set cluster.tls.cert_file and key_file"
                .to_owned()
        }
        AlertDescription::UnknownCA => {
            format!("it refuses {own}: its issuer is not in listener.tls.ca_file there")
        }
        AlertDescription::CertificateExpired => {
            format!("it refuses {own}: it has expired there, or the clocks differ")
        }
        AlertDescription::CertificateRevoked => format!("it refuses {own}: it was revoked there"),
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied
        | AlertDescription::DecryptError => format!("it refuses {own} ({alert:?})"),
        AlertDescription::ProtocolVersion | AlertDescription::HandshakeFailure => {
            format!("it has no TLS 1.3 in common with this node ({alert:?})")
        }
        other => format!("it broke the handshake off ({other:?})"),
    }
}

fn hours(from: UnixTime, to: UnixTime) -> u64 {
    to.as_secs().saturating_sub(from.as_secs()) / 3_600
}

#[cfg(test)]
mod tests;
