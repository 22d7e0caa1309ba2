//! What the gateway wants to know of one certificate.
//!
//! Responsible for the peer's names, key and purposes, and for the end of a file's validity.
//! Must never verify a chain: that is done by the handshake. Key, serial and names are read by the
//! parser that verifies chains, so that the two can't read one certificate in two ways.

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use webpki::EndEntityCert;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use super::names::{KeyPin, Serial};

/// The facts about a peer that its authorization asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerCertificate {
    /// Its key.
    pub(crate) key: KeyPin,
    /// `None` when it is negative or empty.
    pub(crate) serial: Option<Serial>,
    /// Its URI subject alternative names, byte for byte.
    pub(crate) uris: Vec<String>,
    /// Whether serverAuth is among its extended key usages; without that extension it is not.
    pub(crate) server_auth: bool,
    /// The content of its issuer's name.
    pub(crate) issuer: Vec<u8>,
    /// The content of its serial, as revocation lists are asked for it.
    pub(crate) raw_serial: Vec<u8>,
}

/// Bytes that are no X.509 v3 certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a certificate that can be read")]
pub(crate) struct BadCertificate;

impl PeerCertificate {
    pub(crate) fn parse(der: &CertificateDer<'_>) -> Result<Self, BadCertificate> {
        let certificate = EndEntityCert::try_from(der).map_err(|_| BadCertificate)?;
        Ok(Self {
            key: KeyPin::of(&certificate.subject_public_key_info()),
            serial: Serial::of_der(certificate.serial()),
            uris: certificate.valid_uri_names().map(str::to_owned).collect(),
            server_auth: has_server_auth(der)?,
            issuer: certificate.issuer().to_vec(),
            raw_serial: certificate.serial().to_vec(),
        })
    }
}

fn has_server_auth(der: &[u8]) -> Result<bool, BadCertificate> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|_| BadCertificate)?;
    let usage = certificate
        .extended_key_usage()
        .map_err(|_| BadCertificate)?;
    Ok(usage.is_some_and(|usage| usage.value.server_auth))
}

/// The key of a certificate, also of one whose dates can't be read (CERT-5).
pub(crate) fn key_pin(der: &CertificateDer<'_>) -> Result<KeyPin, BadCertificate> {
    let certificate = EndEntityCert::try_from(der).map_err(|_| BadCertificate)?;
    Ok(KeyPin::of(&certificate.subject_public_key_info()))
}

/// The earliest end of validity in Unix seconds; `None` when one of them can't be read (CERT-5).
pub(crate) fn earliest_end(certificates: &[CertificateDer<'_>]) -> Option<i64> {
    let ends = certificates.iter().map(|der| {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        Some(certificate.validity().not_after.timestamp())
    });
    ends.collect::<Option<Vec<_>>>()?.into_iter().min()
}

/// When the first of these lists is due to be replaced, in Unix seconds; `None` when one of them
/// does not say.
pub(crate) fn earliest_update(lists: &[CertificateRevocationListDer<'_>]) -> Option<i64> {
    let updates = lists.iter().map(|der| {
        let (_, list) = CertificateRevocationList::from_der(der).ok()?;
        Some(list.next_update()?.timestamp())
    });
    updates.collect::<Option<Vec<_>>>()?.into_iter().min()
}
