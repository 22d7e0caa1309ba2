//! A certificate authority for tests, and a directory to put its work in.
//!
//! Responsible for the certificates of an install as its server issues them: its own with the
//! identity of the server, the gateway's without any, an agent's with the agent's; and for every
//! kind that is to be refused. Must never leave a file behind.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, PublicKeyData,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A CA.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    serial: AtomicU64,
}

/// A certificate with its key, as PEM text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// Upper-case hex SHA-256 of its public key.
    pub pin: String,
    /// Its serial in hex.
    pub serial: String,
}

/// What a certificate holds.
#[derive(Debug, Clone)]
pub struct Wish {
    names: Vec<String>,
    uri: Option<String>,
    purposes: Vec<ExtendedKeyUsagePurpose>,
    common_name: String,
    until: i32,
}

impl Wish {
    /// For whoever serves and calls: both purposes, the names `localhost` and 127.0.0.1.
    pub fn host(common_name: &str) -> Self {
        Self {
            names: vec!["localhost".into(), "127.0.0.1".into()],
            uri: None,
            purposes: vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ],
            common_name: common_name.into(),
            until: 2100,
        }
    }

    /// With another host name instead.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.names = vec![name.into()];
        self
    }

    /// With a URI name.
    #[must_use]
    pub fn uri(mut self, uri: &str) -> Self {
        self.uri = Some(uri.into());
        self
    }

    /// For clients alone.
    #[must_use]
    pub fn client_only(mut self) -> Self {
        self.purposes = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self
    }

    /// For servers alone.
    #[must_use]
    pub fn server_only(mut self) -> Self {
        self.purposes = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self
    }

    /// Without a word about its purpose.
    #[must_use]
    pub fn without_purpose(mut self) -> Self {
        self.purposes = Vec::new();
        self
    }

    /// Ended with the year 2021.
    #[must_use]
    pub fn expired(mut self) -> Self {
        self.until = 2022;
        self
    }
}

/// A new key.
///
/// # Panics
/// When the system gives no random bytes.
pub fn new_key() -> KeyPair {
    KeyPair::generate().expect("a key")
}

impl Authority {
    /// A CA with a key of its own.
    ///
    /// # Panics
    /// When the system gives no random bytes.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, new_key());
        Self {
            issuer: issuer.expect("a CA"),
            serial: AtomicU64::new(0x0A1B_2C00),
        }
    }

    /// Its certificate.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// The install id: upper-case hex SHA-256 of its certificate.
    pub fn install(&self) -> String {
        sha256(self.issuer.der())
    }

    /// The identity of the server of this install.
    pub fn server_identity(&self) -> String {
        format!("yuzu://{}/server", self.install())
    }

    /// The server's certificate, with its identity.
    pub fn server(&self) -> Leaf {
        self.issue(Wish::host("yuzu-server").uri(&self.server_identity()))
    }

    /// The gateway's own certificate.
    pub fn gateway(&self) -> Leaf {
        self.issue(Wish::host("yuzu-gateway"))
    }

    /// An agent's certificate.
    pub fn agent(&self, id: &str) -> Leaf {
        let uri = format!("yuzu://{}/agent/{id}", self.install());
        self.issue(Wish::host(id).client_only().uri(&uri))
    }

    /// A certificate over a new key.
    pub fn issue(&self, wish: Wish) -> Leaf {
        self.issue_over(wish, &new_key())
    }

    /// A certificate over this key.
    ///
    /// # Panics
    /// When the wish can not be put into a certificate.
    pub fn issue_over(&self, wish: Wish, key: &KeyPair) -> Leaf {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let params = params(wish, serial);
        let certificate = params.signed_by(key, &self.issuer).expect("a certificate");
        leaf(certificate.pem(), key, serial)
    }

    /// A certificate that signed itself and says it is what `wish` says.
    ///
    /// # Panics
    /// As [`Authority::issue_over`].
    pub fn self_signed(wish: Wish) -> Leaf {
        let key = new_key();
        let certificate = params(wish, 1).self_signed(&key).expect("a certificate");
        leaf(certificate.pem(), &key, 1)
    }

    /// A revocation list with these certificates on it.
    ///
    /// # Panics
    /// When one of them has no serial that can be read.
    pub fn revoke(&self, leaves: &[&Leaf]) -> String {
        let revoked = leaves.iter().map(|leaf| RevokedCertParams {
            serial_number: u64::from_str_radix(&leaf.serial, 16)
                .expect("hex digits")
                .into(),
            revocation_time: date_time_ymd(2021, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2021, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).expect("a list");
        list.pem().expect("PEM")
    }
}

fn params(wish: Wish, serial: u64) -> CertificateParams {
    let mut params = CertificateParams::new(wish.names).expect("host names");
    let uri = wish
        .uri
        .map(|uri| SanType::URI(uri.try_into().expect("an ASCII URI")));
    params.subject_alt_names.extend(uri);
    params
        .distinguished_name
        .push(DnType::CommonName, wish.common_name);
    params.extended_key_usages = wish.purposes;
    params.serial_number = Some(serial.into());
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(wish.until, 1, 1);
    params
}

fn leaf(certificate: String, key: &KeyPair, serial: u64) -> Leaf {
    Leaf {
        certificate,
        key: key.serialize_pem(),
        pin: sha256(&key.subject_public_key_info()),
        serial: format!("{serial:X}"),
    }
}

fn sha256(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in ring::digest::digest(&ring::digest::SHA256, bytes).as_ref() {
        write!(text, "{byte:02X}").expect("a string takes it all");
    }
    text
}

/// What a server serves TLS with that has this certificate; with `clients`, the PEM text of their
/// CA, a client needs a certificate of theirs.
///
/// # Panics
/// When the certificates can not be served.
pub fn server_config(own: &Leaf, clients: Option<&str>) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificates = |pem: &str| -> Vec<CertificateDer<'static>> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
        found.expect("PEM")
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions");
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem) {
                roots.add(certificate).expect("a CA");
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
        }
    };
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("a key");
    let mut config = builder
        .with_single_cert(certificates(&own.certificate), key)
        .expect("a certificate with its key");
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

/// A directory of its own, gone with this value.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// An empty one.
    ///
    /// # Panics
    /// When the temporary directory can not be written.
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("yuzu-certs-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    /// The path of a file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file, in one step for whoever reads it.
    ///
    /// # Panics
    /// When it can not be written.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let (fresh, path) = (self.path(&format!("{name}.new")), self.path(name));
        std::fs::write(&fresh, text).expect("a file");
        std::fs::rename(&fresh, &path).expect("a file");
        path
    }

    /// Writes `<name>.pem` and `<name>.key`.
    pub fn write_leaf(&self, name: &str, leaf: &Leaf) -> (PathBuf, PathBuf) {
        (
            self.write(&format!("{name}.pem"), &leaf.certificate),
            self.write(&format!("{name}.key"), &leaf.key),
        )
    }
}

impl AsRef<Path> for Directory {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left behind is small and in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
