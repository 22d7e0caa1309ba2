//! A certificate authority for unit tests, and files to put its work in.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType,
    SerialNumber, date_time_ymd,
};
use rustls::pki_types::CertificateDer;

/// A CA.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate that it issued, with its key.
pub(crate) struct Leaf {
    pub(crate) certificate: String,
    pub(crate) key: String,
    pub(crate) der: CertificateDer<'static>,
}

/// What a certificate is to hold.
#[derive(Clone)]
pub(crate) struct Wish {
    pub(crate) names: Vec<String>,
    pub(crate) uris: Vec<String>,
    pub(crate) purposes: Vec<ExtendedKeyUsagePurpose>,
    pub(crate) serial: Vec<u8>,
    /// The year at whose begin it ends.
    pub(crate) until: i32,
}

pub(crate) const SERVER: ExtendedKeyUsagePurpose = ExtendedKeyUsagePurpose::ServerAuth;
pub(crate) const CLIENT: ExtendedKeyUsagePurpose = ExtendedKeyUsagePurpose::ClientAuth;

impl Default for Wish {
    fn default() -> Self {
        Self {
            names: vec!["localhost".into()],
            uris: Vec::new(),
            purposes: vec![SERVER, CLIENT],
            serial: vec![7],
            until: 2100,
        }
    }
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_after = date_time_ymd(2101, 1, 1);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    pub(crate) fn issue(&self, wish: Wish) -> Leaf {
        self.issue_over(wish, &KeyPair::generate().unwrap())
    }

    pub(crate) fn issue_over(&self, wish: Wish, key: &KeyPair) -> Leaf {
        let mut params = CertificateParams::new(wish.names).unwrap();
        let uris = wish
            .uris
            .iter()
            .map(|uri| SanType::URI(uri.as_str().try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        params.extended_key_usages = wish.purposes;
        params.serial_number = Some(SerialNumber::from_slice(&wish.serial));
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(wish.until, 1, 1);
        let certificate = params.signed_by(key, &self.0).unwrap();
        Leaf {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            der: certificate.der().clone(),
        }
    }

    pub(crate) fn revoke(&self, serial: &[u8]) -> String {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from_slice(serial),
            revocation_time: date_time_ymd(2021, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2021, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).unwrap().pem().unwrap()
    }
}

/// A certificate, as PEM, whose end has a form that RFC 5280 does not allow: the month 13.
pub(crate) fn with_unreadable_end(authority: &Authority) -> String {
    let until = 2030;
    let leaf = authority.issue(Wish {
        until,
        ..Wish::default()
    });
    let (mut der, end) = (leaf.der.to_vec(), b"300101000000Z");
    let at = der.windows(end.len()).position(|window| window == end);
    let month = at.unwrap() + 2;
    der[month..month + 2].copy_from_slice(b"13");
    let text = base64(&der);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().chain([&0; 2]).take(3);
        let group = group.fold(0, |group: u32, byte| group << 8 | u32::from(*byte));
        for digit in 0..4 {
            let index = group >> (18 - 6 * digit) & 63;
            let padding = digit > chunk.len();
            text.push(if padding {
                '='
            } else {
                DIGITS[index as usize].into()
            });
        }
    }
    text
}

/// A directory of its own, gone with this value.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("yuzu-pki-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left behind is small and in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
