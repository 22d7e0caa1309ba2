//! Names of TLS alerts as metric labels.
//!
//! Responsible for a closed set of names. Must never be asked who sent the alert.

use rustls::{AlertDescription, Error};

/// The name of the alert that an error was told or is told by; `other` when there is none.
pub(crate) fn alert_name(error: &Error) -> &'static str {
    match error {
        Error::AlertReceived(alert) => name(*alert),
        Error::InvalidCertificate(fault) => name(AlertDescription::from(fault.clone())),
        Error::NoCertificatesPresented => "certificate_required",
        Error::NoApplicationProtocol => "no_application_protocol",
        Error::PeerIncompatible(_) => "handshake_failure",
        Error::InvalidMessage(_) => "decode_error",
        Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
            "unexpected_message"
        }
        Error::DecryptError => "bad_record_mac",
        Error::PeerMisbehaved(_) => "illegal_parameter",
        _ => "other",
    }
}

fn name(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::CloseNotify => "close_notify",
        AlertDescription::UnexpectedMessage => "unexpected_message",
        AlertDescription::BadRecordMac => "bad_record_mac",
        AlertDescription::RecordOverflow => "record_overflow",
        AlertDescription::HandshakeFailure => "handshake_failure",
        AlertDescription::BadCertificate => "bad_certificate",
        AlertDescription::UnsupportedCertificate => "unsupported_certificate",
        AlertDescription::CertificateRevoked => "certificate_revoked",
        AlertDescription::CertificateExpired => "certificate_expired",
        AlertDescription::CertificateUnknown => "certificate_unknown",
        AlertDescription::IllegalParameter => "illegal_parameter",
        AlertDescription::UnknownCA => "unknown_ca",
        AlertDescription::AccessDenied => "access_denied",
        AlertDescription::DecodeError => "decode_error",
        AlertDescription::DecryptError => "decrypt_error",
        AlertDescription::ProtocolVersion => "protocol_version",
        AlertDescription::InsufficientSecurity => "insufficient_security",
        AlertDescription::InternalError => "internal_error",
        AlertDescription::UserCanceled => "user_canceled",
        AlertDescription::MissingExtension => "missing_extension",
        AlertDescription::UnsupportedExtension => "unsupported_extension",
        AlertDescription::UnrecognisedName => "unrecognized_name",
        AlertDescription::CertificateRequired => "certificate_required",
        AlertDescription::NoApplicationProtocol => "no_application_protocol",
        _ => "other",
    }
}
