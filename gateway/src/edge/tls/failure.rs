//! How a peer's handshake failed, as a metric label.
//!
//! Responsible for the closed set of kinds (LSN-14). Must never carry what the peer sent.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

/// Why there is no TLS connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandshakeFailure {
    /// Not complete in time (LSN-3).
    Timeout,
    /// The peer went away.
    Closed,
    /// What came is not TLS, plaintext HTTP/2 most probably.
    NotTls,
    /// No version in common.
    ProtocolVersion,
    /// No cipher suite, group or signature in common.
    NothingInCommon,
    /// The peer does not speak HTTP/2.
    NoHttp2,
    /// A certificate is required and there is none.
    NoCertificate,
    /// A certificate of a CA that is not trusted here.
    UnknownCa,
    /// A certificate whose time is over, or has not come.
    Expired,
    /// A certificate on a revocation list, or one that no list speaks about.
    Revoked,
    /// Any other fault of the peer's certificate.
    BadCertificate,
    /// The peer does not take the gateway's certificate.
    RefusedByPeer,
    /// The peer broke off for another reason.
    PeerAlert,
    /// Anything else.
    Other,
}

/// Every value of the label `kind`.
pub(crate) const KINDS: [&str; 14] = [
    "timeout",
    "closed",
    "not_tls",
    "protocol_version",
    "handshake_failure",
    "no_application_protocol",
    "certificate_required",
    "unknown_ca",
    "certificate_expired",
    "certificate_revoked",
    "bad_certificate",
    "refused_by_peer",
    "peer_alert",
    "other",
];

impl HandshakeFailure {
    pub(super) fn kind(self) -> &'static str {
        KINDS[self as usize]
    }

    pub(super) fn of(error: &io::Error) -> Self {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
        match cause {
            Some(error) => Self::of_tls(error),
            None => match error.kind() {
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe => Self::Closed,
                _ => Self::Other,
            },
        }
    }

    fn of_tls(error: &Error) -> Self {
        match error {
            Error::InvalidMessage(
                InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
            ) => Self::NotTls,
            Error::PeerIncompatible(
                PeerIncompatible::Tls12NotOffered
                | PeerIncompatible::Tls12NotOfferedOrEnabled
                | PeerIncompatible::SupportedVersionsExtensionRequired,
            ) => Self::ProtocolVersion,
            Error::PeerIncompatible(_) => Self::NothingInCommon,
            Error::NoApplicationProtocol => Self::NoHttp2,
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::InvalidCertificate(fault) => Self::of_certificate(fault),
            Error::AlertReceived(alert) => Self::of_alert(*alert),
            _ => Self::Other,
        }
    }

    fn of_certificate(fault: &CertificateError) -> Self {
        match fault {
            CertificateError::UnknownRevocationStatus | CertificateError::Revoked => Self::Revoked,
            // A bad signature is that of another CA with the name of ours.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownCa,
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => Self::Expired,
            _ => Self::BadCertificate,
        }
    }

    fn of_alert(alert: AlertDescription) -> Self {
        match alert {
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown => Self::RefusedByPeer,
            _ => Self::PeerAlert,
        }
    }
}
